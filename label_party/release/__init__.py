"""Building the one message: prior, randomizer, drift, signature."""
