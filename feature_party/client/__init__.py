"""Talking to the labels party: submit, fetch, ask."""
