"""The neutral command line, `label-dp`: what belongs to neither party."""

from __future__ import annotations

from typing import NoReturn

import typer

from common.commands.certificates import certificates
from common.console import run

app = typer.Typer(
    name="label-dp",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command()(certificates)


@app.callback()
def label_dp() -> None:
    """Simulate both parties on one machine, and prepare what both need."""


def main() -> NoReturn:
    """Entry point of `label-dp`."""
    run(app)


if __name__ == "__main__":
    main()
