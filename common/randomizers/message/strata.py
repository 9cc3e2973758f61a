"""Strata: public classes of events, each of which is asked the question that fits its own labels.

A campaign, a country, a product line, known to both parties before a label is read, says something
of the label. Event i of stratum s(i) is sent through a channel K_s(i), designed for the law p_s of
its stratum's labels. Whatever the strata and laws are, each channel is ε₂-DP in the label it reads,
and an event is sent by one of them: the message is ε₂-DP in each label (strata are public, so this
is parallel composition).

The laws cost no more than one histogram does. Half of ε₁ is spent on the pooled histogram, and half
on a table of stratum × bin, a few bins of about equal mass under the pooled estimate. Replacing one
label moves one unit between two bins of one row of this table, so its sensitivity is 2 as that of
any histogram. What a stratum's row says beyond the pooled law is shrunk by James and Stein's rule
(positive part, weighed by cell as Efron and Morris do): with B bins of pooled mass π_b, counts c_b
with noise of variance v, and n events,

    r_b = c_b / (n π_b) − 1,    λ = (1 − Σ_b (v + n π_b (1 − π_b)) / (n π_b) / Σ_b n π_b r_b²)₊,
    p_s(y) ∝ p(y) max(1 + λ r_b(y), 1/20).

A row that is all noise leaves the pooled law as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from labelveil.common.arrays import Floats, Indices, Integers
from labelveil.common.entropy import Entropy
from labelveil.common.randomizers.cells import Cells
from labelveil.common.randomizers.prior import NoisyPrior, private_prior

MOST_STRATA = 32
"""Each has a channel of its own to design; the smaller ones are taken together."""

MOST_WEIGHT = 1 << 40
"""The largest weight of a cell in what is expected of a stratum's labels."""

STRATA_STREAM = "strata"

OTHERS = "all others"
"""The stratum of all events that no stratum of their own is kept for."""

BINS = 8
"""Bins of a stratum's row, over all labels together."""

_FEWEST = 16
"""Events that a stratum of its own has, times the ε of the table: of fewer, the noise of a bin
(deviation 2√2/ε) is more than even a stratum of one bin alone could tell of itself."""
_LEAST_RATIO = 0.05


@dataclass(frozen=True, eq=False)
class Strata:
    """Public classes of events."""

    names: tuple[str, ...]  # (S,) of the strata
    rows: tuple[int, ...]  # (S,) events of each
    of_value: Indices  # (v + 1,) stratum of each public value, and of an event with none of them


def keep_strata(values: Sequence[str], rows: Integers, epsilon: float | Fraction) -> Strata:
    """Decide from public facts which values are strata of their own: the largest, if large enough.

    At most 32 are, and none of fewer than 16/ε events; all others are one stratum. Of v public
    values ``rows`` are the (v + 1,) events of each, and of none of them; ``epsilon`` is what the
    table of strata may spend.
    """
    fewest = _FEWEST / float(epsilon)
    largest = np.argsort(-rows[:-1], kind="stable")
    kept = [int(value) for value in largest if rows[value] >= fewest]
    alone = len(kept) <= MOST_STRATA and int(rows[kept].sum()) == int(rows.sum())
    kept = sorted(kept if alone else kept[: MOST_STRATA - 1])
    of_value = np.full(len(values) + 1, len(kept), dtype=np.int64)
    of_value[kept] = np.arange(len(kept))
    names = [values[value] for value in kept]
    if not alone:
        names.append(OTHERS)
    sizes = np.bincount(of_value, weights=rows, minlength=len(names)).astype(np.int64)
    return Strata(tuple(names), tuple(sizes[: len(names)].tolist()), of_value)


@dataclass(frozen=True, eq=False)
class StratumTable:
    """Noisy counts of stratum × bin, and what they say of each stratum's labels."""

    strata: Strata  # its rows
    bins: Indices  # (k,) bin of each cell
    histogram: NoisyPrior  # the (S · B,) noisy counts, a stratum's together

    @classmethod
    def release(
        cls,
        strata: Strata,
        cells: Cells,
        counts: Integers,
        pooled: NoisyPrior,
        epsilon: Fraction,
        entropy: Entropy,
        words: str,
    ) -> StratumTable:
        """Put noise on a table: from here on it is public.

        ``counts`` are the (S, k) events of each stratum in each cell, ``pooled`` is the released
        histogram over the same cells, ``epsilon`` what the table may spend, and ``words`` the
        stream of ``entropy``: no two tables share one.
        """
        bins = bins_of(cells, pooled.probabilities)
        table = np.stack([np.bincount(bins, weights=row) for row in counts]).astype(np.int64)
        noisy = private_prior(table.ravel(), epsilon, entropy, group=pooled.group, words=words)
        return cls(strata, bins, noisy)

    def laws(self, pooled: NoisyPrior) -> list[Floats]:
        """(k,) law of each stratum's labels, shrunk towards the pooled one."""
        noisy = self.histogram.noisy_counts.reshape(len(self.strata.names), -1)
        variance = self.histogram.deviation**2
        return [
            stratum_law(pooled.probabilities, self.bins, row, rows, variance)
            for row, rows in zip(noisy, self.strata.rows, strict=True)
        ]


def count_cells(cells: Indices, size: int, strata: Indices | None, count: int) -> Integers:
    """(size,) events in each cell; with (n,) strata of the events (count, size), a row for each."""
    if strata is None:
        return np.bincount(cells, minlength=size)
    return np.bincount(strata * size + cells, minlength=count * size).reshape(count, size)


def bins_of(cells: Cells, pooled: Floats) -> Indices:
    """(k,) bin of each cell: of each label at most 8^(1/m) ranges of about equal pooled mass."""
    each = max(2, int(BINS ** (1 / len(cells.grids)) + 1e-9))
    indices = cells.indices(np.arange(len(cells)))
    bins = np.zeros(len(cells), dtype=np.int64)
    for label in range(len(cells.grids)):
        mass = cells.marginal(pooled, label)
        middle = np.cumsum(mass) - mass / 2
        ranges = np.minimum((middle * each).astype(np.int64), each - 1)
        bins = bins * each + ranges[indices[:, label]]
    return np.unique(bins, return_inverse=True)[1].reshape(-1).astype(np.int64)


def stratum_law(
    pooled: Floats, bins: Indices, counts: Integers, rows: int, variance: float
) -> Floats:
    """(k,) law of one stratum's labels: the pooled one, moved as far as its row is no noise.

    ``pooled`` is the (k,) law over the cells, ``bins`` has the (k,) bin of each, ``counts`` is the
    (B,) noisy row of the stratum's ``rows`` events, n, and ``variance`` that of the noise on each
    count, v.
    """
    mass = np.bincount(bins, weights=pooled)
    expected = np.maximum(max(rows, 1) * mass, 1e-9)
    ratios = counts / expected - 1
    noise = float(np.sum((variance + expected * (1 - mass)) / expected))
    seen = float(np.sum(expected * ratios**2))
    shrunk = max(1 - noise / seen, 0.0) if seen else 0.0
    law = pooled * np.maximum(1 + shrunk * ratios, _LEAST_RATIO)[bins]
    return np.asarray(law / law.sum())
