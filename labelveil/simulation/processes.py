"""The parties' processes: start, stop, and report why one failed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from labelveil.children import LABEL_PROGRAM, child_command, child_environment, end_with_parent
from labelveil.common.errors import LabelveilError
from labelveil.common.signals import interrupts_held

_POLL_SECONDS = 0.1
_STOP_SECONDS = 20.0


class StageFailed(LabelveilError):
    """One of the parties' processes ended with an error; the message is its own."""


class Party(subprocess.Popen[bytes]):
    """One party's process, ended without fail when its ``with`` block is left.

    It is a module run by this interpreter in a working directory, with command and options; the log
    gets what it prints. One that ``waits`` does so until it is told to go on.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        directory: Path,
        log: Path,
        *,
        waits: bool = False,
    ) -> None:
        self.name = (
            f"{module.removeprefix('labelveil.').split('.')[0].replace('_', '-')} {arguments[0]}"
        )
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = child_environment(COLUMNS="100", NO_COLOR="1", no_grpc_proxy="127.0.0.1")
        environment.pop("FORCE_COLOR", None)  # or progress bars would fill the log
        with log.open("wb") as output, interrupts_held():
            super().__init__(
                child_command(module, *arguments),
                cwd=directory,
                env=environment,
                stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent,
            )

    def __exit__(self, *_: object) -> None:
        self.terminate()
        if self.stdin is not None:
            self.stdin.close()
        if not self.ended_within(_STOP_SECONDS):
            self.kill()
            self.wait()

    def ended_within(self, seconds: float) -> bool:
        """Wait for the end for so long at most; return whether it came."""
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def go_on(self) -> None:
        """Tell it what it waits for: that it may go on. Once is enough."""
        if self.stdin is not None and not self.stdin.closed:
            with suppress(BrokenPipeError), self.stdin:  # it has ended, and its log says why
                self.stdin.write(b"\n")

    def failure(self) -> StageFailed:
        """Say why the process ended: its own error line, or its last words."""
        text = self._log.read_text("utf-8", errors="replace")
        lines = [line for line in map(str.strip, text.splitlines()) if line]
        errors = [line for line in lines if line.startswith("error: ")]
        if errors:
            return StageFailed(f"{self.name}: {errors[-1].removeprefix('error: ')}")
        last = lines[-1] if lines else "it said nothing"
        return StageFailed(
            f"{self.name} ended with exit code {self.returncode}: {last}"
            f" (everything it said is in {self._log})"
        )


def run_party(module: str, arguments: Sequence[str], directory: Path, log: Path) -> None:
    """Run a party's command to its end; ``StageFailed`` if it was not a success."""
    with Party(module, arguments, directory, log) as party:
        if party.wait() != 0:
            raise party.failure()


@contextmanager
def serving(arguments: Sequence[str], directory: Path, log: Path, port_file: Path) -> Iterator[int]:
    """Run the labels party's server; yields its port, and stops it when the block is left."""
    with Party(LABEL_PROGRAM, arguments, directory, log) as server:
        while not port_file.exists():  # nothing wakes who waits for a file or an end
            if server.ended_within(_POLL_SECONDS):
                raise server.failure()
        yield int(port_file.read_text())
