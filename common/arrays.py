"""The array types that signatures name, written once."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Indices = Integers
"""Positions in another array."""
Booleans = NDArray[np.bool_]
Words = NDArray[np.uint64]


def is_number(value: Any) -> bool:
    """Whether a value that should be a number is one, and not text or nothing."""
    return isinstance(value, Real)


def holds_integers(column: Any) -> bool:
    """Whether an array, list or column is of integers or booleans, by its type and not its values.

    Pandas makes a column of floats of integers among which one is missing.
    """
    kind = getattr(getattr(column, "dtype", None), "kind", None)
    return (kind or np.asarray(column).dtype.kind) in "biu"
