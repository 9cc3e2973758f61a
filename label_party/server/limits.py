"""How much one server does at a time: concurrent fetches, stalled fetches, requests a minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self


class RateLimit:
    """A token bucket: so many requests a minute, as many at once after a quiet minute."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = float(per_minute)
        self._tokens = self._size
        self._clock = clock
        self._last = clock()
        self._lock = threading.Lock()

    def allow(self) -> bool:
        """Take one token if there is one."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._size, self._tokens + (now - self._last) * self._size / 60.0)
            self._last = now
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            return True


class RateLimits:
    """A rate limit for each client, so that a fast one cannot use up another's."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._limits: dict[str, RateLimit] = {}
        self._lock = threading.Lock()

    def allow(self, client: str) -> bool:
        """Take one token of a client's; only known clients are asked about."""
        with self._lock:
            limit = self._limits.get(client)
            if limit is None:
                limit = self._limits[client] = RateLimit(self._per_minute, self._clock)
        return limit.allow()


class Stream:
    """One running fetch: it says when it makes progress, and can be ended."""

    def __init__(
        self, cancel: Callable[[], object], clock: Callable[[], float], client: str = ""
    ) -> None:
        self.cancel = cancel
        self.client = client
        self._clock = clock
        self.last_progress = clock()

    def progress(self) -> None:
        self.last_progress = self._clock()


def share_of(limit: int, share: float, clients: int) -> int:
    """What one client may hold of a limit, at least 1: all of it while nobody else is entitled."""
    return limit if clients < 2 else max(1, int(limit * share))


class StreamLimit:
    """At most so many fetches at once, so many of one client, and none that stands still for long.

    A fetch occupies a thread while its reader is slow. The limit keeps the server's other threads
    free, and the watch ends readers that have stopped reading, so that they cannot hold the places
    forever. Use it as a context manager; the watch runs in between.
    """

    def __init__(
        self,
        limit: int,
        stall_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        each: int | None = None,
    ) -> None:
        self._limit = limit
        self._each = limit if each is None else each
        self._stall = stall_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._stopped = threading.Event()
        self._watch = threading.Thread(target=self._run, name="stream-watch", daemon=True)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._watch.join()

    @property
    def active(self) -> int:
        """How many fetches run."""
        with self._lock:
            return len(self._streams)

    @property
    def watching(self) -> bool:
        """Whether stalled fetches are still looked for."""
        return self._watch.is_alive()

    @contextmanager
    def place(self, cancel: Callable[[], object], client: str = "") -> Iterator[Stream | None]:
        """Hold a place for one fetch; None if all are taken, or all that are this client's."""
        stream = Stream(cancel, self._clock, client)
        with self._lock:
            own = sum(other.client == client for other in self._streams)
            taken = len(self._streams) >= self._limit or own >= self._each
            if not taken:
                self._streams.add(stream)
        try:
            yield None if taken else stream
        finally:
            with self._lock:
                self._streams.discard(stream)

    def end_stalled(self) -> int:
        """Cancel every fetch without progress for too long; return how many."""
        with self._lock:
            limit = self._clock() - self._stall
            stalled = [stream for stream in self._streams if stream.last_progress < limit]
        for stream in stalled:
            stream.cancel()
        return len(stalled)

    def _run(self) -> None:
        while not self._stopped.wait(min(self._stall / 4, 5.0)):
            self.end_stalled()
