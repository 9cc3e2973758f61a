"""A process that is asked to end, and ends when it is ready."""

from __future__ import annotations

import ctypes
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO


class Stop:
    """Whether the process was asked to end; for the main thread, which signals reach.

    Waiting for a lock, an event or a queue can outlast the signal: Python only notes a signal that
    arrives while the main thread gives way to another (or that another thread takes), and its
    handler runs when the wait ends. So this waits for bytes, and a signal sends one when it is
    noted (:func:`signal.set_wakeup_fd`).
    """

    def __init__(self) -> None:
        self._asked = self.hung_up = False
        self._bytes, self.wake = socket.socketpair()
        self.wake.setblocking(False)

    def set(self) -> None:
        """Ask the process to end; may be called in a signal handler."""
        self._asked = True
        with suppress(BlockingIOError):  # full of bytes: it wakes anyway
            self.wake.send(b"\0")

    def is_set(self) -> bool:
        return self._asked

    def wait(
        self, timeout: float | None = None, on_hangup: Callable[[], object] = lambda: None
    ) -> bool:
        """Wait until it is asked to, or for some seconds; return whether it was.

        Meanwhile ``on_hangup`` is called for SIGHUP, once for several that came at once.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._asked and (end is None or time.monotonic() < end):
            if self.hung_up:
                self.hung_up = False
                on_hangup()
                continue
            self._bytes.settimeout(None if end is None else max(1e-3, end - time.monotonic()))
            with suppress(TimeoutError):
                self._bytes.recv(4096)  # also of a signal that asks for something else
        return self._asked

    def until_readable(self, file: IO[str]) -> bool:
        """Wait until a terminal, pipe or socket has something to read; False if asked to end."""
        both, ready = (file.fileno(), self._bytes.fileno()), set[int]()
        while not (self._asked or both[0] in ready):
            ready = set(select.select(both, [], [])[0])
            if both[1] in ready:
                self._bytes.recv(4096)  # also of a signal that asks for something else
        return not self._asked

    def close(self) -> None:
        self._bytes.close()
        self.wake.close()


class Terminated(KeyboardInterrupt):
    """SIGTERM, where it ends the work as ^C does."""


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM raise :class:`Terminated` in the main thread, so that what was done is said."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # another thread leaves it to its caller
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_LIBC = ctypes.CDLL(None)
_ACTION_BYTES = 256  # more than a ``struct sigaction`` has anywhere


def _action(number: int) -> ctypes.Array[ctypes.c_char]:
    """What the system calls for a signal. Python has no words for it: a library (Polars) may have
    put its own before Python's, so that ^C ends its work, too."""
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    _LIBC.sigaction(number, None, action)
    return action


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let ^C and SIGTERM wait until the block is done, and then mean what they did before it.

    For short work of libraries that call Python from their compiled code: an exception that appears
    there, as an interrupt's does in any line, may be lost, or abort the process.
    """
    held = list[tuple[int, FrameType | None]]()

    def hold(number: int, frame: FrameType | None) -> None:
        held.append((number, frame))

    before, actions = {}, {}
    if threading.current_thread() is threading.main_thread():  # which alone is interrupted
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(handler := signal.getsignal(number)):  # the others end nothing, or all
                before[number], actions[number] = handler, _action(number)
                signal.signal(number, hold)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
            _LIBC.sigaction(number, actions[number], None)
        for sent, frame in held:
            before[signal.Signals(sent)](sent, frame)


@contextmanager
def stopped_by_signals(*, hangups: bool = False) -> Iterator[Stop]:
    """Yield what SIGINT and SIGTERM set; a second SIGINT interrupts as usual.

    With ``hangups`` SIGHUP ends nothing: :meth:`Stop.wait` hands it on.
    """
    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            stop.hung_up = True
            return
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    woken = signal.set_wakeup_fd(stop.wake.fileno(), warn_on_full_buffer=False)
    numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hangups else [])]
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken)
        stop.close()
