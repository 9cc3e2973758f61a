"""What has to end: it is given some seconds of the processor, however busy the machine is."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDLESS = 30.0
"""Seconds after which a case of a moment is taken to have no end."""


@contextmanager
def ending(seconds: float = ENDLESS) -> Iterator[None]:
    """Raise ``TimeoutError`` in what takes so long on a processor."""

    def endless(*_: object) -> None:
        raise TimeoutError("no end of it is in sight")

    before = signal.signal(signal.SIGPROF, endless)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
