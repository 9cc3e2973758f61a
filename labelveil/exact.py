"""No rounding error: integer channels, exact discrete noise, exact private choices."""

from labelveil.lazy import lazily

__getattr__, __dir__ = lazily(__name__)
