"""The array types that signatures name, written once."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from common.errors import DataError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Indices = Integers
"""Positions in another array."""
Booleans = NDArray[np.bool_]
Words = NDArray[np.uint64]


def counted(values: ArrayLike, what: str, bits: int = 61, *, signed: bool = False) -> Integers:
    """(n,) whole numbers, 0 … 2**bits or as far on either side, as int64; else ``DataError``.

    Sums with unsigned ones would be floats.
    """
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            f"{what} of shape {array.shape} and type {array.dtype} must be a vector of integers"
        )
    least = -(1 << bits) if signed else 0
    if array.size and not least <= int(array.min()) <= int(array.max()) <= 1 << bits:
        limits = f"{'±' if signed else '0 … '}2**{bits}"
        raise DataError(f"{what} from {array.min()} to {array.max()} must lie within {limits}")
    return array.astype(np.int64)


def is_number(value: Any) -> bool:
    """Whether a value that should be a number is one, and not text or nothing."""
    return isinstance(value, Real)


def holds_integers(column: Any) -> bool:
    """Whether an array, list or column is of integers or booleans, by its type and not its values.

    Pandas makes a column of floats of integers among which one is missing.
    """
    kind = getattr(getattr(column, "dtype", None), "kind", None)
    return (kind or np.asarray(column).dtype.kind) in "biu"
