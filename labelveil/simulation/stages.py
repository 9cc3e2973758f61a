"""A run's stages: shown while they last, timed when they end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Stages:
    """Shows a spinner with a stage's time on a terminal, and one line a finished stage.

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
    def stage(self, name: str, text: str) -> Iterator[None]:
        """Time one stage."""
        start = time.perf_counter()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        hidden = self._quiet or not self._console.is_terminal
        with Progress(*columns, console=self._console, transient=True, disable=hidden) as progress:
            progress.add_task(text, total=None)
            yield
        self.seconds[name] = time.perf_counter() - start
        if not self._quiet:
            self._console.print(
                f"[green]✓[/green] {text}  [dim]{self.seconds[name]:.1f} s[/dim]", highlight=False
            )
