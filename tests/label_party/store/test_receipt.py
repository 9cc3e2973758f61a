"""What lies beside a configuration and says which ledgers counted what was released from there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.receipt import with_receipt
from labelveil.label_party.store.release_store import Store
from tests.label_party.conftest import Party


def _noted(party: Party) -> dict[str, str]:
    return dict(json.loads((party.folder / "label_party.toml.receipt").read_bytes()))


def _identity(party: Party, store: str) -> str:
    with Store(party.folder / store).read_ledger() as ledger:
        return ledger.identity()


def test_a_ledger_that_is_there_is_noted_before_a_command_begins(party: Party) -> None:
    assert party.release().code == 0
    (party.folder / "label_party.toml.receipt").unlink()
    with with_receipt(party.folder / "label_party.toml", party.config()):
        assert _noted(party) == {"label_store": _identity(party, "label_store")}


def test_a_charge_that_an_interruption_followed_at_once_is_remembered(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Ledger.commit

    def interrupted(*charge: Any) -> None:
        commit(*charge)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "commit", interrupted)
    ended = party.release()
    assert ended.code == 130
    assert "charged all the same, for labels of data set 'labels', epoch '1'" in ended.err
    assert _noted(party) == {"label_store": _identity(party, "label_store")}


def test_the_ledger_that_counts_now_is_noted_in_place_of_the_one_before(party: Party) -> None:
    assert party.release().code == 0
    before = _noted(party)
    for path in party.store.glob("ledger.sqlite*"):
        path.unlink()
    assert party.run("restore", "--nothing-since").code == 0
    assert _noted(party) == {"label_store": _identity(party, "label_store")} != before


def test_every_store_that_was_used_is_noted(party: Party) -> None:
    assert party.release().code == 0
    first = _noted(party)
    other = party.folder / "other.toml"
    other.write_bytes((party.folder / "label_party.toml").read_bytes())
    assert party.run("release", "--config", "other.toml", "--store", "second").code == 0
    assert party.run("budget", "--store", "second").code == 0
    assert _noted(party) == {**first, "second": _identity(party, "second")}
    # whichever is not mounted now, its ledger is missed
    (party.folder / "second").rename(party.folder / "away")
    assert "store second is gone, or empty" in party.run("budget", "--store", "second").error
    party.store.rename(party.folder / "away_too")
    assert "store label_store is gone, or empty" in party.run("budget").error
