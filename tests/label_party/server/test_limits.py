"""Limits on what one server does at a time, with a clock that the test moves."""

from __future__ import annotations

import pytest

from labelveil.label_party.server.limits import Places, RateLimits
from labelveil.label_party.server.refusal import Refusal, too_many_calls


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_requests_per_minute() -> None:
    clock = Clock()
    rate = RateLimits(60, clock)
    assert all(rate.wait("a") == 0 for _ in range(60))
    assert rate.wait("a") > 0
    clock.now += 1.0
    assert rate.wait("a") == 0
    assert rate.wait("a") > 0
    clock.now += 3600
    assert sum(rate.wait("a") == 0 for _ in range(100)) == 60


def test_one_client_in_haste_leaves_the_others_theirs() -> None:
    limits = RateLimits(3, Clock())
    assert [limits.wait("hasty") == 0 for _ in range(4)] == [True, True, True, False]
    assert limits.wait("patient") == 0


def test_places_are_limited_and_come_back() -> None:
    places = Places(2, 2, too_many_calls)
    with places.hold("a"), places.hold("b"), pytest.raises(Refusal), places.hold("c"):
        pass
    with places.hold("c"):
        assert places.active == 1
    assert places.active == 0
