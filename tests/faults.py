"""Dying and failing at the nth step, whatever the step is: a call that writes, syncs or renames.

``faults.c``, compiled for the test run, is loaded before the C library into one patient process,
which forks a child for every experiment: forking is hundreds of times cheaper than starting an
interpreter. The child arms the counter and runs a body; SQLite's and Arrow's calls count as much as
the interpreter's own. So *every* moment at which the disk can be found after ``kill -9`` is tried,
not a sample of them.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_suffix(".c")
SOCKETS = ""
"""In place of a folder: count what is sent, not what is written."""


class Mode(IntEnum):
    """What happens at the nth step."""

    COUNT = 0
    KILL_BEFORE = 1
    KILL_AFTER = 2
    KILL_TORN = 3
    """Half of a write is written; any other call is done before the process dies."""
    FAIL_ONCE = 4
    FAIL_FROM = 5
    """This step and all later ones fail."""


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    signal: int  # that killed it, or 0
    steps: int  # -1 if it was killed
    error: str  # the one line that its user would have seen; empty if all went well

    @property
    def killed(self) -> bool:
        return self.signal == signal.SIGKILL


class Experiments:
    """The patient process; one experiment at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(
        self,
        body: str,
        *arguments: str,
        folder: Path | str,
        mode: Mode = Mode.COUNT,
        nth: int = 0,
        failure: int = errno.ENOSPC,
    ) -> Ended:
        """Run ``module:function`` with some arguments in a child.

        Steps are changes of ``folder``, absolute, or of :data:`SOCKETS`; ``failure`` is the error
        number of a failing one.
        """
        experiment = [body, list(arguments), str(folder), int(mode), nth, failure]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(experiment) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the patient process died"
        return Ended(*json.loads(line))


@contextmanager
def experiments(folder: Path, *modules: str) -> Iterator[Experiments]:
    """Start the patient process, which imports some modules once.

    Skips the test where there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("counting system calls needs Linux and a C compiler (cc)")
    library = folder / "faults.so"
    subprocess.run([compiler, "-O1", "-fPIC", "-shared", "-o", library, SOURCE, "-ldl"], check=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults", *modules],
        cwd=SOURCE.parents[1],
        env={**os.environ, "PYTHONPATH": str(SOURCE.parents[1]), "LD_PRELOAD": str(library)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield Experiments(process)
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def _patient() -> None:
    """Fork a child for each line of the standard input, and report how it ended."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    print("ready", flush=True)
    for line in sys.stdin:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            _experiment(writer, *json.loads(line))
        os.close(writer)
        with os.fdopen(reader) as answer:
            text = answer.read()
        _, status = os.waitpid(child, 0)
        signal_ = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        steps, error, used = json.loads(text) if text else (-1, f"exit status {status}", [])
        for module in used:  # lest every child imports them anew
            importlib.import_module(module)
        print(json.dumps([signal_, steps, error]), flush=True)


def _experiment(
    writer: int, body: str, arguments: list[Any], folder: str, mode: int, nth: int, failure: int
) -> None:
    from labelveil.common.errors import LabelveilError

    module, _, name = body.partition(":")
    function = getattr(importlib.import_module(module), name)
    shim = ctypes.CDLL(None)
    shim.faults_seen.restype = ctypes.c_long
    counted = os.fsencode(folder) if folder else None
    shim.faults_arm(counted, mode, ctypes.c_long(nth), failure)
    error, known = "", set(sys.modules)
    try:
        function(*arguments)
    except LabelveilError as refused:
        error = str(refused)
    except BaseException as bad:  # a user would see a traceback
        error = f"unforeseen {type(bad).__name__}: {bad}"
    used = sorted(name for name in {*sys.modules} - known if name.startswith(("numpy", "scipy")))
    os.write(writer, json.dumps([shim.faults_seen(), error, used]).encode())
    os._exit(0)


if __name__ == "__main__":
    _patient()
