"""Label randomizers that add noise: Laplace, staircase, discrete versions, exponential."""
