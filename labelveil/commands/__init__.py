"""The commands of `labelveil`, one module each."""
