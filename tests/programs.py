"""Our programs, forked from one process that has imported all of them.

Importing libraries is most of what a short command takes, and the pages type a hundred of them, as
do the tests that go a long way command by command.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from labelveil.children import child_command, child_environment
from labelveil.simulation.processes import StageFailed
from tests.imports import import_name, modules


def run_program(module: str, arguments: Sequence[str], folder: Path, path: str) -> tuple[int, str]:
    """Run a program of ours in a folder to its end; returns its exit code, and what it said.

    Parameters
    ----------
    path
        Where it finds what it starts.
    """
    process, said = _programs(), folder / ".said"
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([module, *map(str, (folder, said, path)), *arguments]) + "\n")
    process.stdin.flush()
    return int(process.stdout.readline()), said.read_text("utf-8")


def fork_party(module: str, arguments: Sequence[str], directory: Path, log: Path) -> None:
    """As :func:`labelveil.simulation.processes.run_party`, without a party's own imports."""
    code, said = run_program(module, arguments, directory, os.environ["PATH"])
    log.write_text(said, "utf-8")
    if code:
        raise StageFailed(said.strip())


@cache
def _programs() -> subprocess.Popen[str]:
    """Start the process, which ends when this one does."""
    process = subprocess.Popen(
        child_command(__name__), env=child_environment(COLUMNS="100", NO_COLOR="1"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    atexit.register(process.communicate)
    return process


def main() -> None:
    """Fork a program for each line of the standard input, and print how it ended."""
    for name in modules():
        import_module(import_name(name))
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _become(*json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(module: str, folder: str, said: str, path: str, *arguments: str) -> NoReturn:
    atexit._clear()  # libraries would wait for threads of theirs, which were not forked
    os.chdir(folder)
    os.environ["PATH"] = path
    outputs = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for ours, theirs in ((os.open(os.devnull, os.O_RDONLY), 0), (outputs, 1), (outputs, 2)):
        os.dup2(ours, theirs)
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
