"""What is committed or said to be done is on the disk, bytes and names: a power cut takes none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from labelveil.common import files
from labelveil.common.entropy import Entropy
from labelveil.label_party.store import restore
from labelveil.label_party.store.release_store import LEDGER_FILE, Store
from tests.label_party import fault_bodies
from tests.label_party.conftest import Party
from tests.power_cut import watching


def promises_nothing(path: Path) -> bool:
    """Locks, SQLite's own files, what has no name yet, and what lies beside the store."""
    return (
        not {"up", "label_store"} & {*path.parts[:1]}
        or any(part.startswith(".") for part in path.parts)
        or path.name == "lock"
        or path.name.startswith(LEDGER_FILE)
    )


@pytest.mark.parametrize("kind", fault_bodies.PURCHASES)
def test_all_that_a_purchase_counts_on_is_synced(
    party: Party, kind: str, keys_of_noise: list[Entropy]
) -> None:
    """The first of a store, which is made on the way, a folder above it as well.

    But no key of its noise: that is gone when the purchase is made.
    """
    deep = (party.folder / "label_party.toml").read_text() + '[store]\ndirectory = "up/label_store"'
    (party.folder / "label_party.toml").write_text(deep)
    with watching(party.folder, promises_nothing) as disk:
        if kind == "sums":  # what is asked was submitted, to a server that made the store
            Store(party.folder / "up/label_store").create()
        getattr(fault_bodies, kind)(str(party.folder), "1")
    assert disk.lost == []
    assert disk.moments.count("a commit") > 1
    later = {path.name for path in disk.there[-1] - disk.there[-2]}
    assert later <= {"answered.log"}  # all that was bought was there before its charge was final
    assert keys_of_noise
    for entropy in keys_of_noise:
        with pytest.raises(ValueError, match="destroyed"):
            _ = entropy.key


def test_all_that_a_submission_counts_on_is_synced(party: Party) -> None:
    with watching(party.folder, promises_nothing) as disk:
        Store(party.store).create()  # as a server does at its start
        fault_bodies.submit(str(party.folder), "1")
    assert disk.lost == []
    folder = party.store / "populations/labels/1"
    assert disk.synced_between(folder, "*.keys", "current.json")


def test_backups_and_what_is_restored_are_synced(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault_bodies.submit(str(party.folder), "1")
    submitted = {"data__population": '"submitted"', "privacy__total_epsilon": 1_000_000}
    assert party.release(**submitted).code == 0
    fault_bodies.question(str(party.folder), "2")
    with watching(party.folder, lambda path: path.name != "b.tar") as disk:
        assert party.run("backup", "--to", "b.tar").code == 0
    assert disk.lost == []
    shutil.rmtree(party.store)
    placed = restore._place_folders

    def placing(store: Store, *more: Any) -> None:
        assert disk.named(store.restoring)  # or a ledger could begin beside what is placed
        placed(store, *more)

    monkeypatch.setattr(restore, "_place_folders", placing)
    with watching(party.folder, promises_nothing) as disk:
        assert party.run("restore", "b.tar", "--nothing-since").code == 0
    assert disk.lost == []
    assert disk.synced_between(party.store, "ledger.sqlite")
    # a ledger without its key would be another's
    named = [
        path.name for kind, path in disk.steps if (kind, path.parent) == ("rename", party.store)
    ]
    assert named == ["ledger.sqlite-key", "ledger.sqlite"]
    assert list(party.store.rglob("manifest.json"))
    assert list(party.store.rglob("current.json"))


def test_a_withdrawal_is_synced(party: Party) -> None:
    fault_bodies.release(str(party.folder), "1")
    with watching(party.folder, promises_nothing) as disk:
        fault_bodies.withdrawn(str(party.folder), "1")
    assert disk.lost == []
    assert disk.moments.count("a commit") > 0


def test_the_watch_sees_what_is_not_synced(tmp_path: Path) -> None:
    """Twins: each sync of a durable write left out."""

    def lost(*without: str) -> list[str]:
        folder = tmp_path / "-".join(("f", *without))
        folder.mkdir()
        with watching(folder, lambda path: False) as disk:
            with (folder / "new").open("wb") as file:
                file.write(b"data")
                if "bytes" not in without:
                    files.sync(file)
            (folder / "new").rename(folder / "data")
            if "name" not in without:
                files.sync(folder)
            if "again" in without:
                (folder / "data").write_bytes(b"other data")
        return disk.lost

    assert lost() == []
    assert lost("bytes") == [
        "the bytes of new at the renaming of new",
        "the bytes of data at the end",
    ]
    assert lost("name") == ["the name of data at the end"]
    assert lost("again") == ["the bytes of data at the end"]
