"""Features as numbers: decided once on training rows, applied alike from then on.

A numeric column is centred and scaled; a heavy-tailed one goes through a signed logarithm first,
and missing values get the median and an indicator. Its range may also be cut into pieces of equal
count, or at every value where there are few, with one input for each that says how far through the
piece the value is: a small network then follows a bend anywhere in the range. (Piecewise linear
encoding: Gorishniy, Rubachev and Babenko, *On Embeddings for Numerical Features in Tabular Deep
Learning*, NeurIPS 2022.)

A date and time, in any usual spelling, becomes an hour, a weekday, a day number and, where a year
passes, the place in it. A categorical column gets a vocabulary of the values that occur at least 5
times; everything else, and every value never seen, shares one place. Columns that name or number
the rows are left out.
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

from common.arrays import Floats
from common.errors import ConfigError, DataError, listed
from feature_party.model.spellings import (
    COMMA,
    canonical_text,
    named_as_id,
    numbers_rows,
    read_commas,
    read_dates,
    spelling_of,
)

MIN_OCCURRENCES = 5
_HEAVY_TAIL = 4.0
"""Excess kurtosis from which a column is put on a signed logarithmic axis."""
_FEW = 32
"""Values of a column up to which, cut at all, it is cut at each: hours of a day have an effect of
their own."""
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
    spelling: str = ""  # how texts spell the values; see :func:`spelling_of`

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
class Encoder:
    """How a features table becomes tensors: columns in the order of the encoded matrices."""

    numeric: tuple[NumericColumn, ...]
    categorical: tuple[CategoricalColumn, ...]
    left_out: tuple[tuple[str, str], ...] = ()  # columns that are not learned from, and why
    given: tuple[tuple[str, str], ...] = ()  # that are not in the table, with every row's value

    @classmethod
    def fit(
        cls,
        table: pl.DataFrame,
        *,
        numeric: Sequence[str] = (),
        categorical: Sequence[str] = (),
        ignore: Sequence[str] = (),
        pieces: int = 0,
    ) -> Encoder:
        """Decide on an encoding from training rows.

        The kind of columns that are neither ``numeric`` nor ``categorical`` is inferred. The range
        of a numeric column is cut into ``pieces``, if it has more than 32 values (else it is cut at
        each); 0 or 1 leaves it whole.

        Raises ``ConfigError`` or ``DataError`` if a named column does not exist or cannot be what
        it is said to be, or if no feature is left.
        """
        for column in (*numeric, *categorical):
            if column not in table.columns:
                raise ConfigError(
                    f"[data] names the column {column!r}, which the features do not have;"
                    f" columns: {listed(table.columns)}"
                )
        if both := set(numeric) & set(categorical):
            raise ConfigError(f"column {min(both)!r} is listed as numeric and as categorical")
        numbers: list[NumericColumn] = []
        categories: list[CategoricalColumn] = []
        left_out: list[tuple[str, str]] = []
        for name in table.columns:
            if name in ignore:
                continue
            series, spelling, asked = table[name], "", name in numeric
            if series.dtype == pl.String and name not in categorical:
                spelling = spelling_of(series)
            if not asked and name not in categorical and numbers_rows(series):
                left_out.append((name, "numbers the rows"))
            elif asked or (name not in categorical and (spelling or _is_numeric(series))):
                parts = _parts(series, spelling)
                of_parts = [_fit_numeric(series, part, pieces, spelling) for part in parts]
                numbers += [column for column in of_parts if column is not None]
                if not any(of_parts):
                    left_out.append((name, "has one value"))
            elif (fitted := _fit_categorical(series)) is not None:
                categories.append(fitted)
            else:
                alone = series.n_unique() > 1
                left_out.append((name, "names the rows" if alone else "has one value"))
        if not numbers and not categories:
            raise DataError(
                "no column is left to learn from: all are keys, ignored or constant;"
                f" columns: {listed(table.columns)}"
            )
        return cls(tuple(numbers), tuple(categories), tuple(left_out))

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

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Vocabulary size of each categorical input, out-of-vocabulary included."""
        return tuple(1 + len(column.vocabulary) for column in self.categorical)

    def unknown(self) -> pl.DataFrame:
        """One row of which nothing is known, in columns of the types that encoding reads."""
        types: dict[str, Any] = {column.name: pl.String for column in self.categorical}
        for column in self.numeric:
            plain = pl.Float64 if column.part == "value" else pl.Datetime("us")
            types[column.name] = pl.String if column.spelling else plain
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
        """Encode rows; values never seen in training count as out of vocabulary."""
        self.check(table.columns)
        table = table.with_columns(pl.lit(value).alias(name) for name, value in self.given)
        numeric = np.empty((table.height, self.inputs), dtype=np.float32)
        at = 0
        for column in self.numeric:
            values = _values(table[column.name], column.part, column.spelling)
            out = numeric[:, at : at + column.inputs]
            for start in range(0, table.height, _BLOCK):
                _standardize(values[start : start + _BLOCK], column, out[start : start + _BLOCK])
            at += column.inputs
        categories = np.zeros((table.height, len(self.categorical)), dtype=np.int32)
        for index, category in enumerate(self.categorical):
            categories[:, index] = _lookup(table[category.name], category.vocabulary)
        return Encoded(numeric, categories)

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = _JSON.dump_python(self, mode="json", exclude={"given"})
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Encoder:
        return _JSON.validate_python(data)


_JSON = TypeAdapter(Encoder)


def _is_numeric(series: pl.Series) -> bool:
    if series.dtype.is_temporal() or series.dtype == pl.Boolean:
        return True
    if not series.dtype.is_numeric():
        return False
    # Identifiers and codes written as numbers have no order worth learning.
    if not named_as_id(series.name):
        return True
    values = series.alias("").cast(pl.Float64).drop_nulls().drop_nans()
    return not (values == values.floor()).all()


def _parts(series: pl.Series, spelling: str) -> tuple[str, ...]:
    if spelling and spelling != COMMA:
        series = read_dates(series, spelling)
    series = series.alias("")
    if series.dtype not in (pl.Datetime, pl.Date):
        return ("value",)
    clock = ("hour",) if series.dtype == pl.Datetime else ()
    days = series.dt.epoch("d").drop_nulls().to_numpy()
    season = ("season",) if days.size and np.ptp(days) >= YEAR else ()
    return (*clock, "weekday", "day", *season)


def moments(series: pl.Series, spelling: str = "") -> Floats:
    """(n,) seconds since 1970-01-01 00:00 on the clock of a column of dates, NaN where missing."""
    clock = _temporal(series, spelling)
    if clock.dtype == pl.Datetime:
        clock = clock.dt.replace_time_zone(None)
    clock = clock.cast(pl.Datetime("us"))
    return clock.to_physical().cast(pl.Float64).to_numpy().astype(np.float64) / 1e6


def _temporal(series: pl.Series, spelling: str) -> pl.Series:
    name, series = series.name, series.alias("")
    if series.dtype == pl.String and spelling:
        series = read_dates(series, spelling)
    elif series.dtype == pl.String:
        series = series.str.to_datetime(strict=False)
    if not series.dtype.is_temporal():
        raise DataError(
            f"column {name!r} has type {series.dtype}, but the model was trained with dates in it"
        )
    return series


def _values(series: pl.Series, part: str, spelling: str) -> Floats:
    """(n,) float64 with NaN for what is missing or is not a number."""
    if part == "value":
        return numbers(series, spelling)
    series = _temporal(series, spelling)
    if part == "hour":
        values = series.dt.hour().cast(pl.Float64) + series.dt.minute().cast(pl.Float64) / 60
    elif part == "weekday":
        values = series.dt.weekday().cast(pl.Float64)
    else:
        values = series.dt.epoch("d").cast(pl.Float64)
        if part == "season":
            values = values - YEAR * (values / YEAR).floor()
    return values.to_numpy().astype(np.float64)


def numbers(series: pl.Series, spelling: str = "") -> Floats:
    """(n,) float64 of a numeric column, NaN where a value is missing."""
    if series.dtype == pl.String and spelling == COMMA:
        series = read_commas(series)
    if series.dtype in (pl.Duration, pl.Time):
        series = series.cast(pl.Int64)
    try:
        return series.cast(pl.Float64).to_numpy()
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"column {series.name!r} of type {series.dtype} holds values that are not numbers;"
            " make text of it, or list it in [data] categorical"
        ) from error


def _fit_numeric(series: pl.Series, part: str, pieces: int, spelling: str) -> NumericColumn | None:
    values = _values(series, part, spelling)
    there = np.isfinite(values)
    indicator = not there.all()
    finite = values[there] if indicator else values
    if not finite.size or (finite.min() == finite.max() and not indicator):
        return None
    low, middle, high = np.quantile(finite, [0.25, 0.5, 0.75]).tolist()
    deviation = float(np.std(finite)) or 1.0
    spread = high - low or deviation
    standard = (finite - finite.mean()) / deviation
    logarithmic = bool(np.mean(np.square(np.square(standard))) - 3 > _HEAVY_TAIL)
    column = NumericColumn(series.name, part, logarithmic, middle, spread, 0.0, 1.0, indicator)
    transformed = _transform(finite, column)
    centre, scale = float(transformed.mean()), float(transformed.std()) or 1.0
    edges = _edges((transformed - centre) / scale, pieces)
    return replace(column, spelling=spelling, centre=centre, scale=scale, edges=edges)


def _edges(scaled: Floats, pieces: int) -> tuple[float, ...]:
    if pieces < 2:
        return ()
    edges = np.unique(scaled)
    if edges.size > _FEW:
        edges = np.unique(np.quantile(scaled, np.linspace(0, 1, pieces + 1)))
    return tuple(edges.tolist()) if edges.size > 2 else ()


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


def _transform(values: Floats, column: NumericColumn) -> Floats:
    if not column.logarithmic:
        return values
    return np.arcsinh((values - column.middle) / column.spread)


def _fit_categorical(series: pl.Series) -> CategoricalColumn | None:
    if series.dtype.is_nested() or series.dtype == pl.Binary:
        raise DataError(
            f"column {series.name!r} has type {series.dtype}, which cannot be a feature;"
            " leave it out, or list it in [data] ignore"
        )
    counts = canonical_text(series).alias("value").value_counts()
    vocabulary = _vocabulary(counts) if counts.height > 1 else ()
    return CategoricalColumn(series.name, vocabulary) if vocabulary else None


def _vocabulary(counts: pl.DataFrame) -> tuple[str, ...]:
    """Values that occur often enough, the most frequent first."""
    frequent = counts.filter(pl.col("count") >= MIN_OCCURRENCES)
    return tuple(frequent.sort(["count", "value"], descending=[True, False])["value"].to_list())


def _lookup(series: pl.Series, vocabulary: tuple[str, ...]) -> NDArray[np.int32]:
    places = pl.Series(np.arange(1, len(vocabulary) + 1, dtype=np.int32))
    indices = canonical_text(series).replace_strict(
        pl.Series(vocabulary, dtype=pl.String), places, default=0, return_dtype=pl.Int32
    )
    return indices.to_numpy()
