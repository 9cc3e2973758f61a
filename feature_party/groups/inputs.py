"""Encoded rows as columns of numbers, all of about one size: what groups and kernels compare."""

from __future__ import annotations

import numpy as np
import polars as pl

from labelveil.common.arrays import Floats
from labelveil.feature_party.model.encoding import Encoded, Encoder
from labelveil.feature_party.schema import Stated

_MOST_VALUES = 32
"""Values of a category that have a column of their own, the most frequent ones; of the others sums
say too little."""


def encoder_of(table: pl.DataFrame, stated: Stated) -> Encoder:
    """How rows are encoded for these columns.

    A number that many rows have says something else than the ones next to it: no wage, nobody
    employed. A wave has no such step unless its scale is so large that it says little of all other
    numbers, so that there is a column for it.
    """
    return Encoder.fit(table, stated=stated, pieces=1)


def columns_of(encoder: Encoder, encoded: Encoded) -> Floats:
    """(n, F) numbers: numeric columns scaled, and 1 or 0 for each frequent value of the others."""
    parts = [encoded.numeric.astype(np.float64)]
    for place, values in enumerate(encoder.cardinalities):
        shown = np.arange(1, min(values, _MOST_VALUES + 1))
        parts.append((encoded.categories[:, place, None] == shown).astype(np.float64))
    return np.concatenate(parts, axis=1)
