"""A process that is asked to end, and ends when it is ready."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType


class Stop:
    """Whether the process was asked to end; for the thread that signals reach.

    A handler runs in the middle of whatever its thread does. If that is waiting for a
    :class:`threading.Event`, setting the event takes a lock that the thread already holds, and
    never comes back; putting something into a :class:`queue.SimpleQueue` is made for this.
    """

    def __init__(self) -> None:
        self._asked = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Ask the process to end; may be called in a signal handler."""
        self._asked = True
        self._wake.put(None)

    def is_set(self) -> bool:
        """Whether it was asked to."""
        return self._asked

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is asked to, or for some seconds; return whether it was."""
        if not self._asked:
            with suppress(Empty):
                self._wake.get(timeout=timeout)
        return self._asked


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """Yield what SIGINT and SIGTERM set; a second SIGINT interrupts as usual."""
    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
