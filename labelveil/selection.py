"""Private selection of the leading candidates: counts in, a set (or ⊥) and a guarantee out."""

from labelveil.lazy import lazily

__getattr__, __dir__ = lazily(__name__)
