"""Channels designed for the model that will be trained on them."""
