"""Tests for being asked to end."""

from __future__ import annotations

import random
import signal
import threading
from functools import partial

import pytest

from common.signals import Stop, stopped_by_signals


def _set(stop: Stop, number: int, frame: object) -> None:
    stop.set()


def test_a_signal_at_any_moment_ends_the_wait() -> None:
    chance = random.Random(0)
    main = threading.main_thread().ident
    assert main is not None
    before = signal.getsignal(signal.SIGUSR1)
    try:
        for _ in range(500):
            stop = Stop()
            signal.signal(signal.SIGUSR1, partial(_set, stop))
            pause = chance.random() * 1e-4
            thread = threading.Timer(pause, signal.pthread_kill, (main, signal.SIGUSR1))
            thread.start()
            assert any(stop.wait(1e-4) for _ in range(100_000))
            thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_it_is_asked_once_and_stays_asked() -> None:
    stop = Stop()
    assert not stop.wait(0)
    assert not stop.is_set()
    stop.set()
    assert stop.wait()
    assert stop.wait()
    assert stop.is_set()


def test_signals_ask_and_a_second_c_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stopped_by_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.wait()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
