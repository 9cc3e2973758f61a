"""Losses that the mean minimises: what of them is linear in the label, and so can be decoded.

Each is h(y) + a(f) + b(f) y for a prediction f of a label y: no prediction changes h, and the
difference of two predictions' losses is linear in y. Such are the squared error, the log loss of a
0/1 label, and the deviance of counts, 2 (y ln(y/f) − y + f).

Source: Banerjee, Guo, Wang, *On the Optimality of Conditional Expectation as a Bregman Predictor*,
IEEE Transactions on Information Theory 2005.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import logit, xlogy

from labelveil.common.arrays import Floats
from labelveil.feature_party.learning.decoding import convex_targets
from labelveil.feature_party.learning.problem import LabelProblem

_NEAREST = 1e-6
"""How near to 0 and 1 a probability may be, and to 0 a count as a share of the mean."""


@dataclass(frozen=True)
class MeanLoss:
    """h(y) + a(f) + b(f) y: ``own`` is h, convex, ``offset`` a, ``slope`` b."""

    name: str
    own: Callable[[Floats], Floats]
    offset: Callable[[Floats], Floats]
    slope: Callable[[Floats], Floats]

    def losses(self, points: Floats, labels: Floats) -> Floats:
        """(n,) losses of predictions."""
        return self.own(labels) + self.offset(points) + self.slope(points) * labels

    def of_constant(self, centre: float, problem: LabelProblem) -> Floats:
        """(k,) losses of a constant on the grid, less what placing labels there adds to h."""
        constant = np.array([centre])
        line = self.offset(constant) + self.slope(constant) * problem.grid
        return convex_targets(problem, self.own) + line

    def gain(self, points: Floats, centre: float) -> tuple[Floats, Floats]:
        """(n,) r and s: predictions' losses are below the constant's by r + s y."""
        constant = np.array([centre])
        offset = self.offset(constant) - self.offset(points)
        return offset, self.slope(constant) - self.slope(points)

    def divergence(self, means: Floats, points: Floats) -> Floats:
        """By how much predictions lose more than the means of the labels would."""
        steeper = self.slope(points) - self.slope(means)
        return self.offset(points) - self.offset(means) + steeper * means


SQUARED = MeanLoss("mse", np.square, np.square, lambda points: -2 * points)


def fitting_loss(problem: LabelProblem) -> MeanLoss | None:
    """The loss that fits a label: log loss for one of two values, deviance for counts, or none."""
    grid = problem.values
    if problem.loss == "absolute":  # predictions are medians
        return None
    if grid.size == 2:
        return _log_loss(float(grid[0]), float(np.ptp(grid)))
    counts = float(grid[0]) == 0 and np.allclose(np.diff(grid), 1.0)
    return _deviance(problem.mean) if counts or problem.loss == "poisson" else None


def _log_loss(lower: float, span: float) -> MeanLoss:
    def odds(points: Floats) -> Floats:
        return np.asarray(logit(np.clip((points - lower) / span, _NEAREST, 1 - _NEAREST)))

    def offset(points: Floats) -> Floats:
        return np.logaddexp(0, odds(points)) + lower * odds(points) / span

    return MeanLoss("log_loss", np.zeros_like, offset, lambda points: -odds(points) / span)


def _deviance(mean: float) -> MeanLoss:
    def positive(points: Floats) -> Floats:
        return np.maximum(points, _NEAREST * mean)

    return MeanLoss(
        "deviance",
        lambda labels: 2 * (xlogy(labels, labels) - labels),
        lambda points: 2 * positive(points),
        lambda points: -2 * np.log(positive(points)),
    )
