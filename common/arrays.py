"""The array types that signatures name, written once."""

from __future__ import annotations

import sys
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelveil.common.errors import DataError

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Integers = NDArray[np.int64]
Indices = Integers
"""Positions in another array."""
Booleans = NDArray[np.bool_]
Words = NDArray[np.uint64]


def counted(values: ArrayLike, what: str, bits: int = 61, *, signed: bool = False) -> Integers:
    """(n,) whole numbers, 0 … 2**bits or as far on either side, as int64; else ``DataError``.

    Sums with unsigned ones would be floats.
    """
    array = np.asarray(with_nan(values))
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            f"{what} of shape {array.shape} and type {array.dtype} must be a vector of integers"
        )
    least = -(1 << bits) if signed else 0
    if array.size and not least <= int(array.min()) <= int(array.max()) <= 1 << bits:
        limits = f"{'±' if signed else '0 … '}2**{bits}"
        raise DataError(f"{what} from {array.min()} to {array.max()} must lie within {limits}")
    return array.astype(np.int64)


def with_nan(values: Any) -> Any:
    """Values as they are, but NaN for what a masked array hides, or pandas has for missing ones of
    any type: ``np.asarray`` would bring the former back, and the latter is no number."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        shown = values.astype(np.float64 if values.dtype.kind in "biuf" else object)
        values = np.asarray(np.ma.filled(shown, np.nan))
    missing = getattr(sys.modules.get("pandas"), "NA", None)
    if missing is None or not isinstance(values, np.ndarray) or values.dtype.kind != "O":
        return values
    given = [np.nan if value is missing else value for value in values.flat]
    return np.array(given, dtype=object).reshape(values.shape)


def finite(values: ArrayLike, name: str) -> Floats:
    """(n,) or (n, 1) numbers as (n,) float64; ``DataError`` if they are none, or some are missing.

    Infinity, as of a division by 0, is missing here as it is in a file, and so is what a masked
    array hides. The values stay unsaid.
    """
    given = np.asarray(with_nan(np.asanyarray(values)))
    if given.dtype.kind in "mM":
        raise DataError(
            f"{name} of type {given.dtype} are times; make numbers of them, such as days since one"
        )
    if not (given.ndim == 1 or (given.ndim == 2 and given.shape[1] == 1)):
        raise DataError(f"{name} of shape {given.shape} must be one column of numbers")
    try:
        if given.dtype.kind == "c":
            raise TypeError
        numbers = given.astype(np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{name} of type {given.dtype} must be numbers") from None
    lacking = np.flatnonzero(~np.isfinite(numbers))
    if lacking.size:
        raise DataError(
            f"{name}: {lacking.size:,} of {numbers.size:,} are missing or infinite, the first in"
            f" row {lacking[0] + 1:,}; fill them in with a constant"
        )
    return numbers


def is_number(value: Any) -> bool:
    """Whether a value that should be a number is one, and not text, nothing, or true or false."""
    return isinstance(value, Real) and not isinstance(value, bool)


def holds_integers(column: Any) -> bool:
    """Whether an array, list or column is of integers or booleans, by its type and not its values.

    Pandas makes a column of floats of integers among which one is missing.
    """
    kind = getattr(getattr(column, "dtype", None), "kind", None)
    return (kind or np.asarray(column).dtype.kind) in "biu"
