"""How much labels vary: the loss of a constant, from the histogram and the codes.

The released counts C of N labels carry noise of a known variance σ², and the codes of n labels
went through a known channel K. For the constant's loss w(y), such as (y − c)², any decoding values
s leave w − K s, with mean m over the grid, to the histogram:

    V = m + Σ_y (w − K s − m)(y) C_y / N + mean_i s(z_i)

has the expectation E[w(y)] whatever the labels are, with the variance

    σ²/N² · |w − K s − m|² + Var(s(z)) / n.

The s that makes it least, with P(z) for the law of z under the prior, is a ridge regression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labelveil.common.arrays import Floats, Indices
from labelveil.common.randomizers import NoisyPrior
from labelveil.common.randomizers.knots import interpolation
from labelveil.feature_party.evaluation.intervals import (
    NORMAL_95,
    Measured,
    half_width,
    mean_error,
)
from labelveil.feature_party.evaluation.losses import SQUARED, MeanLoss
from labelveil.feature_party.learning.decoding import decoder
from labelveil.feature_party.learning.problem import LabelProblem

_CEILINGS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
"""Quantiles of w under the prior at which it may be cut off for a lower bound of its mean."""


@dataclass(frozen=True, eq=False)
class ReleasedCodes:
    """A release, and those of its codes that are scored."""

    problem: LabelProblem
    histogram: NoisyPrior  # its noisy counts
    grid: Floats  # (g,) labels that they are about
    rows: Indices  # (n_e,) places of its codes among all rows scored
    codes: Indices  # (n_e,) as it sent them
    unclipped: Floats | None = None  # (k,) the problem's grid before labels were clipped, if so


@dataclass(frozen=True, eq=False)
class Spread:
    """The loss w(y) of a constant prediction, such as its squared error."""

    centre: float  # the constant, such as the mean of the released prior
    value: float  # estimate of E w(y): of (y − centre)², in squared label units
    shown: float  # the prior's own, as far as ``value`` and its error allow: smoother, but biased
    terms: Floats  # (n,) the part of ``value`` that each row's code gives, times n
    histogram_error: float  # standard error of the rest
    least: float  # a bound that E w(y) is above with 97.5% probability, > 0

    @property
    def error(self) -> float:
        """Standard error of ``value``."""
        return math.hypot(self.histogram_error, mean_error(self.terms))

    def share(
        self, mean: float, variance: float, covariance: float, bias: float = 0.0, *, most: float
    ) -> Measured:
        """A mean in units of this loss V, with Fieller's interval, cut at what V is surely above.

        The mean has the ``variance``, the ``covariance`` with ``value``, and is off by at most
        ``bias``. No share is above ``most``.
        """
        v = self.value
        # mean − share · V has room for the bias of the mean at the share that is estimated, which
        # may be endless where V is next to nothing
        ratio = min(max(mean / self.shown, 0.0), 1.0)
        spent = max(variance - 2 * ratio * covariance + (ratio * self.error) ** 2, 1e-300)
        z = NORMAL_95**2
        room = half_width(math.sqrt(spent), bias) ** 2 - z * spent
        # Fieller: every share s for which (mean − s V)² is within its own noise and room, which is
        # a s² − 2 b s + c <= 0. Where a <= 0, V may be next to nothing, and a side is open.
        a, b = v**2 - z * self.error**2, mean * v - z * covariance
        c = mean**2 - z * variance - room
        low, high = -math.inf, math.inf
        root = math.sqrt(max(b**2 - a * c, 0.0))
        if a > 0 and v > 0:
            low, high = (b - root) / a, (b + root) / a
        elif mean > 0 and c > 0:  # V may be next to nothing, but it is not endless
            low = c / (b + root)
        half = half_width(math.sqrt(variance), bias)
        low = max(low, min(mean - half, 0.0) / self.least)
        high = min(high, max(mean + half, 0.0) / self.least, most)
        low = min(low, high)
        return Measured(float(np.clip(mean / self.shown, low, high)), low, high)


def label_spread(
    sources: Sequence[ReleasedCodes], loss: MeanLoss = SQUARED, centre: float | None = None
) -> Spread:
    """Estimate the loss of predicting ``centre``, by default the prior's mean, for every row.

    The rows of all releases together are the rows scored; each counts by its number of rows.
    """
    rows = sum(source.rows.size for source in sources)
    shares = [source.rows.size / rows for source in sources]
    priors = [source.problem.prior for source in sources]
    if centre is None:
        centre = sum(p * s.problem.mean for p, s in zip(shares, sources, strict=True))
    losses = [loss.of_constant(centre, source.problem) for source in sources]
    values, variances, terms = label_means(sources, [*map(_cut_off, losses, priors)])
    weighted = zip(shares, priors, losses, strict=True)
    shown = sum(share * float(prior @ w) for share, prior, w in weighted)
    errors = np.sqrt(variances + terms.var(axis=0, ddof=1) / rows)
    value, error = float(values[-1]), float(errors[-1])
    least = float((values - NORMAL_95 * errors).max())
    shown = float(np.clip(shown, value - error, value + error))
    return Spread(
        centre,
        value,
        max(shown, least, 1e-300),
        terms[:, -1],
        float(np.sqrt(variances[-1])),
        max(least, 1e-6 * shown, 1e-300),
    )


def label_means(
    sources: Sequence[ReleasedCodes], functions: Sequence[Floats]
) -> tuple[Floats, Floats, Floats]:
    """Estimate means of functions of the label from histograms and codes together.

    Of each release, which counts by its number of rows, ``functions`` has the (k, m) values on its
    problem's grid. Returns (m,) estimates without bias, (m,) variances of the histograms' part, and
    the (n, m) terms that the rows' codes give, times n.
    """
    rows, wide = sum(source.rows.size for source in sources), functions[0].shape[1]
    values, variances, terms = np.zeros(wide), np.zeros(wide), np.zeros((rows, wide))
    for source, targets in zip(sources, functions, strict=True):
        histogram, share = source.histogram, source.rows.size / rows
        decoded, counted, constant = _divide(source, targets)
        values += share * (constant + histogram.noisy_counts / histogram.rows @ counted)
        law = histogram.probabilities
        # the histogram errs by its noise, and by which events there happen to be
        sampled = np.maximum(law @ counted**2 - (law @ counted) ** 2, 0)
        noise = (counted**2).sum(axis=0) * (histogram.deviation / histogram.rows) ** 2
        variances += share**2 * (noise + sampled / histogram.rows)
        terms[source.rows] = decoded[source.codes]
    return values + terms.mean(axis=0), variances, terms


def _cut_off(whole: Floats, prior: Floats) -> Floats:
    """(k, m) functions below w that the histogram and the codes tell more about, and w itself."""
    order = np.argsort(whole)
    at = np.searchsorted(np.cumsum(prior[order]), _CEILINGS)
    below = [np.minimum(whole, whole[order][min(i, whole.size - 1)]) for i in at]
    return np.stack([*below, whole], axis=1)


def _divide(source: ReleasedCodes, targets: Floats) -> tuple[Floats, Floats, Floats]:
    """Divide (k, m) targets: (d, m) decoding values, (g, m) the histogram's part, (m,) its mean."""
    histogram, problem = source.histogram, source.problem
    if not histogram.noisy:  # from these codes, which cannot be counted twice
        nothing = np.zeros((source.grid.size, targets.shape[1]))
        return decoder(problem, targets).values, nothing, nothing[0]
    channel, points = problem.channel, problem.grid
    if source.unclipped is not None:
        points = source.unclipped
    if not np.array_equal(source.grid, points):
        onto = interpolation(source.grid, points)
        targets, channel = onto @ targets, onto @ channel
    centred, varied = targets - targets.mean(axis=0), channel - channel.mean(axis=0)
    weight = (histogram.deviation / histogram.rows) ** 2
    marginal = np.maximum(problem.output_prior, 1e-12)
    gram = weight * varied.T @ varied + np.diag(marginal / source.rows.size)
    decoded = np.linalg.solve(gram, weight * varied.T @ centred)
    counted = targets - channel @ decoded
    constant = counted.mean(axis=0)
    return decoded, counted - constant, constant
