"""Traces: off unless configured, exported over OTLP, and one clear line without the packages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc

from labelveil.label_party.server.run import running
from tests.label_party.conftest import CLIENT, EVENTS, Client, Party, eventually

Connect = Callable[..., Client]


class Collector(otlp_grpc.TraceServiceServicer):
    """Keeps the spans that are exported to it."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        for resource in request.resource_spans:
            names = {a.key: a.value.string_value for a in resource.resource.attributes}
            self.services.add(names["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return otlp.ExportTraceServiceResponse()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """An OTLP collector on a free port, which the environment names."""
    made = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    otlp_grpc.add_TraceServiceServicer_to_server(made, server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://localhost:{port}")
    yield made
    server.stop(None).wait()


def test_each_call_is_a_span_with_public_facts_alone(
    party: Party, connect: Connect, collector: Collector
) -> None:
    party.release()
    with running(party.config(observability__tracing="true")) as address:
        client = connect(address)
        client.fetch(client.describe())
        with pytest.raises(grpc.RpcError):
            client.describe("secret name")
    # the end of the server exports what is left
    spans = {span.name: span for span in collector.spans}
    assert collector.services == {"label-party"}
    assert len(collector.spans) == 3
    service = "labelveil.v1.LabelReleaseService"
    fetched = _attributes(spans[f"{service}/FetchRelease"])
    # addresses and serial numbers are of the day
    for drawn in ("peer", "serial"):
        assert fetched.pop(f"label_party.{drawn}")
    assert fetched == {
        "rpc.system": "grpc", "rpc.service": service, "rpc.method": "FetchRelease",
        "rpc.grpc.status": "OK", "label_party.client": CLIENT, "label_party.data_set": "labels",
        "label_party.epoch": "1", "label_party.from_row": 0, "label_party.rows": EVENTS,
        "label_party.bytes": 17 * EVENTS, "label_party.subject": f"CN={CLIENT}",
    }  # fmt: skip
    statuses = sorted(_attributes(span)["rpc.grpc.status"] for span in collector.spans)
    assert statuses == ["OK", "OK", "PERMISSION_DENIED"]
    assert "secret name" not in str(collector.spans)
    assert all(span.end_time_unix_nano > span.start_time_unix_nano for span in collector.spans)


def _attributes(span: Any) -> dict[str, Any]:
    values = {a.key: a.value for a in span.attributes}
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values.items()}


def test_no_span_unless_configured(party: Party, connect: Connect, collector: Collector) -> None:
    party.release()
    with running(party.config()) as address:
        connect(address).describe()
    assert collector.spans == []


def test_a_collector_that_is_down_keeps_nobody_waiting(
    party: Party, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    party.release()
    with running(party.config(observability__tracing="true")) as address:
        client = connect(address)
        answered: list[bytes] = []
        eventually(lambda: answered.append(client.describe().manifest) or len(answered) == 3)
        assert len(set(answered)) == 1


def test_without_the_packages_it_says_which_extra(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    party.release()
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    ended = party.run("serve", *party.arguments(observability__tracing="true"))
    assert ended.code == 1
    error = ended.err.splitlines()[-1]
    assert error.startswith("error: tracing=true needs the package")
    assert "[tracing]'" in error
