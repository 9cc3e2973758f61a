"""A ledger that is older than the store: what it does not know is spent, and never built again."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from labelveil.common.errors import ReleaseError
from labelveil.common.guarantees import PureDP
from labelveil.label_party.server.run import running
from labelveil.label_party.store import coverage, recovery
from labelveil.label_party.store.ledger import Ledger, LedgerError
from labelveil.label_party.store.recovery import recover
from labelveil.label_party.store.release_store import Store
from tests.label_party.conftest import Client, Party
from tests.label_party.store.ledgers import reserve


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
    """What says the cost is refused, and what it was paid for counts in full."""
    _older_ledger(party, tmp_path)
    folder, store = party.store / "releases" / "labels" / "2", Store(party.store)
    privacy = party.config().privacy
    chance, refused, whole = random.Random(1), 0, 0
    for name in ("charge.json", "manifest.json"):
        data = (folder / name).read_bytes()
        for _ in range(40):
            flipped = bytearray(data)
            flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            (folder / name).write_bytes(flipped)
            with store.building(), store.read_ledger() as ledger:
                try:
                    recover(store, ledger)
                    whole += ledger.spent("labels", privacy.limit) == PureDP.of(2)
                except ReleaseError:
                    refused += 1
        (folder / name).write_bytes(data)
    assert (refused, whole) == (40, 40)


def test_a_ledger_that_is_gone_is_rebuilt_from_the_releases(party: Party, tmp_path: Path) -> None:
    assert party.release().code == 0
    for path in party.store.glob("ledger.sqlite*"):
        path.unlink()
    done = party.run("restore", "--nothing-since")
    assert "found in the store and counted as spent: labels/1" in done.out
    assert party.release().code == 0
    (account,) = json.loads(party.run("budget", "--json").out)
    assert account["left"]["epsilon"] == "2"
    assert [charge["state"] for charge in account["charges"]] == ["committed"]


def test_what_another_release_cost_is_not_what_this_one_did(party: Party) -> None:
    """Its note is whole, and lies beside the bytes of another epoch, or of another name."""
    assert party.release().code == 0
    assert party.release(data__epoch="2", privacy__epsilon=0.25).code == 0
    one, two = (party.store / "releases" / "labels" / epoch for epoch in "12")
    (one / "charge.json").write_bytes((two / "charge.json").read_bytes())
    _lose(party, "ledger.sqlite*")
    refused = party.run("restore", "--nothing-since").error
    assert "releases/labels/1 holds something of another name" in refused
    assert not list(party.store.glob("ledger.sqlite"))


def _lose(party: Party, names: str) -> None:
    for path in party.store.glob(names):
        path.unlink()


@pytest.mark.parametrize("lost", ["ledger.sqlite", "ledger.sqlite-key"])
def test_a_ledger_or_its_secret_alone_is_not_begun_anew(party: Party, lost: str) -> None:
    disjoint = {"privacy__epochs": "disjoint", "privacy__total_epsilon": 1}
    assert party.release(**disjoint).code == 0
    _lose(party, lost)
    for more in ({"data__epoch": "2"}, {"data__data_set": "other"}):
        refused = party.release(**disjoint, **more).error
        assert (
            "is gone, but 1 of the" if lost == "ledger.sqlite" else "nothing was spent"
        ) in refused
    assert not (party.store / "releases" / "labels" / "2").exists()


def _nobody_can_tell(patch: pytest.MonkeyPatch) -> None:
    """A twin, to which fingerprints under other secrets are those of other events."""
    patch.setattr(coverage, "_incomparable", lambda one, other: "")
    patch.setattr(recovery, "_as_known", lambda charge, ledger: charge)


@pytest.mark.parametrize("twin", [False, True])
def test_the_events_of_a_lost_ledger_are_disjoint_from_nothing(
    party: Party, monkeypatch: pytest.MonkeyPatch, twin: bool
) -> None:
    """The ledger is gone, and with it the secret under which its events were fingerprinted."""
    if twin:
        _nobody_can_tell(monkeypatch)
    disjoint = {"privacy__epochs": "disjoint", "privacy__total_epsilon": 1}
    assert party.release(**disjoint).code == 0
    _lose(party, "ledger.sqlite*")
    assert party.run("restore", "--nothing-since").code == 0
    again = party.release(**disjoint, data__epoch="2")  # the same events
    (account,) = json.loads(party.run("budget", "--json").out)
    paid = [charge["epoch"] for charge in account["charges"]]
    if twin:
        assert (again.code, paid) == (0, ["1", "2"])
        return
    assert "but ε = 0" in again.error
    assert paid == ["1"]
    assert "already released" in party.release(**disjoint).out
    # what is released from here on is compared again, and adds to what nobody can tell
    more: dict[str, Any] = {"privacy__epochs": "disjoint", "privacy__total_epsilon": 2}
    assert party.release(**more, data__epoch="2").code == 0
    assert "200 events of epoch '3' are events of" in party.release(**more, data__epoch="3").error
    more["privacy__epochs"] = "additive"
    assert "but ε = 0" in party.release(**more, data__epoch="3").error


@pytest.mark.parametrize("twin", [False, True])
def test_the_events_of_a_lost_ledger_pay_from_no_other_account(
    party: Party, monkeypatch: pytest.MonkeyPatch, twin: bool
) -> None:
    if twin:
        _nobody_can_tell(monkeypatch)
    assert party.release().code == 0
    _lose(party, "ledger.sqlite*")
    assert party.run("restore", "--nothing-since").code == 0
    elsewhere = {"data__data_set": "other"}
    if twin:
        assert party.release(**elsewhere).code == 0
        return
    shutil.rmtree(party.store / "covered")  # nor is it of use
    refused = party.release(**elsewhere)
    assert "is unknown since the ledger that knew them is gone" in refused.error
    assert "account 'labels' has paid for them" in refused.error
    assert party.release(**elsewhere, privacy__account="labels").code == 0
    said = {"privacy__separate": True, "privacy__separate_reason": "of another column"}
    assert party.release(data__data_set="third", **said).code == 0


@pytest.mark.parametrize("lasting", [False, True])
def test_what_fails_takes_back_its_own_reservation_if_the_disk_lets_it(
    party: Party, monkeypatch: pytest.MonkeyPatch, lasting: bool
) -> None:
    others = party.store / "releases" / "labels" / "2"

    def fail(*given: Any) -> None:
        raise LedgerError("the disk failed")

    def commit(ledger: Ledger, *given: Any) -> None:
        privacy = party.config().privacy
        reserve(ledger, "labels", "2", privacy.charge, privacy.limit)  # by somebody else
        others.mkdir()
        if lasting:
            monkeypatch.setattr(Ledger, "settle", fail)
        fail()

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", commit)
        error = party.release().error
    monkeypatch.undo()
    assert ("the next start will find out whether it counts" in error) == lasting
    with Store(party.store).read_ledger() as ledger:
        assert [entry.epoch for entry in ledger.charges()] == ["1"] * lasting + ["2"]
    assert others.exists()


def test_an_unknown_release_that_is_damaged_is_spent_and_kept(
    party: Party, tmp_path: Path, connect: Callable[..., Client]
) -> None:
    _older_ledger(party, tmp_path)
    codes = party.store / "releases" / "labels" / "2" / "codes.bin"
    codes.write_bytes(codes.read_bytes()[:-1])
    assert party.release(data__epoch="3").code == 0
    (account,) = json.loads(party.run("budget", "--json").out)
    assert account["left"]["epsilon"] == "0"
    assert codes.exists()
    with running(party.config()) as address, pytest.raises(grpc.RpcError) as refused:
        connect(address).describe(epoch="2")
    assert refused.value.code() is grpc.StatusCode.DATA_LOSS


def test_what_says_no_more_what_it_cost_must_be_stated(party: Party, tmp_path: Path) -> None:
    _older_ledger(party, tmp_path)
    (party.store / "releases" / "labels" / "2" / "charge.json").unlink()
    assert "--lost EPOCH[:PURPOSE]=SPENT" in party.release(data__epoch="3").error
    _lose(party, "ledger.sqlite*")
    (party.store / "releases" / "labels" / "1" / "codes.bin").write_bytes(b"")
    assert "--lost EPOCH[:PURPOSE]=SPENT" in party.run("restore", "--nothing-since").error
    assert "is gone, but 2 of the" in party.run("budget").error
    stated = party.run("restore", "--lost", "2=1.5")
    assert "these stay spent, but are not whole: releases/labels/1" in stated.err
    (account,) = json.loads(party.run("budget", "--json").out)
    assert account["left"]["epsilon"] == "1/2"
    assert "bytes are lost" in party.release(data__epoch="2").error


def test_fingerprints_that_no_charge_names_are_removed(party: Party) -> None:
    """A builder that died before it reserved anything leaves some of events that nobody sold."""
    assert party.release().code == 0
    (known,) = party.store.glob("covered/*")
    stray = known.with_name("0" * 64)
    stray.write_bytes(known.read_bytes())
    assert party.release(data__epoch="2").code == 0
    assert [*party.store.glob("covered/*")] == [known]
