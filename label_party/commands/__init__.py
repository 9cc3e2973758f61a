"""The command line `label-party`: a module a command, with what it prints."""
