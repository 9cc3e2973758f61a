"""How much one server does at a time: calls, streams, requests; kept on the event loop alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from labelveil.label_party.server.refusal import Refusal


class RateLimits:
    """A token bucket a client: n requests a minute, as many at once after a quiet minute."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = float(per_minute)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait(self, client: str) -> float:
        """Take one token of a client's, or say in how many seconds there is one; 0 if it is taken.

        Only known clients are asked about.
        """
        now = self._clock()
        tokens, last = self._buckets.get(client, (self._size, now))
        tokens = min(self._size, tokens + (now - last) * self._size / 60.0)
        allowed = tokens >= 1.0
        self._buckets[client] = (tokens - allowed, now)
        return 0.0 if allowed else (1.0 - tokens) * 60.0 / self._size


def share_of(limit: int, share: float, clients: int) -> int:
    """What one client may hold of a limit, at least 1: all of it while nobody else is entitled."""
    return limit if clients < 2 else max(1, int(limit * share))


class Places:
    """At most ``limit`` at once, and ``each`` of one client; others get a refusal."""

    def __init__(self, limit: int, each: int, refusal: Callable[[], Refusal]) -> None:
        self._limit, self._each, self._refusal = limit, each, refusal
        self._held: Counter[str] = Counter()

    @property
    def active(self) -> int:
        return self._held.total()

    @contextmanager
    def hold(self, client: str) -> Iterator[None]:
        """Hold a place; a ``Refusal`` if all are taken, or all that may be this client's."""
        if self.active >= self._limit or self._held[client] >= self._each:
            raise self._refusal()
        self._held[client] += 1
        try:
            yield
        finally:
            self._held[client] -= 1
            self._held += Counter()  # forgets clients that hold nothing
