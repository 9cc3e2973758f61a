"""The optimal unbiased randomizer under squared loss, and the program that it solves.

Of all ε-DP channels whose output equals the label on average, E[o | y] = y, this one has the least
E (o - y)² under the prior (Badanidiyuru et al., *Optimal Unbiased Randomizers for Regression with
Label Differential Privacy*, NeurIPS 2023). Its outputs reach beyond the label range. Output
positions are free, so that no linear program on a list of outputs does better.

Unbiased outputs may be negative. That is sound for training with squared or Poisson loss, which are
linear in the label, but not as predictions: ``expected_loss`` then means nothing for Poisson loss.

*The program*, solved whole in milliseconds. The published linear program asks for a channel K and
outputs o that minimise Σ_y p_y Σ_o K[y,o] (o - y)² subject to ε-DP and Σ_o K[y,o] o = y. Its
extreme solutions have columns u (1 + c·1[y in S]) with c = e^ε - 1 (Kairouz, Oh and Viswanath
2016), and here S is an interval of labels. Two columns with the same S may be merged into their
mean output, which keeps every constraint and lowers the cost. So each interval needs *one* output,
whose position is free:

    minimise  Σ_S w_S m_S² / u_S     over the mass u_S >= 0 and m_S = u_S o_S of each interval,
    subject to  Σ_S u_S a_S = 1,   Σ_S m_S a_S = y,      a_S = 1 + c·1[S],   w_S = p·a_S,

convex, with k(k + 1)/2 intervals and 2k equations. The dual has 2k variables α, β and no constraint
but one for each interval,

    maximise  1·α + y·β     subject to  s_S = -a_S·α - (a_S·β)² / (4 w_S) >= 0,

and o_S = a_S·β / (2 w_S). A primal-dual interior-point method (Mehrotra 1992) solves the pair. In
prefix sums of α and β every a_S touches three coordinates, so that one Newton matrix costs O(k²) to
form; solving it costs O(k³/3). Some 25 steps: 0.01 s for k = 26, 0.06 s for k = 100, 0.3 s for 200.

That intervals suffice is seen of a solution by pricing all other sets exactly, as its tests do.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
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

MAX_POINTS = 128
"""Default number of points: at most 2k - 2 = 254 outputs, so that codes stay one byte."""

LARGEST_EPSILON = 10.0
"""Beyond this ε the program is solved for this one: its outputs are already all but exact."""

# of the interior-point method: where it ends, and how far its steps go
_GAP = 1e-10
_RESIDUAL = 1e-9
_MAX_STEPS = 200
_TO_BOUNDARY = 0.99
_SHORTEN = 0.8
_RIDGE = 1e-14

# of the columns that are taken from its solution
_MAX_BIAS = 1e-11
_NEGLIGIBLE = 1e-8
_EXTRA = 4
_FLOORS = (0.0, 1e-9, 1e-6, 1e-3)
_REDUCED = 1e-11
_EMPTY = 1e-12


@dataclass(frozen=True, eq=False)
class Solution:
    """A primal-dual solution; entry [a, b] of a (k + 1, k + 1) array is the interval a … b - 1."""

    mass: Floats  # (k + 1, k + 1) u_S; zero outside the upper triangle
    outputs: Floats  # (k + 1, k + 1) o_S
    slack: Floats  # (k + 1, k + 1) s_S >= 0, the reduced cost; 1 outside the upper triangle
    weight: Floats  # (k + 1, k + 1) w_S: u_S w_S is the prior probability of the output
    alpha: Floats  # (k,) duals of the rows' sums
    beta: Floats  # (k,) duals of the rows' means
    gap: float  # duality gap, relative to the objective E o²
    steps: int  # Newton steps taken


class _Program:
    """The data of one program, and its linear algebra in prefix-sum coordinates.

    A dual point is (2k,): P_1 … P_k and Q_1 … Q_k, the prefix sums of α and β.
    """

    def __init__(self, labels: Floats, prior: Floats, boost: float) -> None:
        k = labels.size
        self.k, self.boost = k, boost
        self.used = np.triu(np.ones((k + 1, k + 1), dtype=np.bool_), 1)
        self.count = int(self.used.sum())
        cumulative = np.concatenate([[0.0], np.cumsum(prior)])
        self.weight = np.where(
            self.used, 1 + boost * np.subtract.outer(-cumulative, -cumulative), 1
        )
        self.goal = np.zeros(2 * k)
        self.goal[k - 1] = 1.0
        self.goal[-1] = labels[-1]
        self.goal[k:-1] = -np.diff(labels)

    def inner(self, prefix: Floats) -> Floats:
        """a_S·α for every interval, from (k,) prefix sums of α."""
        full = np.concatenate([[0.0], prefix])
        return np.asarray(full[-1] + self.boost * (full[None, :] - full[:, None]))

    def slack(self, point: Floats) -> tuple[Floats, Floats]:
        """s_S and o_S at a dual point."""
        outputs = self.inner(point[self.k :]) / (2 * self.weight)
        slack = -self.inner(point[: self.k]) - self.weight * outputs**2
        return np.where(self.used, slack, 1.0), outputs

    def total(self, mass: Floats, outputs: Floats) -> Floats:
        """(2k,) Σ_S u_S (a_S, o_S a_S), in prefix-sum coordinates."""
        return np.concatenate([self._vector(mass), self._vector(mass * outputs)])

    def _vector(self, values: Floats) -> Floats:
        out = self.boost * (values.sum(axis=0) - values.sum(axis=1))
        out[-1] += values.sum()
        return np.asarray(out[1:])

    def hessian(self, mass: Floats, slack: Floats, outputs: Floats) -> Floats:
        """(2k, 2k) Newton matrix Σ_S (u_S/s_S) g gᵀ + u_S/(2 w_S) [0; a][0; a]ᵀ, g = (a, o a)."""
        ratio = mass / slack
        corner = self._gram(ratio)
        cross = self._gram(ratio * outputs)
        other = self._gram(ratio * outputs**2 + mass / (2 * self.weight))
        return np.block([[corner, cross], [cross, other]])

    def _gram(self, values: Floats) -> Floats:
        """(k, k) Σ_S v_S a_S a_Sᵀ, in prefix-sum coordinates."""
        c = self.boost
        starts, ends = values.sum(axis=1), values.sum(axis=0)
        matrix = -(c * c) * (values + values.T)
        matrix[np.diag_indices_from(matrix)] += c * c * (starts + ends)
        side = c * (ends - starts)
        matrix[-1, :] += side
        matrix[:, -1] += side
        matrix[-1, -1] += values.sum()
        return np.asarray(matrix[1:, 1:])


def solve_unbiased(labels: Floats, prior: Floats, boost: float) -> Solution:
    """Solve the unbiased program over all intervals of k >= 2 labels ascending from -1 to 1.

    The prior is (k,) >= 0 and sums to 1; ``boost`` is c = e^ε - 1 > 0. ``PrivacyError`` if the
    method stops short of a relative gap of 1e-7, which no tested input makes it do.
    """
    program, k = _Program(labels, prior, boost), labels.size
    reach = (boost + 2) / boost
    point = np.zeros(2 * k)
    point[:k] = -2 * reach**2 * np.arange(1, k + 1) / k
    slack, outputs = program.slack(point)
    mass = np.where(program.used, slack.mean() / program.count / slack, 0.0)
    steps, gap = 0, np.inf
    while steps < _MAX_STEPS:
        missing = program.goal - program.total(mass, outputs)
        product = float((mass * slack).sum())
        objective = abs(float(program.goal @ point))
        gap = product / max(objective, 1.0)
        residual = float(np.abs(missing).max())
        if gap < _GAP and residual < _RESIDUAL:
            break
        steps += 1
        solver = _Newton(program, mass, slack, outputs)
        # predictor: aim at the boundary, see how far that goes
        change, growth, slope = solver.direction(np.zeros_like(mass))
        length = _step_length(program, point, mass, slack, change, growth)
        ahead = program.slack(point + length * change)[0]
        predicted = float(((mass + length * growth) * ahead)[program.used].sum())
        centring = min(1.0, (predicted / product) ** 2)
        target = max(centring, 1e-4) * product / program.count + growth * slope
        # corrector: centre as much as needed, and make up for the curvature of u·s
        change, growth, _ = solver.direction(np.where(program.used, target, 0.0))
        length = _step_length(program, point, mass, slack, change, growth)
        point = point + length * change
        mass = mass + length * growth
        slack, outputs = program.slack(point)
    if gap > 1e-7:
        raise PrivacyError(
            f"the unbiased program stopped at a gap of {gap:.1g}; use fewer points, or"
            " randomized-thresholds, which needs no program"
        )
    alpha = np.diff(point[:k], prepend=0.0)
    beta = np.diff(point[k:], prepend=0.0)
    return Solution(mass, outputs, slack, program.weight, alpha, beta, gap, steps)


class _Newton:
    """One factored Newton matrix, for the predictor and the corrector."""

    def __init__(self, program: _Program, mass: Floats, slack: Floats, outputs: Floats) -> None:
        self.program, self.mass, self.slack, self.outputs = program, mass, slack, outputs
        self.matrix = program.hessian(mass, slack, outputs)
        ridge = _RIDGE
        while ridge < 1:
            try:
                diagonal = ridge * np.diag(np.diag(self.matrix))
                self.factor = scipy.linalg.cho_factor(self.matrix + diagonal, check_finite=False)
                return
            except scipy.linalg.LinAlgError:
                ridge *= 100
        raise PrivacyError(
            "the unbiased program has no step to take; use fewer points, or randomized-thresholds,"
            " which needs no program"
        )

    def direction(self, target: Floats) -> tuple[Floats, Floats, Floats]:
        """Steps of the dual point and of u towards u·s = target, and -ds along the former."""
        program = self.program
        aim = np.where(program.used, target / self.slack, 0.0)
        right = program.goal - program.total(aim, self.outputs)
        change = scipy.linalg.cho_solve(self.factor, right, check_finite=False)
        missed = right - self.matrix @ change
        change = change + scipy.linalg.cho_solve(self.factor, missed, check_finite=False)
        k = program.k
        slope = program.inner(change[:k]) + self.outputs * program.inner(change[k:])
        growth = aim - self.mass + self.mass * slope / self.slack
        return change, np.where(program.used, growth, 0.0), slope


def _step_length(
    program: _Program, point: Floats, mass: Floats, slack: Floats, change: Floats, growth: Floats
) -> float:
    """The longest tried step that keeps u and s positive; s is quadratic, so it is evaluated."""
    falling = growth < 0
    length = 1.0
    if falling.any():
        length = min(length, _TO_BOUNDARY * float(np.min(-mass[falling] / growth[falling])))
    while length > 1e-12:
        ahead = program.slack(point + length * change)[0]
        if np.all(ahead > (1 - _TO_BOUNDARY) / 2 * slack):
            break
        length *= _SHORTEN
    return length


def one_thread() -> AbstractContextManager[object]:
    """Keep BLAS to one thread where that is possible: for small matrices threads only wait."""
    try:
        controller = importlib.import_module("threadpoolctl")
    except ImportError:
        return nullcontext()
    limits: AbstractContextManager[object] = controller.threadpool_limits(1)
    return limits


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
