"""Where a condition begins to hold that goes on holding, on whole numbers or between two ends."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable


def least_integer(
    holds: Callable[[int], bool], start: int, *, first: int = 1, most: float = math.inf
) -> int | None:
    """Return the least n >= ``start`` at which a condition holds that goes on holding; or None.

    ``first``, or ``start`` if it is larger, is tried first, and doubled until it holds; None if
    that passes ``most``. Between the last two tries the place is bisected.
    """
    low, high = start - 1, max(start, first)
    while not holds(high):
        low, high = high, 2 * high
        if high > most:
            return None
    return low + 1 + bisect_left(range(low + 1, high), True, key=holds)


def bisected(
    holds: Callable[[float], bool], low: float, high: float, steps: int, tolerance: float = 0.0
) -> tuple[float, float]:
    """Return the ends of what is left of low … high after so many halves, or once they are close.

    A condition does not hold at the lower end and holds at the higher one, which is what rounds to
    the safe side; neither of the two that are given is tried. ``tolerance`` is relative.
    """
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
        if high - low <= tolerance * high:
            break
    return low, high
