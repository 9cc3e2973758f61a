"""RR-on-bins: randomized response over bins of labels, the published optimum for label error.

A non-decreasing map Φ sends the grid to d bins; the output is the label's own bin's value with
probability e^ε / (e^ε + d - 1), any other bin's with 1 / (e^ε + d - 1). Some RR-on-bins attains the
least E ℓ(output, label) of *all* ε-DP mechanisms (Ghazi et al., *Regression with Label Differential
Privacy*, ICLR 2023, Theorem 5), if ℓ grows on both sides as output and label part (Assumption 4); a
loss that does not is refused. Note that the least label error does not give the best models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from common.arrays import Floats, Integers
from common.exact.channel import FiniteChannel, exp_lower_bound, randomized_response_rows
from common.randomizers.base import Problem, Randomizer, register
from common.randomizers.binning.interval_costs import interval_costs
from common.randomizers.knots import MOST_KNOTS, over_knots
from common.randomizers.losses import check_monotone

_MAX_ROUNDS = 100
_KEPT = 4096
"""The most labels whose bins' costs are kept from round to round, in 64 MB."""


@dataclass(frozen=True, eq=False)
class Binning:
    """An optimal partition of the grid into d consecutive bins."""

    edges: Integers
    """(d + 1,) from 0 to k: bin j holds labels edges[j] … edges[j + 1] - 1."""
    values: Floats
    """(d,) the output value of each bin."""
    objective: float
    """E ℓ(output, label) under the prior."""
    rounds: int
    """Iterations that Dinkelbach's method took."""


def optimal_binning(problem: Problem) -> Binning:
    """Find the best bins exactly, with the number of bins free, in O(k²) time a round.

    The objective is a ratio N/D: N = Σ_j L(S_j) over the bins and D = e^ε - 1 + d. Dinkelbach's
    method (1967) minimises N - λD for a trial λ, which is a shortest path, sets λ to the ratio of
    the partition found and repeats until λ no longer falls: three or four rounds from the best
    constant output on. (Algorithm 2 of Ghazi et al. tabulates every number of bins instead, in
    O(k³).)

    ``ConfigError`` as of :func:`common.randomizers.losses.check_monotone`.
    """
    keep = np.flatnonzero(problem.prior > 0)  # a label of no mass may join any bin for free
    check_monotone(problem.loss, problem.labels[keep])
    boost = float(exp_lower_bound(problem.epsilon) - 1)
    costs = interval_costs(problem.labels[keep], problem.prior[keep], boost, problem.loss)
    ending = lru_cache(None if keep.size <= _KEPT else 0)(lambda i: costs.ending(i)[0])
    best, edges = float(ending(keep.size)[0]) / (1 + boost), [0, keep.size]
    rounds, falls = 0, True
    while falls and rounds < _MAX_ROUNDS:
        rounds += 1
        path = _cheapest_path(ending, keep.size, best)
        total = math.fsum(ending(i)[r] for r, i in pairwise(path))
        ratio = total / (boost + len(path) - 1)
        falls = ratio < best - 1e-15 * abs(best)
        if ratio < best:
            best, edges = ratio, path
    values = np.array([costs.ending(i)[1][r] for r, i in pairwise(edges)])
    full = np.append(keep, problem.labels.size)[edges]
    full[0] = 0
    return Binning(full, values, best + costs.offset, rounds)


def _cheapest_path(ending: Callable[[int], Floats], size: int, penalty: float) -> list[int]:
    """Edges, from 0 to ``size``, that minimise Σ (L(S_j) - penalty).

    ``ending(i)`` is (i,) costs L(r, i) of the bins (0, i) … (i - 1, i).

        F[i] = min over r < i of  F[r] + L(r, i) - penalty.

    L violates the quadrangle inequality, so no r can be skipped without more ado.
    """
    best, previous = np.zeros(size + 1), np.zeros(size + 1, dtype=np.int64)
    for i in range(1, size + 1):
        costs = best[:i] + ending(i)
        previous[i] = costs.argmin()
        best[i] = costs[previous[i]] - penalty
    path = [size]
    while path[-1] > 0:
        path.append(int(previous[path[-1]]))
    return path[::-1]


@register("rr-on-bins", bin_edges=list[float], bins=int)
def build_rr_on_bins(problem: Problem) -> Randomizer:
    """Build randomized response over the optimal bins for this prior, ε and loss, at most 513."""
    binning = optimal_binning(problem)
    if binning.values.size > MOST_KNOTS:
        return over_knots(build_rr_on_bins)(problem)
    order = np.argsort(binning.values, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    bin_of = np.repeat(np.arange(binning.values.size), np.diff(binning.edges))
    channel = FiniteChannel(
        problem.labels,
        binning.values[order],
        randomized_response_rows(binning.values.size, problem.epsilon),
        rank[bin_of],
    )
    details = {"bin_edges": problem.labels[binning.edges[:-1]].tolist(), "bins": order.size}
    return Randomizer("rr-on-bins", channel, problem.prior, problem.loss, details)
