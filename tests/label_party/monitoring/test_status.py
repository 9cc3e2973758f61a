"""Tests for the operator's one screen."""

from __future__ import annotations

import html
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from labelveil.common.guarantees import PureDP
from labelveil.label_party.monitoring.status import status
from labelveil.label_party.server.run import open_server
from tests.label_party.conftest import CLIENT, Client, Party
from tests.label_party.serving import get

Connect = Callable[..., Client]


def test_it_says_what_happened_on_terminal_and_page(party: Party, connect: Connect) -> None:
    party.release()
    party.release(data__epoch="2")
    with open_server(party.config(observability__listen="127.0.0.1:0")) as server:
        client = connect(server.address)
        client.fetch(client.describe("labels", "2"), epoch="2")
        with pytest.raises(grpc.RpcError):
            client.describe("labels", "9")
        shown = party.run("status", f"--listen={server.observed_at}").out
        code, page = get(str(server.observed_at), "/")
        told = json.loads(party.run("status", "--json", f"--listen={server.observed_at}").out)
    for line in (
        "account labels: ε = 2 spent of ε = 3",
        "left ε = 1",
        "labels, epoch 1, labels: ε = 1",
        f"labels, epoch 2: by {CLIENT}",
        "1  no_release",
        "the server's ends",
    ):
        assert line in shown
        assert line in html.unescape(page)
    assert "epoch 1: by" not in shown  # nobody fetched it
    assert code == 200
    assert told["accounts"][0]["account"] == "labels"
    assert told["server"]["label_party_fetches_active"] == [[{}, 0.0]]


def test_without_a_server_the_ledger_speaks(party: Party) -> None:
    assert "left ε = 3" in party.run("status").out
    party.release()
    shown = party.run("status", "--listen=127.0.0.1:1").out
    assert "ε = 1 spent" in shown
    assert shown.endswith("server: none answers at [observability] listen\n")


def test_another_stores_server_is_not_taken_for_this_ones(party: Party) -> None:
    party.release()
    with open_server(party.config(observability__listen="127.0.0.1:0")) as server:
        elsewhere = ["--config=other.toml", "--set=store.directory=elsewhere"]
        shutil.copy("label_party.toml", "other.toml")
        assert party.run("release", *elsewhere).code == 0
        elsewhere.append(f"--listen={server.observed_at}")
        shown = party.run("status", *elsewhere).out
        plain = json.loads(party.run("status", "--json", *elsewhere).out)
        own = party.run("status", f"--listen={server.observed_at}").out
    assert shown.endswith(f"server: the one at {server.observed_at} serves another store\n")
    assert plain["server"] is None
    assert "server: answers" in own


def test_what_became_of_a_charge_stands_beside_it() -> None:
    said = {"data_set": "d", "epoch": "1", "purpose": "labels", "guarantee": PureDP.of(1)}
    usual = {**said, "id": 1, "committed_at": "2026-06-01T10:20:30", "reserved_at": "2026-05"}
    charges = [
        SimpleNamespace(**{**usual, "state": "committed", "lost": False}),
        SimpleNamespace(**{**usual, "state": "committed", "lost": True}),
        SimpleNamespace(
            **{**usual, "state": "reserved", "lost": False, "committed_at": ""}
            | {"reserved_at": "2026-05-31T09:00:00"}
        ),
    ]
    account: Any = SimpleNamespace(
        account="d", spent=None, limit="ε = 3", left_in_words="ε = 1", charges=charges,
        withdrawals={},
    )  # fmt: skip
    samples = {
        "label_party_fetches_active": [({}, 2.0)],
        "label_party_releases_damaged": [({}, 3.0)],
    }
    shown = [*status([account], samples, datetime(2026, 6, 2, tzinfo=UTC))]
    assert [line.strip() for line in shown[2:5]] == [
        "2026-06-01 10:20  d, epoch 1, labels: ε = 1",
        "2026-06-01 10:20  d, epoch 1, labels: ε = 1, bytes lost",
        "2026-05-31 09:00  d, epoch 1, labels: ε = 1, reserved",
    ]
    assert "server: answers; 2 fetches running, 3 damaged releases" in shown


def test_a_certificate_that_ends_soon_is_pointed_out() -> None:
    name = "label_party_server_certificate_expiry_timestamp_seconds"
    now = datetime(2026, 6, 1, tzinfo=UTC)
    for days, said in ((29, "in 29 days: renew it"), (30, "in 30 days")):
        samples = {name: [({}, now.timestamp() + days * 86_400)]}
        assert list(status([], samples, now))[-1].endswith(said)
