"""PATE: teachers on private shards vote, a student learns from their private answers."""

from labelveil.lazy import lazily

__getattr__, __dir__ = lazily(__name__)
