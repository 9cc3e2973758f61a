"""Canaries planted with a partner as a data set of its own, and what comes back."""
