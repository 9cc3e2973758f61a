"""What each column of a features table means: found once, over all rows, and kept with the model.

A column of numbers, dates or booleans means what its type says. Of a column of text all cells are
looked at: it is what at most one in a hundred of those that are not missing contradicts, and of
several such meanings the one that fewest contradict. Where two fit equally and differ (``1,234`` is
1234 or 1.234; ``01/02/2026`` is in January or in February), columns of the same table that leave no
doubt decide, and without one the table is refused, with the line to write. From then on the same
text means the same in every file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import polars as pl

from labelveil.common.errors import ConfigError, DataError, listed
from labelveil.common.parquet_files import type_words
from labelveil.common.table_cells import BOOLEANS, absent, stripped
from labelveil.feature_party.cell_forms import (
    DATES,
    FLAGS,
    GROUPED,
    ISO,
    NUMBERS,
    PLAIN,
    WITH_CLOCK,
    dates_of,
    nameless,
)

Kind = Literal["number", "true/false", "date", "time", "category", "other"]

MISSING = "\x00missing"
"""Vocabulary entry of an absent value; no text of a file can be equal to it by accident."""

_TIME = r"^(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?$"
_A_SECOND = {"ms": 1e3, "us": 1e6, "ns": 1e9}
_FEW = 100
_CODES = "category of numbers"
IGNORED = "ignore"
LINES = "[data.columns], in columns= of Python, or in --columns of simulate"
"""Where somebody says what columns mean."""
_MISSING_AT = "; missing: "


@dataclass(frozen=True)
class ColumnMeaning:
    """What the cells of one column mean; ``str`` is what a configuration says of it."""

    name: str
    kind: Kind
    form: str = ""  # how a number is written, by its example, or a date, in letters of strftime
    codes: bool = (
        False  # whether categories are numbers, so that 17850, 17850.0 and "17850" are one
    )
    missing: tuple[str, ...] = ()  # words for what is missing besides the usual ones

    @classmethod
    def parse(cls, name: str, text: str) -> Self:
        """Read what ``str`` writes, such as ``number 1,234.5``; ``ConfigError`` if it is none.

        The form of a number or a date may be left out where it is to be found.
        """
        what, _, words = text.strip().partition(_MISSING_AT)
        missing = tuple(word.strip() for word in words.split(",") if word.strip())
        if what == _CODES:
            return cls(name, "category", codes=True, missing=missing)
        for kind in ("true/false", "time", "category"):
            if what == kind:
                return cls(name, kind, missing=missing)
        kind, _, form = what.partition(" ")
        date_form = form.removesuffix(WITH_CLOCK)
        if kind == "number" and (not form or form in NUMBERS):
            return cls(name, "number", form, missing=missing)
        if kind == "date" and (not form or date_form in DATES):
            return cls(name, "date", form, missing=missing)
        raise ConfigError(
            f"columns.{name}={text!r:.80} must be number, {_lines('number', NUMBERS)}, date,"
            f" {_lines('date', DATES)}, {ISO}{WITH_CLOCK} and so on, true/false, time,"
            f' category, {_CODES} or {IGNORED}, each with "{_MISSING_AT}word, word" behind it if'
            f" need be; set it in {LINES}"
        )

    def __str__(self) -> str:
        what = _CODES if self.codes else self.kind
        form = f" {self.form}" if self.form else ""
        return what + form + (_MISSING_AT + ", ".join(self.missing) if self.missing else "")

    def absent(self, column: pl.Series) -> pl.Series:
        """(n,) whether a cell is missing, rather than something that is not what it should be."""
        column = nameless(column)
        if column.dtype in (pl.Categorical, pl.Enum):
            column = column.cast(pl.String)
        if column.dtype != pl.String:
            nothing = column.is_null() | self._said_missing(column)
            return nothing | column.is_nan() if column.dtype.is_float() else nothing
        if self.kind == "category":  # NA is a country
            cells = stripped(column)
            return cells.is_null() | cells.is_in(["", *self.missing])
        return absent(column) | stripped(column).is_in(list(self.missing))

    def unread(self, column: pl.Series, values: pl.Series) -> tuple[int, int]:
        """How many of (n,) cells have no value as they were read: missing ones, and odd ones."""
        nothing = values == MISSING if self.kind == "category" else values.is_null()
        if values.dtype.is_float():
            nothing |= values.is_nan().fill_null(False)
        missing = int(self.absent(column.filter(nothing)).sum())
        return missing, int(nothing.sum()) - missing

    def read(self, column: pl.Series) -> pl.Series:
        """(n,) values of cells: of a number, a time or a duration (seconds), or true and false
        Float64; of a date
        Date or Datetime; of a category text, ``MISSING`` where there is none. Elsewhere what is
        missing, or is none, is null.

        They have no name. ``DataError`` if the type of the column is another than what it should
        hold.
        """
        column = nameless(column)
        if column.dtype in (pl.Categorical, pl.Enum):
            column = column.cast(pl.String)
        if column.dtype == pl.String:
            cells = stripped(column)
            if self.missing:
                cells = cells.set(cells.is_in(list(self.missing)), None)
            return nameless(self._read(cells))
        if not can_be_feature(column.dtype) or self.kind == "other":
            raise DataError(
                f"column {self.name!r} has type {type_words(column.dtype)}, which cannot be a"
                " feature; leave it out, or list it in [data] ignore"
            )
        if self.missing and column.dtype.is_numeric():
            column = column.set(self._said_missing(column), None)
        return self._of_type(column)

    def _said_missing(self, column: pl.Series) -> pl.Series:
        """(n,) whether a number is one of the further words for what is missing."""
        if not (self.missing and column.dtype.is_numeric()):
            return pl.repeat(False, column.len(), eager=True)
        words = pl.Series(self.missing, dtype=pl.String).cast(pl.Float64, strict=False)
        return column.cast(pl.Float64).is_in(words.drop_nulls().implode()).fill_null(False)

    def _read(self, cells: pl.Series) -> pl.Series:
        if self.kind == "category":
            cells = cells.set(cells == "", None)
            if self.codes:
                numbers = canonical_text(cells.cast(pl.Float64, strict=False))
                cells = numbers.zip_with(numbers != MISSING, cells)
            return cells.fill_null(MISSING)
        if self.kind == "date":
            form = self.form or ISO + WITH_CLOCK
            # a column of dates repeats each day many times, and reading text is what costs
            distinct = cells.unique()
            if distinct.len() > cells.len() / 4:
                return dates_of(cells, form)
            days = dates_of(distinct, form)
            return cells.replace_strict(distinct, days, return_dtype=days.dtype)
        if self.kind == "time":
            parts = (cells.str.extract(_TIME, part).cast(pl.Float64) for part in (1, 2, 3))
            hours, minutes, seconds = parts
            return 3600 * hours + 60 * minutes + seconds.fill_null(0.0)
        if self.kind == "true/false":
            cells = cells.str.to_lowercase().replace(BOOLEANS)
            cells = cells.set(~cells.is_in(FLAGS), None)
        elif self.form not in ("", PLAIN):
            thousands, decimal = GROUPED[self.form]
            grouped = cells.str.replace_all(thousands, "").str.replace(decimal, ".")
            plain = cells if self.form.endswith(".5") else pl.Series([None], dtype=pl.String)
            cells = grouped.zip_with(cells.str.contains(NUMBERS[self.form]).fill_null(False), plain)
        numbers = cells.cast(pl.Float64, strict=False)
        return numbers.set(~numbers.is_finite(), None)

    def _of_type(self, column: pl.Series) -> pl.Series:
        kind = column.dtype
        if kind == pl.Null:
            nothing = pl.Date if self.kind == "date" else pl.Float64
            return canonical_text(column) if self.kind == "category" else column.cast(nothing)
        if self.kind == "category":
            return canonical_text(column)
        if self.kind == "date" and kind == pl.Datetime:
            return column.dt.replace_time_zone(None).cast(pl.Datetime("us"))
        if self.kind == "date" and kind == pl.Date:
            return column
        if self.kind == "time" and kind == pl.Time:
            return column.cast(pl.Int64).cast(pl.Float64) / 1e9
        if self.kind in ("number", "true/false") and kind == pl.Duration:
            return column.cast(pl.Int64) / _A_SECOND[str(getattr(kind, "time_unit", "us"))]
        if self.kind == "true/false" and (kind.is_numeric() or kind == pl.Boolean):
            flags = column.cast(pl.Float64)
            return flags.set(~flags.is_in([0.0, 1.0]), None)
        if self.kind != "number" or not kind.is_numeric():
            raise DataError(
                f"column {self.name!r} has type {kind} here, and is to hold a {self.kind}, as it"
                " did when a model was trained or as its line in [data.columns] says; convert it"
            )
        return column.cast(pl.Float64)


@dataclass(frozen=True)
class Stated:
    """What is said of columns, rather than found."""

    given: tuple[ColumnMeaning, ...] = ()  # meanings, each of another column
    numeric: tuple[str, ...] = ()  # are no categories, and do not only number the rows
    ignored: tuple[str, ...] = ()  # are not learned from

    @classmethod
    def from_settings(
        cls,
        columns: Mapping[str, str],
        numeric: Sequence[str] = (),
        categorical: Sequence[str] = (),
        ignored: Sequence[str] = (),
    ) -> Stated:
        """Read the lists and lines of a configuration; ``ConfigError`` for a contradiction."""
        both = set(numeric) & set(categorical)
        both |= {*columns} & {*numeric, *categorical}
        if both:
            raise ConfigError(
                f"column {min(both)!r} is said to be two things in [data]; name it once, in"
                " numeric, categorical or columns"
            )
        left_out = {name for name, text in columns.items() if text.strip() == IGNORED}
        given = [ColumnMeaning.parse(n, t) for n, t in columns.items() if n not in left_out]
        given += [ColumnMeaning(name, "category") for name in categorical]
        return cls(tuple(given), tuple(numeric), (*ignored, *sorted(left_out)))

    def check(self, columns: Sequence[str]) -> None:
        """Raise ``ConfigError`` if a column that is named does not exist."""
        for column in (*self.numeric, *(meaning.name for meaning in self.given)):
            if column not in columns:
                raise ConfigError(
                    f"[data] names the column {column!r}, which the features do not have;"
                    f" columns: {listed(columns)}"
                )

    def facts(self) -> list[object]:
        """The same in a form that can be written down."""
        given = sorted((meaning.name, str(meaning)) for meaning in self.given)
        return [given, sorted(self.numeric), sorted(self.ignored)]


NOTHING = Stated()


@dataclass(frozen=True)
class Schema:
    """The meaning of every column of a table, in the table's order."""

    columns: tuple[ColumnMeaning, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, ColumnMeaning]:
        return {column.name: column for column in self.columns}

    def __getitem__(self, name: str) -> ColumnMeaning:
        return self.by_name[name]

    def meaning(self, name: str) -> ColumnMeaning:
        """That of a column; one that it does not have names things."""
        return self.by_name.get(name, ColumnMeaning(name, "category"))


NAMELESS = "the column without a name"
"""How pandas' index is called, where a file has it."""


@dataclass(frozen=True)
class Found:
    """A schema, and in a line for each column what it was found from."""

    schema: Schema
    lines: tuple[tuple[str, str], ...]  # column, and what it is taken for and why

    def describe(self, ignored: Collection[str] = ()) -> list[str]:
        """A line for each column, as it is shown."""
        return [
            f"{name or NAMELESS}: {'ignored' if name in ignored else line}"
            for name, line in self.lines
        ]


def can_be_feature(dtype: pl.DataType) -> bool:
    """Whether a column of a type can be learned from: no lists, records or bytes."""
    return not (dtype.is_nested() or dtype in (pl.Binary, pl.Object))


def canonical_text(series: pl.Series) -> pl.Series:
    """Canonical text of each value: 17850 from CSV and 17850.0 from Parquet are one category."""
    series = nameless(series)
    if series.dtype.is_float():
        frame = pl.DataFrame({"x": series})
        whole = pl.col("x").is_finite() & (pl.col("x") == pl.col("x").floor())
        whole &= pl.col("x").abs() < 2**53
        text = (
            pl.when(whole)
            .then(pl.col("x").cast(pl.Int64, strict=False).cast(pl.String))
            .otherwise(pl.col("x").fill_nan(None).cast(pl.String))
        )
        series = frame.select(text).to_series()
    elif series.dtype != pl.String:
        series = series.cast(pl.String)
    return series.fill_null(MISSING)


def numbers_rows(cells: pl.Series, values: pl.Series, meaning: ColumnMeaning) -> bool:
    """Whether the whole numbers that cells are read as only number the rows: no two alike, and few
    left out."""
    whole = cells.dtype.is_integer() or (cells.dtype == pl.String and not meaning.form)
    if not whole or values.dtype != pl.Float64:
        return False
    if values.len() < _FEW or values.null_count() or not values.is_finite().all():
        return False
    low, high = values.min(), values.max()
    if high - low >= 2 * values.len():  # type: ignore[operator]
        return False
    return bool((values == values.floor()).all()) and values.n_unique() == values.len()


def _lines(kind: str, forms: Iterable[str]) -> str:
    return ", ".join(f"{kind} {form}" for form in forms)
