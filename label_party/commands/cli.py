"""The command line ``label-party``: a module for each command."""

from __future__ import annotations

import typer

from common.console import program, run
from label_party.commands.backup import backup, restore
from label_party.commands.budget import budget, raise_cap
from label_party.commands.init import init
from label_party.commands.plan import plan
from label_party.commands.release import release
from label_party.commands.serve import serve
from label_party.commands.synthesize import synthesize
from label_party.commands.top_k import top_k
from label_party.commands.watch import watch

app = program("Hold sensitive labels; send one differentially private message about them.")
app.command(
    epilog="Example: label-party init --labels sales.parquet --key click_id --label amount"
    " --lower 0 --upper 400 --epsilon 1 --new-secret"
)(init)
app.command(
    epilog="Examples: label-party release; label-party release --epoch 2024-06-02;"
    " label-party release --epsilon 0.5 --set randomizer.name=rr-on-bins"
)(release)
app.command(
    epilog="Examples: label-party watch --once --labels 'sales/{epoch}.parquet' --population"
    " 'clicks/{epoch}.parquet'; label-party watch --date sold_at --set privacy.epochs=disjoint"
)(watch)
app.command(
    epilog="Examples: label-party plan --rows 500000 --epsilons 0.5,1,2 --plot plan.png;"
    " label-party plan --prior-release label_store/releases/sales/1;"
    " label-party plan --prior-file guess.csv --rows 100000"
)(plan)
app.command(epilog="Example: label-party serve --listen 0.0.0.0:50051")(serve)
budgets = typer.Typer(rich_markup_mode=None)
budgets.callback(
    invoke_without_command=True,
    epilog="Examples: label-party budget --json; label-party budget raise --to 2"
    " --reason 'a second year was agreed'",
)(budget)
budgets.command("raise")(raise_cap)
app.add_typer(budgets, name="budget")
app.command(epilog="Example: label-party backup --to /backups/labels-2024-06-01.tar")(backup)
app.command(
    epilog="Examples: label-party restore labels.tar --nothing-since;"
    " label-party restore labels.tar --lost 2024-06-02 --lost 2024-06-03=0.5"
)(restore)
app.command(
    "top-k",
    epilog="Examples: label-party top-k --by product --categories products.txt --k 10"
    " --epsilon 0.5; label-party top-k --by product --categories products.txt --adaptive"
    " --plot leaders.png; label-party top-k --by product --categories products.txt --stable"
    " --set privacy.total_delta=1e-6",
)(top_k)
app.command(
    epilog="Examples: label-party synthesize --column product=products.txt --bins 5"
    " --out table.csv; label-party synthesize --column product=products.txt"
    " --column country=countries.txt --edges 0,1,10,400 --epsilon 0.5 --out table.parquet"
)(synthesize)


def main() -> None:
    """Entry point of the command."""
    run(app)
