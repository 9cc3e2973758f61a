"""What predictions say of each row beside its label: the median, quantiles, and probabilities.

A label is taken to be where it was placed on the release's grid. Of two labels, the probability of
the upper one says all; else its own mean, median and interval are given, and the probabilities of
the values at the ends of the range where clipped and missing labels pile up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.errors import DataError
from labelveil.feature_party.learning.problem import LabelProblem, sums
from labelveil.feature_party.learning.support import Support


def columns(
    problem: LabelProblem,
    support: Support,
    distributions: Floats,
    interval: float | None = None,
    quantiles: Sequence[float] = (),
    above: Sequence[float] = (),
) -> dict[str, Floats]:
    """Columns of (n,) numbers for (n, m) distributions: of the central interval with a probability,
    of quantiles by their probabilities, and P(y > t) for the label values t of ``above``.

    ``DataError`` if a value of ``above`` lies outside the labels.
    """
    grid = problem.grid
    for value in above:
        if not grid[0] <= value < grid[-1]:
            raise DataError(
                f"above={value:g} must be a label in {grid[0]:g} … {grid[-1]:g}, the last one left"
                " out; set [output] above"
            )
    named: dict[str, Floats] = {}
    if problem.values.size == 2:
        named["probability"] = distributions[:, 1]
    else:
        named["mean"] = distributions @ support.values
        named["median"] = quantile(support, distributions, 0.5)
        if interval is not None:
            tail = (1 - interval) / 2
            named["lower"] = quantile(support, distributions, tail)
            named["upper"] = quantile(support, distributions, 1 - tail)
        for atom, cell in ((support.low_atom, 0), (support.high_atom, -1)):
            if atom:
                named[f"equal_{grid[cell]:g}"] = distributions[:, cell]
    named |= {f"quantile_{share:g}": quantile(support, distributions, share) for share in quantiles}
    for value in above:
        within = sums(support.cell_of, support.within * (grid > value), support.size)
        named[f"above_{value:g}"] = distributions @ within
    return named


def quantile(support: Support, distributions: Floats, probability: float) -> Floats:
    """(n,) label values below which a share of each (n, m) distribution lies."""
    below = np.cumsum(distributions, axis=1)
    cell = np.minimum((below < probability - 1e-9).sum(axis=1), support.size - 1)
    return np.asarray(support.values[cell])
