"""``label-party backup`` and ``label-party restore``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from labelveil.common.config import setting
from labelveil.common.config.answers import Json
from labelveil.common.errors import ReleaseError
from labelveil.label_party.commands.options import OutputOptions, options, restoring_options
from labelveil.label_party.config.sections import LabelPartyConfig

_NAMED = 5
"""How many damaged things a line names."""


class BackupOptions(OutputOptions):
    to: Path = setting(..., "The file to write; it must not exist.")


@options("store.directory")
def backup(config: LabelPartyConfig, wanted: BackupOptions) -> None:
    from labelveil.label_party.store.backup import make_backup
    from labelveil.label_party.store.release_store import Store

    made = make_backup(Store(config.store.directory), wanted.to, quiet=wanted.quiet)
    wanted.answer(
        asdict(made), f"wrote {made.path}: {_releases(made.releases)}, {made.size:,} bytes"
    )
    _fail_if_damaged(
        made.damaged,
        f"{made.path} was written, but not whole",
        "put them back from an earlier backup and make another, or withdraw those releases",
    )


class Stated(Json):
    nothing_since: bool = setting(
        False,
        "State that nothing was released since. What was withdrawn since is to be withdrawn again.",
        flag="--nothing-since",
    )
    lost: list[str] = setting(
        list,
        "State that this was released since and is gone: spent, never built again. SPENT is an"
        " epsilon, or a guarantee of any kind in JSON, as `label-party budget --json` shows it.",
        metavar="EPOCH[:PURPOSE][=SPENT]",
    )


@restoring_options("store.directory", "data.data_set")
def restore(
    config: LabelPartyConfig,
    stated: Stated,
    file: Annotated[
        Path | None,
        typer.Argument(help="What label-party backup wrote; without it, what lies in the store."),
    ] = None,
) -> None:
    from labelveil.label_party.store.release_store import Store
    from labelveil.label_party.store.restore import parse_lost
    from labelveil.label_party.store.restore import restore as restore_backup

    lost = [parse_lost(config, text) for text in stated.lost]
    store = Store(config.store.directory)
    done = restore_backup(store, file, lost, config.account, nothing_since=stated.nothing_since)
    stated.answer(
        asdict(done),
        f"restored {f'the backup of {done.made_at}' if file else 'the ledger from the store'}:"
        f" {_releases(done.releases)}",
        *(f"found in the store and counted as spent: {name}" for name in done.counted),
        *(f"withdrawn, as before: {name}" for name in done.withdrawn),
    )
    _fail_if_damaged(
        done.damaged,
        "the ledger is restored, and these stay spent, but are not whole",
        "put them back from another backup, or withdraw those releases",
    )


def _fail_if_damaged(damaged: Mapping[str, str], what: str, remedy: str) -> None:
    """Raise a ``ReleaseError`` that names what is damaged, and why."""
    if damaged:
        names = ", ".join([*damaged][:_NAMED])
        more = f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
        raise ReleaseError(f"{what}: {names}{more} ({next(iter(damaged.values()))}); {remedy}")


def _releases(count: int) -> str:
    return f"{count:,} release{'s' * (count != 1)}"
