"""Unbiased randomizers: the linear program and its columns."""
