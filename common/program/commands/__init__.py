"""The commands of `label-dp`, one module each."""
