"""Read files, object stores and databases: keys, labels, users.

What stands in a row is never refused: a cell that is not what its column should hold is missing,
a row without a key names no event, and both are counted with their places, for the operator alone.
Refused are facts about a source as a whole, which are public, since no event's rows change them:

- it is not there, may not be opened, is empty, or is not of its format at all: Parquet that is
  damaged or holds text that is no UTF-8, which no writer makes; CSV whose first line is no header
  in the configured encoding, or UTF-16;
- it lacks a column, or has it twice; a column of Parquet has a type that is none of keys' or
  labels', whatever its rows hold;
- an object store or a database refuses. A database may refuse a query because of one row, in which
  a cast or a function of the query itself fails: a query is a program of the operator's, and must
  be written so that none can (``label-party`` reads text, so no cast is needed).

No message of this module contains a value from a file: a label in an error would be a label in a
terminal's scroll-back and in a log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import polars as pl
import polars.selectors as cs

from labelveil.common.csv_files import Dialect, refuse_packed
from labelveil.common.errors import DataError, listed
from labelveil.common.files import PARQUET_SUFFIXES, no_room, refuse_pipe, writing
from labelveil.common.parquet_files import ParquetTable, type_words
from labelveil.common.release.event_keys import key_text
from labelveil.common.table_cells import BOOLEANS, absent, stripped
from labelveil.label_party.sources.anomalies import LINE, NOTHING, Anomalies, anomaly_of
from labelveil.label_party.sources.csv_rows import Holds, Layout, header_of, lines_of_file, rows_of
from labelveil.label_party.sources.remote_source import RemoteSource, Source

Read = TypeVar("Read")

_PARQUET_MAGIC, _ARROW_MAGIC = b"PAR1", b"ARRO"
_FAILURES = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
_FAR_DAYS = 10_000_000
_A_DAY = {"ms": 86_400_000, "us": 86_400_000_000}

CSV = Dialect()

KEY, LABEL, USER, PLACE, STRATUM = "key", "label", "user", "place", "stratum"


def label_column(index: int) -> str:
    """Name of a label's column in a frame of events."""
    return LABEL if not index else f"{LABEL} {index}"


def column_name(name: str) -> str:
    """Name of a further column in a frame of events, where no role can have it."""
    return f"column {name}"


def read_columns(
    path: Source,
    names: Sequence[str],
    naming: Sequence[str] = (),
    rows: tuple[int, int] | None = None,
    dialect: Dialect = CSV,
    holds: Holds = "labels",
) -> tuple[pl.DataFrame, Anomalies]:
    """Read columns as they are, and where each row stands; all but Parquet's are text.

    ``names`` has each column once, and ``naming`` those that say whose row it is, the key first.
    ``rows`` are the first row of a Parquet file, and the one after the last; None for all.
    ``DataError`` if the source cannot be read, lacks a column, or is CSV in which a label's cell
    could change what says whose row it is (:mod:`labelveil.label_party.sources.csv_rows`).
    """
    present = columns_of(path, dialect)
    _check_columns(path, names, present)
    parts = _chunks(path, names, naming, dialect, holds)
    if parts is not None:
        read = list(_reading_all(path, parts))
        nothing = pl.DataFrame(schema=dict.fromkeys(names, pl.String) | {LINE: pl.Int64})
        frames = [frame for frame, _ in read] or [nothing]
        return pl.concat(frames), sum((odd for _, odd in read), NOTHING)
    copied = [LINE] if LINE in present else []
    scan = _scan(path).select(cs.by_name(*names, *copied))
    start, stop = rows or (0, None)
    frame = _reading(path, scan.slice(start, None if stop is None else stop - start).collect)
    if not copied:
        places = pl.int_range(start + 1, start + 1 + frame.height, eager=True)
        frame = frame.with_columns(places.alias(LINE))
    return frame, NOTHING


def parquet_files(path: Source) -> list[tuple[Path, int]] | None:
    """Return the Parquet files here that a source is, in order, with their rows; None if others,
    or if they are not alike."""
    if not isinstance(path, Path) or not (path.is_dir() or _head(path) == _PARQUET_MAGIC):
        return None
    table, rows = ParquetTable(path), pl.len()
    if not _reading(path, lambda: table.is_plain):
        return None
    return [
        (file, int(_reading(file, _scan(file).select(rows).collect).item())) for file in table.files
    ]


def copy_as_parquet(
    path: Source,
    names: Sequence[str],
    stem: Path,
    naming: Sequence[str] = (),
    dialect: Dialect = CSV,
    holds: Holds = "labels",
) -> tuple[list[Path], Anomalies]:
    """Copy columns as they are to Parquet files, a part at a time; return the files in order.

    Places go with them, and what was odd about cells and lines is said once, here.
    """
    _check_columns(path, names, columns_of(path, dialect))
    parts = _chunks(path, names, naming, dialect, holds)
    if parts is None:
        out = stem.with_suffix(".parquet")
        scan = _scan(path).select(cs.by_name(*names))
        with writing(out):
            _reading(path, lambda: scan.sink_parquet(out, compression="lz4"))
        return [out], NOTHING
    files, odd = [], NOTHING
    for index, (frame, odd_of_part) in enumerate(_reading_all(path, parts)):
        files.append(stem.with_name(f"{stem.name}-{index}.parquet"))
        with writing(files[-1]):
            frame.write_parquet(files[-1], compression="lz4")
        odd += odd_of_part
    return files, odd


def _chunks(
    path: Source, names: Sequence[str], naming: Sequence[str], dialect: Dialect, holds: Holds
) -> Iterator[tuple[pl.DataFrame, Anomalies]] | None:
    """A source's rows as text, a chunk at a time; None of Parquet."""
    chunks = path.chunks(names) if isinstance(path, RemoteSource) else None
    if chunks is not None:
        return chunks
    lines = _csv_lines(path)
    if lines is None:
        return None
    if isinstance(path, RemoteSource) and dialect.encoding != "utf-8":
        raise DataError(
            f"{path} is read as UTF-8 alone, of which {dialect.encoding} makes other events' keys;"
            " save it as UTF-8, or as Parquet"
        )
    header = header_of(next(lines, b""), dialect, path)
    return rows_of(lines, _layout(path, header, names, naming, dialect, holds))


def check_columns(path: Source, names: Sequence[str], dialect: Dialect = CSV) -> None:
    """Check that a source has each of some columns, once; ``DataError`` if not."""
    _check_columns(path, names, columns_of(path, dialect))


def check_front(path: Source, naming: Sequence[str], dialect: Dialect, holds: Holds) -> None:
    """Check that no label's cell of a CSV source can change what says whose row it is.

    ``DataError`` if one can, or the source cannot be read.
    """
    if _csv_lines(path) is not None:
        _layout(path, columns_of(path, dialect), (), naming, dialect, holds)


def _layout(
    path: Source,
    header: list[str],
    names: Sequence[str],
    naming: Sequence[str],
    dialect: Dialect,
    holds: Holds,
) -> Layout:
    layout = Layout(header, names, naming, dialect, holds)
    if layout.misplaced:
        raise DataError(
            f"{path} names the events itself, and a label with a separator or a quote could break"
            f" its column {layout.misplaced[0]!r}; write {listed(naming)} in front of all other"
            " columns, save the file as Parquet, or list the events in [data] population"
        )
    return layout


def as_days(column: pl.Series, path: Source) -> pl.Series:
    """(n,) dates, null for what begins with none of the form YYYY-MM-DD, or is before Christ."""
    words = as_words(column, path).str.strip_chars()
    days = words.set(words.str.ends_with(" BC"), None).str.slice(0, 10)
    return days.set(~days.str.contains(r"^\d{4}-\d\d-\d\d$"), None).str.to_date(strict=False)


def columns_of(path: Source, dialect: Dialect = CSV) -> list[str]:
    names = path.columns if isinstance(path, RemoteSource) else None
    if names is not None:
        return names
    lines = _csv_lines(path)
    if lines is not None:
        return header_of(_reading(path, lambda: next(lines, b"")), dialect, path)
    return _reading(path, lambda: _scan(path).collect_schema().names())


def declared_type(source: Source, column: str) -> tuple[str, bool] | None:
    """Return the type that a source declares of a column, and whether it is one of whole numbers.

    None if it declares none: a CSV file does not, and what its cells look like is a matter of each
    single one. ``DataError`` if it cannot be read.
    """
    if isinstance(source, RemoteSource):
        return source.declared(column)
    if not source.is_dir() and source.suffix.lower() not in PARQUET_SUFFIXES:
        return None
    try:
        kind = _scan(source).collect_schema().get(column)
    except (pl.exceptions.PolarsError, OSError):
        raise DataError(f"{source} cannot be read as Parquet") from None
    if kind is None:
        return None
    whole = kind.is_integer() or kind == pl.Boolean or getattr(kind, "scale", None) == 0
    return type_words(kind), whole


def _reading(path: Source, read: Callable[[], Read]) -> Read:
    foreign = path if isinstance(path, RemoteSource) else None
    failures: tuple[type[BaseException], ...] = _FAILURES + (foreign.failures if foreign else ())
    try:
        return read()
    except failures as error:
        if (full := no_room(error)) is not None:  # of what is written
            raise full from None
        reason = getattr(error, "strerror", None) or "it is damaged, or neither CSV nor Parquet"
        reason = foreign.reason if foreign and foreign.reason else reason
        # not "from error": a traceback would show the line that cannot be parsed
        raise DataError(f"{path} cannot be read: {reason}") from None


def _reading_all(path: Source, parts: Iterator[Read]) -> Iterator[Read]:
    end = object()
    while (part := _reading(path, lambda: next(parts, end))) is not end:
        yield part  # type: ignore[misc]


def _csv_lines(path: Source) -> Iterator[bytes] | None:
    """The header's line, then the others, many at a time; None if it is Parquet.

    ``DataError`` if it is there, and neither.
    """
    if isinstance(path, RemoteSource):
        return path.lines()
    if path.is_dir() or (head := _head(path)) == _PARQUET_MAGIC:
        return None
    if not head:
        raise DataError(f"{path} is empty; it must have a header line or be a Parquet file")
    refuse_packed(path)
    if path.suffix.lower() in PARQUET_SUFFIXES:
        raise DataError(f"{path} cannot be read: it is not a Parquet file, in spite of its name")
    if head == _ARROW_MAGIC:
        raise DataError(f"{path} is an Arrow (Feather) file; save it as Parquet")
    return lines_of_file(path)


def _scan(path: Source) -> pl.LazyFrame:
    if isinstance(path, RemoteSource):
        return path.scan()
    return ParquetTable(path).scan()


def _head(path: Path) -> bytes:
    refuse_pipe(path)
    try:
        with path.open("rb") as file:
            return file.read(len(_PARQUET_MAGIC))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; set [data] labels and population") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _check_columns(path: Source, wanted: Sequence[str], present: list[str]) -> None:
    for name in wanted:
        if present.count(name) > 1:
            raise DataError(f"{path} has several columns {name!r}; rename all but one")
        if name not in present:
            if any(_is_number(column) for column in present):
                # the first line is an event's, and its label is not to be shown
                raise DataError(
                    f"{path} has no column {name!r}: its first line holds values, not names; add a"
                    " header line"
                )
            shown = listed(present)
            if len(present) == 1 and any(mark in present[0] for mark in ",;\t|"):
                shown += (
                    "; set [data] labels_separator, or population_separator, to what stands between"
                    " them"
                )
            raise DataError(f"{path} has no column {name!r}; it has {shown}")
    if isinstance(path, Path) and path.is_dir():
        table = ParquetTable(path)
        for name in wanted:
            if (file := table.lacking(name)) is not None:
                raise DataError(
                    f"{file} has no column {name!r}, which other files of its folder have; write it"
                    " there, too, or leave the file out"
                )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def as_words(column: pl.Series, path: Source) -> pl.Series:
    """A column of texts, numbers or times as text, each cell by itself."""
    kind = column.dtype
    if kind.is_nested() or kind in (pl.Binary, pl.Object, pl.Time, pl.Duration):
        raise DataError(
            f"{path}: column {column.name!r} has type {type_words(kind)}; it must be of text,"
            " numbers or dates"
        )
    column = column.alias("")  # a Series' methods take its name ^…$ for a pattern of columns
    a_day = 1 if kind == pl.Date else _A_DAY.get(getattr(kind, "time_unit", ""))
    if a_day is not None:  # so far away Polars panics, and takes all other cells with it
        far = _FAR_DAYS * a_day
        column = column.set(~column.to_physical().is_between(-far, far), None)
    return column.cast(pl.String)


def as_names(column: pl.Series, path: Source) -> pl.Series:
    """Keys or users as text, null where there is none; never one of another row's.

    A NUL is in no key: it marks the fingerprints of users.
    """
    name = column.name
    if column.dtype == pl.Null:  # as of a file in which no row has one
        return column.alias("").cast(pl.String)
    try:
        text = key_text(column)  # an unusable type is a fact of the schema
    except DataError as error:
        types = ""
        if (
            isinstance(path, Path)
            and path.is_dir()
            and (found := ParquetTable(path).types_of(name))
        ):
            types = f"; it is {found}"
        raise DataError(f"{path}: {error}{types}") from error
    return text.set((text == "") | text.str.contains("\0", literal=True), None)


def as_numbers(
    column: pl.Series, name: str, path: Source, dialect: Dialect, places: pl.Series
) -> tuple[pl.Series, Anomalies]:
    """Labels, null where there is none, or where the cell is no finite number."""
    odd, column = NOTHING, column.alias("")
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    if column.dtype == pl.String:
        text = stripped(column).str.to_lowercase()
        text = text.set(absent(column), None)
        plain = text
        if dialect.decimal_comma:  # a point is none then, nor does it separate thousands
            plain = text.set(text.str.contains(".", literal=True), "?")
            plain = plain.str.replace(",", ".", literal=True)
        numbers = plain.replace(BOOLEANS).cast(pl.Float64, strict=False)
        odd = anomaly_of(name, "not a number", numbers.is_null() & text.is_not_null(), places)
    elif column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null):
        numbers = column.cast(pl.Float64)
    else:
        raise DataError(
            f"{path}: label column {name!r} has type {type_words(column.dtype)}; labels must be"
            " numbers"
        )
    numbers = numbers.fill_nan(None)
    infinite = numbers.is_infinite().fill_null(False)
    return numbers.set(infinite, None), odd + anomaly_of(name, "infinite", infinite, places)
