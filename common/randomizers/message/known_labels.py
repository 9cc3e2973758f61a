"""Labels that are known, or expected, before any is read: their values, and how likely each is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.errors import DataError
from labelveil.common.randomizers.cells import Group, row_products
from labelveil.common.randomizers.knots import interpolation

_VALUES_AT_ONCE = 1 << 12


@dataclass(frozen=True, eq=False)
class KnownLabels:
    """What is assumed of some labels, one or several, together.

    ``DataError`` if values are not finite, or weights cannot be weights.
    """

    labels: tuple[int, ...]  # (m,) their positions among all labels
    # values, weights: (j, m) labels of an event, and their (j,) weights >= 0, not all 0
    values: Floats
    weights: Floats

    def __post_init__(self) -> None:
        values, weights = self.values, self.weights
        if not weights.size:
            raise DataError("a prior without any value; give at least one, with its weight")
        if not (np.isfinite(values).all() and np.isfinite(weights).all() and weights.min() >= 0):
            raise DataError("labels must be finite and weights finite and >= 0")
        if weights.sum() <= 0:
            raise DataError("the weights are all zero; at least one must be positive")

    @classmethod
    def from_weights(cls, weights: Mapping[float, float]) -> KnownLabels:
        """Of one label: its values, each with its weight."""
        pairs = dict(weights.items())  # a pandas series has items, too
        try:
            values = np.array(sorted(map(float, pairs)), dtype=np.float64)
            given = np.array([pairs[value] for value in sorted(pairs, key=float)], np.float64)
        except (TypeError, ValueError) as error:
            raise DataError("a prior's values and weights must be numbers") from error
        return cls((0,), values.reshape(-1, 1), given)

    @property
    def digest(self) -> str:
        """SHA-256 of values and weights, by which two priors are told apart."""
        table = np.column_stack([self.values, self.weights]).astype("<f8")
        return hashlib.sha256(table[np.lexsort(table.T)].tobytes()).hexdigest()

    def over(self, group: Group) -> Floats:
        """(k,) prior over the cells of some of these labels, each split between its neighbours."""
        prior = np.zeros(len(group.cells))
        values = self.values[:, [self.labels.index(label) for label in group.labels]]
        for low in range(0, len(values), _VALUES_AT_ONCE):
            high = low + _VALUES_AT_ONCE
            parts = [
                interpolation(np.clip(column, grid.lower, grid.upper), grid.points)
                for column, grid in zip(values[low:high].T, group.cells.grids, strict=True)
            ]
            prior += self.weights[low:high] @ reduce(row_products, parts)
        return np.asarray(prior / prior.sum())
