"""What a source declares of its columns, for a configuration that is to be written."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from common.errors import DataError
from common.files import PARQUET_SUFFIXES, directory_files
from label_party.sources.foreign import Foreign, Source


def declared_type(source: Source, column: str) -> tuple[str, bool] | None:
    """Return the type that a source declares of a column, and whether it is one of whole numbers.

    None if it declares none: a CSV file does not, and what its cells look like is a matter of each
    single one. ``DataError`` if it cannot be read.
    """
    if isinstance(source, Foreign):
        return source.declared(column)
    if not source.is_dir() and source.suffix.lower() not in PARQUET_SUFFIXES:
        return None
    try:
        files = directory_files(source) if source.is_dir() else [source]
        kind = pl.scan_parquet(files).collect_schema().get(column)
    except (pl.exceptions.PolarsError, OSError):
        raise DataError(f"{source} cannot be read as Parquet") from None
    if kind is None:
        return None
    whole = kind.is_integer() or kind == pl.Boolean or getattr(kind, "scale", None) == 0
    return str(kind), whole


def select(columns: Sequence[str], table: str) -> str:
    """Return a query for columns of a table, which may be ``schema.table``."""

    def quoted(name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    place = ".".join(map(quoted, table.split(".")))
    return f"SELECT {', '.join(map(quoted, columns))} FROM {place}"
