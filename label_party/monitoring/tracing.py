"""Optional OpenTelemetry traces: one span a call, exported as the OTEL_* environment says.

The packages are an extra, and imported only where ``[observability] tracing`` asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from common.errors import ConfigError
from common.wire import label_release_pb2 as wire
from label_party.monitoring.spans import Span, Traces

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

SERVICE = wire.DESCRIPTOR.services_by_name["LabelReleaseService"].full_name


def make_traces(exporter: SpanExporter | None = None) -> Traces:
    """Return traces that go where the OTEL_* environment says.

    Parameters
    ----------
    exporter
        Another destination than OTLP over gRPC.

    Raises
    ------
    ConfigError
        If the packages are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tracing=true needs the package {error.name!r}, which is not installed; run"
            " pip install 'labelveil[tracing]', or set [observability] tracing = false"
        ) from error
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over the default name
    named = Resource.create()
    if str(named.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        named = named.merge(Resource({SERVICE_NAME: "label-party"}))
    provider = TracerProvider(resource=named)
    provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
    return _Exported(provider)


class _Exported(Traces):
    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("label_party")

    @contextmanager
    def call(self, method: str) -> Iterator[Span]:
        from opentelemetry.trace import SpanKind

        # not the current span: a stream's generator is resumed by several threads
        span = self._tracer.start_span(
            f"{SERVICE}/{method}",
            kind=SpanKind.SERVER,
            attributes={"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": method},
        )
        try:
            yield _ExportedSpan(span)
        finally:
            span.end()

    def close(self) -> None:
        self._provider.shutdown()


class _ExportedSpan:
    def __init__(self, span: Any) -> None:
        self._span = span

    def end(self, status: str, facts: Mapping[str, Any]) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("rpc.grpc.status", status)
        for name, value in facts.items():
            self._span.set_attribute(f"label_party.{name}", value)
        self._span.set_status(StatusCode.OK if status == "OK" else StatusCode.ERROR)
