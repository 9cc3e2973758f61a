"""The server: identical bytes for every client forever, and nobody else gets in."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import polars as pl
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from labelveil.common.errors import LabelveilError
from labelveil.common.release.blocks import block_ranges
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.manifest import Manifest, block_digest
from labelveil.common.security.pilot_certificates import Authority, Role, issue, make_authority
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.common.wire import label_release_pb2_grpc as stubs
from labelveil.label_party.monitoring.calls import Telemetry
from labelveil.label_party.server.handshakes import Handshakes
from labelveil.label_party.server.run import SERVICE, open_server, running
from tests.common.security.keys import write_key
from tests.label_party.conftest import CLIENT, EVENTS, Client, Party, eventually

Connect = Callable[..., Client]


def refused(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), error.value.details()


def test_what_is_fetched_is_what_the_manifest_says(served: str, connect: Connect) -> None:
    client = connect(served)
    described = client.describe()
    assert hashlib.sha256(described.manifest).digest() == described.manifest_sha256
    manifest = Manifest.from_bytes(described.manifest)
    keys, codes = client.fetch(described)
    assert (len(keys), len(codes)) == (16 * EVENTS, EVENTS)
    for index, (start, stop) in enumerate(block_ranges(EVENTS, manifest.content.block_rows)):
        digest = block_digest(keys[16 * start : 16 * stop], codes[start:stop])
        assert digest == manifest.content.blocks[index]


@pytest.mark.slow
def test_the_same_bytes_twice_from_two_clients_in_any_chunks_from_any_row(
    served: str, connect: Connect
) -> None:
    one, two = connect(served), connect(served)
    described = one.describe()
    assert two.describe("labels", "1") == described
    keys, codes = one.fetch(described)
    assert one.fetch(described) == (keys, codes)
    assert two.fetch(described, max_chunk_bytes=100) == (keys, codes)
    assert two.fetch(described, max_chunk_bytes=1) == (keys, codes)
    for row in range(0, EVENTS + 1, 7):
        assert two.fetch(described, start_row=row) == (keys[16 * row :], codes[row:])
    assert two.fetch(described, start_row=EVENTS) == (b"", b"")


def test_the_same_bytes_after_a_restart(party: Party, connect: Connect) -> None:
    party.release()
    fetched = []
    for _ in range(2):
        with running(party.config()) as address:
            client = connect(address)
            described = client.describe()
            fetched.append((described.manifest, client.fetch(described)))
    assert fetched[0] == fetched[1]


def test_a_release_made_while_serving_is_served(
    party: Party, served: str, connect: Connect
) -> None:
    client = connect(served)
    first = client.describe()
    assert party.release(data__epoch="2").code == 0
    latest = client.describe()
    assert Manifest.from_bytes(latest.manifest).epoch == "2"
    assert client.describe("labels", "1") == first
    assert client.fetch(first)[1] != client.fetch(latest, epoch="2")[1]


def test_a_manifest_is_served_without_being_understood(
    party: Party, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a manifest takes in memory as objects does not matter: only where its rows lie does."""
    assert party.release().code == 0

    def parse(data: bytes) -> Manifest:
        raise AssertionError("a manifest was parsed")

    with monkeypatch.context() as serving:
        serving.setattr(Manifest, "parse", parse)
        with running(party.config()) as address:
            client = connect(address)
            described = client.describe()
            keys, codes = client.fetch(described)
    assert (len(keys), len(codes)) == (16 * EVENTS, EVENTS)
    assert Manifest.from_bytes(described.manifest).population.rows == EVENTS


def test_a_manifest_that_changes_while_it_is_served_is_damaged(
    party: Party, served: str, connect: Connect
) -> None:
    path = party.store / "releases" / "labels" / "1" / "manifest.json"
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"labels", b"labelz"))
    assert refused(connect(served).describe)[0] == grpc.StatusCode.DATA_LOSS


@pytest.mark.parametrize("in_place", [True, False])
def test_rows_that_change_while_they_are_served_are_not_sent(
    party: Party, served: str, connect: Connect, in_place: bool
) -> None:
    client = connect(served)
    described = client.describe()
    path = party.store / "releases" / "labels" / "1" / "codes.bin"
    other = bytes(path.stat().st_size)
    if not in_place:
        path.unlink()
    path.write_bytes(other)
    assert refused(lambda: client.fetch(described))[0] == grpc.StatusCode.DATA_LOSS


@pytest.mark.slow
def test_several_data_sets(party: Party, connect: Connect) -> None:
    party.release()
    for name in ("second", "private"):
        party.release(data__data_set=name, privacy__account="labels")
    with running(party.config(server__data_sets='["labels", "second"]')) as address:
        client = connect(address)
        assert client.describe("labels") != client.describe("second")
        assert refused(lambda: client.describe("private")) == (
            grpc.StatusCode.PERMISSION_DENIED, "not permitted",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"data_set": ""}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"data_set": "x" * 65}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"data_set": "unknown"}, grpc.StatusCode.PERMISSION_DENIED),
        ({"data_set": "../labels"}, grpc.StatusCode.PERMISSION_DENIED),
        ({"epoch": ""}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"epoch": "x" * 65}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"epoch": "9"}, grpc.StatusCode.NOT_FOUND),
        ({"epoch": "../1"}, grpc.StatusCode.NOT_FOUND),
        ({"manifest_sha256": b""}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"manifest_sha256": bytes(32)}, grpc.StatusCode.FAILED_PRECONDITION),
        ({"start_row": EVENTS + 1}, grpc.StatusCode.OUT_OF_RANGE),
        ({"start_row": 2**64 - 1}, grpc.StatusCode.OUT_OF_RANGE),
    ],
)
def test_requests_that_make_no_sense(
    served: str, connect: Connect, request_: dict[str, Any], code: grpc.StatusCode
) -> None:
    client = connect(served)
    described = client.describe()
    assert refused(lambda: client.fetch(described, **request_))[0] == code


def test_a_store_without_a_release_answers_not_found(party: Party, connect: Connect) -> None:
    with running(party.config()) as address:
        code, text = refused(connect(address).describe)
        assert (code, text) == (grpc.StatusCode.NOT_FOUND, "no such release")


def test_populations_are_the_labels_partys_own(served: str, connect: Connect) -> None:
    header = wire.PopulationHeader(data_set="labels", epoch="1", rows=1)
    messages = [wire.SubmitPopulationRequest(header=header)]
    stub = connect(served).stub
    code, _ = refused(lambda: stub.SubmitPopulation(iter(messages), timeout=300))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    nothing = refused(lambda: stub.SubmitPopulation(iter([]), timeout=300))
    assert nothing == (grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")


def test_unknown_clients_are_refused(
    served: str, connect: Connect, authority: Authority, client_identity: Any
) -> None:
    other = make_authority("another authority")
    long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=30)
    shut = grpc.StatusCode.UNAVAILABLE
    closed: list[Client] = [
        connect(served, None),
        connect(served, issue(other, Role.CLIENT, [CLIENT])),
        connect(served, issue(authority, Role.CLIENT, [CLIENT], days=1, valid_from=long_ago)),
        connect(served, client_identity, trusted=other),  # the client's turn to be suspicious
    ]
    for client in closed:
        assert refused(client.describe)[0] == shut
    with grpc.insecure_channel(served) as channel:
        plain = Client(stubs.LabelReleaseServiceStub(channel), channel)
        assert refused(plain.describe)[0] == shut


def test_a_trusted_certificate_of_another_name_learns_nothing(
    served: str, connect: Connect, authority: Authority
) -> None:
    unknown = connect(served, issue(authority, Role.CLIENT, ["other.example"]))
    answers = {
        refused(lambda: unknown.describe()),
        refused(lambda: unknown.describe("unknown")),
        refused(lambda: unknown.describe("")),
        refused(lambda: unknown.stub.SubmitPopulation(iter([]), timeout=300)),
        refused(lambda: list(unknown.stub.FetchRelease(wire.FetchReleaseRequest(), timeout=300))),
        refused(lambda: _reflect(unknown)),
    }
    assert answers == {(grpc.StatusCode.PERMISSION_DENIED, "not permitted")}


def test_health_and_reflection(served: str, connect: Connect) -> None:
    client = connect(served)
    stub = health_pb2_grpc.HealthStub(client.channel)
    for name in ("", SERVICE):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=300)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert SERVICE in _reflect(client)


def test_methods_are_listed_where_that_is_configured(party: Party, connect: Connect) -> None:
    with running(party.config(server__reflection="false")) as address:
        assert refused(lambda: _reflect(connect(address)))[0] == grpc.StatusCode.UNIMPLEMENTED


def test_an_unreadable_ledger_is_said_to_be_one(
    party: Party, served: str, connect: Connect
) -> None:
    (party.store / "ledger.sqlite").write_bytes(b"no database" * 1000)
    assert refused(connect(served).describe) == (
        grpc.StatusCode.UNAVAILABLE, "the ledger cannot be read now; try again later",
    )  # fmt: skip


@pytest.mark.slow
def test_stalled_readers_keep_nobody_waiting(party: Party, connect: Connect) -> None:
    """With all places taken by readers that stopped, health answers, and places come back."""
    events = 1_000_000  # 630 kB: several times what the two libraries may hold between them
    party.write_population({"key": [f"event-{i}" for i in range(events)]})
    assert party.release().code == 0
    with running(party.config(server__max_streams=2,
                              server__stall_seconds=2.0)) as address:  # fmt: skip
        client = connect(address)
        described = client.describe()
        request = wire.FetchReleaseRequest(
            data_set="labels", epoch="1", manifest_sha256=described.manifest_sha256,
            max_chunk_bytes=2000,
        )  # fmt: skip
        stalled = [
            # a window that the client's library does not widen by itself
            connect(address, **{"grpc.http2.bdp_probe": 0}).stub.FetchRelease(request)
            for _ in range(2)
        ]
        for call in stalled:
            next(call)
        health = health_pb2_grpc.HealthStub(client.channel)
        for _ in range(5):
            health.Check(health_pb2.HealthCheckRequest(), timeout=300)
        _, codes = _fetch_when_free(client, described)
        assert len(codes) == events
        for call in stalled:
            assert refused(lambda call=call: list(call))[0] == grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_message_has_as_many_bytes_as_are_configured(party: Party, connect: Connect) -> None:
    secret = read_secret(party.folder / "join.key")
    keys = hash_keys(pl.Series([str(n) for n in range(512)]), secret)
    submitted = {"data__population": '"submitted"', "server__max_message_bytes": 5_000}
    with running(party.config(**submitted)) as address:
        client = connect(address)
        code, _ = refused(lambda: client.submit(keys, secret, chunk=5_120))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert client.submit(keys, secret, chunk=4_960).rows == 512


def test_too_many_requests(party: Party, connect: Connect) -> None:
    party.release()
    with running(party.config(server__requests_per_minute=3)) as address:
        client = connect(address)
        for _ in range(3):
            client.describe()
        assert refused(client.describe)[0] == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_certificates_are_read_again(party: Party, served: str, connect: Connect) -> None:
    """After a change of authority the old client is refused and the new one is served."""
    connect(served).describe()
    renewed = make_authority("the next authority")
    server = issue(renewed, Role.SERVER, ["localhost"])
    write_key(party.folder / "server.key", server.key_pem)  # half a change is no change
    connect(served).describe()
    (party.folder / "server.pem").write_bytes(server.certificate_pem)
    (party.folder / "ca.pem").write_bytes(renewed.pem)
    assert connect(served, issue(renewed, Role.CLIENT, [CLIENT]), trusted=renewed).describe()
    assert refused(connect(served).describe)[0] == grpc.StatusCode.UNAVAILABLE


def test_a_server_says_that_its_store_is_new_and_when_it_stops(
    party: Party, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", open_server.__module__)
    for new in (["store is new: nothing is released"], []):
        caplog.clear()
        with open_server(party.config(store__directory="labl_store", server__grace_seconds=7)):
            assert [record.message for record in caplog.records] == [*new, "serving"]
        assert [record.message for record in caplog.records] == [*new, "serving", "stopping"]
        assert vars(caplog.records[-1])["grace_seconds"] == 7


def test_an_ended_server_has_told_of_its_calls_and_leaves_no_thread(
    party: Party, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """But the one that all calls of a process share."""
    caplog.set_level("INFO", Telemetry.__module__)
    assert party.release().code == 0

    def own() -> set[str]:
        names = {thread.name.partition("_")[0] for thread in threading.enumerate()}
        return names & {"work", "verify"}

    assert own() == set()
    with running(party.config()) as address:
        connect(address).describe()
        assert own() == {"work", "verify"}
    assert own() == set()
    (call,) = (vars(each) for each in caplog.records if each.message == "call")
    assert (call["method"], call["client"]) == ("DescribeRelease", CLIENT)
    assert call["peer"].startswith("ipv")


def test_a_store_that_cannot_be_made_is_refused(party: Party) -> None:
    with (
        pytest.raises(LabelveilError, match=r"join\.key"),
        open_server(party.config(store__directory="join.key/store")),
    ):
        pass


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"server__certificate": "absent.pem"}, ["absent.pem", "No such file"]),
        ({"server__certificate": "join.key"}, ["join.key", "no PEM certificate"]),
        ({"server__private_key": "server.pem"}, ["server.pem", "chmod 600"]),
        ({"server__private_key": "join.key"}, ["join.key", "private key"]),
        ({"server__certificate": "ca.pem"}, ["does not belong"]),
        ({"server__listen": "203.0.113.1:1"}, ["203.0.113.1:1", "cannot be bound"]),
    ],
)
def test_a_server_that_cannot_start_says_why(
    party: Party, settings: dict[str, str], parts: list[str]
) -> None:
    ended = party.run("serve", *party.arguments(**settings, server__log_level="error"))
    error = ended.err.splitlines()[-1]
    assert ended.code == 1
    for part in parts:
        assert part in error


@pytest.mark.slow
def test_serve_tells_its_port_logs_no_secret_and_stops_when_asked(
    party: Party, connect: Connect
) -> None:
    planted = "4.0625"
    party.write_labels({"key": ["event-7"], "label": [planted]})
    released = party.release()
    port_file = party.folder / "port"
    options = ["--port-file", str(port_file), "--set", "server.log_format=json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "labelveil.label_party", "serve", *options],
        cwd=party.folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        announced = process.stdout.readline()
        assert announced.startswith("serving on localhost:")
        eventually(port_file.exists)
        assert announced.strip().endswith(":" + port_file.read_text().strip())
        client = connect(announced.split()[-1])
        client.fetch(client.describe())
        refused(lambda: client.describe("evil\nname"))
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=300)
    assert process.returncode == 0
    events = [json.loads(line) for line in log.splitlines()]
    assert {"serving", "call", "stopping"} <= {event["event"] for event in events}
    secret = (party.folder / "join.key").read_text().strip()
    for text in (planted, "event-7", secret, "PRIVATE KEY", "noisy", "evil"):
        assert text not in log
        assert text not in released.out


def _reflect(client: Client) -> list[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=300)
    return [service.name for service in answer.list_services_response.service]


def _fetch_when_free(
    client: Client, described: wire.DescribeReleaseResponse
) -> tuple[bytes, bytes]:
    fetched: list[tuple[bytes, bytes]] = []

    def try_() -> bool:
        try:
            fetched.append(client.fetch(described))
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
                return False
            raise
        return True

    eventually(try_)
    return fetched[0]


def test_an_operator_whose_failed_handshakes_are_not_counted_is_told(
    party: Party, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """gRPC says nothing of them without GRPC_VERBOSITY; who does not read its log need not know."""
    monkeypatch.setattr("labelveil.label_party.server.handshakes.SECONDS", 0.1)
    party.release()
    for handshakes, warned in ((None, False), (Handshakes(), True)):
        caplog.clear()
        with open_server(party.config(), handshakes):
            assert ("failed handshakes are not counted" in caplog.messages) == warned
