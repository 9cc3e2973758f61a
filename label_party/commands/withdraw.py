"""``label-party withdraw``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from labelveil.common.config import setting
from labelveil.common.errors import ConfigError, ReleaseError, printable
from labelveil.common.release.limits import WITHDRAWN_CHARACTERS
from labelveil.label_party.commands.options import OutputOptions, options
from labelveil.label_party.commands.preflight import agreed
from labelveil.label_party.config.sections import LabelPartyConfig


class WithdrawOptions(OutputOptions):
    reason: str = setting(
        ...,
        "Why, in a line. The features party is told, and the ledger keeps it: say nothing in it of"
        " labels.",
        min_length=1,
        max_length=WITHDRAWN_CHARACTERS,
    )
    yes: bool = setting(False, "Do it without a question.", flag="--yes")


@options("store.directory", "data.data_set")
def withdraw(
    epoch: Annotated[str, typer.Argument(help="Of the release.")],
    config: LabelPartyConfig,
    wanted: WithdrawOptions,
) -> None:
    from labelveil.label_party.store.release_store import Store
    from labelveil.label_party.store.withdrawal import find_release
    from labelveil.label_party.store.withdrawal import withdraw as withdraw_release

    store, data_set = Store(config.store.directory), config.data.data_set
    reason = printable(" ".join(wanted.reason.split()))
    if not reason:
        raise ConfigError("reason='' must say why the release is withdrawn; set --reason TEXT")
    charge = find_release(store, data_set, epoch)
    if not wanted.yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise ReleaseError(
                f"epoch {epoch!r} of data set {data_set!r} would be withdrawn for ever: its"
                f" {charge.guarantee} stays spent; nothing was done; add --yes"
            )
        if not agreed(f"Withdraw epoch {epoch} of data set {data_set} for ever?"):
            raise ReleaseError(f"epoch {epoch!r}: not withdrawn, as answered")
    done = withdraw_release(store, data_set, epoch, reason)
    withdrawal = done.withdrawal
    already = f" already, {withdrawal.withdrawn_at[:16].replace('T', ' ')}" if done.before else ""
    wanted.answer(
        {
            "data_set": data_set,
            "epoch": epoch,
            **asdict(withdrawal),
            "before": done.before,
            "spent": charge.guarantee.to_json(),
            "latest": done.latest,
        },
        f"withdrawn{already}: data set {data_set}, epoch {epoch}: {withdrawal.reason}",
        f"it stays spent: {charge.guarantee}",
        "no release of this data set is left to serve"
        if done.latest is None
        else f"the latest release is epoch {done.latest} now",
        "next: label-party backup, so that a restored ledger knows it, too",
    )
