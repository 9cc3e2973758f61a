"""Data sets that lie in a directory of Parquet files."""

from __future__ import annotations

from pathlib import Path

from common.errors import DataError

PARQUET_SUFFIXES = (".parquet", ".pq")


def directory_files(path: Path) -> list[Path]:
    """Return the Parquet files of a directory in the order of their names, which is their rows'.

    Raises
    ------
    DataError
        If there are none.
    """
    files = sorted(
        file
        for file in path.iterdir()
        if file.suffix.lower() in PARQUET_SUFFIXES and not file.name.startswith((".", "_"))
    )
    if not files:
        raise DataError(f"{path} has no Parquet files; name a file, or a directory of *.parquet")
    return files
