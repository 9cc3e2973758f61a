"""Label randomizers, built by name, the private histogram, and what judges them."""

from labelveil.lazy import lazily

__getattr__, __dir__ = lazily(__name__)
