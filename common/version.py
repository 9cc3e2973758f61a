"""Which version of this software runs."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Number of the installed distribution; "unknown" if none is."""
    try:
        return metadata.version("labelveil")
    except metadata.PackageNotFoundError:
        return "unknown"


def software() -> str:
    """Name and version of this software, as releases and the ledger record it."""
    return f"labelveil/{version()}"
