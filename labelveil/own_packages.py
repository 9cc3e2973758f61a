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
    """Raise ``ImportError``, in one line with a remedy, where another hides a package of ours."""
    for name in PACKAGES:
        own = HOME / name / "__init__.py"
        if not own.exists():  # an image of one party leaves the other out
            continue
        spec = find_spec(name)
        if spec is None:
            continue
        # a package's file, or its folder where it has no __init__.py
        taken = Path(spec.origin or next(iter(spec.submodule_search_locations or ()), name))
        if not (taken.exists() and taken.samefile(own)):
            late = " and restart Python" if name in sys.modules else ""
            raise ImportError(
                f"{taken} stands in the way of labelveil's own package {name!r}; rename it, or take"
                f" its folder off Python's path{late}: type the program's name instead of"
                " 'python -m', use 'python -P', unset PYTHONPATH"
            )
