"""``label-party backup`` and ``label-party restore``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from common.config import setting
from common.config.answers import Json
from label_party.commands.options import Shown, options
from label_party.config.sections import LabelPartyConfig


class BackupOptions(Shown):
    to: Path = setting(..., "The file to write; it must not exist.")


@options("store.directory")
def backup(config: LabelPartyConfig, wanted: BackupOptions) -> None:
    """Copy the ledger and all releases to one file, while they are served or built."""
    from label_party.store.backup import make_backup
    from label_party.store.release_store import Store

    made = make_backup(Store(config.store.directory), wanted.to, quiet=wanted.quiet)
    wanted.answer(
        asdict(made), f"wrote {made.path}: {made.releases:,} releases, {made.size:,} bytes"
    )


class Stated(Json):
    nothing_since: bool = setting(
        False, "State that nothing was released since.", flag="--nothing-since"
    )
    lost: list[str] = setting(
        list,
        "State that this was released since and is gone: spent, never built again. SPENT is an"
        " epsilon, or a guarantee of any kind in JSON, as `label-party budget --json` shows it.",
        metavar="EPOCH[:PURPOSE][=SPENT]",
    )


@options("store.directory", "data.data_set")
def restore(
    file: Annotated[Path, typer.Argument(help="What label-party backup wrote.")],
    config: LabelPartyConfig,
    stated: Stated,
) -> None:
    """Make a store from a backup; what was released since must be stated, or it is spent twice."""
    from label_party.store.release_store import Store
    from label_party.store.restore import parse_lost
    from label_party.store.restore import restore as restore_backup

    lost = [parse_lost(config, text) for text in stated.lost]
    done = restore_backup(
        Store(config.store.directory), file, lost, nothing_since=stated.nothing_since
    )
    stated.answer(
        asdict(done),
        f"restored the backup of {done.made_at}: {done.releases:,} releases",
        *(f"found in the store and counted as spent: {name}" for name in done.counted),
    )
