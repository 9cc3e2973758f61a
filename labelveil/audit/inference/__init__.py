"""Guess labels from the message and the model of a run."""
