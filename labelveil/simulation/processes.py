"""The parties' processes: start, watch, stop, and report why one failed."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from common.errors import LabelveilError, present
from labelveil.children import LABEL_PROGRAM, child_command, child_environment
from labelveil.simulation.screen import Screen

_POLL_SECONDS = 0.1
_STOP_SECONDS = 20.0

Watch = Callable[[str], None]
"""Told the last line that a process wrote, now and then."""


class StageFailed(LabelveilError):
    """One of the parties' processes ended with an error; the message is its own."""


class Party:
    """One party's process, ended without fail when its ``with`` block is left.

    Parameters
    ----------
    module
        One party's program: run with this interpreter as ``python -m``.
    arguments
        Command and options.
    directory
        Working directory.
    log
        File that its standard output and error are written to.
    """

    def __init__(self, module: str, arguments: Sequence[str], directory: Path, log: Path) -> None:
        self.name = f"{module.split('.')[0].replace('_', '-')} {arguments[0]}"
        self._command = child_command(module, *arguments)
        self._directory = directory
        self._log = log
        self._screen = Screen(self._keep)
        self._last_lines: list[str] = []

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.write_text("")
        self._process = subprocess.Popen(
            self._command,
            cwd=self._directory,
            # progress bars are drawn although nobody sees a terminal
            env=child_environment(FORCE_COLOR="1", COLUMNS="100"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(
            target=self._read, args=(present(self._process.stdout),), name=self.name, daemon=True
        )
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def last_line(self) -> str:
        """The last line written so far, without colours; a progress bar's latest state."""
        return next(reversed(self._screen.lines), "")

    def wait(self, watch: Watch | None = None) -> None:
        """Wait for the end; raise ``StageFailed`` if it was not a success."""
        while True:
            try:
                code = self._process.wait(_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                if watch:
                    watch(self.last_line)
        self._reader.join()
        if code != 0:
            raise self.failure()

    def failure(self) -> StageFailed:
        """Say why the process ended: its own error line, or its last words."""
        self._reader.join(_STOP_SECONDS)
        lines = self._last_lines
        errors = [line for line in lines if line.startswith("error: ")]
        if errors:
            return StageFailed(f"{self.name}: {errors[-1].removeprefix('error: ')}")
        last = lines[-1] if lines else "it said nothing"
        return StageFailed(
            f"{self.name} ended with exit code {self._process.poll()}: {last}"
            f" (everything it said is in {self._log})"
        )

    def stop(self) -> None:
        """Ask the process to end, and insist after a while."""
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(_STOP_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self, stream: IO[bytes]) -> None:
        while chunk := os.read(stream.fileno(), 1 << 12):
            self._screen.feed(chunk)
        self._last_lines = self._screen.lines
        self._screen.close()

    def _keep(self, line: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(line)


def run_party(
    module: str,
    arguments: Sequence[str],
    directory: Path,
    log: Path,
    watch: Watch | None = None,
) -> None:
    """Run one command of one party to its end."""
    with Party(module, arguments, directory, log) as party:
        party.wait(watch)


@contextmanager
def serving(arguments: Sequence[str], directory: Path, log: Path, port_file: Path) -> Iterator[int]:
    """Run the labels party's server; yields its port, and stops it when the block is left."""
    with Party(LABEL_PROGRAM, arguments, directory, log) as server:
        ready = threading.Event()
        while not port_file.exists():
            if not server.running:
                raise server.failure()
            ready.wait(_POLL_SECONDS)
        yield int(port_file.read_text())
