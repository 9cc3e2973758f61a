"""Parameters within their limits; what is outside is named with its value and the limit."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

from labelveil.common.errors import PrivacyError

Number = float | Fraction


def digits(number: object) -> str:
    """A number in a few digits, however large it is; or what stands in its place."""
    try:
        return f"{float(number):g}"  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return f"{number!r:.20}"


def positive(**numbers: Number | None) -> None:
    """Refuse numbers that are not finite and above 0; None says that there is no such number."""
    for name, number in numbers.items():
        if number is not None and not 0 < number < math.inf:
            raise PrivacyError(f"{name}={digits(number)} must be > 0 and finite")


def at_least(least: int, **counts: int | None) -> None:
    """Refuse counts below a least one; None says that there is no such count."""
    for name, count in counts.items():
        if count is not None and not count >= least:  # nor what is no number
            raise PrivacyError(f"{name}={count} must be at least {least}")


def within(interval: str, **numbers: Number) -> None:
    """Refuse numbers outside an interval such as ``(0, 1]`` or ``[0, ∞)``, and what is none."""
    low, high = _ends(interval)
    for name, number in numbers.items():
        try:
            above = number >= low if interval[0] == "[" else number > low
            below = number <= high if interval[-1] == "]" else number < high
        except TypeError as error:
            raise PrivacyError(f"{name}={number!r:.100} must be a number in {interval}") from error
        if not (above and below):
            raise PrivacyError(f"{name}={digits(number)} must lie in {interval}")


@cache
def _ends(interval: str) -> list[Number]:
    """Whole numbers as such, which are the fastest to compare with."""
    ends = interval[1:-1].split(", ")
    return [math.inf if x == "∞" else int(x) if x.isdigit() else Fraction(x) for x in ends]
