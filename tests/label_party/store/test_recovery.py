"""A ledger that is older than the store: what it does not know is spent, and never built again."""

from __future__ import annotations

import json
from pathlib import Path

from label_party.store.release_store import Store
from tests.label_party.conftest import Party


def _older_ledger(party: Party, tmp_path: Path) -> None:
    """Release epoch 1, copy the ledger, release epoch 2, and put the copy back."""
    assert party.release().code == 0
    store = Store(party.store)
    with store.open_ledger() as ledger:
        ledger.backup(tmp_path / "older.sqlite")
    assert party.release(data__epoch="2").code == 0
    for path in party.store.glob("ledger.sqlite*"):
        path.unlink()
    for path in tmp_path.glob("older.sqlite*"):
        path.rename(store.directory / path.name.replace("older", "ledger"))


def test_a_release_that_the_ledger_forgot_is_served_and_spent(party: Party, tmp_path: Path) -> None:
    _older_ledger(party, tmp_path)
    codes = party.store / "releases" / "labels" / "2" / "codes.bin"
    before = codes.read_bytes()
    third = party.release(data__epoch="3")  # any start finds it
    assert third.code == 0, third
    again = party.release(data__epoch="2")
    assert "already released" in again.out
    assert codes.read_bytes() == before
    (account,) = json.loads(party.run("budget", "--json").out)
    assert sorted(charge["epoch"] for charge in account["charges"]) == ["1", "2", "3"]
    assert account["left"]["epsilon"] == "0"
    assert "left of" in party.release(data__epoch="4").error


def test_a_ledger_that_is_gone_is_rebuilt_from_the_releases(party: Party, tmp_path: Path) -> None:
    assert party.release().code == 0
    for path in party.store.glob("ledger.sqlite*"):
        path.unlink()
    assert party.release().code == 0
    (account,) = json.loads(party.run("budget", "--json").out)
    assert account["left"]["epsilon"] == "2"
    assert [charge["state"] for charge in account["charges"]] == ["committed"]


def test_an_unknown_release_that_is_damaged_is_told_and_kept(party: Party, tmp_path: Path) -> None:
    _older_ledger(party, tmp_path)
    codes = party.store / "releases" / "labels" / "2" / "codes.bin"
    codes.write_bytes(codes.read_bytes()[:-1])
    error = party.release(data__epoch="3").error
    assert "not in the ledger" in error
    assert codes.exists()
