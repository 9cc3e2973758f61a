"""Ridge regression on waves along columns, whose scales are learned from codes and noisy sums."""
