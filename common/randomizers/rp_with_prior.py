"""RPWithPrior: the label's neighbourhood within an interval where most labels lie, made likelier.

With ends A₁ < A₂ and a radius δ, a label outside A₁ … A₂ is first moved to the nearer end. The
output has density e^ε/(2δe^ε + A₂ − A₁) within δ of the label and e^ε times less elsewhere on
A₁ − δ … A₂ + δ, which is ε-DP (Liu and Huang, *RPWithPrior: Label Differential Privacy in
Regression*, TMLR 2026). The ends maximise P(output within δ of the label and no label moved), that
is P(A₁ <= y <= A₂)/(2δ + e^−ε (A₂ − A₁)): RRWithPrior with a tolerance, for numbers.

The published mechanism is continuous. Between two neighbouring ends of neighbourhoods its density
is a constant, whatever the label: which of these cells the output falls into is all that it tells.
So a finite channel that sends the cell, by its middle, tells exactly as much. The published code
looks at the labels themselves for the ends, without noise; here the prior is the released one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from common.arrays import Floats, Indices
from common.errors import ConfigError
from common.randomizers.base import Problem, Randomizer, expected_loss, register
from common.randomizers.exact_rows import sorted_channel
from common.randomizers.knots import over_knots

_RADII = 2.0 ** -np.arange(1, 10)
"""Tried where none is given, as shares of the range."""

_EQUAL = 1e-12
"""Ends of cells closer than this share of the range are one."""


@dataclass(frozen=True)
class Interval:
    """Where outputs lie, but for the radius on either side."""

    lower: float  # A₁
    upper: float  # A₂
    radius: float  # δ > 0, at most half of A₂ − A₁


def best_interval(problem: Problem, radius: float) -> Interval:
    """Find the likeliest interval between two grid points, O(k²).

    Where it is shorter than 2δ, the radius δ becomes half of it and the search is repeated, as
    published.
    """
    labels = problem.labels
    first, last = np.triu_indices(labels.size, 1)
    upto = np.cumsum(problem.prior)
    mass, width = upto[last] - upto[first] + problem.prior[first], labels[last] - labels[first]
    while True:
        best = int(np.argmax(mass / (2 * radius + math.exp(-problem.epsilon) * width)))
        if width[best] >= 2 * radius:
            return Interval(float(labels[first[best]]), float(labels[last[best]]), radius)
        radius = float(width[best] / 2)


@register("rp-with-prior", interval=list[float], radius=float)
@over_knots
def build_rp_with_prior(problem: Problem, *, radius: float | None = None) -> Randomizer:
    """RPWithPrior (Liu and Huang, TMLR 2026) over the prior's grid.

    Parameters
    ----------
    problem
        The loss chooses the radius where none is given.
    radius
        δ > 0 in the label's units; the paper sets it by hand for each data set. None for the one of
        least expected loss under the prior.
    """
    labels = problem.labels
    if radius is not None:
        if not 0 < radius < math.inf:
            raise ConfigError(f"radius={radius:g} must be above 0; leave it out for the best")
        return _built(problem, _Cells.of(problem, best_interval(problem, radius)))
    tried = {best_interval(problem, share * (labels[-1] - labels[0])) for share in _RADII.tolist()}
    cells = [_Cells.of(problem, interval) for interval in sorted(tried, key=attrgetter("radius"))]
    return _built(problem, min(cells, key=lambda tiling: tiling.expected_loss(problem)))


@dataclass(frozen=True)
class _Cells:
    """The mechanism of an interval between the ends of neighbourhoods, before it is made exact."""

    interval: Interval
    middles: Floats  # (d,) of the cells
    matrix: Floats  # (r, d) probabilities of the cells for each label within the interval
    row_of: Indices  # (k,) row of each label

    @classmethod
    def of(cls, problem: Problem, interval: Interval) -> _Cells:
        labels, radius = problem.labels, interval.radius
        inside = np.clip(labels, interval.lower, interval.upper)
        moved, row_of = np.unique(inside, return_inverse=True)
        ends = np.unique(np.concatenate([moved - radius, moved + radius]))
        ends = ends[np.append(True, np.diff(ends) > _EQUAL * (labels[-1] - labels[0]))]
        middles: Floats = (ends[:-1] + ends[1:]) / 2
        near = np.abs(middles - moved[:, None]) < radius
        matrix = np.diff(ends) * np.where(near, 1.0, math.exp(-problem.epsilon))
        matrix /= matrix.sum(axis=1, keepdims=True)
        return cls(interval, middles, matrix, row_of)

    def expected_loss(self, problem: Problem) -> float:
        return expected_loss(
            problem.prior, problem.loss, problem.labels, self.middles, self.matrix, self.row_of
        )


def _built(problem: Problem, cells: _Cells) -> Randomizer:
    channel, _ = sorted_channel(
        problem.labels, cells.middles, cells.matrix, problem.epsilon, cells.row_of
    )
    interval = cells.interval
    details = {"interval": [interval.lower, interval.upper], "radius": interval.radius}
    return Randomizer("rp-with-prior", channel, problem.prior, problem.loss, details)
