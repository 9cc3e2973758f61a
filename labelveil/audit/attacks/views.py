"""Ways of looking at the outputs of a black box from labels to outputs.

The output itself where there are few distinct ones, its quantile, and the lowest set bit of its
float, which gives floating-point noise away (Mironov, *On Significance of the Least Significant
Bits for Differential Privacy*, CCS 2012).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelveil.common.arrays import Floats, Integers

Outputs = NDArray[Any]

Mechanism = Callable[[Floats], Outputs]
"""(n,) labels to (n,) outputs, with fresh noise at each call."""

MAX_DISTINCT = 1 << 12
QUANTILES = 64
REPEATED = 8  # values are looked at one by one where they occur at least so often on average

_BITS = 130


@dataclass(frozen=True)
class View:
    """One way of looking at outputs: ``encode`` turns n of them into (n,) codes below ``size``."""

    name: str
    encode: Callable[[Outputs], Integers]
    size: int


def views_of(sample: Outputs) -> list[View]:
    """Views that fit the outputs from which a guess will be learnt."""
    views = []
    distinct = np.unique(bit_patterns(sample))
    # a value that is seen once says nothing about the runs to come
    if distinct.size <= min(MAX_DISTINCT, max(sample.size // REPEATED, 2)):

        def index(outputs: Outputs) -> Integers:
            patterns = bit_patterns(outputs)
            at = np.searchsorted(distinct, patterns)
            known = distinct[np.minimum(at, distinct.size - 1)] == patterns
            return np.where(known, at, distinct.size)

        views.append(View("output", index, distinct.size + 1))
    if distinct.size > QUANTILES or not views:
        edges = np.unique(np.quantile(sample.astype(np.float64), np.linspace(0, 1, QUANTILES + 1)))
        inner = edges[1:-1]
        views.append(
            View("quantile", lambda x: np.searchsorted(inner, x, side="right"), inner.size + 1)
        )
    if np.issubdtype(sample.dtype, np.floating):
        views.append(View("lowest set bit", lowest_set_bit, _BITS))
    return views


def bit_patterns(values: Outputs) -> Outputs:
    """What is sent: floats as their 64 bits, by which -0.0 is not 0.0 and one NaN not another."""
    if not np.issubdtype(values.dtype, np.floating):
        return values
    return np.ascontiguousarray(values, dtype=np.float64).view(np.int64)


def lowest_set_bit(values: Outputs) -> Integers:
    """Exponent of the lowest set bit of each float, as a code: 100 + exponent, held in 0 … 129.

    A float that was computed as label + noise is a multiple of a power of two that depends on the
    label: an output whose lowest bit lies below it excludes the label.
    """
    mantissa, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    lowest = whole & -whole
    zeros = np.where(whole > 0, np.log2(np.maximum(lowest, 1)).astype(np.int64), 60)
    return np.clip(exponent.astype(np.int64) - 53 + zeros + 100, 0, _BITS - 1)
