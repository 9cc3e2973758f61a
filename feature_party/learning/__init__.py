"""Learning from randomized labels: decoders, distributions over the grid, objectives."""
