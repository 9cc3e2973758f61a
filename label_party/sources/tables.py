"""Read events from files, object stores and databases: keys, labels, users.

No message of this module contains a value from a file: a label in an error would be a label in a
terminal's scroll-back and in a log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

import polars as pl

from common.csv_files import SUFFIXES, scan_csv
from common.errors import DataError
from common.files import PARQUET_SUFFIXES, directory_files
from common.release.event_keys import canonical_keys
from label_party.sources.addresses import Query, Remote, Source, storage_options
from label_party.sources.databases import columns_of_query, query_parts, read_query
from label_party.sources.oddities import SHOWN, Oddities, oddity

Read = TypeVar("Read")

_PARQUET_MAGIC = b"PAR1"
_MISSING_WORDS = ("", "na", "n/a", "nan", "null", "none")
_BOOLEANS = {"true": "1", "false": "0"}
_COLUMNS_SHOWN = 20

KEY, LABEL, USER, PLACE = "key", "label", "user", "place"


def label_column(index: int) -> str:
    """Name of a label's column in a frame of events."""
    return LABEL if not index else f"{LABEL} {index}"


def read_events(
    path: Source,
    key: str,
    *,
    labels: Sequence[str] = (),
    user: str | None = None,
    day: tuple[str, str] | None = None,
    rows: tuple[int, int] | None = None,
    others: Sequence[str] = (),
) -> tuple[pl.DataFrame, Oddities]:
    """Read the columns that are needed of one source: whatever stands in its rows.

    A row speaks for its own event alone. One whose key is missing names none and is left out; so is
    one of another day, or of none. A cell that is not what its column should hold is missing.

    Parameters
    ----------
    path
        CSV with a header line, Parquet, or a directory of Parquet files, whose rows follow each
        other in the order of the files' names; one file in an object store; a database's query.
    key, labels, user
        Names of the columns. In CSV files keys and users are text, exactly as written, so that
        ``007`` stays ``007``.
    day
        A column of dates or times, and the day (ISO 8601) whose events are wanted; None for all.
    rows
        First row of a Parquet file, and the one after the last; None for all rows.
    others
        Further columns, as text without the spaces around it.

    Returns
    -------
    A frame with ``key`` (text), the labels as :func:`label_column` calls them (float64, finite;
    null where the event has none) and ``user`` (text; null where there is none), as far as asked
    for, the further columns as :func:`other` calls them, and with labels ``place`` (int64: line or
    row, as oddities name them), in file order; and what was odd.

    Raises
    ------
    DataError
        If the source cannot be read at all, lacks a column, or has one of an unusable type: facts
        that are public.
    """
    wanted = [key, *labels, user, None if day is None else day[0], *others]
    columns = list(dict.fromkeys(name for name in wanted if name is not None))
    frame = read_columns(path, columns, rows)
    first = (1 if rows is None else rows[0] + 1) + _is_csv(path)
    places = pl.int_range(first, first + frame.height, eager=True)
    texts = {name: _text(frame[name], name, path) for name in (key, user) if name is not None}
    odd = oddity_of(key, "no key, so that the row names no event", texts[key].is_null(), places)
    kept = texts[key].is_not_null()
    if day is not None:
        days = _days(frame[day[0]])
        odd += oddity_of(day[0], "no date of the form YYYY-MM-DD", days.is_null(), places)
        kept &= days.eq_missing(pl.Series([day[1]]).str.to_date())
    frame, places = frame.filter(kept), places.filter(kept)
    events = [texts[key].filter(kept).alias(KEY)]
    for index, name in enumerate(labels):
        numbers, bad = _numbers(frame[name], name, path, places)
        events.append(numbers.alias(label_column(index)))
        odd += bad
    if user is not None:
        users = texts[user].filter(kept)
        odd += oddity_of(user, "no user", users.is_null(), places)
        events.append(users.alias(USER))
    words = [pl.col(name).cast(pl.String).str.strip_chars().alias(other(name)) for name in others]
    events += _reading(path, lambda: frame.select(words).get_columns())
    if labels:
        events.append(places.alias(PLACE))
    return pl.DataFrame(events), odd


def oddity_of(column: str, reason: str, odd: pl.Series, places: pl.Series) -> Oddities:
    """Return where of (n,) rows are odd, given the places of all of them."""
    where = places.filter(odd)
    return oddity(column, reason, where.head(SHOWN), where.len())


def other(name: str) -> str:
    """Name of a further column in a frame of events, where no role can have it."""
    return f"column {name}"


def read_columns(
    path: Source, names: list[str], rows: tuple[int, int] | None = None
) -> pl.DataFrame:
    """Read columns as they are, of all rows or of some; from CSV everything is text.

    Raises
    ------
    DataError
        If the source cannot be read, or lacks a column.
    """
    _check_columns(path, names, columns_of(path))
    if isinstance(path, Query):
        return read_query(path, names)

    def read() -> pl.DataFrame:
        scan = _scan(path).select(names)
        if rows is not None:  # asked of CSV, it would make Polars lenient
            scan = scan.slice(rows[0], rows[1] - rows[0])
        return scan.collect()

    return _reading(path, read)


def parquet_files(path: Source) -> list[tuple[Path, int]] | None:
    """Return the Parquet files here that a source is, in order, with their rows; None if others."""
    if not isinstance(path, Path) or not (path.is_dir() or _head(path) == _PARQUET_MAGIC):
        return None
    files = directory_files(path) if path.is_dir() else [path]
    return [(file, _rows_of(file)) for file in files]


def copy_as_parquet(path: Source, names: list[str], stem: Path) -> list[Path]:
    """Copy columns as they are to Parquet files, a part at a time; return the files in order."""
    _check_columns(path, names, columns_of(path))
    distinct = list(dict.fromkeys(names))
    if isinstance(path, Query):
        files = []
        for index, part in enumerate(query_parts(path, distinct)):
            files.append(stem.with_name(f"{stem.name}-{index}.parquet"))
            part.write_parquet(files[-1], compression="lz4")
        return files
    out = stem.with_suffix(".parquet")
    _reading(path, lambda: _scan(path).select(distinct).sink_parquet(out, compression="lz4"))
    return [out]


def _rows_of(path: Path) -> int:
    return int(_reading(path, lambda: _scan(path).select(pl.len()).collect().item()))


def days_of(path: Source, column: str) -> list[str]:
    """Return the days that occur in a column of dates or times, ascending.

    Raises
    ------
    DataError
        If the source cannot be read, or lacks the column.
    """
    days = _days(read_columns(path, [column])[column])
    return [day.isoformat() for day in days.drop_nulls().unique().sort()]


def _days(column: pl.Series) -> pl.Series:
    """(n,) dates, null for what begins with none of the form YYYY-MM-DD."""
    days = column.cast(pl.String).str.strip_chars().str.slice(0, 10)
    return days.set(~days.str.contains(r"^\d{4}-\d\d-\d\d$"), None).str.to_date(strict=False)


def columns_of(path: Source) -> list[str]:
    """Return the names of a source's columns."""
    if isinstance(path, Query):
        return columns_of_query(path)
    return _reading(path, lambda: _scan(path).collect_schema().names())


def _reading(path: Source, read: Callable[[], Read]) -> Read:
    # ValueError, TypeError: what is said of a storage option shows its value
    options = (ValueError, TypeError) if isinstance(path, Remote) else ()
    try:
        return read()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, *options) as error:
        reason = getattr(error, "strerror", None) or "it is damaged, or neither CSV nor Parquet"
        if isinstance(path, Remote):
            reason = (
                "it is not there, not readable with these credentials (from the environment or"
                " [data] credentials_file), or neither CSV nor Parquet"
            )
        # not "from error": a traceback would show the line that cannot be parsed
        raise DataError(f"{path} cannot be read: {reason}") from None


def _scan(path: Path | Remote) -> pl.LazyFrame:
    return _scan_file(path) if isinstance(path, Path) else _scan_remote(path)


def _scan_remote(source: Remote) -> pl.LazyFrame:
    options = storage_options(source)
    suffixes = [suffix.lower() for suffix in PurePosixPath(source.address).suffixes]
    if suffixes and suffixes[-1] in PARQUET_SUFFIXES:
        return pl.scan_parquet(source.address, storage_options=options)
    if {".csv", ".tsv"} & set(suffixes):
        separator = "\t" if ".tsv" in suffixes else ","
        return pl.scan_csv(
            source.address, infer_schema=False, separator=separator, storage_options=options
        )
    raise DataError(f"{source} must end in .parquet, .pq, .csv or .tsv, so that it can be read")


def _scan_file(path: Path) -> pl.LazyFrame:
    if path.is_dir():
        return pl.scan_parquet(directory_files(path))
    head = _head(path)
    if head == _PARQUET_MAGIC:
        return pl.scan_parquet(path)
    if not head:
        raise DataError(f"{path} is empty; it must have a header line or be a Parquet file")
    if path.suffix.lower() in PARQUET_SUFFIXES:
        raise DataError(f"{path} cannot be read: it is not a Parquet file, in spite of its name")
    return scan_csv(path, infer_schema=False)


def _is_csv(path: Source) -> bool:
    if isinstance(path, Path):
        return not path.is_dir() and _head(path) != _PARQUET_MAGIC
    return isinstance(path, Remote) and PurePosixPath(path.address).suffix.lower() in SUFFIXES


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(_PARQUET_MAGIC))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; set [data] labels and population") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _check_columns(path: Source, wanted: list[str], present: list[str]) -> None:
    for name in wanted:
        if name not in present:
            if any(_is_number(column) for column in present):
                # the first line is an event's, and its label is not to be shown
                raise DataError(
                    f"{path} has no column {name!r}: its first line holds values, not names; add a"
                    " header line"
                )
            shown = ", ".join(present[:_COLUMNS_SHOWN])
            more = f" and {len(present) - _COLUMNS_SHOWN} more"
            raise DataError(
                f"{path} has no column {name!r}; it has"
                f" {shown}{more if len(present) > _COLUMNS_SHOWN else ''}"
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text(column: pl.Series, name: str, path: Source) -> pl.Series:
    """Keys or users as text, null where there is none; never one of another row's.

    A NUL is in no key: it marks the fingerprints of users.
    """
    try:
        canonical_keys(column.head(0))  # an unusable type is a fact of the schema
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    text = canonical_keys(column.cast(pl.String).fill_null(""))
    return text.set((text == "") | text.str.contains("\0", literal=True), None)


def _numbers(
    column: pl.Series, name: str, path: Source, places: pl.Series
) -> tuple[pl.Series, Oddities]:
    """Labels, null where there is none, or where the cell is no finite number."""
    odd = Oddities()
    if column.dtype == pl.String:
        text = column.str.strip_chars().str.to_lowercase()
        text = text.set(text.is_in(_MISSING_WORDS), None)
        numbers = text.replace(_BOOLEANS).cast(pl.Float64, strict=False)
        odd = oddity_of(name, "not a number", numbers.is_null() & text.is_not_null(), places)
    elif column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null):
        numbers = column.cast(pl.Float64)
    else:
        raise DataError(
            f"{path}: label column {name!r} has type {column.dtype}; labels must be numbers"
        )
    numbers = numbers.fill_nan(None)
    infinite = numbers.is_infinite().fill_null(False)
    return numbers.set(infinite, None), odd + oddity_of(name, "infinite", infinite, places)
