"""Killing ``release`` at every step: nothing or the whole release, and never two."""

from __future__ import annotations

import json

import pytest

from labelveil.label_party.server.catalog import Catalog
from labelveil.label_party.store.release_store import Store
from tests.faults import Experiments
from tests.label_party.conftest import BODIES, Party
from tests.label_party.store.ledgers import reserve

STORE = "labelveil.label_party.store.release_store"
PLACES = {
    "Ledger": "labelveil.label_party.store.ledger:Ledger",
    "Store": f"{STORE}:Store",
    "Writer": f"{STORE}:ReleaseWriter",
}

STEPS = [
    *(
        pytest.param(*step, marks=pytest.mark.slow)
        for step in (
            ("Store", "create"),
            ("Ledger", "reserve"),
            ("Store", "writer"),
            ("Writer", "adopt"),
            ("Writer", "finish"),
        )
    ),
    ("Writer", "publish"),
    ("Ledger", "commit"),
]


@pytest.mark.parametrize(("place", "name"), STEPS)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_a_step(
    party: Party, patient: Experiments, place: str, name: str, moment: str
) -> None:
    committed = (name, moment) == ("commit", "after")
    _die(party, patient, place, name, moment)
    store = Store(party.store)
    store.create()
    # before anybody cleared up: fetchable only if charged
    assert (Catalog(store).find("labels", "1") is not None) == committed
    before = _codes(party)
    done = party.release()
    assert done.code == 0, done
    assert ("already released" in done.out) == committed
    if committed:
        assert _codes(party) == before
    (account,) = json.loads(party.run("budget", "--json").out)
    assert [charge["state"] for charge in account["charges"]] == ["committed"]
    assert account["left"]["epsilon"] == "2"
    assert [path.name for path in party.store.glob("releases/*/*")] == ["1"]


def test_killed_while_clearing_up(party: Party, patient: Experiments) -> None:
    _die(party, patient, "Writer", "publish", "after")
    _die(party, patient, "Ledger", "abandon", "before")
    _die(party, patient, "Ledger", "abandon", "after")
    assert party.release().code == 0
    (account,) = json.loads(party.run("budget", "--json").out)
    assert account["left"]["epsilon"] == "2"


def test_a_living_builder_is_left_alone(party: Party) -> None:
    """The server clears up at its start, but not while somebody is building."""
    from labelveil.label_party.server.run import running

    store = Store(party.store)
    store.create()
    with store.building(), store.open_ledger() as ledger:
        privacy = party.config().privacy
        reserve(ledger, "labels", "1", privacy.charge, privacy.limit)
        with running(party.config()):
            assert len(ledger.reservations()) == 1
    with running(party.config()), store.open_ledger() as ledger:
        assert not ledger.reservations()


def _codes(party: Party) -> bytes:
    path = party.store / "releases" / "labels" / "1" / "codes.bin"
    return path.read_bytes() if path.exists() else b""


def _die(party: Party, patient: Experiments, place: str, name: str, moment: str) -> None:
    step = f"{PLACES[place]}.{name}"
    ended = patient.run(
        f"{BODIES}:command", str(party.folder), step, moment, ".", "release", folder=party.store
    )
    assert ended.killed, ended
