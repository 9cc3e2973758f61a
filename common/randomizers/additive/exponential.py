"""The exponential mechanism for labels: Laplace noise conditioned on the label range.

McSherry and Talwar (FOCS 2007) with score -|o - y|, whose sensitivity is the range Δ: density
∝ e^{-ε|o - y| / (2Δ)} on [lo, hi]. The normalisation costs the factor 2, so that the realised ε is
well below the one asked for; see the channel's own.
"""

from __future__ import annotations

import numpy as np

from common.errors import ConfigError
from common.randomizers.additive.laws import Laplace
from common.randomizers.base import Problem, Randomizer, register
from common.randomizers.exact_rows import check_size, sorted_channel
from common.randomizers.knots import choose_knots, over_knots

_POINTS = 256


@register("exponential", scale=float)
@over_knots
def build_exponential(problem: Problem, *, points: int = _POINTS) -> Randomizer:
    """Build the exponential mechanism; each output stands for the cell around a grid point.

    The loss plays no part; where the grid is longer than ``points``, the most outputs, the prior
    chooses them.
    """
    if points < 2:
        raise ConfigError(f"points={points} must be at least 2")
    labels = problem.labels
    places = labels[choose_knots(labels, problem.prior, points)]
    check_size(labels.size, places.size)
    middles = (places[:-1] + places[1:]) / 2
    edges = np.concatenate([labels[:1], middles, labels[-1:]]) - labels[:, None]
    lower, upper = edges[:, :-1], edges[:, 1:]
    law = Laplace(2 * float(labels[-1] - labels[0]) / problem.epsilon)
    below, above = law.survival(np.abs(lower)), law.survival(np.abs(upper))
    # one-sided cells as differences of tails: no cancellation far from the label
    one_sided = np.where(lower >= 0, below - above, above - below)
    mass = np.where((lower < 0) & (upper > 0), 1 - below - above, one_sided)
    mass /= mass.sum(axis=1, keepdims=True)
    channel, _ = sorted_channel(labels, places, mass, problem.epsilon)
    return Randomizer("exponential", channel, problem.prior, problem.loss, {"scale": law.scale})
