"""Private synthetic tables: a model of a categorical table that answers many linear queries."""

from labelveil.lazy import lazily

__getattr__, __dir__ = lazily(__name__)
