"""Attack a randomizer: ours, or anybody's black box."""
