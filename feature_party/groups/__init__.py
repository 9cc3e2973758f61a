"""Learning from noisy sums over groups of events, and asking for them."""
