"""RR-on-bins: randomized response over bins of labels, the published optimum for label error.

A non-decreasing map Φ sends the grid to d bins; the output is the label's own bin's value with
probability e^ε / (e^ε + d - 1), any other bin's with 1 / (e^ε + d - 1). Some RR-on-bins attains the
least E ℓ(output, label) of *all* ε-DP mechanisms (Ghazi et al., *Regression with Label Differential
Privacy*, ICLR 2023, Theorem 5), and some attains the least of those whose outputs are among given
ones, such as whole counts or price points (Theorem 8 and Corollary 13 there), if ℓ grows on both
sides as output and label part (Assumption 4); a loss that does not is refused. Note that the least
label error does not give the best models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Floats, Indices, Integers
from labelveil.common.errors import ConfigError
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.randomizers.base import Problem, Randomizer, checked_problem, register
from labelveil.common.randomizers.binning.interval_costs import IntervalCosts, interval_costs
from labelveil.common.randomizers.knots import MOST_KNOTS, over_knots
from labelveil.common.randomizers.losses import Loss, LossFunction, check_monotone

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


def optimal_binning(
    problem: Problem, outputs: Floats | None = None, bins: int | None = None
) -> Binning:
    """Find the best bins exactly, in O(k²) time a round.

    ``outputs`` are (m,) ascending values that may be sent, any by default; ``bins`` the most that
    there may be, for which the program takes O(k²) a bin. Two bins never need the same output: what
    one bin of both saves, its cost of being told apart, is no less than the optimum.

    The objective is a ratio N/D: N = Σ_j L(S_j) over the bins and D = e^ε - 1 + d. Dinkelbach's
    method (1967) minimises N - λD for a trial λ, which is a shortest path, sets λ to the ratio of
    the partition found and repeats until λ no longer falls: three or four rounds from the best
    constant output on. (Algorithm 2 of Ghazi et al. tabulates every number of bins instead, in
    O(k³).)

    Raises
    ------
    ConfigError
        As of :func:`labelveil.common.randomizers.losses.check_monotone`.
    """
    keep = np.flatnonzero(problem.prior > 0)  # a label of no mass may join any bin for free
    check_monotone(problem.loss, problem.labels[keep])
    boost = float(exp_lower_bound(problem.epsilon) - 1)
    costs = interval_costs(problem.labels[keep], problem.prior[keep], boost, problem.loss, outputs)
    ending = lru_cache(None if keep.size <= _KEPT else 0)(lambda i: costs.ending(i)[0])
    if bins is not None and bins < keep.size:
        table, previous = _programme(ending, keep.size, bins)
        ratios = table[1:, -1] / (boost + np.arange(1, bins + 1))
        least = int(ratios.argmin())
        path = [keep.size]
        for number in range(least + 1, 0, -1):
            path.append(int(previous[number, path[-1]]))
        return _binning(problem, costs, keep, path[::-1], float(ratios[least]), 1)
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
    return _binning(problem, costs, keep, edges, best, rounds)


def _binning(
    problem: Problem,
    costs: IntervalCosts,
    keep: Indices,
    edges: Sequence[int],
    ratio: float,
    rounds: int,
) -> Binning:
    """Say what bins these are, of all labels; neighbours that send the same, a tie, are one."""
    values = np.array([costs.ending(i)[1][r] for r, i in pairwise(edges)])
    full = np.append(keep, problem.labels.size)[list(edges)]
    full[0] = 0
    own = np.append(True, values[1:] != values[:-1])
    return Binning(full[np.append(own, True)], values[own], ratio + costs.offset, rounds)


def losses_by_bins(
    *,
    labels: ArrayLike,
    prior: ArrayLike,
    epsilon: float,
    loss: str | Loss | LossFunction = "squared",
    outputs: Sequence[float] | None = None,
    most: int = 64,
) -> Floats:
    """The table of Algorithm 2: the least E ℓ(output, label) of exactly 1, 2, … bins.

    With few bins a label is moved far, with many it is often sent as another.

    Parameters
    ----------
    labels, prior, epsilon, loss
        As in :func:`labelveil.common.randomizers.build_randomizer`.
    outputs
        The only values that may be sent, strictly ascending.
    most
        The most bins, 1 … 513.

    Returns
    -------
    (d,) losses of 1 … d bins, d being ``most``, or the number of labels whose prior is above 0.

    Raises
    ------
    ConfigError, PrivacyError
        As :func:`labelveil.common.randomizers.build_randomizer`.
    """
    problem = checked_problem(labels, prior, epsilon, loss)
    given, most = _admissible(outputs, problem.loss), _at_most(most) or 1
    keep = np.flatnonzero(problem.prior > 0)
    check_monotone(problem.loss, problem.labels[keep])
    boost = float(exp_lower_bound(problem.epsilon) - 1)
    costs = interval_costs(problem.labels[keep], problem.prior[keep], boost, problem.loss, given)
    most = min(most, keep.size)
    table, _ = _programme(lambda i: costs.ending(i)[0], keep.size, most)
    return np.asarray(table[1:, -1] / (boost + np.arange(1, most + 1)) + costs.offset)


def _programme(ending: Callable[[int], Floats], size: int, most: int) -> tuple[Floats, Indices]:
    """A[j, i], the least cost of the first i labels in j bins, and where the last one begins."""
    best = np.full((most + 1, size + 1), np.inf)
    best[0, 0] = 0.0
    previous = np.zeros(best.shape, dtype=np.int64)
    for i in range(1, size + 1):
        costs = best[:-1, :i] + ending(i)
        previous[1:, i] = costs.argmin(axis=1)
        best[1:, i] = costs.min(axis=1)
    return best, previous


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
def build_rr_on_bins(
    problem: Problem, outputs: list[float] | None = None, bins: int | None = None
) -> Randomizer:
    """Build randomized response over the optimal bins for this prior, ε and loss, at most 513.

    ``outputs`` are the only values that may be sent, ascending, such as whole counts or price
    points; ``bins`` is the most that there may be. ``ConfigError`` for others.
    """
    binning = optimal_binning(problem, _admissible(outputs, problem.loss), _at_most(bins))
    if binning.values.size > MOST_KNOTS:
        return over_knots(build_rr_on_bins)(problem, outputs=outputs)  # more than any ``bins``
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


def _admissible(outputs: Sequence[float] | None, loss: Loss) -> Floats | None:
    if outputs is None:
        return None
    values = np.asarray(outputs, dtype=np.float64)
    if not values.size or not np.isfinite(values).all() or not (np.diff(values) > 0).all():
        raise ConfigError(
            f"outputs={values.tolist()!s:.60} must be finite numbers, strictly ascending, and at"
            " least one"
        )
    if loss.name == "poisson" and values[0] < 0:
        raise ConfigError(f"loss='poisson' needs outputs >= 0, and the first is {values[0]:g}")
    return values


def _at_most(bins: int | None) -> int | None:
    if bins is not None and not 1 <= bins <= MOST_KNOTS:
        raise ConfigError(f"bins={bins} must be 1 … {MOST_KNOTS}")
    return bins
