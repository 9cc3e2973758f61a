"""Events that distinguish two worlds: chosen on one half of the runs, bounded on the other.

A mechanism is a black box from labels to outputs. What it says about a label is looked at through
several *views*: the output itself where there are few distinct ones, its quantile, and the lowest
set bit of its float, which gives floating-point noise away (Mironov, *On Significance of the Least
Significant Bits for Differential Privacy*, CCS 2012). In each view the outputs are ordered by how
much likelier they are in one world, and the best prefix is the event. Only that one event is then
counted on runs that had no part in choosing it, so that its bound needs no correction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.arrays import Booleans, Integers
from common.errors import present
from labelveil.audit.bounds import (
    two_world_bound,
)
from labelveil.audit.verdict import GATE, SHOWN

Observations = NDArray[Any]
Codes = Integers

MAX_DISTINCT = 1 << 12
QUANTILES = 64
REPEATED = 8
"""Values are looked at one by one where they occur at least so often on average."""


@dataclass(frozen=True)
class View:
    """One way of looking at an output: ``encode`` gives a small integer for each.

    Attributes
    ----------
    name
        For the report.
    encode
        (n,) observations to (n,) codes below ``size``; built from the first halves alone.
    size
        Number of codes.
    """

    name: str
    encode: Callable[[Observations], Codes]
    size: int


@dataclass(frozen=True)
class Event:
    """A set of codes of one view that is likelier in one of two worlds.

    Attributes
    ----------
    view
        Where the codes come from.
    members
        (size,) bool.
    swapped
        Whether the second world is the likelier one.
    """

    view: View
    members: Booleans
    swapped: bool

    def hits(self, observations: Observations) -> int:
        """How many observations lie in the event."""
        return int(np.count_nonzero(self.members[self.view.encode(observations)]))


@dataclass(frozen=True)
class TwoWorlds:
    """The bound that two worlds gave.

    Attributes
    ----------
    bound, shown
        Lower bounds of ε at confidence 1 - ``GATE`` and at 95%.
    event
        Name of the view and size of the event that was chosen.
    hits, other_hits, runs
        In how many of the second half's runs it occurred, in either world.
    """

    bound: float
    shown: float
    event: str
    hits: int
    other_hits: int
    runs: int


def views_of(sample: Observations) -> list[View]:
    """Views that fit the first halves of both worlds' outputs, (n,) numbers."""
    views = []
    distinct = np.unique(bit_patterns(sample))
    # a value that is seen once says nothing about the runs to come
    if distinct.size <= min(MAX_DISTINCT, max(sample.size // REPEATED, 2)):
        views.append(_values_view(distinct))
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


def _values_view(distinct: Observations) -> View:
    def encode(observations: Observations) -> Codes:
        patterns = bit_patterns(observations)
        at = np.searchsorted(distinct, patterns)
        known = distinct[np.minimum(at, distinct.size - 1)] == patterns
        return np.where(known, at, distinct.size)

    return View("output", encode, distinct.size + 1)


_BITS = 130


def lowest_set_bit(values: Observations) -> Codes:
    """Exponent of the lowest set bit of each float, as a code: 100 + exponent, held in 0 … 129.

    A float that was computed as label + noise is a multiple of a power of two that depends on the
    label: an output whose lowest bit lies below it excludes the label.
    """
    mantissa, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    lowest = whole & -whole
    zeros = np.where(whole > 0, np.log2(np.maximum(lowest, 1)).astype(np.int64), 60)
    return np.clip(exponent.astype(np.int64) - 53 + zeros + 100, 0, _BITS - 1)


def choose_event(
    views: Sequence[View], one: Observations, other: Observations, alpha: float = GATE
) -> Event:
    """Choose the event whose bound is largest on the first halves."""
    best, best_bound = None, -1.0
    for view in views:
        first = np.bincount(view.encode(one), minlength=view.size)
        second = np.bincount(view.encode(other), minlength=view.size)
        for swapped, (likely, rare) in enumerate(((first, second), (second, first))):
            order = np.argsort(-(likely + 0.5) / (rare + 0.5), kind="stable")
            hits, misses = np.cumsum(likely[order]), np.cumsum(rare[order])
            runs = (other.size, one.size) if swapped else (one.size, other.size)
            for count in _prefixes(likely[order] > rare[order]):
                bound = two_world_bound(int(hits[count - 1]), int(misses[count - 1]), *runs, alpha)
                if bound > best_bound:
                    members = np.zeros(view.size, dtype=np.bool_)
                    members[order[:count]] = True
                    best, best_bound = Event(view, members, bool(swapped)), bound
    return present(best)


def _prefixes(likelier: Booleans) -> list[int]:
    """Up to about a hundred prefix lengths, from one code to all that favour the world."""
    most = max(int(np.count_nonzero(likelier)), 1)
    return sorted({max(1, round(most * share)) for share in np.linspace(0, 1, 100)})


def two_worlds(
    one: Observations, other: Observations, *, delta: float = 0.0, alpha: float = GATE
) -> TwoWorlds:
    """Bound ε from outputs of two neighbouring worlds.

    Parameters
    ----------
    one, other
        (n,) and (m,) independent outputs (numbers or codes) of either world, in the order of the
        runs: even runs choose the event, odd runs are counted.
    delta
        Claimed δ.
    alpha
        Of ``bound``.
    """
    first, second = one[0::2], other[0::2]
    event = choose_event(views_of(np.concatenate([first, second])), first, second, alpha)
    return count_event(event, one[1::2], other[1::2], delta=delta, alpha=alpha)


def count_event(
    event: Event,
    one: Observations,
    other: Observations,
    *,
    delta: float = 0.0,
    alpha: float = GATE,
) -> TwoWorlds:
    """Count a chosen event on runs that had no part in choosing it."""
    likely, rare = (other, one) if event.swapped else (one, other)
    counts = event.hits(likely), event.hits(rare), likely.size, rare.size
    return TwoWorlds(
        bound=two_world_bound(*counts, alpha, delta),
        shown=two_world_bound(*counts, SHOWN, delta),
        event=f"{event.view.name}, {int(event.members.sum())} of {event.view.size} values",
        hits=counts[0],
        other_hits=counts[1],
        runs=likely.size,
    )
