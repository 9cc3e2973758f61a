"""Optional OpenTelemetry traces: one span a call, exported as the OTEL_* environment says.

The packages are an extra, and imported only where ``[observability] tracing`` asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from labelveil.common.errors import ConfigError
from labelveil.common.extras import install_command
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.monitoring.calls import OK, Call, Traces

SERVICE = wire.DESCRIPTOR.services_by_name["LabelReleaseService"].full_name


def make_traces() -> Traces:
    """Return traces that go where the OTEL_* environment says.

    ``ConfigError`` if the packages are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tracing=true needs the package {error.name!r}, which is not installed;"
            f" {install_command('tracing')}, or set [observability] tracing = false"
        ) from error
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over the default name
    named = Resource.create()
    if str(named.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        named = named.merge(Resource({SERVICE_NAME: "label-party"}))
    provider = TracerProvider(resource=named)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return _Exported(provider)


class _Exported(Traces):
    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("label_party")

    @contextmanager
    def traced(self, call: Call) -> Iterator[None]:
        from opentelemetry.trace import SpanKind, StatusCode

        # not the current span: a stream's generator is resumed by several threads
        span = self._tracer.start_span(
            f"{SERVICE}/{call.method}",
            kind=SpanKind.SERVER,
            attributes={"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": call.method},
        )
        try:
            yield
        finally:
            span.set_attribute("rpc.grpc.status", call.status)
            for name, value in call.facts.items():
                span.set_attribute(f"label_party.{name}", value)
            span.set_status(StatusCode.OK if call.status == OK else StatusCode.ERROR)
            span.end()

    def close(self) -> None:
        self._provider.shutdown()
