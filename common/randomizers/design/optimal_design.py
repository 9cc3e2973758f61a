"""The channel chosen for the model: least predicted excess error over ε-DP channels.

Every extremal ε-DP channel has columns with entries in {u, e^ε u} (Kairouz, Oh, Viswanath,
*Extremal Mechanisms for Local Differential Privacy*, JMLR 2016), so a channel is a choice of sets S
of labels with masses u_S >= 0:

    K[y, S] = u_S (1 + c·1[y in S]),  c = e^ε - 1,    Σ_S u_S (1 + c·1[y in S]) = 1 for every y.

For a fixed θ the Fisher information of such a channel is *linear* in u,

    I_θ(u) = Σ_S u_S c² ∂q_θ(S) ∂q_θ(S)ᵀ / (1 + c q_θ(S)),

so the predicted excess error of :mod:`labelveil.common.randomizers.design.conditionals`, an average
of gᵀ (Λ + effective · I_θ(u))⁻¹ g, is convex in u (a matrix-fractional function of a linear one): a
Bayesian A-optimal experimental design over a polytope. Taking for S all intervals of labels and
their complements includes RR-on-bins, randomized thresholds over any weights and the columns of the
optimal unbiased randomizer. The minimum is found by Frank and Wolfe's method, whose duality gap
bounds the distance from the optimum; each step is a linear program with k equations. The average is
taken over tempered errors, so that the far tail of a prior does not decide by itself; the reported
gap is theirs, the reported excess error is not tempered.

The optimum alone has fewer outputs than labels, so some statistics of the label (its mean, a
model's squared error) would have no unbiased estimate. A fixed share of the events is therefore
randomized by uniform randomized thresholds, which identify everything, and the rest is optimised
around them. Which of the two an output came from is public, and information adds over the mixture.
The share is the largest of a few that costs at most 5 % of the excess error, and of what the best
channel gains over no label at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import scipy

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.exact.channel import MAX_OUTPUTS, TOTAL, FiniteChannel
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.randomizers.base import Problem, Randomizer, register
from labelveil.common.randomizers.design.conditionals import (
    EXPLAINED,
    ConditionalFamily,
    effective_rows,
    plausible_conditionals,
)
from labelveil.common.randomizers.exact_rows import MAX_WEIGHTS, exact_rows, size_of
from labelveil.common.randomizers.knots import rows_between, thinned
from labelveil.common.randomizers.response import build_randomized_response

POINTS = 32
"""Knots: the program has about POINTS² variables."""

DEFAULT_ROWS = 20_000
"""Number of labels assumed where none is given."""

LARGEST_EPSILON = 16.0
"""Beyond this ε the program is solved for this one: its outputs are already all but exact, and the
solver's numbers end."""

_OUTPUTS_A_POINT = 4
"""A design for p points has 2(p − 1) thresholds, and seldom more than p other outputs."""

THRESHOLD_SHARES = (0.3, 0.2, 0.1, 0.05, 0.02)
"""Shares of the events that uniform randomized thresholds may get, the largest first."""

_DETAILS = {
    "points": list[float],
    "predicted_excess_error": float,
    "optimality_gap": float,
    "effective_rows": float,
    "explained": float,
    "threshold_share": float,
}
_SHARE_COST = 0.05
_STEPS = 150
_GAP = 5e-3
_DROP = 1e-7
_SLACK = 1e-5
"""By how much, relative, the solver's tolerances may lower an error; a thousand times what is seen.
"""


@dataclass(frozen=True, eq=False)
class Design:
    """An optimised channel over the knots."""

    channel: Floats  # (k, d) probabilities
    excess_error: float  # its predicted excess error
    gap: float  # bound on how far that is above the least possible, relative
    masses: Floats | None = None  # (J,) of interval columns, of which every row would sum to 1


def optimal_design(
    family: ConditionalFamily,
    epsilon: float,
    effective: float,
    threshold_share: float = 0.0,
    start: Floats | None = None,
    most: float = np.inf,
) -> Design:
    """Minimise the predicted excess error over all channels with interval columns over k knots.

    ``effective`` is the number of randomized labels that bear on one prediction,
    ``threshold_share`` the share of the events, 0 <= share < 1, that uniform randomized thresholds
    get, and ``start`` has (J,) masses of an earlier design to start from. Where the duality gap
    shows that every channel exceeds the error ``most``, the search ends.
    """
    boost = float(exp_lower_bound(min(epsilon, LARGEST_EPSILON))) - 1.0
    members = _interval_sets(family.labels.size)
    columns = 1.0 + boost * members
    fixed = threshold_share * uniform_thresholds(family.labels, boost)
    objective = _Objective(family, members, boost, effective, fixed)
    vertex = _Vertices(members, boost)
    free = 1.0 - threshold_share
    masses = free * (vertex(np.ones(columns.shape[1]), 1.0) if start is None else start)
    gap = np.inf
    for _ in range(_STEPS):
        value, slope = objective(masses)
        # Frank and Wolfe: towards the channel that the tangent likes best, whose promise bounds
        # what any other could gain
        target = vertex(slope, free)
        gap = float(slope @ (masses - target)) / value
        if gap <= _GAP or value * (1.0 - gap) > most:
            break
        direction = target - masses
        step = scipy.optimize.minimize_scalar(
            objective.along(masses, direction), bounds=(0.0, 1.0), method="bounded"
        )
        masses = masses + float(step.x) * direction
    # masses are about e^-ε: beyond ε = 10 what is otherwise nothing may be all that there is
    used = masses > min(_DROP, 1e-2 * float(masses.max()))
    parts = [columns[:, used] * masses[used], fixed[:, fixed.sum(axis=0) > 0]]
    channel = _within(np.concatenate(parts, axis=1), 1.0 + boost)
    return Design(channel, family.excess_error(channel, effective), gap, masses / free)


def _within(channel: Floats, largest: float) -> Floats:
    """Repair what the solver's tolerance broke: rows that sum to 1, ratios that do not pass e^ε.

    Rows are mixed with one and the same distribution, in proportion to the columns' minima, which
    brings every ratio closer to 1.
    """
    channel = channel / channel.sum(axis=1, keepdims=True)
    floor = channel.min(axis=0) / channel.min(axis=0).sum()
    share, repaired = 1e-9, channel
    while np.max(repaired.max(axis=0) / repaired.min(axis=0)) > largest * (1 - 1e-10):
        if share > 1:
            raise PrivacyError("the design's numbers cannot be repaired; lower epsilon")
        repaired = (1 - share) * channel + share * floor
        share *= 2
    return np.asarray(repaired)


def uniform_thresholds(labels: Floats, boost: float) -> Floats:
    """(k, 2(k - 1)) channel: draw a gap of the grid in proportion to its width, publish it, and
    answer by randomized response whether the label lies above it."""
    gaps = np.diff(labels)
    weights = gaps / gaps.sum() / (2.0 + boost)
    above = np.arange(labels.size)[:, None] > np.arange(gaps.size)
    yes = weights * (1.0 + boost * above)
    no = weights * (1.0 + boost * ~above)
    return np.concatenate([yes, no], axis=1)


class _Objective:
    """The predicted excess error as a function of the masses, with its gradient."""

    def __init__(
        self,
        family: ConditionalFamily,
        members: Floats,
        boost: float,
        effective: float,
        fixed: Floats,
    ) -> None:
        shares = family.distributions @ members
        moved = np.matmul(members.T, family.scores)
        self._factors = boost * moved / np.sqrt(1.0 + boost * shares)[:, :, None]
        self._gradients = family.gradients
        self._effective = effective
        self._base = np.diag(family.precision)
        if fixed.any():
            self._base = self._base + effective * family.information(fixed)

    def _precision(self, masses: Floats) -> Floats:
        weighted = self._factors * masses[None, :, None]
        return np.asarray(self._effective * np.matmul(weighted.transpose(0, 2, 1), self._factors))

    def _solve(self, precision: Floats) -> tuple[float, Floats]:
        gradients = self._gradients
        solved = np.linalg.solve(self._base + precision, gradients[:, :, None])[:, :, 0]
        return float(np.mean(np.sum(gradients * solved, axis=1))), np.asarray(solved)

    def __call__(self, masses: Floats) -> tuple[float, Floats]:
        value, solved = self._solve(self._precision(masses))
        along = np.matmul(self._factors, solved[:, :, None])[:, :, 0]
        return value, np.asarray(-self._effective * np.mean(along**2, axis=0))

    def along(self, masses: Floats, direction: Floats) -> Callable[[float], float]:
        """Value along a line: the precision is linear, so each evaluation is m small solves."""
        start, change = self._precision(masses), self._precision(direction)
        return lambda step: self._solve(start + step * change)[0]


def _interval_sets(k: int) -> Floats:
    """(k, J) indicators of all intervals of labels and of the complements of inner ones."""
    starts, stops = np.triu_indices(k + 1, 1)
    proper = (stops - starts) < k
    starts, stops = starts[proper], stops[proper]
    index = np.arange(k)[:, None]
    intervals = ((index >= starts) & (index < stops)).astype(np.float64)
    inner = (starts > 0) & (stops < k)
    return np.concatenate([intervals, 1.0 - intervals[:, inner]], axis=1)


def most_outputs(points: int) -> int:
    """Outputs that a design for n knots has at most: interval columns, and thresholds."""
    intervals = points * (points + 1) // 2 - 1 + (points - 1) * (points - 2) // 2
    return intervals + 2 * (points - 1)


def most_knots(outputs: Sequence[int | None], most: int = MAX_OUTPUTS) -> int:
    """Choose how many knots designs may have for all channels' codes to fit two bytes, as a rule.

    ``outputs`` says, one a label, how many its channel has: None for those that a design decides.
    There may be ``most`` combined codes; ``ConfigError`` if not even two knots would have room.
    """
    designed = sum(size is None for size in outputs)
    room = most // math.prod(size for size in outputs if size)
    points = int(room ** (1 / designed) / _OUTPUTS_A_POINT + 1e-9) if designed else POINTS
    if points < 2 or not room:
        sizes = [size or 2 * _OUTPUTS_A_POINT for size in outputs]
        raise ConfigError(
            f"{len(outputs)} labels with channels of their own need at least"
            f" {' × '.join(map(str, sizes))} = {math.prod(sizes):,} combined codes, more than"
            f" {most:,}; send fewer of them in one message"
        )
    return min(points, POINTS)


def fitting(
    build: Callable[[int], list[Randomizer]], points: int, parts: int = 1
) -> list[Randomizer]:
    """Build randomizers whose combined codes fit two bytes, whatever the priors are.

    A design with more outputs than its knots were given room for is built anew with fewer, from
    the same priors: nothing is refused once these are paid for. It ends at two knots at the latest,
    where a design has 4 outputs and :func:`most_knots`, which says with how many ``points`` to
    begin, found room for 8. ``build`` builds the randomizers, designs with at most this many knots;
    ``parts`` parts of a message, each as large, fit two bytes and a manifest.
    """
    built = build(points)
    while points > 2 and not _fit([randomizer.channel for randomizer in built], parts):
        points -= 1
        built = build(points)
    return built


def _fit(channels: Sequence[FiniteChannel], parts: int) -> bool:
    codes = math.prod(channel.outputs.size for channel in channels)
    weights = sum(size_of(len(channel.stated), channel.outputs.size) for channel in channels)
    return parts * codes <= MAX_OUTPUTS and (parts == 1 or parts * weights <= MAX_WEIGHTS)


class _Vertices:
    """The cheapest masses of interval columns under which every row sums to the same."""

    def __init__(self, members: Floats, boost: float) -> None:
        self._largest = 1.0 + boost
        # Instead of a row's sum, its difference from the row above: of a column of two values few
        # coefficients are left, and the solver takes half of the time. Masses times e^ε are about
        # one, as the solver's tolerances, which are absolute, expect.
        first = (1.0 + boost * members[:1]) / self._largest
        self._rows = scipy.sparse.csc_array(np.vstack([first, np.diff(members, axis=0)]))

    def __call__(self, cost: Floats, total: float) -> Floats:
        """Return the (J,) masses for costs (J,) and rows that sum to ``total``."""
        right = np.zeros(self._rows.shape[0])
        right[0] = total
        # From three knots on presolve finds nothing to remove, and takes half of the time: no two
        # columns are parallel, the rows independent and their duals free.
        options = {"presolve": right.size < 3}
        scaled = cost / np.abs(cost).max()
        result = scipy.optimize.linprog(  # type: ignore[call-overload]  # stubs lack sparse
            scaled, A_eq=self._rows, b_eq=right, method="highs", options=options
        )
        if not result.success:
            raise PrivacyError(f"the design program failed: {result.message}")
        return np.asarray(result.x / self._largest, dtype=np.float64)


def identifying_design(
    family: ConditionalFamily, epsilon: float, effective: float
) -> tuple[Design, float]:
    """Return the design with the largest affordable threshold share, and that share."""
    best = optimal_design(family, epsilon, effective)
    nothing = family.excess_error(np.ones((family.labels.size, 1)), effective)

    def with_share(share: float, most: float) -> Design:
        return optimal_design(family, epsilon, effective, share, best.masses, most)

    return largest_share(with_share, best.excess_error, nothing)


def largest_share(
    with_share: Callable[[float, float], Design], least: float, nothing: float
) -> tuple[Design, float]:
    """Find the largest share of the events that thresholds may get, and the design around them.

    ``least`` and ``nothing`` are the excess errors of the best channel without thresholds, and of
    no label at all. ``with_share`` makes a design, and need not end it beyond a given error.
    """
    affordable = _SHARE_COST * min(least, nothing - least)
    for share in THRESHOLD_SHARES:
        last = share == THRESHOLD_SHARES[-1]  # is taken, whatever it costs
        design = with_share(share, np.inf if last else (least + affordable) * (1.0 + _SLACK))
        if design.excess_error - least <= affordable:
            break
    return design, share


def decoding_values(channel: Floats, labels: Floats, prior: Floats) -> Floats:
    """(d,) values for the outputs: unbiased for every label where the channel allows it.

    Of all u with K u = y, K a (k, d) channel, the ones of least variance under the prior of the
    labels y; if there is none, the u of least squared bias and least size.
    """
    weights = np.sqrt(np.maximum(prior @ channel, 1e-12))
    scaled = channel / weights
    centre = float(prior @ labels)
    inverse = np.linalg.pinv(scaled, rcond=1e-14)
    values = inverse @ (labels - centre) / weights
    for _ in range(2):  # iterative refinement: the pseudo-inverse alone leaves 1e-7 of the range
        values += inverse @ (labels - centre - channel @ values) / weights
    return np.asarray(centre + values)


@register("optimal-design", **_DETAILS)
def build_optimal_design(
    problem: Problem,
    points: int = POINTS,
    explained: float = EXPLAINED,
    threshold_share: float | None = None,
) -> Randomizer:
    """Build the channel of least predicted excess error for this prior, ε, loss and row count.

    The row count, 20,000 if it is None, sets the effective sample size. The grid is rounded to
    ``points`` knots, 2 … 64; features are taken to explain the share ``explained`` of the variance
    of the label's normal score, in 0 … 1 without the ends; uniform randomized thresholds get
    ``threshold_share`` of the events, 0 … 0.9, None chooses it.

    Raises
    ------
    ConfigError
        If an option is outside its range.
    """
    if not 2 <= points <= 64:
        raise ConfigError(f"points={points} must lie in 2 … 64")
    if not 0 < explained < 1:
        raise ConfigError(f"explained={explained:g} must lie between 0 and 1")
    if threshold_share is not None and not 0 <= threshold_share <= 0.9:
        raise ConfigError(f"threshold_share={threshold_share:g} must lie in 0 … 0.9")
    chosen, places, prior = thinned(problem.labels, problem.prior, points)
    family = plausible_conditionals(places, prior, problem.loss, explained)
    effective = effective_rows(problem.rows or DEFAULT_ROWS)
    tempered = family.tempered()
    if threshold_share is None:
        design, threshold_share = identifying_design(tempered, problem.epsilon, effective)
    else:
        design = optimal_design(tempered, problem.epsilon, effective, threshold_share)
    details = {
        "points": places.tolist(),
        "predicted_excess_error": family.excess_error(design.channel, effective),
        "optimality_gap": design.gap,
        "effective_rows": effective,
        "explained": explained,
        "threshold_share": threshold_share,
    }
    # to integers first: the outputs are unbiased for what is sampled
    rows = exact_rows(design.channel, problem.epsilon)
    values = decoding_values(rows.astype(np.float64) / TOTAL, places, prior)
    order = np.argsort(values, kind="stable")
    row_of = rows_between(problem.labels.size, chosen)
    channel = FiniteChannel(problem.labels, values[order], rows[:, order], row_of)
    return Randomizer("optimal-design", channel, problem.prior, problem.loss, details)


@register("auto", **_DETAILS)
@wraps(build_optimal_design, assigned=())
def build_auto(problem: Problem, **options: Any) -> Randomizer:
    """Build the default: for two labels randomized response, else the optimal design.

    Of two labels every ε-DP channel is randomized response followed by something else (Kairouz, Oh,
    Viswanath 2016, Theorem 10): whatever the prior and the loss, nothing says more.
    """
    if problem.labels.size == 2 and not options:
        return build_randomized_response(problem)
    return build_optimal_design(problem, **options)
