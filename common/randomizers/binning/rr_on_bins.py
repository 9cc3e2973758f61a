"""RR-on-bins: randomized response over bins of labels, the published optimum for label error.

A non-decreasing map Φ sends the grid to d bins; the output is the label's own bin's value with
probability e^ε / (e^ε + d - 1), any other bin's with 1 / (e^ε + d - 1). Some RR-on-bins attains the
least E ℓ(output, label) of *all* ε-DP mechanisms (Ghazi et al., *Regression with Label Differential
Privacy*, ICLR 2023, Theorem 5). Note that the least label error does not give the best models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.arrays import Floats, Integers
from common.exact.channel import FiniteChannel, exp_lower_bound, randomized_response_rows
from common.randomizers.base import Problem, Randomizer, register
from common.randomizers.binning.interval_costs import interval_costs
from common.randomizers.binning.shortest_path import cheapest_path
from common.randomizers.exact_rows import check_size

_MAX_ROUNDS = 100
_FEW_EDGES = 2048


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
    """Find the best bins exactly, with the number of bins free: O(k log k) memory and bin costs.

    The objective is a ratio N/D: N = Σ_j L(S_j) over the bins and D = e^ε - 1 + d. Dinkelbach's
    method (1967) minimises N - λD for a trial λ, which is a shortest path
    (:mod:`common.randomizers.binning.shortest_path`), sets λ to the ratio of the partition found
    and repeats until λ no longer falls. It starts from the best constant output. The first rounds
    allow an edge at every 4^j-th label only: any partition's ratio is a sound λ, and what they find
    is so near the optimum that one or two rounds over all edges remain. (Algorithm 2 of Ghazi et
    al. tabulates every number of bins instead, in O(k³).)
    """
    keep = np.flatnonzero(problem.prior > 0)  # a label of no mass may join any bin for free
    boost = float(exp_lower_bound(problem.epsilon) - 1)
    costs = interval_costs(problem.labels[keep], problem.prior[keep], boost, problem.loss)
    best, edges = costs.whole(), np.array([0, keep.size])
    rounds = 0
    for stride in _strides(keep.size):
        allowed = np.append(np.arange(0, keep.size, stride), keep.size)
        while rounds < _MAX_ROUNDS:
            rounds += 1
            path = cheapest_path(costs, best, allowed)
            ratio = float(costs.cost(path[:-1], path[1:]).sum()) / (boost + path.size - 1)
            falls = ratio < best - 1e-15 * abs(best)
            if ratio < best:
                best, edges = ratio, path
            if not falls:
                break
    values = costs.minimiser(edges[:-1], edges[1:])
    full = np.append(keep, problem.labels.size)[edges]
    full[0] = 0
    return Binning(full, values, best + costs.offset, rounds)


def _strides(labels: int) -> list[int]:
    """Distances between the edges that rounds may use, down to 1."""
    strides = [1]
    while labels // strides[-1] > _FEW_EDGES:
        strides.append(4 * strides[-1])
    return strides[::-1]


@register("rr-on-bins")
def build_rr_on_bins(problem: Problem) -> Randomizer:
    """Build randomized response over the optimal bins for this prior, ε and loss."""
    binning = optimal_binning(problem)
    check_size(binning.values.size, binning.values.size)
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
