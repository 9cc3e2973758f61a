"""Make sure that `common`, `label_party` and `feature_party` are this distribution's own.

Their names are plain, and Python takes the first match on its path: under ``python -m``, in a
notebook or with ``PYTHONPATH=.`` that may be anybody's ``common.py``. Nothing is imported to find
that out.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("common", "label_party", "feature_party")
HOME = Path(__file__).parents[1]


def check_own_packages() -> None:
    """Refuse to go on where a package of ours is hidden by another.

    Raises
    ------
    ImportError
        With one line: which file stands in the way, and what to do.
    """
    for name in PACKAGES:
        own = HOME / name / "__init__.py"
        if not own.exists():  # an image of one party leaves the other out
            continue
        if (found := _found(name)) is not None and not (found.exists() and found.samefile(own)):
            late = " and restart Python" if name in sys.modules else ""
            raise ImportError(
                f"{found} stands in the way of labelveil's own package {name!r}; rename it, or take"
                f" its folder off Python's path{late}: type the program's name instead of"
                " 'python -m', use 'python -P', unset PYTHONPATH"
            )


def _found(name: str) -> Path | None:
    """File, or folder without ``__init__.py``, that Python takes for a package."""
    spec = find_spec(name)
    if spec is None:
        return None
    return Path(spec.origin or next(iter(spec.submodule_search_locations or ()), name))
