"""``label-party budget``: the ledger as a table or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from labelveil.common.config import setting
from labelveil.common.config.answers import Json, print_json
from labelveil.common.console import stdout
from labelveil.common.errors import printable
from labelveil.common.guarantees import Guarantee
from labelveil.label_party.commands.options import options
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.store.budget import short
from labelveil.label_party.store.release_store import Store

if TYPE_CHECKING:
    from labelveil.label_party.store.account import AccountState
    from labelveil.label_party.store.entries import Charge

_OF_A_CHARGE = (
    *("data_set", "epoch", "purpose", "composition", "state", "guarantee", "who", "software"),
    *("reserved_at", "committed_at", "digest", "rows", "records_per_unit", "answers", "request"),
)

budgets = typer.Typer(add_completion=False, rich_markup_mode=None)


@budgets.callback(
    invoke_without_command=True,
    epilog="Examples: label-party budget --json; label-party budget raise --to 2"
    " --reason 'a second year was agreed'",
)
@options("store.directory")
def budget(context: typer.Context, config: LabelPartyConfig, shown: Json) -> None:
    from labelveil.label_party.store.account import read_accounts

    accounts = read_accounts(config)
    if shown.as_json:
        print_json([as_plain(entry) for entry in accounts])
        return
    for entry in accounts:
        _print_account(entry)
    with Store(config.store.directory).read_ledger() as ledger:
        restores = ledger.restores()
    for event in restores:
        lost = ", ".join(event.statement["lost"])
        print(
            f"restored {event.restored_at[:19]} by {event.restored_by} from the backup of"
            f" {event.backup_made_at[:19]}, stating: {'lost ' + lost if lost else 'nothing since'}"
        )


class RaiseOptions(Json):
    to: float = setting(
        ..., "What the account may spend from now on, above its cap.", gt=0, metavar="EPSILON"
    )
    delta: float = setting(0.0, "With this failure probability in all.", ge=0, lt=1)
    reason: str = setting(..., "Why. It stays in the ledger, with who and when.", min_length=1)


@budgets.command("raise")
@options("store.directory", "data.data_set", "privacy.account")
def raise_cap(config: LabelPartyConfig, wanted: RaiseOptions) -> None:
    """Raise the cap of an account: the only way in which more may be spent than agreed at first."""
    with Store(config.store.directory).open_ledger() as ledger:
        privacy = config.privacy.model_copy(
            update={"total_epsilon": wanted.to, "total_delta": wanted.delta}
        )
        ledger.raise_cap(config.account, privacy.limit, wanted.reason)
        cap, own = ledger.cap(config.account), config.privacy.total_epsilon
        lines = [f"account {config.account} may now spend {cap} in all"]
        if own is not None and own < wanted.to:
            lines += [
                f"next: set [privacy] total_epsilon = {wanted.to:g}; until then {own:g} holds"
            ]
        wanted.answer({"account": config.account, "total": _guarantee(cap)}, *lines)


def _print_account(account: AccountState) -> None:
    print(f"account {account.account}: budget {account.limit}")
    for cap in account.caps[1:]:
        raised = f"raised to {cap.guarantee} {cap.set_at[:16]} by {cap.set_by}: {cap.reason}"
        print(printable(raised))
    for said in account.separations:
        shared = f"{said.events:,}" if said.events else "an unknown number of"
        apart = (
            f"{shared} events of {said.account} are events of {said.other}, too, and counted apart,"
            f" {said.said_at[:16]} by {said.said_by}: {said.reason}"
        )
        print(printable(apart))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    columns = "data set", "epoch", "for", "spent", "state", "who", "when (UTC)", "release"
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == "spent")
    for charge in account.charges:
        state: str = "lost" if charge.lost else charge.state
        if charge.id in account.withdrawals:
            state = "withdrawn"
        table.add_row(
            charge.data_set,
            charge.epoch,
            charge.purpose,
            short(charge.guarantee),
            f"{state}, disjoint" if charge.composition == "disjoint" else state,
            charge.who,
            (charge.committed_at or charge.reserved_at)[:16].replace("T", " "),
            charge.digest[:8],
        )
    if account.charges:
        stdout.print(table)
    for charge in account.charges:
        if (withdrawal := account.withdrawals.get(charge.id)) is not None:
            withdrawn = (
                f"{charge.data_set}, epoch {charge.epoch}, withdrawn"
                f" {withdrawal.withdrawn_at[:16]} by {withdrawal.withdrawn_by}: {withdrawal.reason}"
            )
            print(printable(withdrawn))
    print(f"spent {short(account.spent, 'nothing')}, left {account.left_in_words}\n")


def as_plain(entry: AccountState) -> dict[str, Any]:
    return {
        "account": entry.account,
        "total": _guarantee(entry.limit),
        "spent": _guarantee(entry.spent),
        "left": _guarantee(entry.left),
        "caps": [vars(cap) | {"guarantee": cap.guarantee.to_json()} for cap in entry.caps],
        "separations": [vars(said) for said in entry.separations],
        "charges": [
            {name: getattr(charge, name) for name in _OF_A_CHARGE}
            | {"guarantee": charge.guarantee.to_json(), "withdrawn": _withdrawn(entry, charge)}
            for charge in entry.charges
        ],
    }


def _withdrawn(entry: AccountState, charge: Charge) -> dict[str, str] | None:
    """When, by whom and why a charge's release was withdrawn, if it was."""
    withdrawal = entry.withdrawals.get(charge.id)
    return None if withdrawal is None else vars(withdrawal)


def _guarantee(guarantee: Guarantee | None) -> dict[str, Any] | None:
    return None if guarantee is None else guarantee.to_json()
