"""The terminal: standard output and error, lists of numbers, shares, progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Column
from rich.text import Text

from labelveil.common.errors import ConfigError, printable


class Terminal(Console):
    """A console to which text is text: square brackets and colons style nothing, unless a call says
    ``markup=True``, and control characters, which names from data may hold, are shown as escapes.

    Takes the keywords of :class:`rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text, lines=True), segment.style)


stdout = Terminal()
stderr = Terminal(stderr=True)


def numbers(option: str, text: str) -> list[float]:
    """Read an option's value such as ``0.5,1,2`` as a list of numbers."""
    try:
        values = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        values = []
    if not values:
        raise ConfigError(f"{option} {text!r} must be numbers separated by commas, such as 0.5,1,2")
    return values


def share_text(share: float, form: str = ".2f") -> str:
    """A share of a whole, 0 where it is below: what is above 0 is not shown as if it were."""
    text = format(max(share, 0.0), form)
    if share > 0 and not text.strip("0.%"):
        text = f"{100 * share:.1g}%" if form.endswith("%") else f"{share:.1g}"
    return text


def warn(text: str) -> None:
    """Print a warning on standard error, in one line however narrow the terminal."""
    stderr.print(warning(text), soft_wrap=True)


def warning(text: str) -> Text:
    """A warning as consoles show it."""
    return Text.assemble(("warning:", "bold yellow"), " ", printable(text))


def progress(*, quiet: bool = False) -> Progress:
    """Return a bar on standard error, where somebody watches: what, bar, count, time, note.

    The time is what is left, and what it took in the end. A terminal that is too narrow cuts the
    note alone off.
    """
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn(
            "{task.fields[note]}",
            markup=False,
            table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
        ),
        expand=True,
        console=stderr,
        disable=quiet or not (stderr.is_terminal or stderr.is_jupyter),
        transient=False,
    )


_SHOW_PROGRESS_ROWS = 300_000
"""From about this many rows on, hashing and randomizing take more than a second."""


@contextmanager
def row_progress(what: str, rows: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that moves a bar by n rows; few rows show no bar."""
    with progress(quiet=quiet or rows < _SHOW_PROGRESS_ROWS) as bar:
        task = bar.add_task(what, total=rows, note="")
        yield lambda done: bar.update(task, advance=done)
