"""Ridge regression when only the labels are secret: noise on Xᵀy alone, of the best shape.

Under label DP both parties may know X. Of the data, ridge regression needs XᵀX, which is public,
and Xᵀy, in which one label's change moves the result by at most ``|y - y'| ‖x_i‖``. Let y be scaled
to -1 … 1. For any public matrix A and public weights ω_i of the rows, the statistic

    z = Σ_i ω_i A x_i y_i + noise

has L2 sensitivity ``Δ = 2 max_i ω_i ‖A x_i‖``, and radial noise of scale Δ/ε makes it ε-DP
(discrete Gaussian noise of variance Δ²/(2ρ) ρ-zCDP) for replacing one label.

*The shape A.* With A = I noise has the same size in every direction, though a prediction hardly
needs the directions in which features vary little, and cannot do without the others. In the
eigenbasis V, s of XᵀX/n the shapes ``A = diag(s^{-p/2}) Vᵀ``, 0 <= p <= 1, run from the plain
statistic to whitened features, whose sensitivity is the largest leverage; rows beyond a quantile t
of ‖A x_i‖ are weighted down to it, ``ω_i = min(1, t/‖A x_i‖)``, so that a few odd rows do not set
the noise for all. p and t minimise the predicted error

    Σ_k s_k τ² v_k / (τ² m_k² + v_k),   m_k = Σ_i ω_i (Vᵀx_i)_k² / n,   v_k = σ² s_k^p/n² + m_k u/n

of the posterior mean under w ~ N(0, τ²I) with Σ_k s_k τ² = u = 1/4: a function of features, n and
the privacy parameter, never of a label.

*Regularization* comes from the release: with ``z ~ N(0, M P Mᵀ + N)``, M = A Σ ω_i x_i x_iᵀ, P a
prior of variance τ² for the weights and of 1/3 for the constant, N the known noise plus that of the
residuals, τ² and the residuals' variance maximise the likelihood of z. That is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy

from common.arrays import Floats
from common.entropy import Entropy
from common.errors import DataError, PrivacyError, present
from common.exact.noise import discrete_gaussian
from common.exact.radial_noise import radial_laplace
from common.guarantees import (
    Adjacency,
    ApproximateDP,
    PureDP,
    ZeroConcentratedDP,
    largest_rho,
    to_approximate,
)
from common.guarantees.gaussian import gaussian_zcdp

SHAPES = (0.0, 0.25, 0.5, 0.75, 1.0)
QUANTILES = (1.0, 0.999, 0.99, 0.95, 0.9, 0.75)

NEGLIGIBLE = 1e-9
_SIGNAL = 0.25
PRIOR_OF_CONSTANT = 1 / 3
"""Prior variance of the constant: that of a uniform number in -1 … 1."""
_GAUSSIAN_STEPS = 1 << 10
"""Grid steps in Δ, fewer where their number of noise would pass what the exact sampler takes."""
_MOST_NOISE = 1 << 16
SIGNALS = tuple(10.0**power for power in np.arange(-6, 1.75, 0.25))
RESIDUALS = (0.01, 0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class Design:
    """What is measured."""

    vectors: Floats  # (n, r) ω_i A x_i
    sensitivity: Fraction  # Δ, float errors of the sum included
    shape: float  # p, and the share of rows that keep their full weight
    quantile: float
    predicted: float  # predicted mean squared error, labels scaled to -1 … 1
    moments: Floats  # (r, d) M


def design_measurement(rows: Floats, noise: float) -> Design:
    """Choose A and ω for public rows.

    Parameters
    ----------
    rows
        (n, d) features.
    noise
        Standard deviation of the noise in each coordinate, relative to Δ.

    Raises
    ------
    DataError
        If no feature varies.
    """
    n = len(rows)
    values, basis = scipy.linalg.eigh(rows.T @ rows / n)
    kept = values > NEGLIGIBLE * max(values[-1], 0.0)
    if not np.any(kept):
        raise DataError("all features are 0; nothing to regress on")
    values, basis = values[kept], basis[:, kept]
    turned = rows @ basis
    squares = turned * turned
    signal = _SIGNAL / float(values.sum())
    best: tuple[float, float, float, Floats] | None = None
    for shape in SHAPES:
        norms = np.sqrt(squares @ values**-shape)
        for quantile in QUANTILES:
            top = float(np.quantile(norms, quantile))
            if top <= 0:
                continue
            weights = np.minimum(1.0, top / np.maximum(norms, 1e-300))
            seen = weights @ squares / n
            v = (2 * top * noise / n) ** 2 * values**shape + seen * _SIGNAL / n
            error = float(np.sum(values * signal * v / (signal * seen**2 + v)))
            if best is None or error < best[0]:
                best = error, shape, quantile, weights
    # at the quantile 1 some norm is above 0
    predicted, shape, quantile, weights = present(best)
    vectors = weights[:, None] * turned * values ** (-shape / 2)
    return Design(vectors, sensitivity_of(vectors), shape, quantile, predicted, vectors.T @ rows)


def sensitivity_of(vectors: Floats) -> Fraction:
    """L2 sensitivity of ``vectorsᵀ y`` to one label in -1 … 1, float errors of the sum included."""
    n = len(vectors)
    longest = float(np.sqrt(np.max(np.sum(vectors * vectors, axis=1))))
    # a float sum errs by at most (n + 2) u Σ ‖ω_i A x_i‖, for each of two neighbours
    slack = 2 * (n + 8) * 2.0**-53 * n * longest
    return Fraction(2 * longest * (1 + 1e-9) + 2 * slack)


@dataclass(frozen=True)
class LabelRidge:
    """A linear model under label DP."""

    weights: Floats  # (d,) float64, for labels scaled to -1 … 1
    guarantee: PureDP | ApproximateDP  # for replacing one label: pure, or (ε, δ)
    design: Design  # what was measured


def check_regression(rows: Floats, labels: Floats, epsilon: float, delta: float) -> None:
    """Refuse an impossible budget, and rows and labels that do not fit together."""
    if not 0 < epsilon < math.inf or not 0 <= delta < 1:
        raise PrivacyError(f"epsilon={epsilon} must be > 0 and delta={delta} must lie in [0, 1)")
    if rows.ndim != 2 or labels.shape != rows.shape[:1] or not rows.size:
        raise DataError(
            f"rows of shape {rows.shape} with labels of shape {labels.shape}; give one label a row"
        )
    if not (np.all(np.isfinite(rows)) and np.all(np.isfinite(labels))):
        raise DataError("rows and labels must be finite; replace missing values first")


def label_ridge(
    rows: Floats, labels: Floats, epsilon: float, delta: float, entropy: Entropy
) -> LabelRidge:
    """Regress private labels on public features.

    Parameters
    ----------
    rows
        (n, d) features; the last column is the intercept's constant.
    labels
        (n,) labels, clipped to -1 … 1.
    epsilon, delta
        ε > 0; δ = 0 takes radial Laplace noise, δ > 0 discrete Gaussian noise.
    entropy
        Fresh for every fit.
    """
    check_regression(rows, labels, epsilon, delta)
    d = rows.shape[1]
    if delta == 0:
        design = design_measurement(rows, math.sqrt(d + 1) / epsilon)
        guarantee: PureDP | ApproximateDP = PureDP.of(epsilon, Adjacency.REPLACE_LABEL)
    else:
        rho = largest_rho(epsilon, delta)
        design = design_measurement(rows, 1 / math.sqrt(2 * float(rho)))
    statistic = design.vectors.T @ np.clip(labels, -1.0, 1.0)
    if delta == 0:
        scale = design.sensitivity / Fraction(epsilon)
        exponent = math.floor(math.log2(float(scale))) - 20
        steps = radial_laplace(statistic, scale, exponent, entropy.source("label ridge"))
        noisy = np.array([math.ldexp(float(step), exponent) for step in steps])
        variance = float(scale) ** 2 * (statistic.size + 1)
    else:
        noisy, variance, concentrated = gaussian_release(
            statistic, design.sensitivity, rho, entropy
        )
        guarantee = to_approximate(concentrated, delta)
    return LabelRidge(_posterior_mean(design, rows, noisy, variance), guarantee, design)


def gaussian_release(
    statistic: Floats, sensitivity: Fraction, rho: Fraction, entropy: Entropy
) -> tuple[Floats, float, ZeroConcentratedDP]:
    """Round a statistic of L2 sensitivity Δ to a grid and add discrete Gaussian noise.

    Returns
    -------
    (r,) noisy numbers, the variance of their noise, and the guarantee of what was added: ρ-zCDP at
    most.

    Raises
    ------
    PrivacyError
        If ρ is so small that the noise passes what the exact sampler takes.
    """
    most = math.floor(_MOST_NOISE * math.sqrt(2 * float(rho))) - 1
    # rounding moves each neighbour by at most half a step a coordinate, and floats by less than one
    extra = math.isqrt(statistic.size) + 3
    steps = min(_GAUSSIAN_STEPS, most - extra)
    if steps < 1:
        raise PrivacyError(
            f"rho={float(rho):.3g} is too small to release {statistic.size} numbers; raise epsilon"
        )
    pitch = float(sensitivity) / steps
    rounded = np.rint(statistic / pitch)
    reach = math.ceil(sensitivity / Fraction(pitch)) + extra - 1
    variance = Fraction(math.ceil(reach**2 / (2 * rho) * 4096), 4096)
    noise = discrete_gaussian(variance, statistic.size, entropy.source("label ridge"))
    guarantee = gaussian_zcdp(variance, reach**2, Adjacency.REPLACE_LABEL)
    return np.asarray((rounded + noise) * pitch), float(variance) * pitch**2, guarantee


def _posterior_mean(design: Design, rows: Floats, noisy: Floats, variance: float) -> Floats:
    slopes = design.moments[:, :-1]
    usual = float(np.mean(np.sum(rows[:, :-1] ** 2, axis=1))) or 1.0
    spread = design.vectors.T @ design.vectors
    known = slopes @ slopes.T / usual
    constant = design.moments[:, -1:]
    best = (-math.inf, np.zeros(rows.shape[1]))
    for residual in RESIDUALS:
        errors = variance * np.eye(noisy.size) + residual * spread
        errors += PRIOR_OF_CONSTANT * constant @ constant.T
        factor = scipy.linalg.cholesky(errors, lower=True)
        inner = scipy.linalg.solve_triangular(factor, known, lower=True)
        values, turn = scipy.linalg.eigh(scipy.linalg.solve_triangular(factor, inner.T, lower=True))
        values = np.maximum(values, 0.0)
        turned = turn.T @ scipy.linalg.solve_triangular(factor, noisy, lower=True)
        fixed = float(np.sum(np.log(np.diag(factor))))
        for signal in SIGNALS:
            total = 1 + signal * values
            likelihood = -0.5 * float(np.sum(np.log(total) + turned**2 / total)) - fixed
            if likelihood > best[0]:
                white = turn @ (turned / total)
                solved = scipy.linalg.solve_triangular(factor, white, lower=True, trans=1)
                means = design.moments.T @ solved
                best = (
                    likelihood,
                    np.append(signal / usual * means[:-1], PRIOR_OF_CONSTANT * means[-1]),
                )
    return np.asarray(best[1])
