"""Outward rounding: how floating-point results become exact numbers that stay on the safe side.

Formulas with exponentials and logarithms are evaluated in double precision with at most a few
hundred operations, whose accumulated relative error is below 1e-12. Every such result is moved
outwards by that much before it is stored as a ``Fraction``; from there on arithmetic is exact.
"""

from __future__ import annotations

import math
from fractions import Fraction

SLACK = 1e-12
"""Relative distance by which a computed bound is moved outwards."""

TINY = 1e-15
"""Absolute distance by which a computed bound is moved outwards."""


def above(value: float) -> float:
    """Return a float that is certainly at least the exact value of the formula behind ``value``."""
    return value if math.isinf(value) else value + abs(value) * SLACK + TINY


def below(value: float) -> float:
    """Return a float that is certainly at most the exact value of the formula behind ``value``."""
    return value if math.isinf(value) else value - abs(value) * SLACK - TINY


def float_above(value: Fraction) -> float:
    """Return the smallest float that is at least ``value``."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def float_below(value: Fraction) -> float:
    """Return the largest float that is at most ``value``."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)


def root_below(value: Fraction, grain: int) -> Fraction:
    """Return the largest multiple of 1/grain whose square is at most ``value``, exactly."""
    return Fraction(math.isqrt(int(value * grain**2)), grain)


def multiple_above(value: Fraction, grain: int = 1 << 12) -> Fraction:
    """Return the least multiple of 1/grain that is at least ``value``: 1/4096 is the samplers'."""
    return Fraction(math.ceil(value * grain), grain)
