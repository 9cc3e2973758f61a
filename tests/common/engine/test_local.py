"""Worker processes end with the process that started them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from labelveil.common.engine.local import Pool, open_engine
from labelveil.common.engine.spark import SparkEngine
from labelveil.common.engine.task import EngineSection, Secrets

_WAIT_MS = 60_000


@dataclass(frozen=True)
class Identity:
    """Tells which process runs it."""

    def run(self, secrets: Secrets) -> int:
        return os.getpid()


def start_and_wait() -> None:
    """Print two workers' numbers, and wait to be killed."""
    with open_engine(EngineSection(workers=2)) as engine:
        found: set[int] = set()
        for _ in range(100):
            found |= set(engine.run([Identity()] * 20, Secrets(b"")))
            if len(found) == 2:
                break
        print(*found, flush=True)
        signal.pause()


def test_workers_of_a_killed_process_end() -> None:
    # they hold the secrets of their last tasks, and nobody would ever stop them
    code = f"from {__name__} import start_and_wait; start_and_wait()"
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", code]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}  # Python tells of leaks
    with subprocess.Popen(command, **streams, text=True, cwd=root) as process:
        assert process.stdout is not None
        workers = [int(number) for number in process.stdout.readline().split()]
        assert len(workers) == 2
        watched = [os.pidfd_open(worker) for worker in workers]
        process.send_signal(signal.SIGKILL)
    try:
        assert all(map(_ends, watched)), "workers outlive the process that was killed"
    finally:
        for descriptor in watched:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)


@pytest.mark.slow
def test_workers_are_other_processes_and_one_is_this_one() -> None:
    for workers in (1, 2):
        with open_engine(EngineSection(workers=workers)) as engine:
            ran = set(engine.run([Identity()] * 4, Secrets(b"")))
        assert (ran == {os.getpid()}) is (workers == 1)
        assert (os.getpid() in ran) is (workers == 1)


def test_spark_is_the_engine_where_it_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = EngineSection(name="spark", partitions=3)
    monkeypatch.setattr(SparkEngine, "open", lambda config: nullcontext(config))
    with open_engine(asked) as engine:
        assert engine is asked


@dataclass(frozen=True)
class Noted:
    """Notes that it ran; the second one waits until it may end."""

    number: int
    ran: list[int]
    free: threading.Event

    def run(self, secrets: Secrets) -> int:
        self.ran.append(self.number)
        if self.number == 1:
            self.free.wait()
        return self.number


def test_who_stops_early_leaves_no_task_behind_and_few_wait() -> None:
    ran, free = list[int](), threading.Event()
    taken = list[int]()

    def tasks() -> Iterator[Noted]:
        for number in range(50):
            taken.append(number)
            yield Noted(number, ran, free)

    with ThreadPoolExecutor(1) as executor:
        results = Pool(cast(ProcessPoolExecutor, executor), 1).stream(
            cast(Sequence[Noted], tasks()), Secrets(b"")
        )
        first, before = next(results), [*taken]
        cast(Generator[int], results).close()
        free.set()
    assert (first, before) == (0, [0, 1, 2])
    assert set(ran) <= {0, 1}


def _ends(descriptor: int) -> bool:
    """Wait for the end of a process, which makes its descriptor readable."""
    ends = select.poll()
    ends.register(descriptor, select.POLLIN)
    return bool(ends.poll(_WAIT_MS))
