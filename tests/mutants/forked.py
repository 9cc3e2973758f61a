"""Pytests over a tree, each in a fork of a process that has the libraries imported.

Importing them would take a second each time. That process has no threads and nothing open, which
who asks may have: a fork of that might never end.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tests.imports import PACKAGES, ROOT

ARGUMENTS = (
    *("-q", "--no-header", "-p", "no:cacheprovider"),
    *("-p", "tests.mutants.plugin", "-m", "not slow"),
)
HANGS = 124
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["coverage", "hypothesis", "pytest", "scipy.optimize", "scipy.stats"]
)


def pytest_in(
    tree: Path, arguments: Sequence[str], more: Mapping[str, str], seconds: float | None = None
) -> tuple[int, str]:
    """Run pytest in a tree; return its exit code, or ``HANGS`` after so many seconds, and output.

    Processes that the tests start see the tree, and ``more`` in their environment.
    """
    with tempfile.NamedTemporaryFile() as output:
        process = _SERVER.Process(target=_run, args=(tree, arguments, more, output.name))
        process.start()
        process.join(seconds)
        code = HANGS if process.exitcode is None else process.exitcode
        if code == HANGS:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
        output.seek(0)
        return code, output.read().decode(errors="replace")


def _run(tree: Path, arguments: Sequence[str], more: Mapping[str, str], output: str) -> None:
    """Become a new process over the tree, as far as its tests can see, and run them."""
    code = 1
    try:
        os.setsid()
        written = os.open(output, os.O_WRONLY)
        os.dup2(written, 1)
        os.dup2(written, 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        os.chdir(tree)
        os.environ |= {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", **more}
        sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
        for name in list(sys.modules):
            if name.partition(".")[0] in ("tests", *PACKAGES):
                del sys.modules[name]
        sys.modules["__main__"] = ModuleType("__main__")
        sys.argv = ["pytest", *arguments]
        code = int(pytest.main([*ARGUMENTS, *arguments]))
    finally:
        sys.stdout.flush()
        os._exit(code)
