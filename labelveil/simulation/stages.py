"""A run's stages: shown while they last, timed when they end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from labelveil.simulation.processes import Watch


class Stages:
    """Shows a spinner with a stage's latest line on a terminal, and one line a finished stage.

    Parameters
    ----------
    console
        Where to show them.
    quiet
        Show nothing, only keep the timings.

    Attributes
    ----------
    seconds
        Stage to wall-clock seconds, in the order in which they ended.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, text: str) -> Iterator[Watch]:
        """Time one stage; yields a function that takes the latest line of a process."""
        start = time.perf_counter()
        if self._quiet:
            yield lambda line: None
        else:
            # No wider than the terminal: a wrapped line would leave its rest behind.
            with Status(text, console=self._console) as status:
                room = max(self._console.width - len(text) - 16, 0)

                def watch(line: str) -> None:
                    elapsed = f"{time.perf_counter() - start:.0f} s"
                    status.update(f"{text}  [dim]{elapsed}  {escape(line[:room])}[/dim]")

                yield watch
        self.seconds[name] = time.perf_counter() - start
        if not self._quiet:
            self._console.print(
                f"[green]✓[/green] {text}  [dim]{self.seconds[name]:.1f} s[/dim]", highlight=False
            )
