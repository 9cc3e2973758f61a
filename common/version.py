"""Which version of this software runs."""

from __future__ import annotations

from importlib import metadata

try:
    __version__ = metadata.version("labelveil")
except metadata.PackageNotFoundError:
    __version__ = "unknown"
"""Number of the installed distribution; "unknown" if none is."""


def software() -> str:
    """Name and version of this software, as releases and the ledger record it."""
    return f"labelveil/{__version__}"
