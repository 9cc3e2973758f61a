"""The optimal unbiased randomizer under squared loss.

Of all ε-DP channels whose output equals the label on average, E[o | y] = y, this one has the least
E (o - y)² under the prior (Badanidiyuru et al., *Optimal Unbiased Randomizers for Regression with
Label Differential Privacy*, NeurIPS 2023). Its outputs reach beyond the label range. Output
positions are free, so it is at least as good as the linear program on any list of outputs; the
program and its solution are in :mod:`common.randomizers.unbiased.program`.

Unbiased outputs may be negative. That is sound for training with squared or Poisson loss, which are
linear in the label, but not as predictions: ``expected_loss`` then means nothing for Poisson loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from common.arrays import Floats
from common.errors import ConfigError, PrivacyError
from common.exact.channel import exp_lower_bound
from common.randomizers.base import Problem, Randomizer, register
from common.randomizers.exact_rows import check_size, sorted_channel
from common.randomizers.knots import MOST_KNOTS, rows_between, thinned
from common.randomizers.unbiased.columns import Columns, cheapest_columns
from common.randomizers.unbiased.program import Solution, one_thread, solve_unbiased

MAX_POINTS = 128
"""Default number of points: at most 2k - 2 = 254 outputs, so that codes stay one byte."""

LARGEST_EPSILON = 10.0
"""Beyond this ε the program is solved for this one: its outputs are already all but exact."""

_MAX_BIAS = 1e-11
_NEGLIGIBLE = 1e-8
_EXTRA = 4
_FLOORS = (0.0, 1e-9, 1e-6, 1e-3)
_SPAN = 1.5


@register("unbiased", points=list[float], outputs=int, steps=int, gap=float, prior_floor=float)
def build_unbiased(
    problem: Problem, *, points: int | None = None, outputs: int | list[float] | None = None
) -> Randomizer:
    """Build the optimal unbiased randomizer for this prior and ε, under squared loss.

    Parameters
    ----------
    problem
        The loss plays no part: the squared one is minimised.
    points
        Number of grid points that the program sees, 2 … 513. A longer grid is thinned to points
        chosen by the prior, and labels between them are rounded at random without bias, as part of
        the channel. Default: the whole grid up to 128 points.
    outputs
        None leaves the output positions free (best, at most 2·points - 2 of them). A number asks
        for that many equally spaced candidates, a vector for these; the result is the optimum of
        the linear program on them, and several outputs may have one value. They must reach to
        mid ± Δ/2 · (e^ε + 1)/(e^ε - 1).

    Returns
    -------
    A randomizer with E[output | label] = label to 1e-10 of the range, at every grid point.
    """
    count = MAX_POINTS if points is None else points
    if not 2 <= count <= MOST_KNOTS:
        raise ConfigError(f"points={count} must lie in 2 … {MOST_KNOTS}")
    labels = problem.labels
    knots, places, prior = thinned(labels, problem.prior, count)
    check_size(knots.size, 2 * knots.size)
    # the program sees labels moved to -1 … 1
    middle, half = float(labels[0] + labels[-1]) / 2, float(labels[-1] - labels[0]) / 2
    targets = (places - middle) / half
    boost = float(exp_lower_bound(min(problem.epsilon, LARGEST_EPSILON)) - 1)
    if outputs is None:
        columns, solution, floor = _solve(targets, prior, boost, None)
        values = middle + half * columns.outputs
    else:
        candidates = _candidates(outputs, middle, half, boost)
        within = (candidates - middle) / half
        columns, solution, floor = _solve(targets, prior, boost, within)
        values = candidates[np.searchsorted(within, columns.outputs)]
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


def _solve(
    targets: Floats, prior: Floats, boost: float, places: Floats | None
) -> tuple[Columns, Solution, float]:
    """Solve; where a prior of extreme range defeats float arithmetic, mix in a little uniform."""
    for floor in _FLOORS:
        mixed = (1 - floor) * prior + floor / prior.size
        with one_thread():
            try:
                solution = solve_unbiased(targets, mixed, boost)
                if places is None:
                    columns = _free_columns(targets, boost, solution)
                else:
                    columns = cheapest_columns(places, targets, mixed, boost, solution)
            except (PrivacyError, np.linalg.LinAlgError):
                continue
        if columns.bias(targets, boost) < _MAX_BIAS:
            return columns, solution, floor
    raise PrivacyError(
        f"the unbiased program for {targets.size} points was not solved to {_MAX_BIAS:g} of the"
        " range; use fewer points, or randomized-thresholds, which needs no program"
    )


def _free_columns(targets: Floats, boost: float, solution: Solution) -> Columns:
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


def _candidates(outputs: int | list[float], middle: float, half: float, boost: float) -> Floats:
    reach = (boost + 2) / boost
    if isinstance(outputs, int):
        if outputs < 2:
            raise ConfigError(f"outputs={outputs} must be at least 2")
        return np.asarray(middle + half * np.linspace(-_SPAN * reach, _SPAN * reach, outputs))
    places = np.unique(np.asarray(outputs, dtype=np.float64))
    low, high = middle - half * reach, middle + half * reach
    if places.size < 2 or not np.all(np.isfinite(places)) or places[0] > low or places[-1] < high:
        raise ConfigError(
            f"outputs from {places.min():g} to {places.max():g} must be finite and reach from"
            f" {low:g} to {high:g}: no ε-DP randomizer on them is unbiased"
        )
    return places
