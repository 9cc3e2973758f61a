"""Where a model is right, from decoded labels: tenths, segments, columns, and its own intervals.

A mean of decoded labels that weighs row i with a_i, which takes no code to know, has the spread of
its terms for standard error. With the labels decoded without bias nothing is assumed; with the
model's help (:mod:`labelveil.feature_party.evaluation.decoded_labels`) κ times the weights' size is
added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from scipy.special import ndtri

from labelveil.common.arrays import Floats, Indices
from labelveil.feature_party.cell_forms import nameless
from labelveil.feature_party.evaluation.decoded_labels import DecodedLabels, Scored, believed
from labelveil.feature_party.evaluation.intervals import Measured, mean_error
from labelveil.feature_party.evaluation.spread import ReleasedCodes, Spread
from labelveil.feature_party.learning.decoding import decoder
from labelveil.feature_party.learning.problem import sums
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.schema import MISSING, ColumnMeaning, canonical_text

_TENTHS, _BINS = 10, 5
_MOST_VALUES = 20
_FEWEST = 30
"""Rows that a segment of its own takes."""
_LONG = r"^\s*[+-]?\d{16,}\s*$"
"""Whole numbers that doubles may not tell apart."""

_SAVED = -1.0, 9.0
"""Variances of the label that a column can save in a model that is no worse than a constant: its
errors are one at most, and its predictions within two deviations of the constant, so that dealt
anew they are within three of the labels."""

INTERVALS = (0.5, 0.8, 0.95)


@dataclass(frozen=True)
class Segment:
    """Some of the rows, named by what they have in common."""

    name: str
    events: int
    predicted: float  # their mean prediction
    label: Measured  # their mean label, decoded without bias
    gain: Measured  # their squared error below the constant's, in units of the label's variance
    actual: float | None = None  # their true mean label, if known

    @property
    def off(self) -> bool:
        """Whether their predictions are certainly too high or too low on average."""
        return not self.label.low <= self.predicted <= self.label.high


def segments(
    groups: Sequence[tuple[str, Indices]],
    points: Floats,
    labels: DecodedLabels,
    centre: float,
    variance: float,
    truth: Floats | None = None,
) -> list[Segment]:
    """Compare groups of at least two rows, with 95% intervals that hold for all groups together.

    ``points`` are (n,) predictions, ``truth`` their true labels in simulations; ``variance`` is the
    squared error of predicting the constant ``centre``.

    Standard errors are at least what is expected of such labels' codes: those that decode to large
    numbers are few, and in a group where they happen to be missing the terms spread too little
    just where their mean is too low.
    """
    # Bonferroni: each of them errs with a probability of 5 % over their number
    level = -float(ndtri(0.025 / max(len(groups), 1)))
    weights = (points - centre) / variance
    gains = weights * (2 * labels.unbiased - points - centre)
    figures = (labels.unbiased, labels.variances), (gains, 4 * weights**2 * labels.variances)
    segments = []
    for name, rows in groups:
        label, gain = (
            Measured.of_terms(
                terms[rows], level=level, least=math.sqrt(expected[rows].sum()) / rows.size
            )
            for terms, expected in figures
        )
        actual = None if truth is None else float(truth[rows].mean())
        mean = float(points[rows].mean())
        segments.append(Segment(name, int(rows.size), mean, label, gain, actual))
    return segments


def number(value: float, digits: int = 4) -> str:
    """Format a number for reading: thousands separated, a few significant digits."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:.{digits}g}"
    if abs(value) >= 10 ** (digits - 1):
        text = f"{value:,.0f}"
    elif abs(value) < 1e-4:
        text = f"{value:.{digits - 1}g}"
    return text.replace("-", "−")


def tenths(points: Floats) -> list[tuple[str, Indices]]:
    """Rows from the lowest to the highest predictions, in up to ten groups of equal size."""
    return _ranges(points, np.argsort(points, kind="stable"), min(_TENTHS, points.size // 2))


def _ranges(values: Floats, ascending: Indices, parts: int) -> list[tuple[str, Indices]]:
    return [
        (f"{number(values[rows[0]])} … {number(values[rows[-1]])}", rows)
        for rows in np.array_split(ascending, parts)
    ]


def groups_by(
    column: pl.Series, meaning: ColumnMeaning, most: int = _MOST_VALUES, fewest: int = _FEWEST
) -> list[tuple[str, Indices]]:
    """Rows by a column: by value, or by five ranges of a number of many values.

    A column with whole numbers of 16 digits and more names things, as ids of campaigns do. Values
    of fewer than ``fewest`` rows, and all beyond the ``most`` commonest, are taken together.
    """
    if meaning.kind == "number" and _has_long_names(column):
        meaning = replace(meaning, kind="category")
    if meaning.kind != "other":
        column = meaning.read(column)
    if meaning.kind == "true/false":
        column = column.cast(pl.Boolean)  # read as 1 and 0, and called what the table calls them
    column = column.alias("")  # a Series' methods take its name ^…$ for a pattern of columns
    if column.dtype.is_numeric() and column.n_unique() > _MOST_VALUES:
        values = column.to_numpy()
        known = np.argsort(values, kind="stable")[: np.count_nonzero(~np.isnan(values))]
        groups = _ranges(values, known, _BINS)
        groups.append(("missing", np.flatnonzero(np.isnan(values))))
    else:
        texts = canonical_text(column).replace(MISSING, "missing")
        counts = texts.value_counts().sort("count", texts.name, descending=[True, False])
        counts = counts.filter(pl.col("count") >= fewest)
        common = counts[:most].to_series(0)
        groups = [(name, np.flatnonzero((texts == name).to_numpy())) for name in common]
        groups.append(("others", np.flatnonzero(~texts.is_in(common.to_list()).to_numpy())))
    return [(name, rows) for name, rows in groups if rows.size >= min(fewest, 2)]


def _has_long_names(column: pl.Series) -> bool:
    if not (column.dtype.is_integer() or column.dtype == pl.String):
        return False
    return bool(nameless(column).cast(pl.String).str.contains(_LONG).any())


def interval_coverage(
    sources: Sequence[ReleasedCodes], support: Support, scored: Scored, shares: Sequence[float]
) -> list[Measured]:
    """How often labels lie in the model's central intervals.

    Labels are decoded with the help of the model, which is on trial here: where the decoding is
    biased its word may be wrong altogether, κ = 1. What lies in an interval is decided on the
    support's cells. For each of the intervals' probabilities, the share of labels in it.
    """
    beliefs = believed(support, scored.predicted)
    below = np.cumsum(beliefs, axis=1)
    rows, cells = beliefs.shape
    # column t: whether a label lies in one of the first t cells
    steps = (support.cell_of[:, None] < np.arange(cells + 1)).astype(np.float64)
    decoded, bias = np.zeros((rows, cells + 1)), np.zeros((rows, cells + 1))
    spread = np.zeros(cells + 1)
    for source in sources:
        indicators = decoder(source.problem, steps, ridge=1 / rows)
        decoded[source.rows] = indicators.values[source.codes]
        weighted = (support.within * column for column in indicators.bias.T)
        by_cell = [sums(support.cell_of, column, cells) for column in weighted]
        bias[source.rows] = beliefs[source.rows] @ np.stack(by_cell, axis=1)
        spread += source.rows.size / rows * (source.problem.prior @ indicators.bias**2)
    unbiased, every = decoded - bias, np.arange(rows)
    measured = []
    for share in shares:
        first = (below < (1 - share) / 2 - 1e-9).sum(axis=1)
        last = np.minimum((below < (1 + share) / 2 - 1e-9).sum(axis=1), cells - 1) + 1
        extra = float(np.sqrt(np.mean(spread[first] + spread[last])))
        measured.append(Measured.of_terms(unbiased[every, last] - unbiased[every, first], extra))
    return measured


def importance(
    rows: Indices, points: Floats, changed: Floats, labels: DecodedLabels, spread: Spread
) -> Measured:
    """By how much the squared error grows when a column's values are dealt to other rows.

    ``points`` and ``changed`` are predictions for some ``rows`` of those scored, with and without
    the column's help; the unit is the label's variance, which ``spread`` knows with an error.
    """
    # (y − changed)² − (y − points)², which is linear in y: a decoded label serves as well as y
    apart = points - changed
    terms = apart * (2 * labels.model_assisted[rows] - points - changed)
    extra = 2 * labels.misfit * float(np.sqrt(np.mean(apart**2))) * labels.trusted
    # both are of the same rows: what they share moves numerator and denominator alike
    covariance = float(np.cov(terms, spread.terms[rows])[0, 1]) / spread.terms.size
    variance = mean_error(terms) ** 2 + extra**2
    saved = spread.share(float(terms.mean()), variance, covariance, most=math.inf)
    return saved.within(*_SAVED)
