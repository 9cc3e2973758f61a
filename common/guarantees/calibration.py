"""The least noise, or the largest budget, that keeps a target."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rational import rational
from labelveil.common.exact.search import least_integer
from labelveil.common.guarantees.additive import ZeroConcentratedDP
from labelveil.common.guarantees.base import Guarantee
from labelveil.common.guarantees.conversion import epsilon_at
from labelveil.common.guarantees.limits import positive

_STEPS = 60


def calibrate(
    guarantee: Callable[[Fraction], Guarantee],
    epsilon: float,
    delta: float | Fraction,
    *,
    grain: Fraction = Fraction(1, 4096),
    limit: float = 2.0**32,
) -> Fraction:
    """Return the least noise parameter whose guarantee is (ε, δ)-DP, a multiple of ``grain``.

    ``guarantee`` leads from a noise parameter (a scale or a variance) to the guarantee of the
    *whole* use, repeats and all; more noise must guarantee more privacy. The default of ``grain``
    suits the exact samplers.

    Raises
    ------
    PrivacyError
        If even ``limit`` does not reach the target.
    """
    positive(epsilon=epsilon)

    def good(multiple: int) -> bool:
        return epsilon_at(guarantee(multiple * grain), delta) <= epsilon

    least = least_integer(good, 1, first=math.ceil(1 / grain), most=limit / grain)
    if least is None:
        raise PrivacyError(
            f"no noise up to {limit:g} reaches epsilon={epsilon} at delta={float(delta):g}; raise"
            " one of them or repeat less often"
        )
    return least * grain


@cache
def largest_rho(epsilon: float, delta: float | Fraction, failure: float | Fraction = 0) -> Fraction:
    """Return the largest ρ (to one part in 10⁹) whose approximate zCDP is (ε, δ)-DP.

    ``failure`` is its failure probability, below δ.
    """
    positive(epsilon=epsilon)

    def good(rho: Fraction) -> bool:
        return epsilon_at(ZeroConcentratedDP.of(rho, failure), delta) <= epsilon

    low, high = Fraction(0), rational(epsilon) + 1
    for _ in range(_STEPS):
        middle = ((low + high) / 2).limit_denominator(1 << 60)
        if good(middle):
            low = middle
        else:
            high = middle
        if high - low <= low * Fraction(1, 10**9):
            break
    return low
