"""A ledger that is older than the store: what it does not know is spent, and never built again."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

from common.errors import ReleaseError
from label_party.store.recovery import recover
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


def test_what_the_ledger_forgot_counts_for_the_account_that_paid(
    party: Party, tmp_path: Path
) -> None:
    text = (party.folder / "label_party.toml").read_text()
    shared = text.replace("[privacy]\n", '[privacy]\naccount = "shared"\n')
    (party.folder / "label_party.toml").write_text(shared)
    _older_ledger(party, tmp_path)
    assert party.release(data__epoch="3").code == 0
    (account,) = json.loads(party.run("budget", "--json").out)
    assert account["account"] == "shared"
    assert sorted(charge["epoch"] for charge in account["charges"]) == ["1", "2", "3"]
    # and its events are known again
    (party.folder / "label_party.toml").write_text(text)
    refused = party.release(data__data_set="other")
    assert "have paid from account 'shared'" in refused.error


def test_a_statement_counts_for_the_account_that_paid(party: Party) -> None:
    assert party.release(privacy__account="shared").code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    shutil.rmtree(party.store)
    lost = ["restore", "b.tar", "--lost", "2", "--set=privacy.account=shared"]
    assert party.run(*lost).code == 0
    (account,) = json.loads(party.run("budget", "--json", "--set=privacy.account=shared").out)
    assert [charge["epoch"] for charge in account["charges"]] == ["1", "2"]


def test_a_flipped_byte_beside_a_release_makes_no_charge_smaller(
    party: Party, tmp_path: Path
) -> None:
    _older_ledger(party, tmp_path)
    folder, store = party.store / "releases" / "labels" / "2", Store(party.store)
    chance, refused = random.Random(1), 0
    for name in ("charge.json", "manifest.json"):
        data = (folder / name).read_bytes()
        for _ in range(40):
            flipped = bytearray(data)
            flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            (folder / name).write_bytes(flipped)
            with store.building(), store.read_ledger() as ledger:
                try:
                    recover(store, ledger)
                except ReleaseError:
                    refused += 1
        (folder / name).write_bytes(data)
    assert refused == 80


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
