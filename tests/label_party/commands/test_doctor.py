"""``label-party doctor``: a line for each check, whatever fails, and nothing is changed."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from labelveil.label_party.events.epoch import Rows
from tests.label_party.conftest import EVENTS, Party

CHECKS = [
    *("configuration", "labels", "population", "keys", "certificates", "proxies", "address"),
    "budget",
]
PLANTED = 73571.25


def doctor(party: Party, **settings: Any) -> tuple[int, dict[str, tuple[str, str]]]:
    """Its exit code, and state and line of every check; stops if it changes anything."""
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in _files(party)}
    done = party.run("doctor", "--json", *party.arguments(**settings))
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in _files(party)} == before
    found = json.loads(done.out)
    assert [one["check"] for one in found] == CHECKS
    failed = [one["check"] for one in found if one["state"] == "failed"]
    assert done.code == bool(failed)
    if failed:
        said = f"error: {len(failed)} of {len(CHECKS)} checks failed: {', '.join(failed)}\n"
        assert done.err == said
    assert str(PLANTED) not in done.out + done.err
    return done.code, {one["check"]: (one["state"], one["line"]) for one in found}


def _files(party: Party) -> list[Path]:
    return sorted(path for path in party.folder.rglob("*") if path.is_file())


def test_a_setup_that_works_is_said_to(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:planted@proxy.example:3128")
    keys = [f"event-{i}" for i in range(EVENTS)]
    party.write_labels({"key": keys, "label": [PLANTED] * EVENTS})
    code, found = doctor(party)
    assert code == 0
    assert {state for state, _ in found.values()} == {"ok", "open"}
    assert "label in 0 … 10; ε = 1, of ε = 3" in found["configuration"][1]
    assert found["labels"][1] == "labels.csv: key, label"
    assert found["population"][1] == "population.csv: key"
    assert "server.pem of localhost, EC secp256r1, 1 in" in found["certificates"][1]
    assert found["proxies"] == ("ok", "https_proxy in the environment")
    assert found["address"][0] == "open"
    assert "spent nothing of ε = 3" in found["budget"][1]
    assert not party.store.exists()
    assert party.release().code == 0
    assert "spent ε = 1 of ε = 3" in doctor(party)[1]["budget"][1]


@pytest.mark.parametrize(
    ("settings", "check", "said"),
    [
        ({"data__labels": "none.csv"}, "labels", "none.csv does not exist"),
        ({"data__label": "amuont"}, "labels", "no column 'amuont'"),
        ({"data__date": "dya"}, "population", "no column 'dya'"),
        ({"data__population": "sqlite:///no.db", "data__population_query": "SELECT 1 AS key"},
         "population", "population query of sqlite:///no.db: no.db does not exist"),
        ({"keys__secret_file": "none.key"}, "keys", "none.key cannot be read"),
        ({"keys__signing_key": "join.key"}, "keys", "is not an unencrypted Ed25519"),
        ({"server__private_key": "join.key"}, "certificates", "join.key"),
        ({"server__client_ca": "labels.csv"}, "certificates", "holds no PEM certificate"),
        ({"server__listen": "192.0.2.1:50051"}, "address", "192.0.2.1:50051 cannot be listened on"),
        ({"server__listen": "nowhere.invalid:50051"}, "address", "set [server] listen"),
    ],
)  # fmt: skip
def test_what_fails_is_named_and_the_others_are_looked_at_all_the_same(
    party: Party, settings: dict[str, str], check: str, said: str
) -> None:
    code, found = doctor(party, **settings)
    assert code == 1
    assert found[check][0] == "failed"
    assert said in found[check][1]
    others = {name: state for name, (state, _) in found.items() if name != check}
    also = {"labels"} if "data__date" in settings else set()
    assert {name for name, state in others.items() if state == "failed"} == also


def test_somebody_who_listens_already_is_seen(party: Party) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        place = f"127.0.0.1:{listening.getsockname()[1]}"
        assert doctor(party, server__listen=place)[1]["address"] == (
            "ok",
            f"something listens on {place}",
        )


def test_epochs_with_files_of_their_own_are_left_to_the_watch(party: Party) -> None:
    code, found = doctor(party, data__labels="{epoch}.csv")
    assert (code, found["labels"][0]) == (0, "open")
    assert "label-party watch --dry-run" in found["labels"][1]


def test_what_a_library_raises_is_not_repeated(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(rows: Rows) -> None:
        raise RuntimeError(f"{PLANTED}\x1b[31m")

    monkeypatch.setattr(Rows, "check", raising)
    found = doctor(party)[1]
    assert found["labels"] == ("failed", "RuntimeError; -v shows where it arose")
    assert found["keys"][0] == "ok"
