"""What the three command lines share: their common options, one-line errors, progress bars."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from common.errors import ConfigError, LabelveilError
from common.version import version

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130

stdout = Console()
stderr = Console(stderr=True)


def program(purpose: str) -> typer.Typer:
    """Return a command line that has no commands yet, only ``-h`` and ``--version``."""
    app = typer.Typer(
        help=purpose,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"labelveil {version()}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def run(app: typer.Typer) -> NoReturn:
    """Run a command line; a :class:`LabelveilError` becomes one line and exit code 1.

    Set ``LABELVEIL_TRACEBACK=1`` to see the traceback of such an error.
    """
    try:
        app()
    except LabelveilError as error:
        if os.environ.get("LABELVEIL_TRACEBACK"):
            raise
        fail(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(EXIT_INTERRUPTED) from None
    raise SystemExit(0)


def fail(message: str) -> NoReturn:
    """Print one error line and leave with exit code 1."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(EXIT_ERROR)


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
