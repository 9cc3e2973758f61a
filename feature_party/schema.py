"""What each column of a features table means: found once, over all rows, and kept with the model.

A column of numbers, dates or booleans means what its type says. Of a column of text all cells are
looked at: it is what at most one in a hundred of those that are not missing contradicts, and of
several such meanings the one that fewest contradict. Where two fit equally and differ (``1,234`` is
1234 or 1.234; ``01/02/2026`` is in January or in February), columns of the same table that leave no
doubt decide, and without one the table is refused, with the line to write. From then on the same
text means the same in every file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import polars as pl

from labelveil.common.errors import ConfigError, DataError, listed
from labelveil.common.parquet_files import type_words
from labelveil.common.table_cells import BOOLEANS, absent, stripped

Kind = Literal["number", "true/false", "date", "time", "category", "other"]

MISSING = "\x00missing"
"""Vocabulary entry of an absent value; no text of a file can be equal to it by accident."""
ENOUGH = 0.99
"""Share of a column's cells that must be what it is taken for, of those that are not missing."""

_SHAPES = {
    "%Y-%m-%d": r"\d{4}-\d{1,2}-\d{1,2}",
    "%Y/%m/%d": r"\d{4}/\d{1,2}/\d{1,2}",
    "%d.%m.%Y": r"\d{1,2}\.\d{1,2}\.\d{4}",
    "%d.%m.%y": r"\d{1,2}\.\d{1,2}\.\d{2}",
    "%d/%m/%Y": r"\d{1,2}/\d{1,2}/\d{4}",
    "%m/%d/%Y": r"\d{1,2}/\d{1,2}/\d{4}",
    "%d/%m/%y": r"\d{1,2}/\d{1,2}/\d{2}",
    "%m/%d/%y": r"\d{1,2}/\d{1,2}/\d{2}",
    "%d-%m-%Y": r"\d{1,2}-\d{1,2}-\d{4}",
    "%m-%d-%Y": r"\d{1,2}-\d{1,2}-\d{4}",
    "%d %b %Y": r"\d{1,2} \p{L}{3} \d{4}",
    "%b %d, %Y": r"\p{L}{3} \d{1,2}, \d{4}",
}
"""How dates are written, and what they look like then."""
_CLOCK = r"[ T](\d{1,2}):(\d{2})(?::(\d{2}))?"
_WITH_CLOCK = " %H:%M"
_MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9].*$"
"""Moments as programs write them."""
_TIME = r"^(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?$"
_ISO = "%Y-%m-%d"
_SPACES, _QUOTES = " \u00a0\u202f", "'’"
POINT, COMMA = "1,234.5", "1.234,5"
PLAIN = "1234.5"
_GROUPED = {POINT: (",", r"\."), COMMA: (r"\.", ","), "1 234.5": (f"[{_SPACES}]", r"\.")} | {
    "1 234,5": (f"[{_SPACES}]", ","),
    "1'234.5": (f"[{_QUOTES}]", r"\."),
}
"""How numbers are written that are not plain: what separates thousands, and decimals."""
_NUMBERS = {PLAIN: r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$"} | {
    form: rf"^[+-]?(?:[1-9]\d{{0,2}}(?:{thousands}\d{{3}})+|\d+)(?:{decimal}\d*)?$"
    for form, (thousands, decimal) in _GROUPED.items()
}
_WHOLE = r"^[+-]?\d+$"
_SOMEHOW = {
    "numbers": "|".join(_NUMBERS.values()),
    "dates": f"^(?:{'|'.join(_SHAPES.values())})(?:{_CLOCK}.*)?$",
}
"""What numbers and dates look like, however they are written."""
_NAMES = r"^[+-]?0\d\d|^.{16}"
"""Whole numbers that name something: 012, and those that floating point does not tell apart."""
_FLAGS = [*BOOLEANS.values()]
_A_SECOND = {"ms": 1e3, "us": 1e6, "ns": 1e9}
_FEW = 100
_ID_NAME = re.compile(r"(?:^|[_\s-])(?:id|ids|code|recode|zip|zipcode|sku|uuid)$|[a-z](?:ID|Id)$")
_CODES = "category of numbers"
IGNORED = "ignore"
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
        date_form = form.removesuffix(_WITH_CLOCK)
        if kind == "number" and (not form or form in _NUMBERS):
            return cls(name, "number", form, missing=missing)
        if kind == "date" and (not form or date_form in _SHAPES):
            return cls(name, "date", form, missing=missing)
        raise ConfigError(
            f"columns.{name}={text!r:.80} must be number, {_lines('number', _NUMBERS)}, date,"
            f" {_lines('date', _SHAPES)}, {_ISO}{_WITH_CLOCK} and so on, true/false, time,"
            f' category, {_CODES} or {IGNORED}, each with "{_MISSING_AT}word, word" behind it if'
            " need be; set it in [data.columns]"
        )

    def __str__(self) -> str:
        what = _CODES if self.codes else self.kind
        form = f" {self.form}" if self.form else ""
        return what + form + (_MISSING_AT + ", ".join(self.missing) if self.missing else "")

    def absent(self, column: pl.Series) -> pl.Series:
        """(n,) whether a cell is missing, rather than something that is not what it should be."""
        column = _nameless(column)
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
        column = _nameless(column)
        if column.dtype in (pl.Categorical, pl.Enum):
            column = column.cast(pl.String)
        if column.dtype == pl.String:
            cells = stripped(column)
            if self.missing:
                cells = cells.set(cells.is_in(list(self.missing)), None)
            return self._read(cells)
        if (
            column.dtype.is_nested()
            or column.dtype in (pl.Binary, pl.Object)
            or self.kind == "other"
        ):
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
            form = self.form or _ISO + _WITH_CLOCK
            distinct = cells.unique()
            if distinct.len() > cells.len() / 4:
                return _dates(cells, form)
            days = _dates(distinct, form)
            return cells.replace_strict(distinct, days, return_dtype=days.dtype)
        if self.kind == "time":
            parts = (cells.str.extract(_TIME, part).cast(pl.Float64) for part in (1, 2, 3))
            hours, minutes, seconds = parts
            return 3600 * hours + 60 * minutes + seconds.fill_null(0.0)
        if self.kind == "true/false":
            cells = cells.str.to_lowercase().replace(BOOLEANS)
            cells = cells.set(~cells.is_in(_FLAGS), None)
        elif self.form not in ("", PLAIN):
            thousands, decimal = _GROUPED[self.form]
            grouped = cells.str.replace_all(thousands, "").str.replace(decimal, ".")
            plain = cells if self.form.endswith(".5") else pl.Series([None], dtype=pl.String)
            cells = grouped.zip_with(
                cells.str.contains(_NUMBERS[self.form]).fill_null(False), plain
            )
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
                " did when a model was trained or as [data.columns] says; convert it"
            )
        return column.cast(pl.Float64)


@dataclass(frozen=True)
class Stated:
    """What is said of columns, rather than found."""

    given: tuple[ColumnMeaning, ...] = ()  # meanings, each of another column
    numeric: tuple[str, ...] = ()  # are no categories, and do not only number the rows
    ignored: tuple[str, ...] = ()  # are not learned from

    @classmethod
    def of(
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

    def told(self, ignored: Collection[str] = ()) -> list[str]:
        """A line for each column, as it is shown."""
        return [
            f"{name or NAMELESS}: {'ignored' if name in ignored else line}"
            for name, line in self.lines
        ]


def find_schema(
    batches: Iterable[pl.DataFrame],
    rows: int,
    stated: Stated = NOTHING,
    *,
    typed: bool = True,
) -> Found:
    """Find what the columns of a table mean, as :class:`SchemaSearch` does.

    ``batches`` are its rows in order, of which there are ``rows``; one is in memory at a time.
    """
    search = SchemaSearch(rows, stated, typed=typed)
    for batch in batches:
        search.add(batch)
    return search.found()


class SchemaSearch:
    """Finds what the columns of a table of ``rows`` mean, a batch after another.

    In a table whose columns are ``typed``, as those of CSV are not, whole numbers in text name
    something: who writes them so could have written numbers.

    What is ``stated`` need not be found, but for a form that is left out: no cell that contradicts
    it changes that. Columns that are ignored are not refused.
    """

    def __init__(self, rows: int, stated: Stated = NOTHING, *, typed: bool = True) -> None:
        self._rows, self._stated, self._typed = rows, stated, typed
        self._evidence: dict[str, _Evidence] = {}
        self._seen = 0

    @property
    def is_settled(self) -> bool:
        """Whether no further cell could decide anything."""
        return not any(each.wants_cells for each in self._evidence.values())

    def add(self, batch: pl.DataFrame) -> pl.DataFrame:
        """Take in the next rows; gives them with numbers for text, in columns whose cells so far
        say no more than numbers do."""
        values = batch.clone()
        for place, column in enumerate(batch):
            if column.name not in self._evidence:
                evidence = _Evidence(column, self._rows, self._stated, self._typed)
                self._evidence[column.name] = evidence
            taken_in = self._evidence[column.name].add(column, self._seen)
            values.replace_column(place, taken_in.alias(column.name))
        self._seen += batch.height
        return values

    def as_numbers(self, batch: pl.DataFrame, schema: Schema) -> pl.DataFrame:
        """Rows with values for text, in columns of which that is true of all cells."""
        values = batch.clone()
        for place, column in enumerate(batch):
            meaning, kind = schema[column.name], self._evidence[column.name].kept_as
            if kind is not None and meaning.form in ("", PLAIN, _ISO, _ISO + _WITH_CLOCK):
                read = meaning.read(column).cast(kind)
                values.replace_column(place, read.alias(column.name))
        return values

    def found(self) -> Found:
        """What was found of the rows taken in.

        Raises ``DataError`` for a column whose cells mean two things, or of which none is what the
        column was said to hold.
        """
        for name, each in self._evidence.items():
            if each.is_mixed and name not in self._stated.ignored:
                raise each.mixed()
        possible = {name: each.meanings() for name, each in self._evidence.items()}
        sure = [meanings[0].form for meanings in possible.values() if len(meanings) == 1]
        points = sum(form.endswith(".5") for form in sure)
        commas = sum(form.endswith(",5") for form in sure)
        day, month = (sum(form.startswith(start) for form in sure) for start in ("%d/", "%m/"))
        meanings, lines = [], []
        for name, each in self._evidence.items():
            several = possible[name]
            if len(several) > 1:
                forms = [meaning.form for meaning in several]
                comma = commas > 0 == points
                if PLAIN in forms:  # as programs write them
                    wanted = COMMA if comma else PLAIN
                elif COMMA in forms:
                    wanted = COMMA if comma else POINT if points > 0 == commas else ""
                else:
                    start = "%d" if day > 0 == month else "%m" if month > 0 == day else "?"
                    wanted = next((form for form in forms if form.startswith(start)), "")
                if not wanted and name not in self._stated.ignored:
                    raise each.ambiguous(several)
                several = [meaning for meaning in several if meaning.form == wanted] or several
            meanings.append(several[0])
            lines.append((name, f"{several[0]}{each.remarks(several[0])}"))
        return Found(Schema(tuple(meanings)), tuple(lines))


def undecided(table: pl.DataFrame, stated: Stated = NOTHING) -> list[str]:
    """The columns whose cells decide what they mean: of text, and of numbers that may be names."""
    evidence = (_Evidence(column, 0, stated) for column in table)
    return [each.name for each in evidence if each.wants_cells]


class _Evidence:
    """What the cells of one column say, a batch after another."""

    def __init__(self, column: pl.Series, rows: int, stated: Stated, typed: bool = True) -> None:
        self.name, self.kind, self.rows = column.name, column.dtype, rows
        self.given, self.numeric = (
            next((m for m in stated.given if m.name == self.name), None),
            self.name in stated.numeric,
        )
        self.is_text = column.dtype in (pl.String, pl.Categorical, pl.Enum)
        self.names_things = typed or _named_as_id(self.name)
        self.words: Counter[str] = Counter()  # of what is missing
        # cells that are not missing, and of these whole numbers, and such that name something;
        # moments; of a column of floats those with decimals
        self.cells = self.whole = self.names = self.clocks = self.fractions = 0
        self.special = False  # whether any cell is no whole number
        candidates = list(self._candidates()) if self.is_text else []
        self.failures = dict.fromkeys(candidates, 0)
        missing = () if self.given is None else self.given.missing
        self.plain = ColumnMeaning(self.name, "number", PLAIN, missing=missing)
        self.iso = ColumnMeaning(self.name, "date", _ISO, missing=missing)
        # cells that are no number, and no date, however written; dropped as failures are
        open_to_all = self.is_text and self.given is None and not self.numeric
        self.unlike = dict.fromkeys(_SOMEHOW if open_to_all else (), 0)
        self.unplain = 0  # cells that are neither missing nor numbers as programs write them
        self.first_odd: dict[ColumnMeaning, int] = {}
        self.first_special = 0  # row of the first cell that is no whole number

    @property
    def wants_cells(self) -> bool:
        """Whether any more cells could decide something."""
        return bool(self.failures or self.unlike) or self._may_be_names

    @property
    def _may_be_names(self) -> bool:
        return self.kind.is_float() and _named_as_id(self.name) and not self.fractions

    @property
    def is_mixed(self) -> bool:
        """Whether the cells are numbers, or dates, and no way of writing fits enough of them."""
        most = (1 - ENOUGH) * self.cells
        fits = any(failed <= most for failed in self.failures.values())
        return not fits and any(failed <= most for failed in self.unlike.values())

    def _candidates(self) -> Iterator[ColumnMeaning]:
        given, name = self.given, self.name
        missing = () if given is None else given.missing
        kinds = {"number": _NUMBERS, "date": _SHAPES, "true/false": ("",), "time": ("",)}
        for kind, forms in kinds.items():
            for form in forms:
                if given is None or (
                    given.kind == kind and given.form.removesuffix(_WITH_CLOCK) in ("", form)
                ):
                    yield ColumnMeaning(name, kind, form, missing=missing)  # type: ignore[arg-type]

    @property
    def kept_as(self) -> pl.DataType | None:
        """The type whose values say all that the cells so far do, if one does: of numbers and dates
        as programs write them."""
        if not self.cells or self.names:
            return None
        if self.failures.get(self.iso) == 0:
            return pl.Datetime("us") if self.clocks else pl.Date()
        if self.plain not in self.failures or self.unplain:
            return None
        if self.whole < self.cells:
            return pl.Float64()
        called_names = self.names_things and self.given is None and not self.numeric
        return None if called_names else pl.Int64()

    def add(self, column: pl.Series, first: int) -> pl.Series:
        """Take in the cells of the rows from ``first`` on; gives them as ``kept_as`` says."""
        column = _nameless(column)
        if self._may_be_names:
            values = column.drop_nulls().drop_nans()
            self.fractions += int((values != values.floor()).sum())
        if not self.failures and not self.unlike:
            return column
        # nearly all cells of most columns are numbers or moments as programs write them, or none is
        moments = {meaning.kind for meaning in self.failures} == {"date"}
        texts, values = _as_programs_write(column.cast(pl.String), moments)
        if self.plain.missing:
            values = values.set(texts.is_in(list(self.plain.missing)), None)
        usual, others = texts, texts.clear()
        if values.null_count():
            usual = texts.filter(values.is_not_null())
            others = texts.filter(values.is_null()).drop_nulls()
        others, distinct, counts = self._there(others)
        odd_ones = int(counts.sum())
        whole, decimals = texts.clear(), usual  # or just numbers, where nobody asks which
        if self.whole == self.cells:
            digits = usual.str.contains(_WHOLE)
            whole, decimals = usual, texts.clear()
            if not digits.all():
                whole, decimals = usual.filter(digits), usual.filter(~digits)
        self.unplain += odd_ones
        self.clocks += usual.len() if moments else 0
        self.cells += usual.len() + odd_ones
        self.whole += whole.len()
        if self.whole == self.cells:
            self.names += int(whole.str.contains(_NAMES).sum())
        elif not self.special:
            self.special = True
            self.first_special = first + _first(texts, decimals, others)
        for meaning in list(self.failures):
            bad = texts.clear()
            if meaning.kind == "true/false":
                bad = usual.filter(~usual.is_in(_FLAGS))
            elif meaning.kind != "number":
                bad = bad if moments and meaning == self.iso else usual
            elif not meaning.form.endswith(".5"):
                bad = decimals.filter(~decimals.str.contains(_NUMBERS[meaning.form]))
            odd = self._odd(meaning, distinct)
            if not (failed := bad.len() + int(counts.filter(odd).sum())):
                continue
            if meaning not in self.first_odd:
                those = others if odd.all() else _among(others, distinct.filter(odd))
                self.first_odd[meaning] = first + _first(texts, bad, those)
            self.failures[meaning] += failed
        for what in self.unlike:
            strange = counts.filter(~distinct.str.contains(_SOMEHOW[what])).sum()
            self.unlike[what] += int(strange) + usual.len() * ((what == "dates") != moments)
        if self.given is None and not self.numeric:
            most = (1 - ENOUGH) * self.rows
            self.failures = {m: failed for m, failed in self.failures.items() if failed <= most}
            self.unlike = {what: failed for what, failed in self.unlike.items() if failed <= most}
        if (kind := self.kept_as) is None:
            return column
        if kind.is_numeric():
            return values.cast(kind)
        if moments and distinct.is_empty():
            return values.cast(kind)
        days = _dates(distinct, _ISO + _WITH_CLOCK if self.clocks else _ISO)
        days = texts.replace_strict(distinct, days, default=None, return_dtype=kind)
        return values.cast(kind).zip_with(values.is_not_null(), days) if moments else days

    def _there(self, cells: pl.Series) -> tuple[pl.Series, pl.Series, pl.Series]:
        """Those that are not missing, the different ones of them, and how many of each; the words
        of the others are counted."""
        counted = cells.alias("cell").value_counts()
        missing = self.plain.absent(counted["cell"])
        words = counted.filter(missing & (counted["cell"] != ""))
        self.words.update(dict(words.iter_rows()))
        there = counted.filter(~missing)
        self.clocks += int(there["cell"].str.contains(_CLOCK).sum())
        there_alone = _among(cells, there["cell"]) if missing.any() else cells
        return there_alone, there["cell"], there["count"]

    def _odd(self, meaning: ColumnMeaning, cells: pl.Series) -> pl.Series:
        """(n,) whether a cell is not what the column would hold."""
        if cells.is_empty():
            return pl.Series([], dtype=pl.Boolean)
        if meaning.kind == "number":
            return ~cells.str.contains(_NUMBERS[meaning.form])
        read = _dates(cells, meaning.form) if meaning.kind == "date" else meaning.read(cells)
        return read.is_null()

    def meanings(self) -> list[ColumnMeaning]:
        """What the column means, or the several things that it may, which differ."""
        name, given = self.name, self.given
        if not self.is_text:
            return [self._by_type() if given is None else given]
        if given is not None and given.kind == "category":
            return [given]
        if given is not None and self.cells and min(self.failures.values()) == self.cells:
            raise DataError(
                f"column {name!r} is said to hold a {given}, and none of its {self.cells:,} cells"
                " that are not missing is one; correct its line in [data.columns]"
            )
        most = self.cells - 1 if given or self.numeric else (1 - ENOUGH) * self.cells
        fitting = {m: failed for m, failed in self.failures.items() if failed <= most}
        if self.numeric and self.cells and not fitting:
            raise DataError(
                f"column {name!r} is listed in [data] numeric, and none of its {self.cells:,} cells"
                " is a number or a date; leave it out there, or list it in categorical"
            )
        if not self.cells or not fitting:
            return [given or ColumnMeaning(name, "category")]
        least = min(fitting.values())
        best = [meaning for meaning, failed in fitting.items() if failed == least]
        if best[0].kind == "date" and self.clocks:
            best = [replace(m, form=m.form.removesuffix(_WITH_CLOCK) + _WITH_CLOCK) for m in best]
        if best[0].kind != "number":
            return best
        if self.whole == self.cells:
            if given is None and not self.numeric and (self.names or self.names_things):
                return [ColumnMeaning(name, "category", codes=not self.names)]
            return [replace(best[0], form="")]
        # of the others, those that read the same where the first does
        other = {PLAIN: COMMA, POINT: COMMA}.get(best[0].form)
        return [m for m in best if m.form in (best[0].form, other)]

    def _by_type(self) -> ColumnMeaning:
        name, kind = self.name, self.kind
        if kind == pl.Boolean:
            return ColumnMeaning(name, "true/false")
        if kind in (pl.Date, pl.Datetime):
            return ColumnMeaning(name, "date", _ISO + (_WITH_CLOCK if kind == pl.Datetime else ""))
        if kind == pl.Time:
            return ColumnMeaning(name, "time")
        if kind.is_numeric() or kind == pl.Duration:
            whole = not self.fractions and not getattr(kind, "scale", 0)
            if whole and kind != pl.Duration and _named_as_id(name) and not self.numeric:
                return ColumnMeaning(name, "category", codes=True)
            return ColumnMeaning(name, "number")
        return ColumnMeaning(name, "category" if kind == pl.Null else "other")

    def ambiguous(self, meanings: Sequence[ColumnMeaning]) -> DataError:
        """Why the column cannot be read, and what to write."""
        ways = " or ".join(f"{self.name!r} = {str(meaning)!r}" for meaning in meanings)
        return DataError(
            f"column {self.name!r} can be read in two ways, from row {self.first_special + 1:,} on,"
            f" and no cell of it decides; write one of them below [data.columns]: {ways}"
        )

    def mixed(self) -> DataError:
        """Why no way of writing is taken, and what to write."""
        what = min(self.unlike, key=lambda each: self.unlike[each])
        return DataError(
            f"column {self.name!r} holds {what} that are written in several ways, from row"
            f" {self.first_special + 1:,} on, and none of these fits {ENOUGH:.0%} of its"
            f" {self.cells:,} cells; mend the file, or write a line below [data.columns]:"
            f" {self.name!r} = '{what[:-1]}' takes the way of most, others being missing then, and"
            f" {self.name!r} = 'category' each text by itself"
        )

    def remarks(self, meaning: ColumnMeaning) -> str:
        """What a line about the column says besides: what is missing, and what is odd."""
        parts = []
        if self.words and meaning.kind != "category":
            words = ", ".join(repr(word) for word, _ in self.words.most_common(3))
            parts.append(f"{sum(self.words.values()):,} cells missing: {words}")
        form = meaning.form.removesuffix(_WITH_CLOCK) or (PLAIN if meaning.kind == "number" else "")
        candidate = replace(meaning, form=form)
        if odd := self.failures.get(candidate, 0):
            row = self.first_odd[candidate] + 1
            parts.append(f"{odd:,} cells are none, the first in row {row:,}, and count as missing")
        return "".join(f"; {part}" for part in parts)


def canonical_text(series: pl.Series) -> pl.Series:
    """Canonical text of each value: 17850 from CSV and 17850.0 from Parquet are one category."""
    series = _nameless(series)
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


def _as_programs_write(cells: pl.Series, moments: bool) -> tuple[pl.Series, pl.Series]:
    """(n,) texts without space around them, and their numbers, or their moments: null where one is
    none as programs write it, or is infinite.

    Texts without space, as most are, are not copied.
    """
    values = _moments(cells) if moments else cells.cast(pl.Float64, strict=False)
    if values.null_count() > cells.null_count():
        cells = stripped(cells)
        values = _moments(cells) if moments else cells.cast(pl.Float64, strict=False)
    return cells, values if moments else values.set(~values.is_finite(), None)


def _moments(cells: pl.Series) -> pl.Series:
    """Moments as programs write them, with a point or a zone behind them or without; null of other
    texts."""
    exact = cells.set(~cells.str.contains(_MOMENT), None)
    if exact.null_count() == exact.len():
        return exact.cast(pl.Datetime("us"))
    form = f"%Y-%m-%d{exact.drop_nulls()[0][10]}%H:%M:%S"
    text = exact.str.slice(0, 19)
    return text.str.to_datetime(form, time_unit="us", strict=False, cache=False)


def _dates(cells: pl.Series, form: str) -> pl.Series:
    """Dates, or moments if the form has a clock; null where a text is neither."""
    date = form.removesuffix(_WITH_CLOCK)
    known = pl.repeat(None, cells.len(), dtype=pl.Datetime("us"), eager=True)
    if form == _ISO + _WITH_CLOCK:
        known = _moments(cells)
        if known.null_count() == cells.null_count():
            return known  # in a tenth of the time
    days = cells.str.extract(rf"^({_SHAPES[date]})(?:{_CLOCK}.*)?$").str.to_date(date, strict=False)
    if date == form:
        return days
    parts = (cells.str.extract(_CLOCK, part).cast(pl.Int64).fill_null(0) for part in (1, 2, 3))
    hours, minutes, seconds = parts
    clock = (3600 * hours + 60 * minutes + seconds) * 1_000_000
    moments = days.cast(pl.Datetime("us")) + clock.cast(pl.Duration("us"))
    return known.zip_with(known.is_not_null(), moments)


def _among(cells: pl.Series, some: pl.Series) -> pl.Series:
    return cells.filter(cells.is_in(some.implode()))


def _first(cells: pl.Series, *some: pl.Series) -> int:
    """Place of the first cell that is one of some, which stand in the same order."""
    return min((int((cells == each[0]).arg_max() or 0) for each in some if each.len()), default=0)


def _nameless(column: pl.Series) -> pl.Series:
    """A Series' methods take a name ^…$ for a pattern of columns."""
    return column.alias("")


def _named_as_id(name: str) -> bool:
    """Whether a column's name says that its numbers are names."""
    return _ID_NAME.search(name) is not None


def _lines(kind: str, forms: Iterable[str]) -> str:
    return ", ".join(f"{kind} {form}" for form in forms)
