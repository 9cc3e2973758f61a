"""The terminal: standard output and error, lists of numbers, progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from common.errors import ConfigError

stdout = Console()
stderr = Console(stderr=True)


def numbers(option: str, text: str) -> list[float]:
    """Read an option's value such as ``0.5,1,2`` as a list of numbers."""
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found:
        raise ConfigError(f"{option} {text!r} must be numbers separated by commas, such as 0.5,1,2")
    return found


def progress(*, quiet: bool = False) -> Progress:
    """Return a progress bar on standard error: description, bar, count, rate, time left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=stderr,
        disable=quiet,
        transient=False,
    )


_SHOW_PROGRESS_ROWS = 300_000
"""From about this many rows on, hashing and randomizing take more than a second."""


@contextmanager
def row_progress(what: str, rows: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that moves a bar by so many rows; few rows show no bar."""
    bar = progress(quiet=quiet or rows < _SHOW_PROGRESS_ROWS)
    with bar:
        task = bar.add_task(what, total=rows, note="")
        yield lambda done: bar.update(task, advance=done)
