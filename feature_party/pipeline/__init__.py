"""The features party's work in stages; each command runs one or more of them."""
