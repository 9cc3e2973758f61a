"""The optimal unbiased randomizer under squared loss.

Of all ε-DP channels whose output equals the label on average, E[o | y] = y, this one has the least
E (o - y)² under the prior (Badanidiyuru et al., *Optimal Unbiased Randomizers for Regression with
Label Differential Privacy*, NeurIPS 2023). Its outputs reach beyond the label range. Output
positions are free, so that no linear program on a list of outputs does better; the program and its
solution are in :mod:`labelveil.common.randomizers.unbiased.program`.

Unbiased outputs may be negative. That is sound for training with squared or Poisson loss, which are
linear in the label, but not as predictions: ``expected_loss`` then means nothing for Poisson loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from labelveil.common.arrays import Booleans, Floats
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.randomizers.base import Problem, Randomizer, register
from labelveil.common.randomizers.exact_rows import check_size, sorted_channel
from labelveil.common.randomizers.knots import MOST_KNOTS, rows_between, thinned
from labelveil.common.randomizers.unbiased.program import Solution, one_thread, solve_unbiased

MAX_POINTS = 128
"""Default number of points: at most 2k - 2 = 254 outputs, so that codes stay one byte."""

LARGEST_EPSILON = 10.0
"""Beyond this ε the program is solved for this one: its outputs are already all but exact."""

_MAX_BIAS = 1e-11
_NEGLIGIBLE = 1e-8
_EXTRA = 4
_FLOORS = (0.0, 1e-9, 1e-6, 1e-3)
_REDUCED = 1e-11
_EMPTY = 1e-12


@dataclass(frozen=True, eq=False)
class Columns:
    """n columns u (1 + c·1[y in S]) with their outputs, labels scaled to -1 … 1."""

    members: Booleans  # (n, k) which labels are in S
    mass: Floats  # (n,) u > 0
    outputs: Floats  # (n,) o

    def heights(self, boost: float) -> Floats:
        """(n, k) 1 + c·1[y in S]."""
        return np.asarray(1 + boost * self.members)

    def probabilities(self, boost: float) -> Floats:
        """(k, n) channel."""
        return np.asarray((self.mass[:, None] * self.heights(boost)).T)

    def bias(self, targets: Floats, boost: float) -> float:
        """The largest error of a row's sum or mean."""
        channel = self.probabilities(boost)
        sums = np.abs(channel.sum(axis=1) - 1).max()
        return float(max(sums, np.abs(channel @ self.outputs - targets).max()))

    def reduced(self, boost: float) -> Columns:
        """Drop to at most 2k columns; sums, means and (for an optimum) the cost stay.

        Carathéodory: more columns than equations leave directions along which all equations still
        hold. Walk along each until a column's mass is gone, and go on with those directions that
        leave that column alone.
        """
        heights = self.heights(boost).T
        system = np.vstack([heights, heights * self.outputs]) * self.mass
        free = scipy.linalg.null_space(system, rcond=_REDUCED)  # orthonormal, of relative masses
        share = np.ones(self.mass.size)
        while free.shape[1]:
            way = free[:, 0]
            falls = way > 0
            limits = np.full(way.size, np.inf)
            limits[falls] = share[falls] / way[falls]
            gone = int(limits.argmin())
            share = np.maximum(share - limits[gone] * way, 0.0)
            share[gone] = 0.0
            turn = np.linalg.qr(free[gone][:, None], mode="complete").Q
            free = (free @ turn)[:, 1:]
            free[gone] = 0.0
        keep = self.mass * share > _EMPTY * self.mass.max()
        return Columns(self.members[keep], (self.mass * share)[keep], self.outputs[keep])

    def corrected(self, targets: Floats, boost: float) -> Columns:
        """Move u and u·o as little as possible so that rows sum to 1 and have the target means.

        Both are linear systems in the same (k, n) matrix; columns whose mass is lost are dropped.
        """
        columns = self
        while True:
            heights = columns.heights(boost).T
            mass, first = columns.mass, columns.mass * columns.outputs
            # relative moves: a column of little mass must move little
            inverse = np.linalg.pinv(heights * mass, rcond=1e-12)
            for _ in range(3):
                mass = mass + columns.mass * (inverse @ (1 - heights @ mass))
                first = first + columns.mass * (inverse @ (targets - heights @ first))
            keep = mass > _EMPTY
            if keep.all():
                return Columns(columns.members, mass, first / mass)
            columns = Columns(columns.members[keep], mass[keep], (first / mass)[keep])


@register("unbiased", points=list[float], outputs=int, steps=int, gap=float, prior_floor=float)
def build_unbiased(problem: Problem, *, points: int = MAX_POINTS) -> Randomizer:
    """Build the optimal unbiased randomizer for this prior and ε, under squared loss.

    ``points`` is the number of grid points that the program sees, 2 … 513. A longer grid is thinned
    to points chosen by the prior, and labels between them are rounded at random without bias, as
    part of the channel. E[output | label] is the label to 1e-10 of the range, at every grid point,
    and there are at most 2·points - 2 outputs.

    Raises
    ------
    ConfigError
        If ``points`` is outside that range.
    """
    if not 2 <= points <= MOST_KNOTS:
        raise ConfigError(f"points={points} must lie in 2 … {MOST_KNOTS}")
    labels = problem.labels
    knots, places, prior = thinned(labels, problem.prior, points)
    check_size(knots.size, 2 * knots.size)
    # the program sees labels moved to -1 … 1
    middle, half = float(labels[0] + labels[-1]) / 2, float(labels[-1] - labels[0]) / 2
    targets = (places - middle) / half
    boost = float(exp_lower_bound(min(problem.epsilon, LARGEST_EPSILON)) - 1)
    columns, solution, floor = _solve(targets, prior, boost)
    values = middle + half * columns.outputs
    matrix, row_of = columns.probabilities(boost), rows_between(labels.size, knots)
    channel, _ = sorted_channel(labels, values, matrix, problem.epsilon, row_of)
    details: dict[str, Any] = {
        "points": places.tolist(),
        "outputs": channel.outputs.size,
        "steps": solution.steps,
        "gap": solution.gap,
        "prior_floor": floor,
    }
    return Randomizer("unbiased", channel, problem.prior, problem.loss, details)


def _solve(targets: Floats, prior: Floats, boost: float) -> tuple[Columns, Solution, float]:
    """Solve; where a prior of extreme range defeats float arithmetic, mix in a little uniform."""
    for floor in _FLOORS:
        mixed = (1 - floor) * prior + floor / prior.size
        with one_thread():
            try:
                solution = solve_unbiased(targets, mixed, boost)
                columns = _columns(targets, boost, solution)
            except (PrivacyError, np.linalg.LinAlgError):
                continue
        if columns.bias(targets, boost) < _MAX_BIAS:
            return columns, solution, floor
    raise PrivacyError(
        f"the unbiased program for {targets.size} points was not solved to {_MAX_BIAS:g} of the"
        " range; use fewer points, or randomized-thresholds, which needs no program"
    )


def _columns(targets: Floats, boost: float, solution: Solution) -> Columns:
    """The intervals that carry mass, with sums and means made exact."""
    # an interior solution has u·s the same for all: one of the two is the larger by far; and no
    # label, however rare, may lose what it says with more than negligible probability
    probability, cost = solution.mass * solution.weight, solution.slack / solution.weight
    largest = solution.mass * (1 + boost)
    keep = probability > cost
    rare = np.sort(largest[~keep])[::-1][: _EXTRA * targets.size]
    keep |= largest > max(_NEGLIGIBLE, float(rare[-1]))
    starts, ends = np.nonzero(keep)
    index = np.arange(targets.size)
    members = (starts[:, None] <= index) & (index < ends[:, None])
    columns = Columns(members, solution.mass[starts, ends], solution.outputs[starts, ends])
    return columns.reduced(boost).corrected(targets, boost)
