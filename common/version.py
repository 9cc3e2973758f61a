"""Which version of this software runs."""

from __future__ import annotations

from importlib import metadata


def _installed() -> str:
    try:
        return metadata.version("labelveil")
    except metadata.PackageNotFoundError:
        return "unknown"


__version__ = _installed()
"""Number of the installed distribution; "unknown" if none is."""


def software() -> str:
    """Name and version of this software, as releases and the ledger record it."""
    return f"labelveil/{__version__}"
