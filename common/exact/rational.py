"""Rational numbers from text, and certain bounds of e^ε and ln(x)."""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from numbers import Rational
from typing import SupportsFloat

from labelveil.common.errors import PrivacyError

_RATIONAL = re.compile(r"[0-9]{1,1000}(/0*[1-9][0-9]{0,999})?")
_LARGEST = 10**200
_TAYLOR_TERMS = 200
_SCALE = 1 << 192
_DIGITS = 100


def parse_rational(text: object) -> Fraction:
    """Read an integer or a fraction such as ``3/2``: at most 1,000 digits above and below, and the
    value below 10²⁰⁰, so that it has a float.

    ``Fraction`` itself also reads ``1e999999999`` and would try to write that out.
    """
    if not (isinstance(text, str) and _RATIONAL.fullmatch(text)):
        raise PrivacyError(f"{text!r:.60} must be an integer or a fraction >= 0, as text")
    value = Fraction(text)
    if value >= _LARGEST:
        raise PrivacyError(f"{text:.60} must be below 1e200")
    return value


def exp_lower_bound(epsilon: float | Fraction) -> Fraction:
    """Return a rational number just below e^ε (relative gap under 1e-50), for 0 <= ε <= 40.

    A truncated Taylor series: every term is positive, so leaving terms out and rounding terms down
    both stay below.

    Raises
    ------
    PrivacyError
        If ε is outside that range.
    """
    if not 0 <= epsilon <= 40:  # refuses NaN too
        raise PrivacyError(f"epsilon={float(epsilon):g} must lie in 0 … 40")
    numerator, denominator = rational(epsilon).as_integer_ratio()
    term = total = _SCALE
    for j in range(1, _TAYLOR_TERMS):
        term = term * numerator // (denominator * j)
        total += term
    return Fraction(total, _SCALE)


def log_upper_bound(ratio: Fraction) -> float:
    """Return the smallest float that is at least ln(ratio), for ratio >= 1.

    The quotient is rounded up and its logarithm, correct to over 100 digits, moved up by one of
    them: the bound holds for any ratio, and it is the smallest unless ln(ratio) is closer than
    that to a float.

    Raises
    ------
    ValueError
        If the ratio is below 1.
    """
    if ratio < 1:
        raise ValueError(f"ratio={ratio} must be >= 1")
    if ratio == 1:
        return 0.0
    digits = _DIGITS + ratio.denominator.bit_length() // 3  # so that ratio - 1 keeps its digits too
    context = Context(prec=digits, rounding=ROUND_CEILING)
    quotient = context.divide(Decimal(ratio.numerator), Decimal(ratio.denominator))
    bound = context.next_plus(context.ln(quotient))
    nearest = float(bound)
    return math.nextafter(nearest, math.inf) if Decimal(nearest) < bound else nearest


def rational(value: SupportsFloat) -> Fraction:
    """Return a number exactly as it is; of NumPy's, too, where ``Fraction`` takes float64 alone."""
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))  # Python's never overflow
    return Fraction(float(value))


def decimal_value(value: float) -> Fraction:
    """Return the number that a person wrote: the shortest decimal that reads as this float."""
    return Fraction(repr(float(value)))
