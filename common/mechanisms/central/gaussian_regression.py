"""Regression when only the labels are secret: one Gaussian measurement in place of many steps.

*DP-SGD with secret labels alone.* For the squared loss the gradient of row i is
``(f(x_i) - y_i) ∇f(x_i)``. Under label DP the model so far, hence f(x_i) and ∇f(x_i), are public:
what a step reveals of the labels is ``A_t y + N(0, σ_t² I)``, where the columns of A_t are the
gradients, clipped, weighted, projected or preconditioned in any public way. With labels in -1 … 1
it is ``ρ_t = 2 max_i ‖A_t e_i‖²/σ_t²``-zCDP.

*Theorem (steps do not pay).* Let no A_t depend on earlier releases: fixed features, any schedule.
Choose A with ``AᵀA = Σ_t A_tᵀA_t/σ_t²``. All steps together tell about y exactly what the one
release ``A y + N(0, I)`` tells, and that costs Σ_t ρ_t at most. *Proof.* By factorization
``Σ_t A_tᵀz_t/σ_t²``, and Aᵀz of the one release, are sufficient for y, and both have the law
``N(AᵀA y, AᵀA)``. The one costs ``2 max_i Σ_t ‖A_t e_i‖²/σ_t² <= Σ_t 2 max_i ‖A_t e_i‖²/σ_t²``. ∎
Steps can only win by features that they learn on the way. (Nor does secret sampling pay: the noise
of T steps at rate q, brought to one pass over all rows, ``σ/(q√T)``, is no smaller than that of one
release at the same (ε, δ); a test looks.)

*Which measurement.* Let f ~ N(0, K) on the rows, K = U diag(κ) Uᵀ, and y = f + e, e ~ N(0, s I).
Measuring ``√b_k u_kᵀy`` with noise σ leaves posterior variances ``κ_k v_k/(κ_k + v_k)`` with
``v_k = s + σ²/b_k``. *Theorem (water-filling).* For a given mean ``Σ_k b_k/n`` of the squared
columns their sum is least for ``b_k = σ (t κ_k - σ)_+ / (κ_k + s)``, with t such that the mean is
met. *Proof.* The sum is convex in b, with derivative ``-κ_k²σ²/((κ_k + s) b_k + σ²)²``; equate it
to ``-1/t²`` where b_k > 0. ∎ Directions with κ_k below σ/t are not measured at all. Noise counts by
the largest column, so rows beyond a quantile are weighted down to it; the predicted error chooses
the quantile, without a label.

*Against labels that are randomized one by one.* A unit direction, one of r with equal b on rows of
equal leverage, gets noise of variance ``4r/(2ρn)``; from randomized labels of variance V it gets V.
Knowing the features wins while ``r < ρnV/2``: with few directions or a small ε. Beyond that the
ε-DP randomizer of single labels wins, as it needs no δ.

Rows are extended by random rectifiers ``max(wᵀx - θ, 0)``, for bends and interactions; w and θ come
from a public seed and the public rows. The prior's variances of both kinds of weights, and s,
maximise the likelihood of what was released, which is post-processing.

Source of the strategy view: Li, Miklau, Hay, McGregor, Rastogi, *The matrix mechanism*, VLDB J.
2015; of water-filling: Cover and Thomas, *Elements of Information Theory*, Section 9.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import scipy

from labelveil.common.arrays import Floats
from labelveil.common.entropy import Entropy, seeded_entropy, unit_floats
from labelveil.common.errors import PrivacyError, not_none
from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    ZeroConcentratedDP,
    largest_rho,
    to_approximate,
)
from labelveil.common.guarantees.limits import positive, within
from labelveil.common.mechanisms.central.label_statistics import (
    Measurement,
    gaussian_release,
    limited,
    posterior_mean,
    principal_features,
)
from labelveil.common.mechanisms.clipping import checked_labels

RECTIFIERS = 400
QUANTILES = (1.0, 0.9, 0.75, 0.5, 0.25)

_SHARE = 0.3
"""Norm of all rectifiers relative to that of the rows: bends are rarer than slopes."""
_SIGNAL, _RESIDUAL = 0.25, 0.05
"""Variance of f and of e that the design assumes, for labels in -1 … 1."""
_RATIOS = (0.0, 0.03, 0.1, 0.3, 1.0)
"""Variance of what the rectifiers add to f, relative to that of the rest."""


@dataclass(frozen=True, eq=False)
class Rectifiers:
    """Random features of public rows."""

    directions: Floats  # (d, m) w
    thresholds: Floats  # (m,) θ
    centres: Floats  # (m,) means that are taken off
    scale: float  # factor of all

    @classmethod
    def draw(cls, rows: Floats, count: int = RECTIFIERS) -> Rectifiers:
        """Draw them for (n, d) rows; equal rows give equal features."""
        n, d = rows.shape
        public = seeded_entropy(0)
        uniform = unit_floats(public.words("directions", 0, d * count))
        directions = scipy.special.ndtri(uniform).reshape(d, count)
        projected = rows @ directions
        chosen = (public.words("thresholds", 0, count) % np.uint64(n)).astype(np.int64)
        thresholds = projected[chosen, np.arange(count)]
        raw = np.maximum(projected - thresholds, 0.0)
        centres = raw.mean(axis=0)
        spread = float(np.mean(np.sum((raw - centres) ** 2, axis=1)))
        size = float(np.mean(np.sum(rows * rows, axis=1)))
        scale = _SHARE * math.sqrt(size / spread) if spread > 0 else 0.0
        return cls(directions, thresholds, centres, scale)

    def extend(self, rows: Floats) -> Floats:
        """(n, d) rows as (n, d + m): the rectifiers stand before the constant."""
        raw = np.maximum(rows @ self.directions - self.thresholds, 0.0)
        return np.hstack([rows[:, :-1], (raw - self.centres) * self.scale, rows[:, -1:]])


def water_filling(variances: Floats, noise: float, residual: float, total: float) -> Floats:
    """Best b for prior variances κ (r,), noise σ, residual variance s, and ``Σ b = total``."""

    def filled(log_t: float) -> Floats:
        above = np.maximum(variances * math.exp(log_t) - noise, 0.0)
        return np.asarray(noise * above / (variances + residual))

    low = math.log(noise / float(variances.max()))  # at which nothing is measured
    high = low + 1
    while filled(high).sum() < total:
        high += 1
    return filled(scipy.optimize.brentq(lambda log_t: filled(log_t).sum() - total, low, high))


def best_measurement(rows: Floats, noise: float) -> Measurement:
    """Choose A and the weights of public (n, D) rows whose weights have one prior variance.

    ``noise`` is the standard deviation of the noise in each coordinate, relative to the
    sensitivity. ``DataError`` if no feature varies.
    """
    n = len(rows)
    values, turned = principal_features(rows)
    squares = turned * turned
    variances = n * values * (_SIGNAL / float(values.sum()))
    sigma = 2 * noise
    b = water_filling(variances, sigma, _RESIDUAL, float(n))
    measured = b > 0
    least, best = math.inf, None
    for quantile, top, weights in limited(np.sqrt(squares @ (b / (n * values))), QUANTILES):
        seen = weights @ squares[:, measured] / (n * values[measured])
        v = _RESIDUAL * seen + (sigma * top) ** 2 / b[measured]
        prior = variances[measured]
        error = float(np.sum(prior * v / (prior * seen**2 + v)))
        if error < least:
            least, best = error, (quantile, weights)
    quantile, weights = not_none(best)  # at the quantile 1 some length is above 0
    shape = np.sqrt(b[measured] / (n * values[measured]))
    return Measurement(weights[:, None] * turned[:, measured] * shape, quantile)


@dataclass(frozen=True, eq=False)
class ProcessFit:
    """A regression for labels scaled to -1 … 1."""

    weights: Floats  # (d + m,) of the features, those of the rectifiers, and the constant's
    rectifiers: Rectifiers
    measurement: Measurement

    def predict(self, rows: Floats) -> Floats:
        """(n,) labels, scaled to -1 … 1, of (n, d) rows."""
        return np.asarray(self.rectifiers.extend(rows) @ self.weights)


@dataclass(frozen=True)
class LabelProcess:
    """Regression of private labels on random features of public ones, (ε, δ)-DP for δ > 0."""

    epsilon: float
    delta: float  # in (0, 1)

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        within("[0, 1)", delta=self.delta)
        if self.delta == 0:
            raise PrivacyError("delta=0 must be above 0 for Gaussian noise; pass --delta 1e-6")

    @cached_property
    def rho(self) -> Fraction:
        """The largest ρ whose zCDP is (ε, δ)-DP: what the noise is made for."""
        return largest_rho(self.epsilon, self.delta)

    @property
    def guarantee(self) -> ApproximateDP:
        """(ε, δ) for replacing one label."""
        return to_approximate(
            ZeroConcentratedDP.of(self.rho, adjacency=Adjacency.REPLACE_LABEL), self.delta
        )

    def draw(self, rows: Floats, labels: Floats, entropy: Entropy) -> ProcessFit:
        """Fit (n,) labels, clipped to -1 … 1, to (n, d) features, the last of them a constant.

        Entropy must be fresh for every fit.
        """
        clipped = checked_labels(rows, labels)
        rectifiers = Rectifiers.draw(rows)
        wide = rectifiers.extend(rows)
        measurement = best_measurement(wide, 1 / math.sqrt(2 * float(self.rho)))
        vectors = measurement.vectors
        noisy, variance, _ = gaussian_release(
            vectors.T @ clipped, measurement.sensitivity, self.rho, entropy
        )
        weights = posterior_mean(vectors, wide, noisy, variance, rows.shape[1] - 1, _RATIOS)
        return ProcessFit(weights, rectifiers, measurement)
