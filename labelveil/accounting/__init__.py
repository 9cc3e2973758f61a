"""What compositions cost, shown: views of a composition, and noise shared among stages."""
