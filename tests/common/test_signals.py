"""Tests for being asked to end."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
from contextlib import closing, nullcontext

import pytest

from labelveil.common.signals import (
    Stop,
    Terminated,
    interrupts_held,
    stopped_by_signals,
    terminated_as_interrupted,
)


def test_a_signal_at_any_moment_ends_the_wait() -> None:
    chance = random.Random(0)
    main = threading.main_thread().ident
    assert main is not None
    for _ in range(500):
        with stopped_by_signals() as stop:
            pause = chance.random() * 1e-4
            thread = threading.Timer(pause, signal.pthread_kill, (main, signal.SIGTERM))
            thread.start()
            assert stop.wait()
            thread.join()


@pytest.mark.parametrize("taken_by", ["the main thread", "another"])
def test_a_signal_at_any_moment_ends_a_question(taken_by: str) -> None:
    """Reading a terminal would outlast a signal that another thread takes."""
    chance, main = random.Random(0), threading.get_ident()

    def interrupt() -> None:
        here = main if taken_by == "the main thread" else threading.get_ident()
        signal.pthread_kill(here, signal.SIGINT)

    reads, writes = os.pipe()
    with open(reads) as terminal, open(writes, "w", buffering=1) as typing:
        for _ in range(300):
            with stopped_by_signals() as stop:
                thread = threading.Timer(chance.random() * 1e-4, interrupt)
                thread.start()
                assert not stop.until_readable(terminal)
                thread.join()
        with stopped_by_signals() as stop:
            typing.write("y\n")
            assert stop.until_readable(terminal)
            assert terminal.readline() == "y\n"


def test_a_signal_that_another_thread_takes_ends_the_wait() -> None:
    ended, late = threading.Event(), []

    def take() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        if not ended.wait(60):  # the main thread's own signal ends any wait
            late.append(True)
            signal.pthread_kill(main, signal.SIGTERM)

    main = threading.get_ident()
    with stopped_by_signals() as stop:
        thread = threading.Timer(0.1, take)
        thread.start()
        assert stop.wait()
        ended.set()
        thread.join()
    assert not late


def test_a_wait_ends_when_its_time_is_over_and_wakes_for_no_other_signal() -> None:
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        with stopped_by_signals() as stop:
            signal.raise_signal(signal.SIGUSR1)
            assert not stop.wait(0.01)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_hangup_is_handed_on_and_ends_nothing() -> None:
    before, heard = signal.getsignal(signal.SIGHUP), []
    with stopped_by_signals(hangups=True) as stop:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert not stop.wait(0.01, lambda: heard.append("early"))

        def again() -> None:
            heard.append("late")
            signal.raise_signal(signal.SIGTERM)

        threading.Timer(0.01, signal.raise_signal, (signal.SIGHUP,)).start()
        assert stop.wait(on_hangup=again)
    assert heard == ["early", "late"]
    assert signal.getsignal(signal.SIGHUP) is before


def test_it_is_asked_once_and_stays_asked() -> None:
    with closing(Stop()) as stop:
        assert not stop.wait(0)
        assert not stop.is_set()
        for _ in range(100_000):  # more than its socket holds
            stop.set()
        assert stop.wait()
        assert stop.wait()
        assert stop.is_set()


def test_signals_ask_and_a_second_c_interrupts() -> None:
    before, woken = signal.getsignal(signal.SIGINT), signal.set_wakeup_fd(-1)
    with stopped_by_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.wait()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == woken


def test_a_termination_is_an_interruption_within_and_means_afterwards_what_it_did() -> None:
    def own(number: int, frame: object) -> None:
        raise ValueError

    before = signal.signal(signal.SIGTERM, own)
    try:
        for inside in (Terminated, None):
            with pytest.raises(Terminated) if inside else nullcontext(), terminated_as_interrupted():  # fmt: skip  # noqa: E501
                if inside:
                    signal.raise_signal(signal.SIGTERM)
            assert signal.getsignal(signal.SIGTERM) is own
        assert issubclass(Terminated, KeyboardInterrupt)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_held_interrupts_come_when_the_work_is_done(number: int) -> None:
    done = list[int]()

    def work() -> None:
        with interrupts_held():
            for step in range(2):
                signal.raise_signal(number)
                done.append(step)

    with terminated_as_interrupted():
        before = signal.getsignal(number)
        with pytest.raises(KeyboardInterrupt):
            work()
        assert signal.getsignal(number) is before
    assert done == [0, 1]


def test_what_a_library_does_at_an_interrupt_is_kept() -> None:
    """Polars' own handler, which ends its queries."""
    libc, before, after = ctypes.CDLL(None), *(ctypes.create_string_buffer(256) for _ in range(2))
    signal.siginterrupt(signal.SIGINT, False)  # stands for another action than Python's
    libc.sigaction(signal.SIGINT, None, before)
    with interrupts_held():
        pass
    libc.sigaction(signal.SIGINT, None, after)
    signal.siginterrupt(signal.SIGINT, True)
    for start, stop in (
        (0, 16),
        (136, 140),
    ):  # function and mask; flags
        assert before.raw[start:stop] == after.raw[start:stop]


def test_what_ignores_interrupts_or_cannot_be_interrupted_is_left_as_it_is() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_held():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    seen = list[object]()

    def elsewhere() -> None:
        with interrupts_held():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]
