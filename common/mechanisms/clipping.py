"""Records brought within public bounds, each by itself and certainly: floats' rounding included.

No bound looks at the data. Means and deviations of the data are functions of it that nobody paid
for; a model fitted on rows scaled by them is not private. Everything here follows from numbers that
are fixed in advance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from labelveil.common.arrays import Floats, Integers
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.guarantees.limits import positive


def checked_labels(rows: Floats, labels: Floats) -> Floats:
    """(n,) labels clipped to -1 … 1; refuses rows and labels that do not fit together."""
    if rows.ndim != 2 or labels.shape != rows.shape[:1] or not rows.size:
        raise DataError(
            f"rows of shape {rows.shape} with labels of shape {labels.shape}; give one label a row"
        )
    if not (np.all(np.isfinite(rows)) and np.all(np.isfinite(labels))):
        raise DataError("rows and labels must be finite; replace missing values first")
    return np.clip(labels, -1.0, 1.0)


def clip_rows(rows: Floats) -> Floats:
    """Shrink rows to norm 1 where they are longer.

    A row that is too long to have a norm, or holds what is no number, becomes 0.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.sum(rows * rows, axis=1))
    return _shrunk(rows, norms, 1 - (rows.shape[1] + 16) * 2.0**-52)


def scaled_rows(
    features: Floats,
    bounds: tuple[Any, Any] | None = None,
    norm_bound: float | None = None,
    *,
    intercept: bool = True,
) -> Floats:
    """Scale (n, d) features to rows of norm at most 1.

    Parameters
    ----------
    bounds
        Public lower and upper bounds, numbers or one for each feature: each is mapped to -1 … 1 and
        clipped. None leaves features as they are.
    norm_bound
        Public bound of a row's norm after that; longer rows are shrunk to it. None is √d with
        bounds, which shrinks nothing, and 1 without.
    intercept
        Whether a constant feature is added, of the same size as the row's bound.

    Returns
    -------
    (n, d) or, with an intercept, (n, d + 1) rows.

    Raises
    ------
    ConfigError, PrivacyError
        For bounds that are none.
    """
    d = features.shape[1]
    rows = features
    if bounds is not None:
        lower, upper = (np.broadcast_to(np.asarray(b, np.float64), (d,)) for b in bounds)
        if not np.all(lower < upper):
            raise ConfigError("bounds must have every lower bound below its upper bound")
        rows = np.clip((rows - lower) / (upper - lower) * 2 - 1, -1.0, 1.0)
    if norm_bound is None:
        norm_bound = d**0.5 if bounds is not None else 1.0
    positive(norm_bound=norm_bound)
    rows = clip_rows(rows / norm_bound)
    if intercept:
        rows = clip_rows(np.column_stack([rows, np.ones(len(rows))]) / 2**0.5)
    return rows


@dataclass(frozen=True)
class LabelScaling:
    """Scales labels within public bounds to -1 … 1, and back."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not -np.inf < self.lower < self.upper < np.inf:
            raise ConfigError(
                f"label_bounds=({self.lower}, {self.upper}) must be finite, the first below the"
                " second"
            )

    def apply(self, labels: Floats) -> Floats:
        """(n,) labels, clipped to the bounds, as numbers in -1 … 1."""
        middle, half = (self.lower + self.upper) / 2, (self.upper - self.lower) / 2
        return np.clip((labels - middle) / half, -1.0, 1.0)

    def invert(self, outputs: Floats) -> Floats:
        """(n,) outputs as labels within the bounds."""
        middle, half = (self.lower + self.upper) / 2, (self.upper - self.lower) / 2
        return np.asarray(middle + half * np.clip(outputs, -1.0, 1.0))


def rounded_within(rows: Floats, grid: int, order: int = 2) -> Integers:
    """(m, p) rows as integers, in steps of 1/grid, of norm 1 at most, L1 or L2.

    They are clipped to a norm by so much shorter that rounding to nearest cannot pass 1, which is
    then looked at in integers: a row that did, whatever the floats, would count as 0. So does one
    that is no number, or too long to have a norm: what a cast to integers makes of it has squares
    that wrap around.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(rows, ord=order, axis=1)
    most = (1 - 1e-9) * max(0.0, 1 - rounding_length(rows.shape[1], order) / grid)
    steps = np.rint(_shrunk(rows, norms, most) * grid).astype(np.int64)
    return np.where((np.abs(steps) ** order).sum(axis=1) <= grid**order, steps.T, 0).T


def rounding_length(size: int, order: int) -> float:
    """How much longer rounding may make a vector of that many numbers, in steps."""
    return size / 2 if order == 1 else math.sqrt(size) / 2


def _shrunk(rows: Floats, norms: Floats, most: float) -> Floats:
    usual = np.isfinite(norms)
    factors = np.minimum(1.0, most / np.maximum(np.where(usual, norms, 1.0), 1e-300))
    return np.asarray(np.where(usual[:, None], rows, 0.0) * factors[:, None])
