"""How well a label clipped from above is explained, where a few large labels hide how the whole is.

With a heavy tail a few events decide about R², and codes say little of them, but far more of
min(y, t). A prediction f of y stands for the mean of that under the released prior, tilted
exponentially to the mean f. The released prior alone decides about t, so that intervals hold as if
t had been known beforehand. (Limits on far values: Tukey, *The Future of Data Analysis*, Annals of
Mathematical Statistics 1962, as Winsorizing.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labelveil.feature_party.evaluation.decoded_labels import decode_labels, tilted
from labelveil.feature_party.evaluation.explained import Explained, explained
from labelveil.feature_party.evaluation.intervals import NORMAL_95
from labelveil.feature_party.evaluation.losses import SQUARED
from labelveil.feature_party.evaluation.spread import ReleasedCodes, Spread, label_spread
from labelveil.feature_party.evaluation.unseen import Unseen
from labelveil.feature_party.learning.decoding import convex_targets, decoder
from labelveil.feature_party.learning.problem import LabelProblem, sums
from labelveil.feature_party.learning.support import Support

_QUANTILES = (0.99, 0.98, 0.95, 0.9)
_USUAL, _WIDEST = 0.25, 0.25
"""R² at which widths are compared, and the half-width of an interval that still says something."""
_ROUNDED, _FEWEST = 0.25, 5
"""Share of the variance that may come from placing labels between the grid's points, and how many
of these there must be: what is taken off for placing is right for labels evenly between them."""


@dataclass(frozen=True)
class Clipped:
    """How predictions of min(y, bound) compare with a constant."""

    bound: float  # in units of the label
    above: float  # share of labels that the released prior has above it
    explained: Explained

    def to_json(self) -> dict[str, Any]:
        """As in ``metrics.json``, where it has the names of the whole label's."""
        return {"bound": self.bound, "share_above": self.above, **self.explained.to_json()}


def explained_below(
    problem: LabelProblem, sources: Sequence[ReleasedCodes], support: Support, unseen: Unseen
) -> Clipped | None:
    """Compare n >= 2 rows' predictions of the clipped label; None where the whole label will do.

    ``problem`` is that of all releases.
    """
    bound = _bound(problem, sources)
    if bound is None:
        return None
    below, spread = _clipped(sources, bound)
    values = np.minimum(problem.grid, bound)
    clipped = replace(support, values=sums(support.cell_of, support.within * values, support.size))
    laws = tilted(support)
    means = laws @ support.values, laws @ clipped.values
    predicted = unseen.scored.predicted
    predicted = replace(predicted, points=np.interp(predicted.points, *means))
    scored = replace(
        unseen,
        scored=replace(unseen.scored, predicted=predicted),
        alone=np.interp(unseen.alone, *means),
    ).judged_by(SQUARED)
    decoded = decode_labels(below, clipped, scored, spread.centre)
    above = float(problem.prior[problem.grid > bound].sum())
    return Clipped(bound, above, explained(below, clipped, scored, spread, decoded))


def _bound(problem: LabelProblem, sources: Sequence[ReleasedCodes]) -> float | None:
    """The highest of some quantiles of the prior at which R² is known well, and twice as well as
    without; None if that is well enough, or none is, and where predictions are no means, or labels
    of several parties have no common unit."""
    if problem.discrete or problem.sources or problem.loss == "absolute":
        return None
    whole = _half_width(sources, math.inf)
    if whole <= _WIDEST:
        return None
    order = np.argsort(problem.grid, kind="stable")
    places = np.searchsorted(np.cumsum(problem.prior[order]), _QUANTILES)
    for bound in problem.grid[order][np.minimum(places, order.size - 1)].tolist():
        if _half_width(sources, bound) <= min(_WIDEST, whole / 2):
            return float(bound)
    return None


def _half_width(sources: Sequence[ReleasedCodes], bound: float) -> float:
    """Half of the 95% interval of R² to expect, of a model that explains a usual share."""
    below, spread = _clipped(sources, bound)
    rows = sum(source.rows.size for source in below)
    error, rounded = 0.0, 0.0
    for problem, share in ((source.problem, source.rows.size / rows) for source in below):
        decoded = decoder(problem, problem.grid, ridge=1 / rows)
        codes, biases = decoded.values[:, 0], decoded.bias[:, 0]
        noise = problem.output_prior @ (codes - problem.output_prior @ codes) ** 2
        error += share * float(noise / rows + problem.prior @ biases**2)
        # what rounding to the grid adds to y²: too much of it, and no interval can be promised
        between = problem.grid**2 - convex_targets(problem, np.square)
        rounded += share * float(problem.prior @ between)
        if problem.values.size < _FEWEST:
            return math.inf
    if rounded > _ROUNDED * spread.shown:
        return math.inf
    return NORMAL_95 * math.hypot(
        2 * math.sqrt(_USUAL * error / spread.shown), _USUAL * spread.error / spread.shown
    )


def _clipped(sources: Sequence[ReleasedCodes], bound: float) -> tuple[list[ReleasedCodes], Spread]:
    below = [
        replace(
            source,
            problem=replace(source.problem, grid=np.minimum(source.problem.grid, bound)),
            unclipped=source.problem.grid,
        )
        for source in sources
    ]
    return below, label_spread(below)
