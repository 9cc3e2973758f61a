"""Events that distinguish two worlds: chosen on one half of the runs, bounded on the other.

A mechanism is a black box from labels to outputs. What it says about a label is looked at through
several *views*: the output itself where there are few distinct ones, its quantile, and the lowest
set bit of its float, which gives floating-point noise away (Mironov, *On Significance of the Least
Significant Bits for Differential Privacy*, CCS 2012). In each view the outputs are ordered by how
much likelier they are in one world, and the best prefix is the event. Only that one event is then
counted on runs that had no part in choosing it, so that its bound needs no correction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.arrays import Booleans, Integers
from common.errors import present
from labelveil.audit.bounds import two_world_bound
from labelveil.audit.verdict import GATE, Bounds, at_both_levels

Observations = NDArray[Any]

MAX_DISTINCT = 1 << 12
QUANTILES = 64
REPEATED = 8
"""Values are looked at one by one where they occur at least so often on average."""

_BITS = 130


@dataclass(frozen=True)
class View:
    """One way of looking at outputs: ``encode`` turns n of them into (n,) codes below ``size``."""

    name: str
    encode: Callable[[Observations], Integers]
    size: int


@dataclass(frozen=True)
class TwoWorlds(Bounds):
    """The bounds that two worlds gave, and the event that was chosen, in words."""

    event: str


def views_of(sample: Observations) -> list[View]:
    """Views that fit the outputs of both worlds from which an event will be chosen."""
    views = []
    distinct = np.unique(bit_patterns(sample))
    # a value that is seen once says nothing about the runs to come
    if distinct.size <= min(MAX_DISTINCT, max(sample.size // REPEATED, 2)):

        def index(observations: Observations) -> Integers:
            patterns = bit_patterns(observations)
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


def bit_patterns(values: Observations) -> Observations:
    """What is sent: floats as their 64 bits, by which -0.0 is not 0.0 and one NaN not another."""
    if not np.issubdtype(values.dtype, np.floating):
        return values
    return np.ascontiguousarray(values, dtype=np.float64).view(np.int64)


def lowest_set_bit(values: Observations) -> Integers:
    """Exponent of the lowest set bit of each float, as a code: 100 + exponent, held in 0 … 129.

    A float that was computed as label + noise is a multiple of a power of two that depends on the
    label: an output whose lowest bit lies below it excludes the label.
    """
    mantissa, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    lowest = whole & -whole
    zeros = np.where(whole > 0, np.log2(np.maximum(lowest, 1)).astype(np.int64), 60)
    return np.clip(exponent.astype(np.int64) - 53 + zeros + 100, 0, _BITS - 1)


def two_worlds(
    first: Observations,
    second: Observations,
    views: Callable[[Observations], list[View]] = views_of,
) -> TwoWorlds:
    """Bound ε from independent outputs of two neighbouring worlds, in the order of the runs.

    Even runs choose the event, among ``views`` of them; odd runs are counted.
    """
    choosing = first[0::2], second[0::2]
    view, members, swapped = _choose_event(views(np.concatenate(choosing)), *choosing)
    likely, rare = (second[1::2], first[1::2]) if swapped else (first[1::2], second[1::2])
    hits, others = (
        int(np.count_nonzero(members[view.encode(outputs)])) for outputs in (likely, rare)
    )
    runs = len(likely), len(rare)
    bounds = at_both_levels(lambda alpha: two_world_bound(hits, others, *runs, alpha))
    return TwoWorlds(*bounds, f"{view.name}, {int(members.sum())} of {view.size} values")


def _choose_event(
    views: list[View], first: Observations, second: Observations
) -> tuple[View, Booleans, bool]:
    """The view, its codes, and whether the second world is the likelier one, for the best bound."""
    best, best_bound = None, -1.0
    for view in views:
        counts = [np.bincount(view.encode(x), minlength=view.size) for x in (first, second)]
        for swapped in (False, True):
            likely, rare = counts[::-1] if swapped else counts
            order = np.argsort(-(likely + 0.5) / (rare + 0.5), kind="stable")
            hits, misses = np.cumsum(likely[order]), np.cumsum(rare[order])
            runs = likely.sum(), rare.sum()
            most = max(int(np.count_nonzero(likely > rare)), 1)
            for size in sorted({max(1, round(most * s)) for s in np.linspace(0, 1, 100)}):
                bound = two_world_bound(hits[size - 1], misses[size - 1], *runs, GATE)
                if bound > best_bound:
                    members = np.zeros(view.size, dtype=np.bool_)
                    members[order[:size]] = True
                    best, best_bound = (view, members, swapped), bound
    return present(best)
