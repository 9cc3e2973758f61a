"""Worker processes end with the process that started them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labelveil.common.engine.local import open_engine
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
        while len(found) < 2:
            found |= set(engine.run([Identity()] * 20, Secrets(b"")))
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


def _ends(descriptor: int) -> bool:
    """Wait for the end of a process, which makes its descriptor readable."""
    ends = select.poll()
    ends.register(descriptor, select.POLLIN)
    return bool(ends.poll(_WAIT_MS))
