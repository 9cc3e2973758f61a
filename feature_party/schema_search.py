"""Finds what each column of a table means, from all of its cells, a batch of rows at a time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from labelveil.common.errors import DataError
from labelveil.feature_party.cell_forms import (
    CLOCK,
    COMMA,
    DATES,
    FLAGS,
    ISO,
    NUMBERS,
    PLAIN,
    POINT,
    SOMEHOW,
    WITH_CLOCK,
    as_programs_write,
    dates_of,
    nameless,
)
from labelveil.feature_party.schema import LINES, NOTHING, ColumnMeaning, Found, Schema, Stated

ENOUGH = 0.99
"""Share of a column's cells that must be what it is taken for, of those that are not missing."""
_WHOLE = r"^[+-]?\d+$"
_NAMES = r"^[+-]?0\d\d|^.{16}"
"""Whole numbers that name something: 012, and those that floating point does not tell apart."""
_ID_NAME = re.compile(r"(?:^|[_\s-])(?:id|ids|code|recode|zip|zipcode|sku|uuid)$|[a-z](?:ID|Id)$")


def find_schema(
    batches: Iterable[pl.DataFrame],
    rows: int,
    stated: Stated = NOTHING,
    *,
    typed: bool = True,
    path: Path | None = None,
) -> Found:
    """Find what the columns of a table mean, as :class:`SchemaSearch` does.

    ``batches`` are its rows in order, of which there are ``rows``; one is in memory at a time.
    """
    search = SchemaSearch(rows, stated, typed=typed, path=path)
    for batch in batches:
        search.add(batch)
    return search.found()


class SchemaSearch:
    """Finds what the columns of a table of ``rows`` mean, a batch after another.

    In a table whose columns are ``typed``, as those of CSV are not, whole numbers in text name
    something: who writes them so could have written numbers.

    What is ``stated`` need not be found, but for a form that is left out: no cell that contradicts
    it changes that. Columns that are ignored are not refused. Errors name the ``path``.
    """

    def __init__(
        self, rows: int, stated: Stated = NOTHING, *, typed: bool = True, path: Path | None = None
    ) -> None:
        self._rows, self._stated, self._typed, self._path = rows, stated, typed, path
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
            if kind is not None and meaning.form in ("", PLAIN, ISO, ISO + WITH_CLOCK):
                read = meaning.read(column).cast(kind)
                values.replace_column(place, read.alias(column.name))
        return values

    def found(self) -> Found:
        """What was found of the rows taken in.

        ``DataError`` for a column whose cells mean two things, or of which none is what the
        column was said to hold.
        """
        try:
            return self._found()
        except DataError as error:
            if self._path is None:
                raise
            raise DataError(f"{self._path}: {error}") from error

    def _found(self) -> Found:
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
        self.iso = ColumnMeaning(self.name, "date", ISO, missing=missing)
        # cells that are no number, and no date, however written; dropped as failures are
        open_to_all = self.is_text and self.given is None and not self.numeric
        self.unlike = dict.fromkeys(SOMEHOW if open_to_all else (), 0)
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
        kinds = {"number": NUMBERS, "date": DATES, "true/false": ("",), "time": ("",)}
        for kind, forms in kinds.items():
            for form in forms:
                if given is None or (
                    given.kind == kind and given.form.removesuffix(WITH_CLOCK) in ("", form)
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
        column = nameless(column)
        if self._may_be_names:
            values = column.drop_nulls().drop_nans()
            self.fractions += int((values != values.floor()).sum())
        if not self.failures and not self.unlike:
            return column
        # nearly all cells of most columns are numbers or moments as programs write them, or none is
        moments = {meaning.kind for meaning in self.failures} == {"date"}
        texts, values = as_programs_write(column.cast(pl.String), moments)
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
                bad = usual.filter(~usual.is_in(FLAGS))
            elif meaning.kind != "number":
                bad = bad if moments and meaning == self.iso else usual
            elif not meaning.form.endswith(".5"):
                bad = decimals.filter(~decimals.str.contains(NUMBERS[meaning.form]))
            odd = self._odd(meaning, distinct)
            if not (failed := bad.len() + int(counts.filter(odd).sum())):
                continue
            if meaning not in self.first_odd:
                those = others if odd.all() else _among(others, distinct.filter(odd))
                self.first_odd[meaning] = first + _first(texts, bad, those)
            self.failures[meaning] += failed
        for what in self.unlike:
            strange = counts.filter(~distinct.str.contains(SOMEHOW[what])).sum()
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
        days = dates_of(distinct, ISO + WITH_CLOCK if self.clocks else ISO)
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
        self.clocks += int(there["cell"].str.contains(CLOCK).sum())
        there_alone = _among(cells, there["cell"]) if missing.any() else cells
        return there_alone, there["cell"], there["count"]

    def _odd(self, meaning: ColumnMeaning, cells: pl.Series) -> pl.Series:
        """(n,) whether a cell is not what the column would hold."""
        if cells.is_empty():
            return pl.Series([], dtype=pl.Boolean)
        if meaning.kind == "number":
            return ~cells.str.contains(NUMBERS[meaning.form])
        read = dates_of(cells, meaning.form) if meaning.kind == "date" else meaning.read(cells)
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
                f" that are not missing is one; correct its line in {LINES}"
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
            best = [replace(m, form=m.form.removesuffix(WITH_CLOCK) + WITH_CLOCK) for m in best]
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
            return ColumnMeaning(name, "date", ISO + (WITH_CLOCK if kind == pl.Datetime else ""))
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
            f" and no cell of it decides; write one of them in {LINES}: {ways}"
        )

    def mixed(self) -> DataError:
        """Why no way of writing is taken, and what to write."""
        what = min(self.unlike, key=lambda each: self.unlike[each])
        return DataError(
            f"column {self.name!r} holds {what} that are written in several ways, from row"
            f" {self.first_special + 1:,} on, and none of these fits {ENOUGH:.0%} of its"
            f" {self.cells:,} cells; mend the file, or write a line in {LINES}:"
            f" {self.name!r} = '{what[:-1]}' takes the way of most, others being missing then, and"
            f" {self.name!r} = 'category' each text by itself"
        )

    def remarks(self, meaning: ColumnMeaning) -> str:
        """What a line about the column says besides: what is missing, and what is odd."""
        parts = []
        if self.words and meaning.kind != "category":
            words = ", ".join(repr(word) for word, _ in self.words.most_common(3))
            parts.append(f"{sum(self.words.values()):,} cells missing: {words}")
        form = meaning.form.removesuffix(WITH_CLOCK) or (PLAIN if meaning.kind == "number" else "")
        candidate = replace(meaning, form=form)
        if odd := self.failures.get(candidate, 0):
            row = self.first_odd[candidate] + 1
            parts.append(f"{odd:,} cells are none, the first in row {row:,}, and count as missing")
        return "".join(f"; {part}" for part in parts)


def _among(cells: pl.Series, some: pl.Series) -> pl.Series:
    return cells.filter(cells.is_in(some.implode()))


def _first(cells: pl.Series, *some: pl.Series) -> int:
    """Place of the first cell that is one of some, which stand in the same order."""
    return min((int((cells == each[0]).arg_max() or 0) for each in some if each.len()), default=0)


def _named_as_id(name: str) -> bool:
    """Whether a column's name says that its numbers are names."""
    return _ID_NAME.search(name) is not None
