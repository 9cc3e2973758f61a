"""Pytests over a tree, each in a fork of a process that has the libraries imported.

Importing them would take a second each time. That process has no threads and nothing open, which
who asks may have: a fork of that might never end.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
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
COMPUTES = -signal.SIGKILL
_PATIENCE = 3
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["coverage", "hypothesis", "pytest", "scipy.optimize", "scipy.stats"]
)


def pytest_in(
    tree: Path, arguments: Sequence[str], more: Mapping[str, str], seconds: int | None = None
) -> tuple[int, str]:
    """Run pytest in a tree; return its exit code and output.

    Processes that the tests start see the tree, and ``more`` in their environment. The code is
    ``COMPUTES`` after so many seconds of a processor, and ``HANGS`` where nothing ends in
    ``_PATIENCE`` times as many on the clock.
    """
    with tempfile.NamedTemporaryFile() as output:
        given = (tree, arguments, more, output.name, seconds)
        process = _SERVER.Process(target=_run, args=given)
        process.start()
        process.join(None if seconds is None else _PATIENCE * seconds)
        code = HANGS if process.exitcode is None else process.exitcode
        if code == HANGS:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
        output.seek(0)
        return code, output.read().decode(errors="replace")


def _run(
    tree: Path,
    arguments: Sequence[str],
    more: Mapping[str, str],
    output: str,
    seconds: int | None,
) -> None:
    """Become a new process over the tree, as far as its tests can see, and run them."""
    code = 1
    try:
        os.setsid()
        if seconds is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
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
