"""Encoded rows as columns of numbers, all of about one size: what waves run along."""

from __future__ import annotations

import numpy as np

from labelveil.common.arrays import Singles
from labelveil.feature_party.model.encoding import Encoded, Encoder

MOST_VALUES = 64
"""Values of a category that have a column of their own, the most frequent ones; of the others sums
say too little."""


def values_of(encoder: Encoder, most_values: int = MOST_VALUES) -> list[range]:
    """The columns that :func:`columns_of` makes of each category: one at most is 1."""
    counts = [min(most_values, each - 1) for each in encoder.cardinalities]
    ends = np.cumsum([encoder.inputs, *counts]).tolist()
    return list(map(range, ends[:-1], ends[1:]))


def columns_of(encoder: Encoder, encoded: Encoded, most_values: int = MOST_VALUES) -> Singles:
    """(n, F) numbers: numeric columns scaled, and 1 or 0 for each frequent value of the others."""
    values = values_of(encoder, most_values)
    ends = [encoder.inputs, *(columns.stop for columns in values)]
    found = np.zeros((len(encoded), ends[-1]), dtype=np.float32)
    found[:, : encoder.inputs] = encoded.numeric
    for categories, columns in zip(encoded.categories.T, values, strict=True):
        (rows,) = np.nonzero((categories > 0) & (categories <= len(columns)))
        found[rows, columns.start - 1 + categories[rows]] = 1
    return found
