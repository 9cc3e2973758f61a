"""The neutral command line, `labelveil`: what belongs to neither party."""

from __future__ import annotations

from typing import NoReturn

from common.console import program, run
from common.program.commands.accounting import accounting
from common.program.commands.audit import audit
from common.program.commands.certificates import certificates
from common.program.commands.compare import compare
from common.program.commands.demo import demo
from common.program.commands.simulate import simulate

app = program("Simulate both parties on one machine, compare methods, prepare what both need.")
app.command(epilog="Example: labelveil demo --epsilon 2")(demo)
app.command(
    epilog="Example: labelveil simulate --labels sales.parquet --features clicks.parquet"
    " --key click_id --label amount --lower 0 --upper 400 --epsilon 1 --out out/sales",
)(simulate)
app.command(
    epilog="Example: labelveil compare --labels sales.parquet --features sales.parquet"
    " --label amount --lower 0 --upper 400 --method auto --method rr-on-bins:raw --runs 3"
    " --out out/comparison",
)(compare)
app.command(
    epilog="Example: labelveil certificates --out certificates --label-host labels.example.com"
)(certificates)
app.add_typer(audit, name="audit")
app.add_typer(accounting, name="accounting")


def main() -> NoReturn:
    """Entry point of `labelveil`."""
    run(app)


if __name__ == "__main__":
    main()
