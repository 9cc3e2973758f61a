"""The Gaussian mechanisms' own curves: exact δ(ε), tails, and the noise for a target.

For one release (or several of the same kind, which are one with a larger sensitivity) these are
tighter than any conversion from zCDP.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import scipy

from common.arrays import Floats
from common.errors import PrivacyError
from common.guarantees.base import Adjacency, Unit
from common.guarantees.concentrated import ZeroConcentratedDP

_REACH = 40.0
"""Standard deviations beyond which a Gaussian's mass, below e^-800, is bounded, not summed."""
_ERROR = 1e-10


def gaussian_zcdp(
    variance: float | Fraction,
    squared_sensitivity: float | Fraction = 1,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    unit: Unit = Unit.RECORD,
) -> ZeroConcentratedDP:
    """ρ = Δ²/(2σ²), for the Gaussian and for the discrete Gaussian on integer-valued queries.

    Bun and Steinke 2016, Proposition 1.6; Canonne, Kamath, Steinke 2020, Theorem 14.
    """
    exact = Fraction(variance)
    if exact <= 0:
        raise PrivacyError(f"variance={float(exact)} must be > 0")
    rho = Fraction(squared_sensitivity) / (2 * exact)
    return ZeroConcentratedDP(adjacency, unit, rho, Fraction(0))


def gaussian_delta(sigma: float, epsilon: float, sensitivity: float = 1.0) -> float:
    """δ(ε) of the continuous Gaussian mechanism, exactly, rounded up.

    ``Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ)``: Balle and Wang, *Improving the Gaussian Mechanism*,
    ICML 2018, Theorem 8.
    """
    ratio = sensitivity / sigma
    keep = float(scipy.special.ndtr(ratio / 2 - epsilon / ratio))
    lose = math.exp(min(0.0, epsilon + float(scipy.special.log_ndtr(-ratio / 2 - epsilon / ratio))))
    return min(1.0, max(0.0, keep - lose) + 1e-13 * (keep + lose))


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return the least σ at which one Gaussian release is (ε, δ)-DP, rounded up (ibid.)."""
    if epsilon < 0 or not 0 < delta < 1:
        raise PrivacyError(f"epsilon={epsilon} must be >= 0 and delta={delta} must lie in (0, 1)")
    low, high = 0.0, sensitivity
    while gaussian_delta(high, epsilon, sensitivity) > delta:
        low, high = high, 2 * high
        if high > 1e12 * sensitivity:
            raise PrivacyError(f"no sigma reaches delta={delta} at epsilon={epsilon}; raise delta")
    for _ in range(100):
        middle = (low + high) / 2
        if middle and gaussian_delta(middle, epsilon, sensitivity) <= delta:
            high = middle
        else:
            low = middle
    return high


def discrete_gaussian_tail(variance: Fraction, above_values: Floats) -> Floats:
    """``P[Z > t]`` of the discrete Gaussian for each t, rounded up.

    The terms are summed from the far end; what lies beyond 40 σ is bounded by a geometric series.
    """
    sigma = math.sqrt(float(variance))
    reach = math.ceil(_REACH * sigma) + 2
    points = np.arange(-reach, reach + 1.0)
    weights = np.exp(-points * points / (2 * float(variance)))
    tails = np.concatenate([np.cumsum(weights[::-1])[::-1], [0.0]])
    first = np.clip(np.floor(above_values) + 1 + reach, 0, len(points)).astype(np.int64)
    rest = 2 * weights[-1] / -math.expm1(-reach / float(variance))
    bounds = (tails[first] + rest) / np.sum(weights) * (1 + _ERROR)
    return np.asarray(np.minimum(bounds, 1.0), dtype=np.float64)


def discrete_gaussian_delta(variance: Fraction, epsilon: float, sensitivity: int = 1) -> float:
    """δ(ε) of the discrete Gaussian on an integer of that sensitivity, exactly, rounded up.

    ``P[Z > εσ²/Δ − Δ/2] − e^ε P[Z > εσ²/Δ + Δ/2]``: Canonne, Kamath, Steinke 2020, Theorem 7.
    """
    if sensitivity < 1:
        raise PrivacyError(f"sensitivity={sensitivity} must be an integer >= 1")
    v = float(variance)
    reach = math.ceil(_REACH * math.sqrt(v)) + 2 + sensitivity
    points = np.arange(-reach, reach + 1.0)
    total = float(np.sum(np.exp(-points * points / (2 * v))))
    # privacy loss of output z when the truth is 0 against Δ, seen from the larger side
    losses = (2 * points * sensitivity - sensitivity * sensitivity) / (2 * v)
    shifted = np.exp(-((points - sensitivity) ** 2) / (2 * v))
    gains = np.where(losses > epsilon, -np.expm1(epsilon - losses), 0.0)
    rest = 4 * math.exp(-((reach - sensitivity) ** 2) / (2 * v)) * (1 + v)
    return min(1.0, float(np.sum(shifted * gains)) / total * (1 + _ERROR) + rest)
