"""Features as numbers: decided once on training rows, applied alike from then on.

A numeric column is centred and scaled; a heavy-tailed one goes through a signed logarithm first,
and missing values get the median and an indicator. Its range may also be cut into pieces of equal
count, or at every value where there are few, with one input for each that says how far through the
piece the value is: a small network then follows a bend anywhere in the range. (Piecewise linear
encoding: Gorishniy, Rubachev and Babenko, *On Embeddings for Numerical Features in Tabular Deep
Learning*, NeurIPS 2022.)

A date and time becomes an hour, a weekday, a day number and, where a year passes, the place in it.
A categorical column gets a vocabulary of the values that occur at least 5 times; everything else,
and every value never seen, shares one place. Columns that name or number the rows are left out.
What is a number, a date or a category is the schema's to say
(:mod:`labelveil.feature_party.schema`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import TypeAdapter

from labelveil.common.arrays import Floats
from labelveil.common.errors import DataError, listed
from labelveil.common.forks import check_threads
from labelveil.feature_party.schema import (
    MISSING,
    NOTHING,
    ColumnMeaning,
    Schema,
    Stated,
    numbers_rows,
)
from labelveil.feature_party.schema_search import find_schema

MIN_OCCURRENCES = 5
_LARGEST = 1e100
_HEAVY_TAIL = 4.0
"""Excess kurtosis from which a column is put on a signed logarithmic axis."""
_FEW = 32
"""Values of a column up to which, cut at all, it is cut at each: hours of a day have an effect of
their own."""
_OFTEN = 0.4
"""Share of the rows from which on a value has an effect of its own, in a column left whole else."""
CLIP = 8.0
"""No numeric input is further from 0."""
_BLOCK = 1 << 13
"""Rows that are encoded at once: what is made on the way stays in the processor's cache."""
YEAR = 365.2425
"""Days of a year in the Gregorian calendar, on average."""


@dataclass(frozen=True)
class NumericColumn:
    """One number a row: (transform(x) − centre) / scale."""

    name: str
    part: str  # ``value``, ``hour``, ``weekday``, ``day`` or ``season``: what is taken from it
    logarithmic: bool  # transformed by asinh((x − middle) / spread)
    middle: float  # median of the raw values
    spread: float  # of the raw values
    centre: float
    scale: float
    indicator: bool  # whether a second input says that the value was missing
    edges: tuple[float, ...] = ()  # ends of pieces, ascending, scaled; none for two values or fewer

    @property
    def inputs(self) -> int:
        """Number of inputs that the column becomes."""
        return 1 + self.indicator + max(len(self.edges) - 1, 0)


@dataclass(frozen=True)
class CategoricalColumn:
    """One vocabulary index a row; 0 is out of vocabulary."""

    name: str
    vocabulary: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Encoded rows: ``numeric`` (n, F) float32 and ``categories`` (n, C) int32."""

    numeric: NDArray[np.float32]
    categories: NDArray[np.int32]

    def __len__(self) -> int:
        return int(self.numeric.shape[0])


@dataclass(frozen=True)
class ColumnShares:
    """What the rows that an encoding was fitted to hold of a column, for others to be compared."""

    name: str
    missing: float  # share of the rows without a value
    odd: float  # share of the rows with a cell that is not what the column holds
    unknown: float = 0.0  # share of the rows with a category that is not in the vocabulary
    low: float | None = None  # least number, and largest; None of categories and dates
    high: float | None = None

    @classmethod
    def from_values(
        cls,
        column: pl.Series,
        meaning: ColumnMeaning,
        values: pl.Series,
        vocabulary: Sequence[str] = (),
    ) -> ColumnShares:
        """Measure (n,) cells of a column, read as ``values``; n is at least 1."""
        missing, odd = (count / len(column) for count in meaning.unread(column, values))
        if meaning.kind == "category":
            unknown = (values != MISSING) & ~values.is_in(list(vocabulary))
            return cls(column.name, missing, odd, float(unknown.to_numpy().mean()))
        if meaning.kind == "date":
            return cls(column.name, missing, odd)
        numbers = values.to_numpy()
        finite = numbers[np.isfinite(numbers)]
        ends = (float(finite.min()), float(finite.max())) if finite.size else ()
        return cls(column.name, missing, odd, 0.0, *ends)


@dataclass(frozen=True)
class Encoder:
    """How a features table becomes tensors: columns in the order of the encoded matrices."""

    numeric: tuple[NumericColumn, ...]
    categorical: tuple[CategoricalColumn, ...]
    schema: Schema  # what the cells of all columns of the table mean, those not learned from too
    shares: tuple[ColumnShares, ...] = ()  # of each column that encoding reads
    left_out: tuple[tuple[str, str], ...] = ()  # columns that are not learned from, and why
    given: tuple[tuple[str, str], ...] = ()  # that are not in the table, with every row's value

    @classmethod
    def fit(
        cls,
        table: pl.DataFrame,
        *,
        schema: Schema | None = None,
        stated: Stated = NOTHING,
        pieces: int = 0,
    ) -> Encoder:
        """Decide on an encoding from training rows.

        What the ``schema`` does not say of a column is found from these rows, and from what is
        ``stated``. The range of a numeric column is cut into ``pieces``, if it has more than 32
        values (else it is cut at each). 1 only parts a value that two fifths of the rows have from
        what is next to it, and 0 leaves the range whole.

        ``ConfigError`` or ``DataError`` if a named column does not exist or cannot be what
        it is said to be, or if no feature is left.
        """
        stated.check(table.columns)
        known = () if schema is None else schema.columns
        named = {column.name for column in known}
        named |= {*stated.ignored}
        others = pl.DataFrame([column for column in table if column.name not in named])
        schema = Schema((*known, *find_schema([others], len(table), stated).schema.columns))
        numbers: list[NumericColumn] = []
        categories: list[CategoricalColumn] = []
        left_out: list[tuple[str, str]] = []
        read: dict[str, pl.Series] = {}
        for name in table.columns:
            if name in stated.ignored:
                continue
            meaning = schema[name]
            values = read[name] = meaning.read(table[name])
            if meaning.kind == "category":
                fitted = _fit_categorical(name, values)
                if fitted is None:
                    alone = values.n_unique() > 1
                    left_out.append((name, "names the rows" if alone else "has one value"))
                else:
                    categories.append(fitted)
            elif name not in stated.numeric and numbers_rows(table[name], values, meaning):
                left_out.append((name, "numbers the rows"))
            else:
                parts = [_fit_numeric(name, values, part, pieces) for part in _parts(values)]
                numbers += [part for part in parts if part is not None]
                if not any(parts):
                    left_out.append((name, "has one value"))
        if not numbers and not categories:
            raise DataError(
                "no column is left to learn from: all are keys, ignored or constant;"
                f" columns: {listed(table.columns)}"
            )
        vocabularies = {column.name: column.vocabulary for column in categories}
        used = dict.fromkeys([*(column.name for column in numbers), *vocabularies])
        shares = tuple(
            ColumnShares.from_values(
                table[name], schema[name], read[name], vocabularies.get(name, ())
            )
            for name in used
        )
        return cls(tuple(numbers), tuple(categories), schema, shares, tuple(left_out))

    def with_counts(self, counts: Mapping[str, pl.DataFrame]) -> Encoder:
        """The encoder with vocabularies from more rows: of each column a table of ``value`` and
        ``count``."""
        categorical = tuple(
            replace(column, vocabulary=_vocabulary(counts[column.name]))
            for column in self.categorical
        )
        return replace(self, categorical=categorical)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that encoding reads, each once."""
        names = [column.name for column in self.numeric]
        names += [column.name for column in self.categorical]
        return tuple(name for name in dict.fromkeys(names) if name not in dict(self.given))

    @property
    def inputs(self) -> int:
        """Number F of numeric inputs."""
        return sum(column.inputs for column in self.numeric)

    @property
    def plain_inputs(self) -> tuple[int, ...]:
        """Which numeric inputs are values, or say that one is missing: all but pieces."""
        starts = itertools.accumulate((column.inputs for column in self.numeric), initial=0)
        return tuple(
            start + offset
            for start, column in zip(starts, self.numeric, strict=False)
            for offset in range(1 + column.indicator)
        )

    def inputs_of(self, name: str) -> tuple[list[int], list[int]]:
        """Which numeric inputs, and which categorical ones, a column becomes."""
        numbers = [column.name for column in self.numeric for _ in range(column.inputs)]
        words = [column.name for column in self.categorical]
        mine = ([at for at, of in enumerate(each) if of == name] for each in (numbers, words))
        return next(mine), next(mine)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Vocabulary size of each categorical input, out-of-vocabulary included."""
        return tuple(1 + len(column.vocabulary) for column in self.categorical)

    def unknown(self) -> pl.DataFrame:
        """One row of which nothing is known."""
        types = dict.fromkeys(self.columns, pl.String)
        return pl.DataFrame({name: [None] for name in self.columns}, schema=types)

    def check(self, columns: Sequence[str]) -> None:
        """Raise ``DataError`` if a column that encoding reads is missing."""
        missing = [name for name in self.columns if name not in columns]
        if missing:
            raise DataError(
                f"the features lack the column{'s' if len(missing) > 1 else ''}"
                f" {listed(list(map(repr, missing)))}, which the model was trained with"
            )

    def encode(self, table: pl.DataFrame) -> Encoded:
        """Encode rows; values never seen in training count as out of vocabulary.

        ``DataError`` if a column is missing; ``RuntimeError`` where it would hang, after a fork.
        """
        check_threads()
        self.check(table.columns)
        table = table.with_columns(pl.lit(value).alias(name) for name, value in self.given)
        numeric = np.empty((table.height, self.inputs), dtype=np.float32)
        at = 0
        read = {name: self.schema[name].read(table[name]) for name in self.columns}
        read |= {name: table[name] for name, _ in self.given}
        for column in self.numeric:
            values = _values(read[column.name], column.part)
            out = numeric[:, at : at + column.inputs]
            for start in range(0, table.height, _BLOCK):
                _standardize(values[start : start + _BLOCK], column, out[start : start + _BLOCK])
            at += column.inputs
        categories = np.zeros((table.height, len(self.categorical)), dtype=np.int32)
        for index, category in enumerate(self.categorical):
            categories[:, index] = _lookup(read[category.name], category.vocabulary)
        return Encoded(numeric, categories)

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = _JSON.dump_python(self, mode="json", exclude={"given"})
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Encoder:
        return _JSON.validate_python(data)


_JSON = TypeAdapter(Encoder)


def _parts(values: pl.Series) -> tuple[str, ...]:
    if values.dtype not in (pl.Datetime, pl.Date):
        return ("value",)
    clock = ("hour",) if values.dtype == pl.Datetime else ()
    days = values.dt.epoch("d").drop_nulls().to_numpy()
    season = ("season",) if days.size and np.ptp(days) >= YEAR else ()
    return (*clock, "weekday", "day", *season)


def moments(values: pl.Series) -> Floats:
    """(n,) seconds since 1970-01-01 00:00 on the clock of dates, NaN where missing."""
    clock = values.cast(pl.Datetime("us"))
    return clock.to_physical().cast(pl.Float64).to_numpy().astype(np.float64) / 1e6


def _values(series: pl.Series, part: str) -> Floats:
    """(n,) float64 with NaN for what is missing or is not a number."""
    if part == "value":
        return series.to_numpy()
    if part == "hour":
        clock = series.cast(pl.Datetime("us"))
        values = clock.dt.hour().cast(pl.Float64) + clock.dt.minute().cast(pl.Float64) / 60
    elif part == "weekday":
        values = series.dt.weekday().cast(pl.Float64)
    else:
        values = series.dt.epoch("d").cast(pl.Float64)
        if part == "season":
            values = values - YEAR * (values / YEAR).floor()
    return values.to_numpy().astype(np.float64)


def _fit_numeric(name: str, series: pl.Series, part: str, pieces: int) -> NumericColumn | None:
    values = _values(series, part)
    there = np.isfinite(values)
    indicator = not there.all()
    # larger ones, as the largest float that stands for nothing, would leave no spread to divide by
    finite = np.clip(values[there] if indicator else values, -_LARGEST, _LARGEST)
    if not finite.size or (finite.min() == finite.max() and not indicator):
        return None
    low, middle, high = np.quantile(finite, [0.25, 0.5, 0.75]).tolist()
    deviation = float(np.std(finite)) or 1.0
    spread = high - low or deviation
    standard = (finite - finite.mean()) / deviation
    logarithmic = bool(np.mean(np.square(np.square(standard))) - 3 > _HEAVY_TAIL)
    column = NumericColumn(name, part, logarithmic, middle, spread, 0.0, 1.0, indicator)
    transformed = _transform(finite, column)
    centre, scale = float(transformed.mean()), float(transformed.std()) or 1.0
    edges = _edges((transformed - centre) / scale, pieces)
    return replace(column, centre=centre, scale=scale, edges=edges)


def _edges(scaled: Floats, pieces: int) -> tuple[float, ...]:
    if pieces < 1:
        return ()
    edges, rows = np.unique(scaled, return_counts=True)
    if edges.size < 3:
        return ()
    if pieces == 1:
        common = int(rows.argmax())
        often = rows[common] >= _OFTEN * scaled.size
        return tuple(edges[max(0, common - 1) : common + 2].tolist()) if often else ()
    if edges.size > _FEW:
        edges = np.unique(np.quantile(scaled, np.linspace(0, 1, pieces + 1)))
    return tuple(edges.tolist()) if edges.size > 2 else ()


@np.errstate(over="ignore")  # what is out of reach is clipped
def _standardize(values: Floats, column: NumericColumn, out: NDArray[np.float32]) -> None:
    """Fill (n, inputs) from (n,) raw values."""
    missing = ~np.isfinite(values)
    scaled = _transform(np.where(missing, column.middle, values), column)
    scaled -= column.centre
    scaled /= column.scale
    out[:, 0] = np.clip(scaled, -CLIP, CLIP)
    if column.indicator:
        out[:, 1] = missing
    first = 1 + column.indicator
    for piece, (low, high) in enumerate(itertools.pairwise(column.edges), start=first):
        share = (scaled - low) / (high - low)
        out[:, piece] = np.clip(share, 0.0, 1.0) - 0.5


@np.errstate(over="ignore")  # as there
def _transform(values: Floats, column: NumericColumn) -> Floats:
    if not column.logarithmic:
        return values
    return np.arcsinh((values - column.middle) / column.spread)


def _fit_categorical(name: str, texts: pl.Series) -> CategoricalColumn | None:
    counts = texts.alias("value").value_counts()
    vocabulary = _vocabulary(counts) if counts.height > 1 else ()
    return CategoricalColumn(name, vocabulary) if vocabulary else None


def _vocabulary(counts: pl.DataFrame) -> tuple[str, ...]:
    """Values that occur often enough, the most frequent first."""
    frequent = counts.filter(pl.col("count") >= MIN_OCCURRENCES)
    return tuple(frequent.sort(["count", "value"], descending=[True, False])["value"].to_list())


def _lookup(texts: pl.Series, vocabulary: tuple[str, ...]) -> NDArray[np.int32]:
    places = pl.Series(np.arange(1, len(vocabulary) + 1, dtype=np.int32))
    indices = texts.replace_strict(
        pl.Series(vocabulary, dtype=pl.String), places, default=0, return_dtype=pl.Int32
    )
    return indices.to_numpy()
