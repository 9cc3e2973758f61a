"""Many private questions to one data set, of which only those that hit a target are charged."""

from labelveil.lazy import lazily

__getattr__, __dir__ = lazily(__name__)
