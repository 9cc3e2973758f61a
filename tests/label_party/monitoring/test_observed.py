"""Probes that mean something, and metrics that say what happened."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import groupby

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from labelveil.common.errors import ConfigError
from labelveil.common.security.pilot_certificates import Authority, Role, issue
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.monitoring.calls import OncePerMinute
from labelveil.label_party.server import health as server_health
from labelveil.label_party.server.calls import ActiveCalls
from labelveil.label_party.server.catalog import Catalog
from labelveil.label_party.server.credentials import ServerCredentials
from labelveil.label_party.server.handshakes import Handshakes
from labelveil.label_party.server.health import Probes
from labelveil.label_party.server.http_probes import _free_bytes
from labelveil.label_party.server.run import Running, open_server
from labelveil.label_party.store.release_store import Store
from tests.common.security.keys import write_key
from tests.label_party.conftest import EVENTS, Client, Party, eventually
from tests.label_party.serving import get, metrics

Connect = Callable[..., Client]


@contextmanager
def observed(party: Party, **settings: object) -> Iterator[tuple[Running, str]]:
    """A server in this process with probes on a free port; yields it and the probes' address."""
    with open_server(party.config(observability__listen="127.0.0.1:0", **settings)) as server:
        assert server.observed_at is not None
        yield server, server.observed_at


def test_a_healthy_server_is_alive_and_ready(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    party.release()
    with observed(party) as (_, address):
        assert get(address, "/livez") == (200, "ok\n")
        assert get(address, "/readyz") == (200, "ok\n")
        assert get(address, "/labels")[0] == 404
        monkeypatch.setattr(Probes, "dead", lambda self: {}["mistake"])
        assert get(address, "/livez") == (500, "internal error\n")
    assert math.isnan(_free_bytes(party.folder / "nowhere"))


def test_a_head_is_answered_like_a_get_without_its_body(party: Party) -> None:
    """Load balancers ask so."""
    party.release()
    with observed(party) as (_, address):
        for path, status in {"/livez": 200, "/readyz": 200, "/": 200, "/labels": 404}.items():
            connection = http.client.HTTPConnection(address, timeout=300)
            with contextlib.closing(connection):
                connection.request("HEAD", path)
                answer = connection.getresponse()
                assert (answer.status, answer.read()) == (status, b"")
                stated = int(answer.headers["Content-Length"])
                connection.request("GET", path)
                answer = connection.getresponse()
                assert int(answer.headers["Content-Length"]) == len(answer.read()) == stated
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as plain:
            plain.sendall(b"HEAD /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
            with plain.makefile("rb") as text:
                assert text.read().endswith(b"\r\n\r\n")


def test_without_a_ledger_it_is_alive_and_not_ready(
    party: Party,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(server_health, "_WATCH_SECONDS", 0.02)
    caplog.set_level("INFO", server_health.__name__)
    party.release()
    ledger = party.store / "ledger.sqlite"
    kept = ledger.read_bytes()
    with observed(party) as (server, address):
        health = health_pb2_grpc.HealthStub(connect(server.address).channel)
        for damage in (lambda: ledger.write_bytes(b"no database" * 1000), ledger.unlink):
            damage()
            assert get(address, "/readyz") == (503, "the ledger cannot be read\n")
            code, page = get(address, "/")
            assert (code, "ledger.sqlite" in page) == (200, True)
            assert get(address, "/livez")[0] == 200
            eventually(lambda: _status(health) == health_pb2.HealthCheckResponse.NOT_SERVING)
            assert metrics(address)["label_party_ledger_readable"] == 0
            for side in party.store.glob("ledger.sqlite-[ws]*"):
                side.unlink()
            ledger.write_bytes(kept)
            # somebody may have looked while the file was being written
            eventually(lambda: get(address, "/readyz")[0] == 200)
            eventually(lambda: _status(health) == health_pb2.HealthCheckResponse.SERVING)
    said = [each.message for each in caplog.records if each.name == server_health.__name__]
    assert [message for message, _ in groupby(said)] == ["not ready", "ready again"] * 2


def _status(health: health_pb2_grpc.HealthStub) -> object:
    return health.Check(health_pb2.HealthCheckRequest(), timeout=300).status


def test_an_ended_certificate_is_not_ready_until_it_is_renewed(
    party: Party, connect: Connect, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    party.release()
    now = datetime.now(UTC)
    short = issue(authority, Role.SERVER, ["localhost"], days=30, valid_from=now)
    (party.folder / "server.pem").write_bytes(short.certificate_pem)
    write_key(party.folder / "server.key", short.key_pem)
    name = "label_party_server_certificate_expiry_timestamp_seconds"
    with observed(party) as (server, address):
        ends = metrics(address)[name]
        assert abs(ends - (now + timedelta(days=30)).timestamp()) < 2
        with monkeypatch.context() as later:
            later.setattr("labelveil.common.security.certificate_checks.datetime", Later)
            assert get(address, "/readyz") == (503, "a certificate is not valid\n")
            assert get(address, "/livez")[0] == 200
            fresh = issue(authority, Role.SERVER, ["localhost"], days=90)
            (party.folder / "server.pem").write_bytes(fresh.certificate_pem)
            write_key(party.folder / "server.key", fresh.key_pem)
            connect(server.address).describe()
            assert get(address, "/readyz")[0] == 200
        assert metrics(address)[name] > ends
        assert metrics(address)['label_party_certificate_reloads_total{outcome="done"}'] == 1
        write_key(party.folder / "server.key", b"half a file")
        connect(server.address).describe()
        assert metrics(address)['label_party_certificate_reloads_total{outcome="failed"}'] >= 1


class Later(datetime):
    """Sixty days from now."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return datetime.now(UTC) + timedelta(days=60)


@contextmanager
def parts(party: Party, address: str, threads: ThreadPoolExecutor) -> Iterator[Probes]:
    """Probes of a server whose single parts a test can stop."""
    party.release()
    settings = party.config()
    handshakes = Handshakes()
    yield Probes(
        ActiveCalls(threads),
        Catalog(Store(settings.store.directory)),
        ServerCredentials(settings.server, handshakes),
        handshakes,
        address,
    )


def test_stuck_threads_are_dead(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    with ThreadPoolExecutor(2) as threads, parts(party, "127.0.0.1:1", threads) as found:
        assert found.dead() == []
        stuck = [threads.submit(released.wait, 30) for _ in range(2)]
        with monkeypatch.context() as hasty:
            hasty.setattr(server_health, "BEAT_SECONDS", 0.1)
            assert found.dead() == ["calls are not worked on"]
        released.set()
        assert all(call.result() for call in stuck)
        assert found.dead() == []
    assert found.dead() == ["calls are not worked on"]


def test_nobody_who_takes_connections_is_not_ready(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listening socket is not enough: the kernel would accept for a process that never does."""
    monkeypatch.setattr("labelveil.label_party.server.handshakes.SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as threads:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with parts(party, address, threads) as found:
            assert [*found.unready()] == ["no connection is taken"]


@pytest.mark.slow
def test_while_it_stops_it_is_alive_and_not_ready(party: Party, connect: Connect) -> None:
    party.write_population({"key": [f"event-{i}" for i in range(60_000)]})
    assert party.release().code == 0
    closing: list[int] = []
    with ThreadPoolExecutor(1) as threads:
        opened = observed(party, server__grace_seconds=30)
        server, address = opened.__enter__()
        client = connect(server.address, **{"grpc.http2.bdp_probe": 0})
        request = wire.FetchReleaseRequest(
            data_set="labels", epoch="1", max_chunk_bytes=2000,
            manifest_sha256=client.describe().manifest_sha256,
        )  # fmt: skip
        call = client.stub.FetchRelease(request, timeout=300)
        first = next(call)
        closing.append(metrics(address)["label_party_fetches_active"])
        ended = threads.submit(opened.__exit__, None, None, None)
        eventually(lambda: get(address, "/readyz") == (503, "stopping\n"))
        assert get(address, "/livez") == (200, "ok\n")
        rows = len(first.codes) + sum(len(message.codes) for message in call)
        ended.result(20)
    assert (closing, rows) == ([1], 60_000)


@pytest.mark.slow
def test_metrics_say_what_happened(party: Party, connect: Connect) -> None:
    party.release()
    party.release(data__epoch="2")
    with observed(party) as (server, address):
        client = connect(server.address)
        described = client.describe("labels", "1")
        client.fetch(described)
        client.fetch(described, start_row=50)
        with pytest.raises(grpc.RpcError):
            client.describe("labels", "9")
        method = 'label_party_requests_total{method="%s",status="%s"}'
        eventually(lambda: metrics(address).get(method % ("DescribeRelease", "NOT_FOUND")) == 1)
        found = metrics(address)
        assert found[method % ("DescribeRelease", "OK")] == 1
        assert found[method % ("FetchRelease", "OK")] == 2
        assert found['label_party_refusals_total{reason="no_release"}'] == 1
        rows = 2 * EVENTS - 50
        assert found['label_party_rows_sent_total{data_set="labels"}'] == rows
        assert found['label_party_bytes_sent_total{data_set="labels"}'] == 17 * rows
        assert found['label_party_request_seconds_count{method="FetchRelease"}'] == 2
        assert found["label_party_fetches_active"] == 0
        assert found['label_party_releases{data_set="labels"}'] == 2
        assert found['label_party_budget_charges{account="labels"}'] == 2
        assert found['label_party_budget_epsilon{account="labels"}'] == 3
        assert found['label_party_budget_epsilon_spent{account="labels"}'] == 2
        assert found['label_party_budget_epsilon_left{account="labels"}'] == 1
        assert found["label_party_connections_total"] == 1
        assert found["process_open_fds"] > 0
        _, text = get(address, "/metrics")
        assert list(text_string_to_metric_families(text))
        _, text = get(address, "/metrics", accept="application/openmetrics-text")
        assert text.endswith("# EOF\n")


@pytest.mark.slow
def test_a_cancelled_fetch_is_counted_as_one(party: Party, connect: Connect) -> None:
    party.write_population({"key": [f"event-{i}" for i in range(60_000)]})
    party.release()
    with observed(party) as (server, address):
        client = connect(server.address, **{"grpc.http2.bdp_probe": 0})
        request = wire.FetchReleaseRequest(
            data_set="labels", epoch="1", max_chunk_bytes=2000,
            manifest_sha256=client.describe().manifest_sha256,
        )  # fmt: skip
        call = client.stub.FetchRelease(request, timeout=300)
        for _ in range(3):
            next(call)
        call.cancel()
        name = 'label_party_requests_total{method="FetchRelease",status="CANCELLED"}'
        eventually(lambda: metrics(address).get(name) == 1)
        assert 0 < metrics(address)['label_party_rows_sent_total{data_set="labels"}'] < 60_000


def test_an_address_that_is_taken(party: Party) -> None:
    party.release()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(ConfigError, match=r"cannot be bound.*set \[observability\] listen"),
            open_server(party.config(observability__listen=address)),
        ):
            pass


def test_another_host_is_not_answered(party: Party) -> None:
    """What a browser sends for a page that has its own name lead here (DNS rebinding)."""
    party.release()
    with observed(party, observability__hosts='["metrics.example"]') as (_, address):
        port = address.rpartition(":")[2]

        def status(host: str, path: str) -> int:
            connection = http.client.HTTPConnection(address, timeout=300)
            with contextlib.closing(connection):
                connection.putrequest("GET", path, skip_host=True)
                if host:
                    connection.putheader("Host", host)
                connection.endheaders()
                return connection.getresponse().status

        for path in ("/", "/metrics", "/readyz", "/livez"):
            for other in (
                "evil.example",
                f"evil.example:{port}",
                "127.0.0.1.evil.example",
                "",
                "[",
            ):
                assert status(other, path) == 421
            for own in ("localhost", f"127.0.0.1:{port}", "[::1]", "METRICS.example", "10.0.0.7"):
                assert status(own, path) == 200


def test_a_minute_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    events = OncePerMinute("refused", lambda: now[0])
    for second in range(90):
        now[0] = float(second)
        for reason in ("no_release", "unknown_client"):
            events.add((reason,), {"reason": reason, "second": second})
    events.flush(ended=True)
    found = [vars(record) for record in caplog.records]
    for reason in ("no_release", "unknown_client"):
        lines = [(line["count"], line["second"]) for line in found if line["reason"] == reason]
        assert lines == [(1, 0), (60, 60), (29, 89)]


def test_a_flood_of_many_kinds_has_few_lines_and_each_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However many certificates and reasons refused calls come with."""
    now = [0.0]
    events = OncePerMinute("call", lambda: now[0])
    calls, minutes = 40_000, 10
    for number in range(calls):
        now[0] = 60.0 * minutes * number / calls
        events.add((f"serial {number % 10_000}", "unknown_client"), {})
        if number % 1000 == 0:
            events.flush()
    events.flush(ended=True)
    counts = [vars(record)["count"] for record in caplog.records]
    assert sum(counts) == calls
    assert len(counts) <= (OncePerMinute.KINDS + 1) * (minutes + 1)


def test_no_http_unless_it_is_configured(party: Party) -> None:
    party.release()
    with open_server(party.config()) as server:
        assert server.observed_at is None


def test_log_lines_are_json_off_a_terminal(party: Party) -> None:
    ended = party.run("serve", *party.arguments(server__certificate="absent.pem"))
    assert ended.code == 1
    lines = ended.err.splitlines()
    assert lines[-1].startswith("error: absent.pem cannot be read")
    assert all(json.loads(line)["event"] for line in lines[:-1])
