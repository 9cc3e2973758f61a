"""The Gaussian mechanisms' own curves: exact δ(ε), tails, and the noise for a target.

For one release (or several of the same kind, which are one with a larger sensitivity) these are
tighter than any conversion from zCDP.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import scipy

from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rational import rational
from labelveil.common.exact.search import bisected
from labelveil.common.guarantees.additive import ZeroConcentratedDP
from labelveil.common.guarantees.base import Adjacency, Unit
from labelveil.common.guarantees.limits import positive, within

_REACH = 40.0
"""Standard deviations beyond which a Gaussian's mass, below e^-800, is bounded, not summed."""
_BEYOND = 1e-300
"""More than that mass, and than what underflows before it."""
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
    positive(variance=variance)
    rho = rational(squared_sensitivity) / (2 * rational(variance))
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
    """Return the least σ at which one Gaussian release is (ε, δ)-DP, rounded up (ibid.).

    Raises
    ------
    PrivacyError
        If ε or δ is outside its range, or no σ reaches that δ.
    """
    within("[0, ∞)", epsilon=epsilon)
    within("(0, 1)", delta=delta)
    low, high = 0.0, sensitivity
    while gaussian_delta(high, epsilon, sensitivity) > delta:
        low, high = high, 2 * high
        if high > 1e12 * sensitivity:
            raise PrivacyError(f"no sigma reaches delta={delta} at epsilon={epsilon}; raise delta")

    def enough(sigma: float) -> bool:
        return gaussian_delta(sigma, epsilon, sensitivity) <= delta

    return bisected(enough, low, high, steps=100)[1]


def discrete_gaussian_tail(variance: Fraction, threshold: int) -> float:
    """``P[Z > t]`` of the discrete Gaussian, rounded up."""
    reach = math.ceil(_REACH * math.sqrt(float(variance))) + 2
    points = np.arange(-reach, reach + 1.0)
    weights = np.exp(-points * points / (2 * float(variance)))
    tail = float(weights[points > threshold].sum()) + _BEYOND
    return min(tail / float(weights.sum()) * (1 + _ERROR), 1.0)
