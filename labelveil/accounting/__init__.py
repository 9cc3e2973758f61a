"""What compositions cost: guarantees and how they compose; here too, how that is shown.

The names are those of the stub; the modules beside it are what ``labelveil accounting`` shows.
"""

from labelveil.lazy import lazily

__getattr__, __dir__ = lazily(__name__)
