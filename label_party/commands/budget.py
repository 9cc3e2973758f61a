"""``label-party budget``: the ledger as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from common.console import stdout
from common.errors import PrivacyError
from common.guarantees import Guarantee
from label_party.config.sections import LabelPartyConfig
from label_party.store.ledger import Charge, Ledger, Restore
from label_party.store.release_store import Store


@dataclass(frozen=True)
class Account:
    """One data set's budget.

    Attributes
    ----------
    left
        What a further release of the configured kind may spend; None where that is not one number.
    """

    data_set: str
    limit: Guarantee
    spent: Guarantee | None
    left: Guarantee | None
    charges: list[Charge]


def account(config: LabelPartyConfig) -> list[Account]:
    """Read the ledger; the configured data set is listed even if it has spent nothing."""
    name, limit = config.data.data_set, config.privacy.limit
    store = Store(config.store.directory)
    if not store.ledger_path.exists():
        return [Account(name, limit, None, limit, [])]
    with store.open_ledger() as ledger:
        accounts = []
        for data_set in sorted({*ledger.data_sets(), name}):
            total = _total(config, ledger, data_set)
            spent = ledger.spent(data_set, total)
            composition = config.privacy.epochs if data_set == name else "additive"
            left = ledger.left(data_set, total, composition)
            accounts.append(Account(data_set, total, spent, left, ledger.charges(data_set)))
        return accounts


def _total(config: LabelPartyConfig, ledger: Ledger, data_set: str) -> Guarantee:
    """Return the configured total, or the last one in force where that cannot count the charges.

    It cannot if they are of another privacy unit, or concentrated and total_delta is 0 now.
    """
    configured, last = config.privacy.limit, ledger.limit(data_set)
    if last is None:
        return configured
    if data_set != config.data.data_set:
        return last
    try:
        ledger.spent(data_set, configured)
    except PrivacyError:
        return last
    return configured


def restores(config: LabelPartyConfig) -> list[Restore]:
    """Return when the ledger was restored from a backup, and what was stated then."""
    store = Store(config.store.directory)
    if not store.ledger_path.exists():
        return []
    with store.open_ledger() as ledger:
        return ledger.restores()


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
