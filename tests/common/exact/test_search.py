"""The least whole number is found wherever it lies, and from whatever is tried first."""

from __future__ import annotations

import pytest

from labelveil.common.exact.search import bisected, least_integer


@pytest.mark.parametrize("start", [0, 1, 5])
@pytest.mark.parametrize("first", [1, 4, 9])
def test_the_least_is_found_and_nothing_below_the_start_is_tried(start: int, first: int) -> None:
    for least in range(40):
        tried: list[int] = []

        def holds(n: int, least: int = least, tried: list[int] = tried) -> bool:
            tried.append(n)
            return n >= least

        assert least_integer(holds, start, first=first) == max(least, start)
        assert min(tried) >= start
        assert len(tried) == len(set(tried))  # each costs as much as a guarantee


def test_there_may_be_none() -> None:
    assert least_integer(lambda n: n >= 9, 1, most=15) is None
    assert least_integer(lambda n: n >= 9, 1, most=16) == 9
    assert least_integer(lambda n: True, 1, first=8, most=4) == 1


def test_ends_enclose_where_it_begins() -> None:
    low, high = bisected(lambda x: x >= 0.3, 0.0, 1.0, steps=100)
    assert low < 0.3 <= high
    assert high - low < 1e-15
    assert bisected(lambda x: x >= 0.3, 0.0, 1.0, steps=2) == (0.25, 0.5)
    assert bisected(lambda x: x >= 0.3, 0.0, 1.0, steps=9, tolerance=0.34) == (0.25, 0.375)
