"""What both regressions under label DP share: directions, a statistic's noise, and its posterior.

Labels lie in -1 … 1, a statistic is ``vectorsᵀ y`` for public (n, r) vectors, and regularization
comes from what was released: with ``z ~ N(0, M P Mᵀ + N)``, ``M = vectorsᵀ rows``, P a prior of one
variance for each group of features and of 1/3 for the constant, N the known noise plus that of the
residuals, the variances maximise the likelihood of z. That is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy

from labelveil.common.arrays import Floats
from labelveil.common.entropy import Entropy
from labelveil.common.errors import DataError, PrivacyError
from labelveil.common.exact.noise import discrete_gaussian
from labelveil.common.exact.rounding import multiple_above
from labelveil.common.guarantees import Adjacency, ZeroConcentratedDP
from labelveil.common.guarantees.gaussian import gaussian_zcdp

_NEGLIGIBLE = 1e-9
_PRIOR_OF_CONSTANT = 1 / 3
"""Prior variance of the constant: that of a uniform number in -1 … 1."""
_GAUSSIAN_STEPS = 1 << 10
"""Grid steps in Δ, fewer where their number of noise would pass what the exact sampler takes."""
_MOST_NOISE = 1 << 16
_SIGNALS = tuple(10.0**power for power in np.arange(-6, 1.75, 0.25))
_RESIDUALS = (0.01, 0.03, 0.1, 0.3, 1.0)


def principal_features(rows: Floats) -> tuple[Floats, Floats]:
    """(r,) eigenvalues s of XᵀX/n that are not negligible, and (n, r) rows in that basis.

    ``DataError`` if no feature varies.
    """
    values, basis = scipy.linalg.eigh(rows.T @ rows / len(rows))
    kept = values > _NEGLIGIBLE * max(values[-1], 0.0)
    if not np.any(kept):
        raise DataError("all features are 0; nothing to regress on")
    return values[kept], rows @ basis[:, kept]


def limited(lengths: Floats, quantiles: Sequence[float]) -> Iterator[tuple[float, float, Floats]]:
    """Yield quantiles, their lengths t, and the weights ``min(1, t/length)`` of (n,) rows."""
    for quantile in quantiles:
        top = float(np.quantile(lengths, quantile))
        if top > 0:
            yield quantile, top, np.minimum(1.0, top / np.maximum(lengths, 1e-300))


@dataclass(frozen=True, eq=False)
class Measurement:
    """The measured statistic ``vectorsᵀ y``, and how it was chosen."""

    vectors: Floats  # (n, r) ω_i A x_i
    quantile: float  # share of rows that keep their full weight
    shape: float = 0.0  # p, where A is of such a shape

    @property
    def sensitivity(self) -> Fraction:
        """Δ, in L2, to one label in -1 … 1, float errors of the sum included."""
        n = len(self.vectors)
        longest = float(np.sqrt(np.max(np.sum(self.vectors * self.vectors, axis=1))))
        # a float sum errs by at most (n + 2) u Σ ‖ω_i A x_i‖, for each of two neighbours
        slack = 2 * (n + 8) * 2.0**-53 * n * longest
        return Fraction(2 * longest * (1 + 1e-9) + 2 * slack)


def gaussian_release(
    statistic: Floats, sensitivity: Fraction, rho: Fraction, entropy: Entropy
) -> tuple[Floats, float, ZeroConcentratedDP]:
    """Round a statistic of L2 sensitivity Δ to a grid and add discrete Gaussian noise.

    Returns (r,) noisy numbers, the variance of their noise, and the guarantee of what was added:
    ρ-zCDP at most. ``PrivacyError`` if the noise passes what the exact sampler takes.
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
    variance = multiple_above(reach**2 / (2 * rho))
    noise = discrete_gaussian(variance, statistic.size, entropy.source("label ridge"))
    guarantee = gaussian_zcdp(variance, reach**2, Adjacency.REPLACE_LABEL)
    return np.asarray((rounded + noise) * pitch), float(variance) * pitch**2, guarantee


def posterior_mean(
    vectors: Floats,
    rows: Floats,
    noisy: Floats,
    variance: float,
    plain: int,
    ratios: Sequence[float],
) -> Floats:
    """Mean weights, (d,), under the prior that makes the release likeliest.

    The first ``plain`` columns of rows have one variance in P, the last, the constant, its own, and
    those between one of ``ratios`` of the first.
    """
    moments = vectors.T @ rows
    parts = slice(0, plain), slice(plain, rows.shape[1] - 1)
    usual = [float(np.mean(np.sum(rows[:, part] ** 2, axis=1))) or 1.0 for part in parts]
    kinds = [moments[:, p] @ moments[:, p].T / size for p, size in zip(parts, usual, strict=True)]
    constant = moments[:, -1:]
    spread = vectors.T @ vectors
    best = -math.inf, np.zeros(rows.shape[1])
    for residual in _RESIDUALS:
        # what is no signal: the release's noise, what no linear model explains, a free constant
        errors = variance * np.eye(noisy.size) + residual * spread
        errors += _PRIOR_OF_CONSTANT * constant @ constant.T
        factor = scipy.linalg.cholesky(errors, lower=True)
        white = scipy.linalg.solve_triangular(factor, noisy, lower=True)
        fixed = float(np.sum(np.log(np.diag(factor))))
        for ratio in ratios:
            values, turn = _axes(factor, kinds[0] + ratio * kinds[1])
            turned = turn.T @ white
            for signal in _SIGNALS:
                total = 1 + signal * values
                likelihood = -0.5 * float(np.sum(np.log(total) + turned**2 / total)) - fixed
                if likelihood <= best[0]:
                    continue
                solved = turn @ (turned / total)
                solved = scipy.linalg.solve_triangular(factor, solved, lower=True, trans=1)
                prior = np.full(rows.shape[1], _PRIOR_OF_CONSTANT)
                prior[parts[0]] = signal / usual[0]
                prior[parts[1]] = signal * ratio / usual[1]
                best = likelihood, prior * (moments.T @ solved)
    return np.asarray(best[1])


def _axes(factor: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """(r,) variances of the signal, and (r, r) their axes, where the errors are white.

    There ``errors + signal * covariance`` is diagonal for every signal: one decomposition serves
    all that are tried. ``factor`` is the errors' lower Cholesky factor.
    """
    inner = scipy.linalg.solve_triangular(factor, covariance, lower=True)
    inner = scipy.linalg.solve_triangular(factor, inner.T, lower=True)
    values, turn = scipy.linalg.eigh(inner)
    return np.maximum(values, 0.0), turn
