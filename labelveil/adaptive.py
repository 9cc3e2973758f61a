"""Adaptive data analysis: a holdout that survives questions, and how far answers generalize."""

from labelveil.lazy import lazily

__getattr__, __dir__ = lazily(__name__)
