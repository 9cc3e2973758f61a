"""Worker processes end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from common.engine.start import open_engine
from common.engine.task import EngineSection, Secrets

_WAIT = 60.0


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
        time.sleep(10 * _WAIT)


def test_workers_of_a_killed_process_end() -> None:
    # they hold the secrets of their last tasks, and nobody would ever stop them
    code = f"from {__name__} import start_and_wait; start_and_wait()"
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        workers = [int(number) for number in process.stdout.readline().split()]
        assert len(workers) == 2
        assert all(map(_alive, workers))
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + _WAIT
    try:
        while any(map(_alive, workers)):
            assert time.monotonic() < deadline, "workers outlive the process that was killed"
            time.sleep(0.05)
    finally:
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return False
    return state[0] != "Z"  # its new parent may not have asked for its end yet
