"""The neutral command line, `label-dp`: what belongs to neither party."""

from __future__ import annotations

from typing import NoReturn

import typer

from common.console import run
from common.program.commands.accounting import accounting
from common.program.commands.audit import audit
from common.program.commands.certificates import certificates
from common.program.commands.compare import compare_command
from common.program.commands.demo import demo
from common.program.commands.simulate import simulate_command

app = typer.Typer(
    name="label-dp",
    help="Simulate both parties on one machine, compare methods, prepare what both need.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(epilog="Example: label-dp demo --epsilon 2")(demo)
app.command(
    "simulate",
    epilog="Example: label-dp simulate --labels sales.parquet --features clicks.parquet"
    " --key click_id --label amount --lower 0 --upper 400 --epsilon 1 --out out/sales",
)(simulate_command)
app.command(
    "compare",
    epilog="Example: label-dp compare --labels sales.parquet --features sales.parquet"
    " --label amount --lower 0 --upper 400 --method auto --method rr-on-bins:raw --runs 3"
    " --out out/comparison",
)(compare_command)
app.command(
    epilog="Example: label-dp certificates --out certificates --label-host labels.example.com"
)(certificates)
app.add_typer(audit, name="audit")
app.add_typer(accounting, name="accounting")


def main() -> NoReturn:
    """Entry point of `label-dp`."""
    run(app)


if __name__ == "__main__":
    main()
