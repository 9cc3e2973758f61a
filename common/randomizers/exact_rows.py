"""From float probabilities to integer rows that certainly satisfy ε, moving as little as possible.

Rounding to multiples of 2**-64 can push a ratio past e^ε, most easily in a column of tiny weights.
Every entry above e^ε times its column's least entry is cut back to that bound, and each row is then
brought to exactly 2**64 inside the bounds of its columns. No entry moves by more than a few
thousand units of 2**-64, so that means stay where they were to about 1e-15 of the outputs' reach.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Floats, Indices, Words
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.exact.channel import MAX_OUTPUTS, FiniteChannel
from labelveil.common.exact.rational import exp_lower_bound

MAX_WEIGHTS = 550_000
"""The most integers that a channel built here states: in a manifest, 6 MB."""

_ROW_FACTS = 12
"""Weights that take as many bytes as what is said of an output besides."""

_BITS = 64
_TOLERANCE = 1e-9
_LARGEST = (1 << _BITS) - 1
_ROOM = 1 << 16


def sorted_channel(
    labels: ArrayLike,
    outputs: ArrayLike,
    probabilities: ArrayLike,
    epsilon: float,
    row_of: ArrayLike | None = None,
) -> tuple[FiniteChannel, Indices]:
    """Build a channel from columns in any order; equal outputs stay distinct.

    ``probabilities`` are (r, d), with rows that sum to 1 and are ε-DP, both up to float error;
    ``row_of`` is as in :class:`FiniteChannel`. Returns the channel, whose ratios do not pass e^ε,
    and the (d,) indices into ``outputs`` in its order.
    """
    values = np.asarray(outputs, dtype=np.float64)
    matrix = np.asarray(probabilities, dtype=np.float64)
    check_size(matrix.shape[0], matrix.shape[1])
    order = np.argsort(values, kind="stable")
    rows = exact_rows(matrix[:, order], epsilon)
    return FiniteChannel(labels, values[order], rows, row_of), order


def size_of(rows: int, outputs: int) -> int:
    """Weights that a channel states, and as many more as what is said of its outputs takes."""
    return (rows + _ROW_FACTS) * outputs


def check_size(rows: int, outputs: int) -> None:
    """Raise ``ConfigError`` where no manifest would have room for a channel of this size."""
    if outputs >= MAX_OUTPUTS or size_of(rows, outputs) > MAX_WEIGHTS:
        raise ConfigError(
            f"a channel of {rows:,} rows and {outputs:,} outputs is too large (at most"
            f" {MAX_OUTPUTS - 1:,} outputs and {MAX_WEIGHTS:,} weights, {_ROW_FACTS} rows more"
            " counted in); leave the randomizer's options out, or use a coarser label grid"
        )


def exact_rows(probabilities: Floats, epsilon: float) -> Words:
    """Round a matrix to (r, d) integers >= 1 in rows summing to 2**64 that satisfy ε exactly.

    Takes (r, d) floats >= 0 whose rows sum to 1 and are ε-DP, both up to float error, 0 < ε <= 40;
    ``PrivacyError`` if they do not. The one weight that is no word, 2**64, is written as 0.
    """
    matrix = np.asarray(probabilities, dtype=np.float64)
    if matrix.ndim != 2 or not np.all(np.isfinite(matrix)) or matrix.min() < 0:
        raise PrivacyError("probabilities must be a matrix of finite numbers >= 0")
    sums = matrix.sum(axis=1)
    if np.any(np.abs(sums - 1) > _TOLERANCE):
        raise PrivacyError(f"rows sum to {sums.min()} … {sums.max()}; each must sum to 1")
    if matrix.shape[1] == 1:
        return np.zeros(matrix.shape, dtype=np.uint64)
    # below 2**64 after rounding, whatever the float says
    scaled = np.minimum(np.ldexp(matrix / sums[:, None], _BITS), math.ldexp(1 - 2.0**-53, _BITS))
    weights = np.maximum(np.ceil(scaled), 1).astype(np.uint64)
    least = weights.min(axis=0)
    grow = exp_lower_bound(epsilon)
    most = np.array([min(int(grow * int(low)), _LARGEST) for low in least], dtype=np.uint64)
    cut = np.minimum(weights, most)
    lost = np.ldexp((weights - cut).astype(np.float64), -_BITS).sum(axis=1).max()
    if lost > _TOLERANCE:
        raise PrivacyError(
            f"the matrix passes e^{epsilon:g} by a probability of {lost:.3g}; it is not"
            f" {epsilon:g}-DP"
        )
    # within these bounds every choice of entries is ε-DP; a little room below, where ε allows it
    top = cut.max(axis=0)
    floors = [
        max(math.ceil(int(high) / grow), int(low) - _ROOM, 1)
        for low, high in zip(least, top, strict=True)
    ]
    least = np.array(floors, dtype=np.uint64)
    most = np.array([min(int(grow * low), _LARGEST) for low in floors], dtype=np.uint64)
    # uint64 sums wrap at 2**64, so the wrapped sum's negative is what the row lacks
    lacking = (np.uint64(0) - cut.sum(axis=1, dtype=np.uint64)).astype(np.int64)
    for row, amount in zip(cut, lacking.tolist(), strict=True):
        _shift(row, amount, least, most)
    return np.ascontiguousarray(cut)


def _shift(row: Words, amount: int, least: Words, most: Words) -> None:
    """Add ``amount`` units to a row in place, where its columns leave the most room."""
    while amount:
        room = most - row if amount > 0 else row - least
        j = int(room.argmax())
        step = min(abs(amount), int(room[j]))
        if not step:
            raise PrivacyError("no row of integers within ε sums to 2**64 here; lower epsilon")
        change = step if amount > 0 else -step
        row[j] = int(row[j]) + change
        amount -= change
