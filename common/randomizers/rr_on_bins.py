"""RR-on-bins: randomized response over bins of labels, the published optimum for label error.

A non-decreasing map Φ sends the grid to d bins; the output is the label's own bin's value with
probability e^ε / (e^ε + d - 1), any other bin's with 1 / (e^ε + d - 1). Some RR-on-bins attains the
least E ℓ(output, label) of *all* ε-DP mechanisms (Ghazi et al., *Regression with Label Differential
Privacy*, ICLR 2023, Theorem 5). Note that the least label error does not give the best models.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from common.channel import FiniteChannel, exp_lower_bound, randomized_response_rows
from common.randomizers.base import Problem, Randomizer, register
from common.randomizers.interval_costs import IntervalCosts, interval_costs

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_MAX_ROUNDS = 100


@dataclass(frozen=True)
class Binning:
    """An optimal partition of the grid into consecutive bins.

    Attributes
    ----------
    edges
        (d + 1,) ints, ascending from 0 to k: bin j holds labels edges[j] … edges[j + 1] - 1.
    values
        (d,) float64, the output value of each bin.
    objective
        E ℓ(output, label) under the prior.
    rounds
        Iterations that Dinkelbach's method took.
    """

    edges: Integers
    values: Floats
    objective: float
    rounds: int


def optimal_binning(problem: Problem) -> Binning:
    """Find the best bins exactly, with the number of bins free: O(k²) time, O(k) memory.

    The objective is a ratio N/D: N = Σ_j L(S_j) over the bins and D = e^ε - 1 + d. Dinkelbach's
    method (1967) minimises N - λD for a trial λ, which is a shortest path

        F[i] = min over r < i of  F[r] + L(r, i) - λ,

    sets λ to the ratio of the partition found and repeats until λ no longer falls. It starts from
    the best constant output and takes a handful of rounds. (Algorithm 2 of Ghazi et al. tabulates
    every number of bins instead, in O(k³).)
    """
    keep = np.flatnonzero(problem.prior > 0)  # a label of no mass may join any bin for free
    boost = float(exp_lower_bound(problem.epsilon) - 1)
    costs = interval_costs(problem.labels[keep], problem.prior[keep], boost, problem.loss)
    best = costs.whole()
    edges = np.array([0, keep.size], dtype=np.int64)
    rounds = 0
    while rounds < _MAX_ROUNDS:
        rounds += 1
        path = _shortest_path(costs, best)
        total = sum(costs.cost(r, i) for r, i in pairwise(path.tolist()))
        ratio = total / (boost + path.size - 1)
        if ratio >= best - 1e-15 * abs(best):
            if ratio < best:
                best, edges = ratio, path
            break
        best, edges = ratio, path
    if edges.size == 2:
        best = costs.cost(0, keep.size) / (boost + 1)
    values = np.array([costs.minimiser(r, i) for r, i in pairwise(edges.tolist())])
    full = np.append(keep, problem.labels.size)[edges]
    full[0] = 0
    return Binning(full, values, float(best + costs.offset), rounds)


def _shortest_path(costs: IntervalCosts, penalty: float) -> Integers:
    """Return the edges of the partition that minimises Σ (L(S_j) - penalty)."""
    k = costs.size
    best = np.zeros(k + 1)
    previous = np.zeros(k + 1, dtype=np.int64)
    for i in range(1, k + 1):
        candidates = costs.ending_at(i) + best[:i]
        r = int(candidates.argmin())
        previous[i] = r
        best[i] = candidates[r] - penalty
    path = [k]
    while path[-1] > 0:
        path.append(int(previous[path[-1]]))
    return np.array(path[::-1], dtype=np.int64)


@register("rr-on-bins")
def build_rr_on_bins(problem: Problem) -> Randomizer:
    """Build randomized response over the optimal bins for this prior, ε and loss."""
    binning = optimal_binning(problem)
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
