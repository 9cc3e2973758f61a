"""What is told of a server by itself: health, readiness and measures, with what surrounds it
standing in."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from labelveil.common.errors import LabelveilError
from labelveil.label_party.monitoring.calls import CANCELLED, OK, Call, Telemetry, Traces
from labelveil.label_party.server import health as healths
from labelveil.label_party.server.health import HealthService, Probes
from labelveil.label_party.server.http_probes import BudgetMetrics, _Connections, _verdict
from labelveil.label_party.server.refusal import Refusal
from labelveil.label_party.store.ledger import LedgerError

Health: Any = health_pb2.HealthCheckResponse


def told(**facts: Any) -> Any:
    return SimpleNamespace(**facts)


class Broken:
    """Stands for a part whose check fails."""

    def __init__(self, error: str = "") -> None:
        self.error = error

    def check(self) -> None:
        if self.error:
            raise LabelveilError(self.error)


def probes(
    catalog: str = "", credentials: str = "", *, listens: bool = True, last: Any = None
) -> Probes:
    left_out = ["data set a, epoch 1, is damaged", "data set b, epoch 2, is damaged"]
    of_catalog = told(check=Broken(catalog).check, left_out=lambda: left_out, from_the_future=last)
    listening = told(probe_listener=lambda address: listens and address == "here:1")
    certificates: Any = Broken(credentials)
    return Probes(told(), of_catalog, certificates, listening, "here:1")


def test_readiness_names_each_thing_that_fails_and_a_stop_alone() -> None:
    assert probes().unready() == {}
    assert probes("no ledger").unready() == {"the ledger cannot be read": "no ledger"}
    everything = probes("no ledger", "it ended", listens=False)
    assert everything.unready() == {
        "the ledger cannot be read": "no ledger",
        "a certificate is not valid": "it ended",
        "no connection is taken": "here:1",
    }
    everything.stop()
    assert everything.unready() == {"stopping": ""}
    left = ["release left out: data set a, epoch 1, is damaged",
            "release left out: data set b, epoch 2, is damaged"]  # fmt: skip
    assert probes().notes() == left
    last = datetime(2999, 3, 4, 5, 6, tzinfo=UTC)
    *others, clock = probes(last=last).notes()
    assert others == left
    now = f"{datetime.now(UTC):%Y-%m-%d}"
    assert clock.startswith(f"the clock says {now} ")
    assert clock.endswith("UTC, before the ledger's last charge of 2999-03-04 05:06 UTC")


def test_a_verdict_is_unavailable_for_problems_and_not_for_notes() -> None:
    assert _verdict([]) == (200, "text/plain; charset=utf-8", b"ok\n")
    assert _verdict([], ["a", "b"])[::2] == (200, b"ok\na\nb\n")
    assert _verdict(["no ledger"], ["a"])[::2] == (503, b"no ledger\na\n")


class Watched:
    """A call of gRPC's health service."""

    def __init__(self, service: str) -> None:
        self.asked, self.states = health_pb2.HealthCheckRequest(service=service), list[Any]()

    async def request(self) -> Any:
        return self.asked

    async def write(self, message: Any) -> None:
        self.states.append(message.status)


def test_health_is_told_when_asked_and_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, healths.__name__)
    found: dict[str, str] = {}
    service = HealthService(told(unready=lambda: dict(found)), ("", "labels"))

    async def play() -> tuple[list[Any], list[Any], list[Any]]:
        rpc, strange, once = Watched("labels"), Watched("other"), Watched("")
        watching = [asyncio.ensure_future(service.Watch(each)) for each in (rpc, strange)]
        for state in ({}, {"a": "1"}, {"a": "2"}, {"a": "1", "b": "1"}, {}, {"stopping": ""}):
            await asyncio.sleep(0)
            found.clear()
            found.update(state)
            await service.update()
            await asyncio.sleep(0.01)
        await service.Check(once)
        with pytest.raises(Refusal) as refused:
            await service.Check(strange)
        assert refused.value.code == grpc.StatusCode.NOT_FOUND
        for each in watching:
            each.cancel()
        return rpc.states, strange.states, once.states

    states, strange, once = asyncio.run(play())
    up, down = Health.SERVING, Health.NOT_SERVING
    assert states == [up, down, down, up, down]
    assert set(strange) == {Health.SERVICE_UNKNOWN}
    assert once == [down]
    lines = [(each.message, vars(each).get("reasons")) for each in caplog.records]
    assert lines == [("not ready", ["a"]), ("not ready", ["a", "b"]), ("ready again", None)]


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return telemetry.registry.get_sample_value(name, labels)


def test_a_call_is_counted_once_by_its_method_and_how_it_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    telemetry = Telemetry(Traces())
    good = Call(telemetry, "Fetch", "peer")
    with telemetry.recorded(good):
        good.sent("sales", 10, 170)
        good.sent("sales", 5, 85)
        assert good.status == CANCELLED
    assert good.status == OK
    bad = Call(telemetry, "Fetch", "peer")
    with telemetry.recorded(bad):
        bad.refuse("NOT_FOUND", "no_release", "why " + 600 * "x")
    broken = Call(telemetry, "Fetch", "peer")
    broken.moved(1, 17)
    with pytest.raises(asyncio.CancelledError), telemetry.recorded(broken):
        raise asyncio.CancelledError
    unseen = Call(telemetry, "Check", "peer")
    unseen.refuse("NOT_FOUND", "no_release", "")
    for status, count in (("OK", 1), ("NOT_FOUND", 1), (CANCELLED, 1)):
        labels = {"method": "Fetch", "status": status}
        assert value(telemetry, "label_party_requests_total", **labels) == count
    assert value(telemetry, "label_party_request_seconds_count", method="Fetch") == 3
    assert value(telemetry, "label_party_request_seconds_count", method="Check") is None
    assert value(telemetry, "label_party_refusals_total", reason="no_release") == 2
    assert value(telemetry, "label_party_rows_sent_total", data_set="sales") == 15
    assert value(telemetry, "label_party_bytes_sent_total", data_set="sales") == 255
    lines = [vars(each) for each in caplog.records]
    assert [(x["levelname"], x["status"], x["rows"], x["bytes"]) for x in lines] == [
        ("INFO", "OK", 15, 255),
        ("WARNING", "NOT_FOUND", 0, 0),
        ("WARNING", CANCELLED, 1, 17),
    ]
    assert "cause" not in lines[0]
    assert lines[1]["cause"] == f"why {496 * 'x'}"
    assert all(line["method"] == "Fetch" and line["seconds"] >= 0 for line in lines)


def test_what_clients_did_last_is_measured() -> None:
    telemetry = Telemetry(Traces())
    end = datetime(2030, 1, 2, tzinfo=UTC)
    telemetry.seen("a", end)
    telemetry.seen("b", None)
    telemetry.seen("a", end + timedelta(days=1))
    name = "label_party_client_certificate_expiry_timestamp_seconds"
    assert value(telemetry, name, client="a") == (end + timedelta(days=1)).timestamp()
    assert value(telemetry, name, client="b") is None
    before = datetime.now(UTC).timestamp()
    telemetry.fetched("a", "sales", "7")
    place = {"client": "a", "data_set": "sales", "epoch": "7"}
    stamp = value(telemetry, "label_party_last_fetch_timestamp_seconds", **place)
    assert stamp is not None
    assert before - 1 <= stamp <= datetime.now(UTC).timestamp() + 1
    telemetry.refuse_connection("plaintext")
    assert value(telemetry, "label_party_refusals_total", reason="plaintext") == 1


def account(name: str, **facts: Any) -> Any:
    usual = {"ledger": "l1", "charges": [], "withdrawals": {}, "limit": None, "spent": None}
    return told(account=name, **{**usual, "left": None, **facts})


def charge(number: int, data_set: str, state: str = "committed", digest: str = "d") -> Any:
    return told(id=number, data_set=data_set, state=state, digest=digest)


def test_the_ledger_is_measured_account_by_account() -> None:
    paid = account(
        "shop",
        charges=[
            charge(1, "sales"),
            charge(2, "sales"),
            charge(3, "visits", digest=""),
            charge(4, "visits", "reserved", ""),
            charge(5, "visits"),
        ],
        withdrawals={2: "wrong"},
        limit=told(epsilon=3.0),
        spent=told(epsilon=2.5),
        left=told(epsilon=0.5),
    )
    accounts = [paid, account("other", limit=told(epsilon=1.0), left=told(rho=1.0))]
    samples = {
        (each.name, *each.labels.values()): each.value
        for metric in BudgetMetrics(lambda: accounts).collect()
        for each in metric.samples
    }
    assert samples == {
        ("label_party_ledger_readable",): 1,
        ("label_party_ledger_info", "l1"): 1,
        ("label_party_releases", "sales"): 2,
        ("label_party_releases", "visits"): 1,
        ("label_party_releases_withdrawn", "sales"): 1,
        ("label_party_budget_charges", "shop"): 4,
        ("label_party_budget_charges", "other"): 0,
        ("label_party_budget_epsilon", "shop"): 3,
        ("label_party_budget_epsilon", "other"): 1,
        ("label_party_budget_epsilon_spent", "shop"): 2.5,
        ("label_party_budget_epsilon_spent", "other"): 0,
        ("label_party_budget_epsilon_left", "shop"): 0.5,
    }

    def refuse() -> Any:
        raise LedgerError("gone")

    (readable, *rest) = BudgetMetrics(refuse).collect()
    assert [each.value for each in readable.samples] == [0]
    assert not any(metric.samples for metric in rest)


def test_what_is_counted_elsewhere_has_its_name_and_number() -> None:
    probes: Any = SimpleNamespace(
        handshakes=SimpleNamespace(connections=7),
        credentials=SimpleNamespace(reloads={"done": 2, "failed": 1}),
    )
    samples = [each for found in _Connections(probes).collect() for each in found.samples]
    assert {(each.name, *each.labels.values()): each.value for each in samples} == {
        ("label_party_connections_total",): 7,
        ("label_party_certificate_reloads_total", "done"): 2,
        ("label_party_certificate_reloads_total", "failed"): 1,
    }
