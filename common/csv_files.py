"""CSV as the world writes it: comma, semicolon or tab, decimal commas, UTF-8 or Windows-1252."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from labelveil.common.console import stderr
from labelveil.common.errors import DataError
from labelveil.common.files import PARQUET_SUFFIXES
from labelveil.common.parquet_files import ParquetTable

SUFFIXES = frozenset({".csv", ".tsv", ".txt"})

_SAMPLE_BYTES = 1 << 20
_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_DECIMAL_COMMA = re.compile(r'(?:^|["\t;|])[+-]?\d+,\d+(?=["\t;|\r]|$)', re.MULTILINE)
_DECIMAL_POINT = re.compile(r'(?:^|["\t;|])[+-]?\d+\.\d+(?=["\t;|\r]|$)', re.MULTILINE)
_DECIMALS = _DECIMAL_COMMA, _DECIMAL_POINT
_QUOTED = re.compile(r'"[^"]*"')
_TWICE = "_duplicated_"
_ARROW = b"ARROW1"
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip, as an Excel file is",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}
"""How files begin that are compressed."""


@dataclass(frozen=True)
class Dialect:
    """How a file writes its rows."""

    separator: str = ","  # between two values
    decimal_comma: bool = False  # numbers as 1,5; never where the separator is a comma
    encoding: str = "utf-8"  # or ``cp1252``, of which Latin-1 as people write it is a part

    def __str__(self) -> str:
        parts = [f"separator {_SEPARATORS[self.separator]}"]
        parts += ["decimal comma"] if self.decimal_comma else []
        parts += ["encoding Windows-1252 (Latin-1)"] if self.encoding != "utf-8" else []
        return ", ".join(parts)


def scan_csv(path: Path, **options: Any) -> pl.LazyFrame:
    """Scan a CSV file with a header line in its own dialect.

    A file in another encoding than UTF-8 is read into memory. ``options`` are further arguments of
    :func:`polars.scan_csv`. Besides its errors and ``OSError``, ``DataError`` for an encoding that
    is none of ours.
    """
    dialect = find_dialect(path)
    source: Path | io.BytesIO = path
    if dialect.encoding != "utf-8":
        source = io.BytesIO(_decoded(path, path.read_bytes()).encode())
    frame = pl.scan_csv(
        source,
        glob=False,
        separator=dialect.separator,
        decimal_comma=dialect.decimal_comma,
        **options,
    )
    twice = (name.partition(_TWICE)[0] for name in frame.collect_schema() if _TWICE in name)
    for name in filter(None, twice):  # which Polars renames; what has no name is often empty, too
        with path.open(encoding=dialect.encoding, newline="") as file:
            header = next(csv.reader(file, delimiter=dialect.separator), [])
        if (count := header.count(name)) > 1:
            raise DataError(f"{path} has {count} columns {name!r:.60}; name each once")
    return frame


def read_table(path: Path, key: str | None = None, *, as_text: bool = False) -> pl.DataFrame:
    """Read a CSV or Parquet file that fits in memory.

    In a CSV file the column ``key`` is text: keys 007 and 7 are different events; with ``as_text``
    all columns are. ``DataError`` if it is no such file.
    """
    if not path.is_file():
        raise DataError(f"{path} is not a file; name a CSV or Parquet file")
    try:
        if path.suffix.lower() in PARQUET_SUFFIXES:
            texts = cs.by_dtype(pl.Categorical, pl.Enum)
            return ParquetTable(path).scan().with_columns(texts.cast(pl.String)).collect()
        if as_text:
            return scan_csv(path, infer_schema=False).collect()
        overrides = {key: pl.String} if key else {}
        return scan_csv(path, schema_overrides=overrides, infer_schema_length=None).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: BaseException) -> DataError:
    """Say why a table cannot be read; of a CSV file in which line, if one has too many cells."""
    reason = first_line(error)
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        dialect = find_dialect(path)
        with path.open(encoding=dialect.encoding, errors="replace", newline="") as file:
            rows, line = csv.reader(file, delimiter=dialect.separator, strict=True), 1
            try:
                width = 0
                for row in rows:
                    width = width or len(row)
                    if len(row) > width:
                        reason = (
                            f"line {rows.line_num:,} has {len(row)} cells, and the header {width}"
                        )
                        break
                    line = rows.line_num + 1
            except csv.Error:  # what is no CSV at all has a reason already
                if reason.startswith("could not parse"):  # and Polars shows the cell
                    reason = f'a cell in line {line:,} has a " that is not closed, or not doubled'
    return DataError(f"{path} cannot be read: {reason}")


def first_line(error: BaseException) -> str:
    """First line of an error's message, or its kind."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def find_dialect(path: Path) -> Dialect:
    """Find a file's dialect from its first lines, and say on standard error what is not usual.

    ``DataError`` if it is UTF-16, or holds bytes that no text has.
    """
    stat = path.stat()
    return _find(path, stat.st_size, stat.st_mtime_ns)


def refuse_packed(path: Path) -> None:
    """``DataError`` for a file that is compressed as a whole; ``OSError`` if it cannot be read."""
    with path.open("rb") as file:
        head = file.read(max(map(len, _PACKED)))
    for magic, name in _PACKED.items():
        if head.startswith(magic):
            raise DataError(
                f"{path} is compressed ({name}); unpack it first, or write it as Parquet, which is"
                " compressed within"
            )


def refuse_carriage_returns(path: object, head: str) -> None:
    """``DataError`` if rows end in CR alone, which makes one line of a file; ``head`` is that."""
    if "\r" in _QUOTED.sub("", head.removesuffix("\r")):
        raise DataError(f"{path} ends its lines in CR alone; save it with line feeds (LF)")


def propose_dialect(path: Path) -> Dialect:
    """Find the dialect of most of a file's lines, for a configuration to fix it.

    Where every row is to speak for itself, no single one may decide how the others are read, nor
    that there is no proposal.
    """
    refuse_packed(path)
    counts: Counter[object] = Counter()
    with path.open("rb") as file:
        first = file.readline(_SAMPLE_BYTES)
        for line in chain([first], file):
            if not line.isascii():
                counts["utf-8" if _is_utf8([line]) else "cp1252"] += 1
            text = line.decode("latin-1")
            counts.update(mark for mark in _DECIMALS if mark.search(text))
    separator = "\t" if ".tsv" in path.suffixes else _separator(first.decode("latin-1"))
    comma = separator != "," and counts[_DECIMAL_COMMA] > counts[_DECIMAL_POINT]
    return Dialect(separator, comma, "utf-8" if counts["utf-8"] >= counts["cp1252"] else "cp1252")


@lru_cache(maxsize=64)
def _find(path: Path, size: int, changed: int) -> Dialect:
    refuse_packed(path)
    with path.open("rb") as file:
        data = file.read(_SAMPLE_BYTES)
        if data.startswith(_ARROW):
            raise DataError(f"{path} is an Arrow (Feather) file; save it as Parquet")
        if data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in data:
            raise DataError(f"{path} is not text in UTF-8 (UTF-16, perhaps); save it as UTF-8")
        rest = iter(partial(file.read, _SAMPLE_BYTES), b"")
        encoding = "utf-8" if _is_utf8(chain([data], rest)) else "cp1252"
    if size > len(data):
        data = data[: data.rfind(b"\n") + 1] or data  # whole lines
    text = data.decode(errors="ignore") if encoding == "utf-8" else _decoded(path, data)
    head, _, rows = text.partition("\n")
    refuse_carriage_returns(path, head)
    separator = "\t" if ".tsv" in path.suffixes else _separator(head)
    comma, point = _DECIMALS
    decimal_comma = separator != "," and bool(comma.search(rows)) and not point.search(rows)
    dialect = Dialect(separator, decimal_comma, encoding)
    if encoding != "utf-8" or decimal_comma or separator in ";|":
        stderr.print(f"{path}: {dialect}", highlight=False, soft_wrap=True)
    return dialect


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode("cp1252")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is neither UTF-8 nor Windows-1252 (Latin-1); save it as UTF-8"
        ) from error


def _is_utf8(parts: Iterable[bytes]) -> bool:
    decode = codecs.getincrementaldecoder("utf-8")().decode
    try:
        for part in parts:
            decode(part)
        decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _separator(head: str) -> str:
    """The one that stands most often in the header, outside quotes; the comma where none does."""
    names = _QUOTED.sub("", head)
    return max(_SEPARATORS, key=names.count)
