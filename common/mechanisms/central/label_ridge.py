"""Ridge regression when only the labels are secret: noise on Xᵀy alone, of the best shape.

Under label DP both parties may know X. Of the data, ridge regression needs XᵀX, which is public,
and Xᵀy, in which one label's change moves the result by at most ``|y - y'| ‖x_i‖``. Let y be scaled
to -1 … 1. For any public matrix A and public weights ω_i of the rows, the statistic

    z = Σ_i ω_i A x_i y_i + noise

has L2 sensitivity ``Δ = 2 max_i ω_i ‖A x_i‖``, and radial noise of scale Δ/ε makes it ε-DP for
replacing one label.

*The shape A.* With A = I noise has the same size in every direction, though a prediction hardly
needs the directions in which features vary little, and cannot do without the others. In the
eigenbasis V, s of XᵀX/n the shapes ``A = diag(s^{-p/2}) Vᵀ``, 0 <= p <= 1, run from the plain
statistic to whitened features, whose sensitivity is the largest leverage; rows beyond a quantile t
of ‖A x_i‖ are weighted down to it, ``ω_i = min(1, t/‖A x_i‖)``, so that a few odd rows do not set
the noise for all. p and t minimise the predicted error

    Σ_k s_k τ² v_k / (τ² m_k² + v_k),   m_k = Σ_i ω_i (Vᵀx_i)_k² / n,   v_k = σ² s_k^p/n² + m_k u/n

of the posterior mean under w ~ N(0, τ²I) with Σ_k s_k τ² = u = 1/4: a function of features, n and
the privacy parameter, never of a label.

Regularization comes from the release (:mod:`labelveil.common.mechanisms.central.label_statistics`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.entropy import Entropy
from labelveil.common.errors import not_none
from labelveil.common.exact.radial_noise import radial_laplace
from labelveil.common.exact.rational import rational
from labelveil.common.guarantees import Adjacency, PureDP
from labelveil.common.guarantees.limits import positive
from labelveil.common.mechanisms.central.label_statistics import (
    Measurement,
    limited,
    posterior_mean,
    principal_features,
)
from labelveil.common.mechanisms.clipping import checked_labels

SHAPES = (0.0, 0.25, 0.5, 0.75, 1.0)
QUANTILES = (1.0, 0.999, 0.99, 0.95, 0.9, 0.75)

_SIGNAL = 0.25


def design_measurement(rows: Floats, noise: float) -> Measurement:
    """Choose A and ω for public (n, d) rows.

    ``noise`` is the standard deviation of the noise in each coordinate, relative to Δ. Raises
    ``DataError`` if no feature varies.
    """
    n = len(rows)
    values, turned = principal_features(rows)
    squares = turned * turned
    signal = _SIGNAL / float(values.sum())
    least, best = math.inf, None
    for shape in SHAPES:
        lengths = np.sqrt(squares @ values**-shape)
        for quantile, top, weights in limited(lengths, QUANTILES):
            seen = weights @ squares / n
            v = (2 * top * noise / n) ** 2 * values**shape + seen * _SIGNAL / n
            error = float(np.sum(values * signal * v / (signal * seen**2 + v)))
            if error < least:
                least, best = error, (shape, quantile, weights)
    shape, quantile, weights = not_none(best)  # at the quantile 1 some length is above 0
    return Measurement(weights[:, None] * turned * values ** (-shape / 2), quantile, shape)


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """A linear model: (d,) weights for labels scaled to -1 … 1, and what was measured."""

    weights: Floats
    design: Measurement


@dataclass(frozen=True)
class LabelRidge:
    """Ridge regression of private labels on public features, ε-DP."""

    epsilon: float

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)

    @property
    def guarantee(self) -> PureDP:
        """ε, exactly, for replacing one label."""
        return PureDP.of(self.epsilon, Adjacency.REPLACE_LABEL)

    def draw(self, rows: Floats, labels: Floats, entropy: Entropy) -> RidgeFit:
        """Fit (n,) labels, clipped to -1 … 1, to (n, d) features, the last of them a constant.

        Entropy must be fresh for every fit.
        """
        clipped = checked_labels(rows, labels)
        d = rows.shape[1]
        design = design_measurement(rows, math.sqrt(d + 1) / self.epsilon)
        statistic = design.vectors.T @ clipped
        scale = design.sensitivity / rational(self.epsilon)
        exponent = math.floor(math.log2(float(scale))) - 20
        steps = radial_laplace(statistic, scale, exponent, entropy.source("label ridge"))
        noisy = np.array([math.ldexp(float(step), exponent) for step in steps])
        variance = float(scale) ** 2 * (statistic.size + 1)
        weights = posterior_mean(design.vectors, rows, noisy, variance, d - 1, (0.0,))
        return RidgeFit(weights, design)
