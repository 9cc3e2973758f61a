"""Killing ``release`` at every step: nothing or the whole release, and never two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from label_party.server.catalog import Catalog
from label_party.store.release_store import Store
from tests.label_party.conftest import Party

# Runs a release and kills its own process before or after one step.
CHILD = """
import os, signal, sys
from label_party.release import message as build, run as release
from label_party.commands import cli
from label_party.store import ledger, release_store as store

place, name, moment = sys.argv[1:4]
owner = {
    "Ledger": ledger.Ledger, "Writer": store.ReleaseWriter, "Store": store.Store,
    "release": release,
}[place]
step = getattr(owner, name)

def dying(*arguments, **options):
    if moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    step(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(owner, name, dying)
sys.argv = ["label-party", "release"]
cli.main()
"""

STEPS = [
    *(
        pytest.param(*step, marks=pytest.mark.slow)
        for step in (
            ("Store", "create"),
            ("Ledger", "reserve"),
            ("Store", "writer"),
            ("Writer", "write_rows"),
            ("Writer", "finish"),
        )
    ),
    ("Writer", "publish"),
    ("Ledger", "commit"),
]


@pytest.mark.parametrize(("place", "name"), STEPS)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_a_step(party: Party, place: str, name: str, moment: str) -> None:
    committed = (name, moment) == ("commit", "after")
    _die(party.folder, place, name, moment)
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


def test_killed_while_clearing_up(party: Party) -> None:
    _die(party.folder, "Writer", "publish", "after")
    _die(party.folder, "Ledger", "abandon", "before")
    _die(party.folder, "Ledger", "abandon", "after")
    assert party.release().code == 0
    (account,) = json.loads(party.run("budget", "--json").out)
    assert account["left"]["epsilon"] == "2"


def test_a_living_builder_is_left_alone(party: Party) -> None:
    """The server clears up at its start, but not while somebody is building."""
    from label_party.server.run import running

    store = Store(party.store)
    store.create()
    with store.building(), store.open_ledger() as ledger:
        privacy = party.config().privacy
        ledger.reserve("labels", "1", privacy.charge, privacy.limit)
        with running(party.config()):
            assert len(ledger.reservations()) == 1
    with running(party.config()), store.open_ledger() as ledger:
        assert not ledger.reservations()


def _codes(party: Party) -> bytes:
    path = party.store / "releases" / "labels" / "1" / "codes.bin"
    return path.read_bytes() if path.exists() else b""


def _die(folder: Path, *step: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, *step],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        timeout=60,
    )
    assert ended.returncode == -signal.SIGKILL, ended
