"""Run one stage in this process, and tell what it took.

Workers import what the process was started as: that is this module, which imports little.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from labelveil.common.allocator import keep_freed_memory

Stage = Callable[[Path, int], dict[str, Any] | None]


def main(module: str, name: str, folder: str, rows: str) -> None:
    """Run a module's stage, as a command would; print its seconds and peak memory as JSON."""
    keep_freed_memory()
    stage: Stage = getattr(import_module(module), name)
    clock = Clock()
    with Memory() as memory:
        facts = stage(Path(folder), int(rows)) or {}
    print(json.dumps({**clock.read(), "peak": memory.peak, **facts}))


class Clock:
    """Times this process and its children from here on."""

    def __init__(self) -> None:
        self._begun = self._now()

    def read(self) -> dict[str, float]:
        """Seconds, CPU seconds, and those of them outside the kernel: its part is the machine's."""
        seconds, user, system = (b - a for a, b in zip(self._begun, self._now(), strict=True))
        return {"seconds": seconds, "cpu": user + system, "user": user}

    @staticmethod
    def _now() -> tuple[float, float, float]:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        user, system = (
            sum(getattr(one, name) for one in used) for name in ("ru_utime", "ru_stime")
        )
        return time.perf_counter(), user, system


class Memory:
    """Watches this process, its children, and maybe others: the most memory that any one has.

    Pages of files that are mapped are left out: the system takes them back when it needs to.
    """

    def __init__(self, *others: int) -> None:
        self.peak = 0
        self._only = others
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            for process in self._only or (os.getpid(), *_children(os.getpid())):
                self.peak = max(self.peak, _anonymous(process))
            if self._done.wait(0.02):
                return


def _children(process: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _anonymous(process: int) -> int:
    """Bytes of memory that a process has for itself; 0 when it is gone."""
    total = 0
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total


def cpu_of(process: int) -> tuple[float, float]:
    """Seconds of processor time that a living process has used, outside the kernel and in it."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / ticks, int(fields[12]) / ticks


if __name__ == "__main__":
    main(*sys.argv[1:])
