"""Calls that are begun and never go on, by the hundred: everybody else is served meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from labelveil.common.security.pilot_certificates import Authority, Role, issue
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.server import calls, limits
from labelveil.label_party.server.refusal import too_many_calls, too_many_streams
from labelveil.label_party.server.run import SERVICE, open_server
from tests.effort import one_in
from tests.label_party.conftest import CLIENT, Client, Party, eventually
from tests.label_party.server.silent import Silent
from tests.label_party.server.test_unauthorized import tls
from tests.label_party.serving import get, metrics

Connect = Callable[..., Client]

ROWS = 20_000
HALF_OPEN = 1_000
"""And three streams for every ten of them."""

OTHER = "second.example"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
HEALTH = "/grpc.health.v1.Health/Check"


def begin_all(connections: list[Silent], fetch: wire.FetchReleaseRequest) -> None:
    """Begin calls that never go on, on all connections by turns."""
    question = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    half_open = (f"/{SERVICE}/DescribeRelease", f"/{SERVICE}/SubmitPopulation", HEALTH)
    for number in range(HALF_OPEN):
        connection = connections[number % len(connections)]
        connection.begin(half_open[number % 3])
        if number % 10 == 0:  # a reader that does not read, one who asks nothing, or no more
            connection.begin(f"/{SERVICE}/FetchRelease", fetch.SerializeToString(), ends=True)
            connection.begin(REFLECTION)
            connection.begin(REFLECTION, question)
    for connection in connections:
        connection.arrive()


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[limits.Places]:
    """The places of a server that is opened afterwards: those of known clients' calls."""
    made: list[limits.Places] = []
    begin = limits.Places.__init__

    def note(self: limits.Places, *arguments: object) -> None:
        begin(self, *arguments)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(limits.Places, "__init__", note)
    return made


@pytest.mark.parametrize("count", one_in(2, [1, 50], first=1))
@pytest.mark.parametrize("name", one_in(2, [OTHER, "unknown.example"]))
def test_silent_calls_keep_nobody_waiting(
    party: Party,
    connect: Connect,
    authority: Authority,
    places: list[limits.Places],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
    name: str,
    count: int,
) -> None:
    monkeypatch.setattr(calls, "REQUEST_SECONDS", 3600.0)  # what is open stays open
    path = party.folder / "label_party.toml"
    clients = f'clients = {{"{CLIENT}" = ["labels"], "{OTHER}" = ["labels"]}}'
    path.write_text(path.read_text().replace(f'client_san = "{CLIENT}"', clients))
    party.write_population({"key": [f"event-{i}" for i in range(ROWS)]})
    assert party.release().code == 0
    config = party.config(
        observability__listen="127.0.0.1:0",
        server__stall_seconds=3600,
        server__requests_per_minute=100_000,
    )
    caplog.set_level(logging.WARNING)
    with ExitStack() as stack:
        server = stack.enter_context(open_server(config))
        assert server.observed_at is not None
        right = connect(server.address)
        described = right.describe()
        fetch = wire.FetchReleaseRequest(
            data_set="labels", epoch="1", manifest_sha256=described.manifest_sha256
        )
        context = tls(authority, issue(authority, Role.CLIENT, [name]), party.folder)
        host, _, port = server.address.rpartition(":")
        connections = [Silent((host, int(port)), context) for _ in range(count)]
        for connection in connections:
            stack.callback(connection.close)
        begin_all(connections, fetch)
        assert {each.settings[3] for each in connections} == {64}  # streams of a connection

        began = time.monotonic()
        again = connect(server.address)  # a connection that begins now
        for client in (right, again):
            assert client.stub.DescribeRelease(
                wire.DescribeReleaseRequest(data_set="labels"), timeout=60
            ).manifest
            codes = b"".join(m.codes for m in client.stub.FetchRelease(fetch, timeout=60))
            assert len(codes) == ROWS
            health = health_pb2_grpc.HealthStub(client.channel)
            state = health.Check(health_pb2.HealthCheckRequest(), timeout=60).status
            assert state == health_pb2.HealthCheckResponse.SERVING
        assert get(server.observed_at, "/livez") == (200, "ok\n")
        assert get(server.observed_at, "/readyz") == (200, "ok\n")

        record_property("seconds", time.monotonic() - began)

        # all of this was answered while the others were open, up to as many as one client may have
        (open_calls,) = (
            each for each in places if each._refusal is too_many_calls and each._each > 16
        )
        (streams,) = (each for each in places if each._refusal is too_many_streams)
        assert open_calls.active <= open_calls._each
        eventually(lambda: (open_calls.active > 0) == (streams.active > 0) == (name == OTHER))
        counted = metrics(server.observed_at)
    refused = sum(
        number for key, number in counted.items() if key.startswith("label_party_refusals_total")
    )
    lines = [record for record in caplog.records if hasattr(record, "count")]
    assert refused > (10 if count == 1 else 500)  # of one connection gRPC itself refuses most
    assert sum(vars(line)["count"] for line in lines) >= refused
    # two clients, the reasons that they give, and the two minutes that this may last
    assert len(lines) <= 20
    assert len(caplog.records) < len(lines) + 10
