"""Matching features with releases, in memory or on disk."""
