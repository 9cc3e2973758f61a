"""The command line `feature-party`."""
