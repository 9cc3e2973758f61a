"""Labels stay private: what a notebook imports, ``import labelveil as lv``.

Its names are those of ``__init__.pyi``, where editors and type checkers look for them. Each is
imported when it is first used, so that this import costs nothing and needs no torch. What belongs
to one subject lies in a module of its own: ``from labelveil.selection import StableTopK``.
"""

from labelveil.common.forks import watch_forks
from labelveil.lazy import lazily

watch_forks()
__getattr__, __dir__ = lazily(__name__)
