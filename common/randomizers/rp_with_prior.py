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
from operator import itemgetter

import numpy as np

from labelveil.common.arrays import Floats, Indices
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers.base import Problem, Randomizer, expected_loss, register
from labelveil.common.randomizers.exact_rows import sorted_channel
from labelveil.common.randomizers.knots import over_knots

_RADII = 2.0 ** -np.arange(1, 10)
"""Tried where none is given, as shares of the range."""

_EQUAL = 1e-12
"""Ends of cells closer than this share of the range are one."""


def best_interval(problem: Problem, radius: float) -> tuple[float, float, float]:
    """Find the likeliest interval between two grid points, O(k²): its ends A₁ and A₂, and δ.

    Where it is shorter than 2δ, the ``radius`` δ becomes half of it and the search is repeated, as
    published.
    """
    labels = problem.labels
    first, last = np.triu_indices(labels.size, 1)
    upto = np.cumsum(problem.prior)
    mass, width = upto[last] - upto[first] + problem.prior[first], labels[last] - labels[first]
    while True:
        best = int(np.argmax(mass / (2 * radius + math.exp(-problem.epsilon) * width)))
        if width[best] >= 2 * radius:
            return float(labels[first[best]]), float(labels[last[best]]), radius
        radius = float(width[best] / 2)


@register("rp-with-prior", interval=list[float], radius=float)
@over_knots
def build_rp_with_prior(problem: Problem, *, radius: float | None = None) -> Randomizer:
    """RPWithPrior (Liu and Huang, TMLR 2026) over the prior's grid.

    ``radius`` is δ > 0 in the label's units; the paper sets it by hand for each data set. None for
    the one of least expected loss under the prior.

    Raises
    ------
    ConfigError
        If the radius is not above 0, or labels lie too close together for intervals of their own.
    """
    labels = problem.labels
    if radius is not None and not 0 < radius < math.inf:
        raise ConfigError(f"radius={radius:g} must be above 0; leave it out for the best")
    radii = _RADII * (labels[-1] - labels[0]) if radius is None else np.array([radius])
    tried = {best_interval(problem, each) for each in radii.tolist()}
    tilings = [(each, *_cells(problem, *each)) for each in sorted(tried, key=itemgetter(2))]
    # an interval that is next to nothing beside the labels' range has no cells
    tilings = [tiling for tiling in tilings if tiling[1].size]
    if not tilings:
        raise ConfigError(
            f"labels in {labels[0]:g} … {labels[-1]:g} lie too close together for an interval of"
            " theirs; use points further apart"
        )
    (lower, upper, radius), middles, matrix, row_of = min(
        tilings, key=lambda t: expected_loss(problem.prior, problem.loss, labels, *t[1:])
    )
    channel, _ = sorted_channel(labels, middles, matrix, problem.epsilon, row_of)
    details = {"interval": [lower, upper], "radius": radius}
    return Randomizer("rp-with-prior", channel, problem.prior, problem.loss, details)


def _cells(
    problem: Problem, lower: float, upper: float, radius: float
) -> tuple[Floats, Floats, Indices]:
    """The mechanism of an interval between the ends of neighbourhoods, before it is made exact.

    (d,) middles of the cells, (r, d) their probabilities for each label within the interval, and
    (k,) rows of the labels.
    """
    labels = problem.labels
    inside = np.clip(labels, lower, upper)
    moved, row_of = np.unique(inside, return_inverse=True)
    ends = np.unique(np.concatenate([moved - radius, moved + radius]))
    ends = ends[np.append(True, np.diff(ends) > _EQUAL * (labels[-1] - labels[0]))]
    middles: Floats = (ends[:-1] + ends[1:]) / 2
    near = np.abs(middles - moved[:, None]) < radius
    matrix = np.diff(ends) * np.where(near, 1.0, math.exp(-problem.epsilon))
    matrix /= matrix.sum(axis=1, keepdims=True)
    return middles, matrix, row_of
