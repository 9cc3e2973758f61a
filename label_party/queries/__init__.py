"""Other answers that the same budget pays for."""
