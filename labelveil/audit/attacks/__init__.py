"""The attacks, one a module: each gives a verdict."""
