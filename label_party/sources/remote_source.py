"""Sources that are no files of this machine: what reading asks of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from labelveil.common.errors import ConfigError
from labelveil.common.files import file_errors, read_private
from labelveil.label_party.sources.anomalies import Anomalies


class RemoteSource:
    """A table that lies elsewhere: its rows as text, its lines of CSV, or else a scan."""

    failures: tuple[type[Exception], ...] = ()
    """What reading may raise besides what a file does."""
    reason = ""
    """Why it could not be read, in words that show nothing of it; empty where errors say so."""

    @property
    def columns(self) -> list[str] | None:
        """Names of its columns; None where lines or a scan tell."""
        return None

    def declared(self, column: str) -> tuple[str, bool] | None:
        """Type of a column, and whether it is one of whole numbers; None if none is declared."""
        return None

    def chunks(self, names: Sequence[str]) -> Iterator[tuple[pl.DataFrame, Anomalies]] | None:
        """Some columns of its rows as text, a part at a time; None where lines or a scan tell."""
        return None

    def lines(self) -> Iterator[bytes] | None:
        """The header's line, then the others, in UTF-8, many at a time; None if it is no CSV."""
        return None

    def scan(self) -> pl.LazyFrame:
        """What Polars makes of it, where neither rows nor lines tell."""
        raise TypeError(f"{self} is not scanned")


Source = Path | RemoteSource


def check_private(path: Path) -> None:
    """Refuse a credentials file that others can read.

    ``ConfigError`` if it is missing or its rights go beyond its owner's.
    """
    failed = f"credentials_file {path} cannot be read"
    with file_errors(ConfigError, failed, "; set [data] credentials_file"):
        read_private(path, "credentials_file")
