"""Several releases as one problem: one model, every row read through its own release's channel.

The codes of release e are moved behind those of the releases before it, and the joint channel has
the columns of all: ``K[y, (e, z)] = w_e K_e[y, z]``, w_e the share of e's rows. The likelihood of a
code is that of its own channel up to a constant factor, which no gradient sees, so the model is the
only thing that the releases share; their priors are pooled for what a head starts from. Decoding
does not pool: labels may have drifted, and a decoder of the mixture would be unbiased on average
over the releases and for none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.errors import DataError
from labelveil.common.randomizers.knots import interpolation
from labelveil.feature_party.learning.problem import LabelProblem, Leg, distinct_rows, join_legs

_STEPS = 50
"""Of expectation maximisation: more of them change nothing that a model sees."""


def join_problems(parts: Sequence[LabelProblem], rows: Sequence[float]) -> LabelProblem:
    """Make one problem of releases, oldest first, of which some rows each are learned from.

    ``DataError`` if they are about other ranges of labels, or other losses.
    """
    first = parts[0]
    for part in parts[1:]:
        kinds = [f"{p.grid[0]:g} … {p.grid[-1]:g} under {p.loss} loss" for p in (first, part)]
        if (part.grid[0], part.grid[-1], part.loss) != (first.grid[0], first.grid[-1], first.loss):
            raise DataError(
                f"releases of labels in {kinds[0]} and in {kinds[1]} cannot be learned from"
                " together; name releases of one domain and loss"
            )
        together = any(each.grid.size > each.values.size for each in parts)
        if together and not np.array_equal(part.grid, first.grid):
            raise DataError(
                "releases that count several labels together on other grids cannot be learned from"
                " together; train a model for each"
            )
    grid = max((part.grid for part in parts), key=lambda points: points.size)
    return join_legs([refined(part, grid) for part in parts], rows)


def unrounded(laws: Floats, points: Floats, grid: Floats) -> Floats:
    """(S, k) laws over a finer grid of labels that have (S, m) ``laws`` once rounded to ``points``.

    Many explain these; expectation maximisation from an even law stops near the most even one.
    Labels of the grid beyond the points' range have no mass.

    Source: Richardson, *Bayesian-Based Iterative Method of Image Restoration*, JOSA 1972; Lucy, *An
    Iterative Technique for the Rectification of Observed Distributions*, Astronomical Journal 1974.
    """
    rounding = interpolation(grid.clip(points[0], points[-1]), points)
    first, last = (int(np.abs(grid - end).argmin()) for end in points[[0, -1]])
    found = np.zeros((len(laws), grid.size))
    found[:, first : last + 1] = 1.0
    for _ in range(_STEPS):
        found = found * (laws / np.maximum(found @ rounding, 1e-300) @ rounding.T)
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def refined(problem: LabelProblem, grid: Floats) -> LabelProblem:
    """Restate the facts over a finer grid, on which labels are rounded to the problem's own.

    Points of the grid beyond the problem's range are clipped to it.
    """
    if np.array_equal(problem.grid, grid):
        return problem
    low, high = problem.grid[[0, -1]]
    rounding = interpolation(np.clip(grid, low, high), problem.grid)
    ends = int(np.abs(grid - low).argmin()), int(np.abs(grid - high).argmin())
    inside = ends if ends[1] - ends[0] + 1 < grid.size else None

    def restated(leg: Leg) -> Leg:
        rows, row_of = distinct_rows(rounding @ leg.channel)
        prior = unrounded(leg.prior[None], problem.grid, grid)[0]
        return replace(leg, prior=prior, rows=rows, row_of=row_of, ends=inside)

    return replace(problem, grid=grid, legs=tuple(restated(leg) for leg in problem.legs))
