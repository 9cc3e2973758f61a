"""Limits on what one server does at a time, with a clock that the test moves."""

from __future__ import annotations

from label_party.server.limits import RateLimit, RateLimits, StreamLimit


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_requests_per_minute() -> None:
    clock = Clock()
    rate = RateLimit(60, clock)
    assert all(rate.allow() for _ in range(60))
    assert not rate.allow()
    clock.now += 1.0
    assert rate.allow()
    assert not rate.allow()
    clock.now += 3600
    assert sum(rate.allow() for _ in range(100)) == 60


def test_one_client_in_haste_leaves_the_others_theirs() -> None:
    limits = RateLimits(3, Clock())
    assert [limits.allow("hasty") for _ in range(4)] == [True, True, True, False]
    assert limits.allow("patient")


def test_places_are_limited_and_come_back() -> None:
    limit = StreamLimit(2, 10.0, Clock())
    with limit.place(lambda: None) as one, limit.place(lambda: None) as two:
        assert one is not None
        assert two is not None
        with limit.place(lambda: None) as three:
            assert three is None
    with limit.place(lambda: None) as again:
        assert again is not None


def test_only_stalled_fetches_are_ended() -> None:
    clock = Clock()
    limit = StreamLimit(2, 10.0, clock)
    ended: list[str] = []
    with limit.place(lambda: ended.append("slow")), limit.place(lambda: ended.append("fast")) as f:
        clock.now = 9.0
        assert f is not None
        f.progress()
        clock.now = 11.0
        assert limit.end_stalled() == 1
    assert ended == ["slow"]
