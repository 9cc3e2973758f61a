"""Our programs, forked from one process that has imported all of them.

Importing libraries is most of what a short command takes, and the pages type a hundred of them, as
do the tests that go a long way command by command.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import pytest

from labelveil.children import child_command, child_environment
from labelveil.simulation import processes
from labelveil.simulation import run as simulations
from tests.imports import import_name, modules

_SUBREAPER, _LONGEST = 36, 1 << 17


def run_program(module: str, arguments: Sequence[str], folder: Path, path: str) -> tuple[int, str]:
    """Run a program of ours in a folder to its end; returns its exit code, and what it said.

    Parameters
    ----------
    path
        Where it finds what it starts.
    """
    said = folder / ".said"
    environment = child_environment(PATH=path, COLUMNS="100", NO_COLOR="1")
    with open(os.devnull, "rb") as nothing, said.open("wb") as output:
        files = [nothing.fileno(), output.fileno(), output.fileno()]
        process = _fork([module, *arguments], folder, environment, files)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status), said.read_text("utf-8")


class ForkedParty(processes.Party):
    """A party's process that has imported everything before it began."""

    def _execute_child(self, args: list[str], *given: Any) -> None:
        folder, environment, pipes = given[4], given[5], given[9:15]
        self.pid = _fork(args[2:], folder, environment, [pipes[0], pipes[3], pipes[5]])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


@contextmanager
def forked_parties() -> Iterator[None]:
    """Let simulations fork both parties, where it is not their start that is looked at."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (processes, simulations):
            patch.setattr(module, "Party", ForkedParty)
        yield


def fork_party(module: str, arguments: Sequence[str], directory: Path, log: Path) -> None:
    """As :func:`labelveil.simulation.processes.run_party`."""
    with forked_parties():
        processes.run_party(module, arguments, directory, log)


def _fork(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], files: Sequence[int]
) -> int:
    """Start a module of ours with arguments; returns its process, a child of this one."""
    programs = _programs()
    asked = json.dumps([str(folder), dict(environment), *words]).encode()
    assert len(asked) < _LONGEST
    prctl = ctypes.CDLL(None).prctl
    prctl(_SUBREAPER, 1, 0, 0, 0)  # what the forked process leaves behind is ours
    try:
        socket.send_fds(programs, [asked], list(files))
        return int(programs.recv(64))
    finally:
        prctl(_SUBREAPER, 0, 0, 0, 0)


@cache
def _programs() -> socket.socket:
    """Start the process, which ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = child_environment(COLUMNS="100", NO_COLOR="1")
    command = child_command(__name__, str(theirs.fileno()))
    process = subprocess.Popen(
        command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
    )
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def main() -> None:
    """Fork a program for each message, twice: whoever asked is then its parent; send its number."""
    asking = socket.socket(fileno=int(sys.argv[1]))
    for name in modules():
        import_module(import_name(name))
    gc.freeze()
    while True:
        data, files, _, _ = socket.recv_fds(asking, _LONGEST, 3)
        if not data:
            return
        reads, writes = os.pipe()
        between = os.fork()
        if not between:
            process = os.fork()
            if not process:
                os.close(reads)
                os.close(writes)
                asking.close()
                _become(files, *json.loads(data))
            os.write(writes, str(process).encode())
            os._exit(0)
        os.waitpid(between, 0)
        asking.send(os.read(reads, 64))
        for file in (*files, reads, writes):
            os.close(file)


def _become(
    files: list[int], folder: str, environment: dict[str, str], module: str, *arguments: str
) -> NoReturn:
    atexit._clear()  # libraries would wait for threads of theirs, which were not forked
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for theirs, standard in zip(files, range(3), strict=True):
        os.dup2(theirs, standard)
        os.close(theirs)
    sys.argv[1:] = arguments
    code: object = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else code is not None)


if __name__ == "__main__":
    main()
