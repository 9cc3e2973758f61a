"""Tests for being asked to end."""

from __future__ import annotations

import signal

import pytest

from common.signals import Stop, stopped_by_signals


def test_a_signal_at_any_moment_ends_the_wait() -> None:
    stop = Stop()
    before = signal.signal(signal.SIGALRM, lambda number, frame: stop.set())
    try:
        for moment in range(2000):
            stop = Stop()
            signal.setitimer(signal.ITIMER_REAL, (5 + moment % 100) * 1e-6)
            while not stop.wait(1e-4):
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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
