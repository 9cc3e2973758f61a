"""Sections of label_party.toml for the server: where it listens, who may fetch, what is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from labelveil.common.config import Section, Words, setting
from labelveil.common.config.names import Name
from labelveil.common.errors import ConfigError


def _is_host_and_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    named = bool(host) and not set(host) & set("/@ \t")
    return named and port.isdecimal() and int(port) < 65536


HostAndPort = Annotated[str, Words("host:port with a port from 0 to 65535", _is_host_and_port)]
ClientName = Annotated[
    str, Words("one exact DNS name or URI", lambda name: bool(name) and "*" not in name)
]
Clients = Annotated[
    dict[ClientName, Annotated[list[Name], Field(min_length=1)]],
    Words("a table of exact DNS names or URIs, each with at least one data set"),
]


class ServerSection(Section):
    """The listening end: address, identity, who may fetch, limits and logs."""

    listen: HostAndPort = setting(
        "127.0.0.1:50051", "Address to listen on. Port 0 lets the system choose one."
    )
    certificate: Path = setting(
        Path("certificates/label-party.pem"),
        "The server's certificate with its chain, PEM. It is read again when it changes, like the"
        " private key.",
    )
    private_key: Path = setting(
        Path("certificates/label-party.key"), "The server's private key, PEM."
    )
    client_ca: Path = setting(
        Path("certificates/ca.pem"),
        "Certificate authority that signs clients' certificates, PEM.",
    )
    client_san: ClientName = setting(
        "feature-party",
        "The one subject alternative name, a DNS name or a URI, whose certificate may fetch.",
    )
    data_sets: list[Name] = setting(
        list, "Data sets that it may fetch. Default: [data] data_set.", example=["conversions"]
    )
    clients: Clients = setting(
        dict,
        "Several clients, in place of client_san and data_sets: each one's name with its data"
        " sets, in one line.",
        example={"publisher.example": ["conversions"], "spiffe://net.example/a": ["installs"]},
    )
    max_streams: int = setting(
        16, "Fetches and submissions that may run at the same time.", ge=1, le=1024
    )
    client_share: float = setting(
        0.5,
        "Share of the streams and of the waiting populations that one client may hold while others"
        " are entitled, too.",
        gt=0,
        le=1,
    )
    max_message_bytes: int = setting(
        4 << 20, "Largest message that a client may send.", unit="bytes", ge=4096, le=64 << 20
    )
    max_population_rows: int = setting(
        50_000_000, "Most events in a population that a client submits.", ge=1
    )
    max_waiting_populations: int = setting(
        8, "How many populations may wait for their releases.", ge=1
    )
    requests_per_minute: int = setting(600, "Requests per minute that each client may make.", ge=1)
    stall_seconds: float = setting(
        120.0,
        "Time without progress after which a fetch or a submission is ended.",
        unit="seconds",
        gt=0,
    )
    grace_seconds: float = setting(
        30.0,
        "Time that running fetches get to finish when the server stops.",
        unit="seconds",
        ge=0,
    )
    reflection: bool = setting(
        True,
        "Whether authorized clients may ask for the service's description (gRPC reflection).",
    )
    log_format: Literal["auto", "text", "json"] = setting(
        "auto",
        'Log lines. "json" is one object a line; "auto" is text on a terminal and JSON elsewhere.',
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The least that is logged."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        alone = self.model_fields_set & {"client_san", "data_sets"}
        if self.clients and alone:
            raise ConfigError(
                f"{sorted(alone)[0]} has no effect beside [server] clients, which names every"
                " client; move its names there, or remove one of the two"
            )
        return self


class ObservabilitySection(Section):
    """What the operator sees besides the log: probes and metrics over HTTP, and traces."""

    listen: HostAndPort | None = setting(
        None,
        "Plain HTTP for the operator alone: a page of status, /livez, /readyz and /metrics"
        " (Prometheus). Anybody who reaches this address can read it. Leave it out for no HTTP.",
        example="127.0.0.1:9464",
        write=True,
    )
    hosts: list[str] = setting(
        list,
        "Further host names under which this address answers, besides that of listen, localhost"
        " and IP addresses. Requests for other hosts are refused, because a web page could send"
        " them.",
        example=["label-party.monitoring.svc"],
    )
    tracing: bool = setting(
        False,
        "Whether calls are traced with OpenTelemetry (pip install '.[tracing]')."
        " Environment variables say where traces go, above all OTEL_EXPORTER_OTLP_ENDPOINT.",
    )
