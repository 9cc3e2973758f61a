"""Encoded features as one dense matrix: numbers as they are, categories as indicators."""

from __future__ import annotations

import numpy as np

from common.arrays import Floats
from feature_party.model.encoding import Encoded, Encoder

MOST_VALUES = 64
"""Values of a category with an indicator of their own; vocabularies are sorted by frequency."""


def dense_features(encoder: Encoder, encoded: Encoded) -> Floats:
    """(n, d) numeric inputs and indicators, and a constant in the last column."""
    parts = [encoded.numeric.astype(np.float64)]
    for column, cardinality in enumerate(encoder.cardinalities):
        size = min(cardinality, 1 + MOST_VALUES)
        index = encoded.categories[:, column]
        parts.append(np.eye(size)[np.where(index < size, index, 0)])
    parts.append(np.ones((len(encoded), 1)))
    return np.hstack(parts)
