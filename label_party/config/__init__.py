"""The configuration of the labels party, and the files that `init` writes."""
