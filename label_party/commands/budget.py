"""``label-party budget``: the ledger as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from common.console import stdout
from common.guarantees import Guarantee
from label_party.commands.options import Json, options
from label_party.config.sections import LabelPartyConfig

if TYPE_CHECKING:
    from label_party.store.account import Account
    from label_party.store.ledger import Restore


@options("store.directory")
def budget(config: LabelPartyConfig, shown: Json) -> None:
    """Show what every data set may spend, who spent what, when, and what is left."""
    from label_party.store.account import account, restores

    print_account(account(config), shown.as_json, restores(config))


def print_account(accounts: list[Account], as_json: bool, restored: Sequence[Restore] = ()) -> None:
    """Print all accounts; below a table also when the ledger was restored."""
    if as_json:
        print(json.dumps([_plain(entry) for entry in accounts], indent=2, ensure_ascii=False))
        return
    for entry in accounts:
        print(f"data set {entry.data_set}: budget {entry.limit}")
        table = Table()
        for column in ("epoch", "for", "spent", "state", "who", "when (UTC)", "release"):
            table.add_column(column)
        for charge in entry.charges:
            table.add_row(
                charge.epoch,
                charge.purpose,
                _short(charge.guarantee),
                ("lost" if charge.lost else charge.state)
                + (", disjoint" if charge.composition == "disjoint" else ""),
                charge.who,
                (charge.committed_at or charge.reserved_at)[:19].replace("T", " "),
                (charge.manifest_sha256 or "")[:12],
            )
        if entry.charges:
            stdout.print(table)
        print(f"spent {_short(entry.spent)}, left {_short(entry.left)}\n")
    for event in restored:
        lost = ", ".join(event.statement["lost"])
        print(
            f"restored {event.restored_at[:19]} by {event.restored_by} from the backup of"
            f" {event.backup_made_at[:19]}, stating: {'lost ' + lost if lost else 'nothing since'}"
        )


def _plain(entry: Account) -> dict[str, Any]:
    return {
        "data_set": entry.data_set,
        "total": _guarantee(entry.limit),
        "spent": _guarantee(entry.spent),
        "left": _guarantee(entry.left),
        "charges": [
            {
                "epoch": charge.epoch,
                "purpose": charge.purpose,
                "composition": charge.composition,
                "state": charge.state,
                "guarantee": _guarantee(charge.guarantee),
                "who": charge.who,
                "software": charge.software,
                "reserved_at": charge.reserved_at,
                "committed_at": charge.committed_at,
                "manifest_sha256": charge.manifest_sha256,
                "rows": charge.rows,
            }
            for charge in entry.charges
        ],
    }


def _short(guarantee: Guarantee | None) -> str:
    """Leave adjacency and unit out: the heading states them for the whole data set."""
    return "nothing" if guarantee is None else str(guarantee).partition(" (")[0]


def _guarantee(guarantee: Guarantee | None) -> dict[str, Any] | None:
    return None if guarantee is None else guarantee.to_json()
