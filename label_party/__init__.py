"""Read labels, randomize them once, serve the release: everything the labels party runs."""
