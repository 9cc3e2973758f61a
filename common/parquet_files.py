"""Parquet as warehouses and lakes leave it: one file, or a folder of files that need not be alike.

Folders below that are called ``name=value``, as Hive, Spark and the lakes write them, are a column
of text. A column that some files lack is missing in their rows. Numbers of several types, dates
with and without a clock, and kinds of text become one. Of other types that differ, and of decimals
of more digits than Polars has, no cell is read: the column gets a type that says why, and so stops
only whoever wants it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from urllib.parse import unquote

import polars as pl
import polars.selectors as cs

from labelveil.common.errors import DataError
from labelveil.common.files import directory_files

_DIGITS = 38
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_FILE = "\0file"
_TEXTS = {pl.String, pl.Categorical, pl.Enum}
_MOMENTS = {pl.Date, pl.Datetime}


@dataclass(frozen=True)
class ParquetTable:
    """The files of a table, and what stands in each; ``DataError`` if one cannot be read."""

    path: Path  # a file, or a folder of files

    @cached_property
    def files(self) -> list[Path]:
        """In the order of the rows."""
        return directory_files(self.path) if self.path.is_dir() else [self.path]

    @cached_property
    def schemas(self) -> list[dict[str, pl.DataType]]:
        """Names and types of each file's own columns."""
        return [_schema_of(file) for file in self.files]

    @cached_property
    def folders(self) -> list[dict[str, str | None]]:
        """What the folders that each file lies in say of columns that it does not have."""
        return [
            {name: value for name, value in _folders(self.path, file) if name not in schema}
            for file, schema in zip(self.files, self.schemas, strict=True)
        ]

    @cached_property
    def columns(self) -> dict[str, pl.DataType]:
        """Names and types of the columns of all rows."""
        found: dict[str, dict[pl.DataType, Path]] = {}  # types, and the first file of each
        for file, schema, folders in zip(self.files, self.schemas, self.folders, strict=True):
            for name, kind in [*schema.items(), *((name, pl.String()) for name in folders)]:
                found.setdefault(name, {}).setdefault(kind, file)
        return {name: self._common(kinds) for name, kinds in found.items()}

    @property
    def is_plain(self) -> bool:
        """Whether every file has all columns, and of the types that they are read as."""
        wanted = list(self.columns.items())  # in one order, too
        if any(map(why_unread, self.columns.values())):
            return False
        return all(list(schema.items()) == wanted for schema in self.schemas)

    def lacking(self, column: str) -> Path | None:
        """The first file that has not got a column which others have."""
        for file, schema, folders in zip(self.files, self.schemas, self.folders, strict=True):
            if column not in schema and column not in folders:
                return file
        return None

    def types_of(self, column: str) -> str:
        """The types that a column has, each with a file of it; empty if it has one alone."""
        kinds: dict[pl.DataType, Path] = {}
        for file, schema in zip(self.files, self.schemas, strict=True):
            if column in schema:
                kinds.setdefault(schema[column], file)
        return self._places(kinds) if len(kinds) > 1 else ""

    def _places(self, kinds: dict[pl.DataType, Path]) -> str:
        places = (f"{_short(k)} in {file.relative_to(self.path)}" for k, file in kinds.items())
        return " and ".join(places)

    def scan(self) -> pl.LazyFrame:
        """All rows and columns, in the files' order."""
        if self.is_plain:
            return pl.scan_parquet(self.files, glob=False)
        alike = [
            (schema, list(folders))
            for schema, folders in zip(self.schemas, self.folders, strict=True)
        ]
        runs = groupby(range(len(self.files)), key=lambda at: alike[at])
        return pl.concat(self._run(list(run)) for _, run in runs)

    def _run(self, places: Sequence[int]) -> pl.LazyFrame:
        """Files of the same columns, with those that they lack."""
        schema = self.schemas[places[0]]
        files = [self.files[at] for at in places]
        frame = pl.scan_parquet(files, glob=False, include_file_paths=_FILE)
        others = []
        for name, kind in self.columns.items():
            if name in schema and schema[name] == kind and not why_unread(kind):
                continue
            if name in self.folders[places[0]]:
                values = {str(self.files[at]): self.folders[at][name] for at in places}
                column = pl.col(_FILE).replace_strict(values, return_dtype=pl.String)
            elif name not in schema or why_unread(kind):
                column = pl.lit(None, kind)
            else:
                column = cs.by_name(name).cast(kind)
            others.append(column.alias(name))
        return frame.with_columns(others).select(cs.by_name(*self.columns))

    def _common(self, kinds: dict[pl.DataType, Path]) -> pl.DataType:
        """A type that holds all values of several, or one that says why there is none."""
        wide = [kind for kind in kinds if (getattr(kind, "precision", 0) or 0) > _DIGITS]
        if wide:
            return _unread(
                f"{_short(wide[0])}, of more than {_DIGITS} digits (have it written as FLOAT64 or"
                " with fewer)"
            )
        types = [kind for kind in kinds if kind != pl.Null] or [pl.Null()]
        if len(types) == 1:
            return types[0]
        bases = {kind.base_type() for kind in types}
        if bases <= _TEXTS:
            return pl.String()
        if all(kind.is_numeric() for kind in types) or bases <= _MOMENTS:
            empty = [pl.DataFrame(schema={"": kind}) for kind in types]
            try:
                common = pl.concat(empty, how="vertical_relaxed").schema[""]
            except pl.exceptions.PolarsError:  # moments with and without a time zone
                pass
            else:
                whole = all(kind.is_integer() for kind in types) and not common.is_integer()
                return pl.Decimal(_DIGITS, 0) if whole else common
        return _unread(self._places({kind: kinds[kind] for kind in types}))


def why_unread(kind: pl.DataType) -> str:
    """What a type says that no cell of the column is read for; empty of all others."""
    if isinstance(kind, pl.Struct) and len(kind.fields) == 1 and kind.fields[0].dtype == pl.Null:
        return kind.fields[0].name
    return ""


def type_words(kind: pl.DataType) -> str:
    """A column's type as an error says it."""
    return why_unread(kind) or _short(kind)


def _unread(why: str) -> pl.DataType:
    return pl.Struct({why: pl.Null()})


def _short(kind: pl.DataType) -> str:
    return re.sub(r"\b(?:precision|scale|time_unit|time_zone)=", "", str(kind))


def _schema_of(file: Path) -> dict[str, pl.DataType]:
    try:
        schema = dict(pl.scan_parquet(file, glob=False).collect_schema())
        if pl.Time in schema.values():
            schema |= dict.fromkeys(
                _seconds(file), _unread("time32[s], to be written as time32[ms]")
            )
        if pl.Int64 in schema.values():
            described = pl.read_parquet_metadata(file).get("pandas", "")
            schema |= {
                name: _unread(f"{kind}, {PERIODS}")
                for name, kind in periods(described).items()
                if name in schema
            }
        return schema
    except pl.exceptions.DuplicateError as error:
        said = str(error).partition("\n")[0]
        raise DataError(f"{file} cannot be read: {said}; rename all but one") from error
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise DataError(f"{file} cannot be read: it is damaged, or not Parquet") from error


def _seconds(file: Path) -> list[str]:
    """Columns of times that Arrow's own description calls seconds: Parquet has milliseconds, which
    Polars then takes for seconds."""
    try:
        import pyarrow as pa
    except ImportError:  # a labels party takes no times anyway
        return []
    described = pl.read_parquet_metadata(file).get("ARROW:schema", "")
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(described))) if described else ()
    return [field.name for field in schema if field.type == pa.time32("s")]


PERIODS = "to be written as dates (in pandas .dt.to_timestamp()) or as text (.astype(str))"


def periods(described: str | bytes) -> dict[str, str]:
    """Columns that pandas' own description calls periods, and of which length, as ``period[M]``.

    What is stored of one is how many months, days or quarters passed since 1970: the same number
    is another moment in each.
    """
    try:
        columns = json.loads(described or "{}").get("columns", [])
        kinds = {str(column["name"]): str(column["numpy_type"]) for column in columns}
    except (ValueError, AttributeError, TypeError, KeyError):  # anybody's words
        return {}
    return {name: kind for name, kind in kinds.items() if kind.startswith("period[")}


def _folders(path: Path, file: Path) -> list[tuple[str, str | None]]:
    """Names and values of the folders between a table's and a file's."""
    if file == path:
        return []
    parts = (part.partition("=") for part in file.relative_to(path).parts[:-1])
    texts = ((unquote(name), unquote(value)) for name, _, value in parts)
    return [(name, None if value == _NO_VALUE else value) for name, value in texts]
