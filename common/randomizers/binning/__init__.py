"""RR-on-bins, and the exact search for its bins."""
