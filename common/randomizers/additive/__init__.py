"""Label randomizers that add noise: Laplace, staircase, their discrete kin, exponential."""
