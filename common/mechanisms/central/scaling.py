"""Scaling that does not look at the data: public bounds, and rows shrunk to a public norm.

Means and deviations of the data are functions of it that nobody paid for; a model fitted on rows
scaled by them is not private. Everything here follows from numbers that are fixed in advance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError
from labelveil.common.guarantees.limits import positive
from labelveil.common.mechanisms.clipping import clip_rows


@dataclass(frozen=True, eq=False)
class RowScaling:
    """Scales features to rows of norm at most 1."""

    # Public lower and upper bounds, numbers or one for each feature: each is mapped to -1 … 1 and
    # clipped. None leaves features as they are.
    bounds: tuple[Any, Any] | None = None
    # Public bound R of a row's norm after that; longer rows are shrunk to it. None is √d with
    # bounds, which shrinks nothing, and 1 without.
    norm_bound: float | None = None
    # whether a constant feature is added, of the same size as the row's bound
    intercept: bool = True

    def apply(self, features: Floats) -> Floats:
        """(n, d) features as (n, d) or, with an intercept, (n, d + 1) rows."""
        d = features.shape[1]
        rows = features
        if self.bounds is not None:
            lower, upper = (np.broadcast_to(np.asarray(b, np.float64), (d,)) for b in self.bounds)
            if not np.all(lower < upper):
                raise ConfigError("bounds must have every lower bound below its upper bound")
            rows = np.clip((rows - lower) / (upper - lower) * 2 - 1, -1.0, 1.0)
        bound = self.norm_bound
        if bound is None:
            bound = d**0.5 if self.bounds is not None else 1.0
        positive(norm_bound=bound)
        rows = clip_rows(rows / bound)
        if self.intercept:
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
