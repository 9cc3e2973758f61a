"""``label-party serve``: mutual TLS, health checking, reflection, graceful stop.

The server is the threaded one. A fetch holds a thread while its reader is slow, so fetches are
limited to fewer than there are threads, and health checks always find a free one; in return disk
reads and digests never block an event loop, and a stalled reader costs one message of memory.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from prometheus_client import ProcessCollector

from common.errors import ConfigError
from common.files import PUBLIC, appearing
from common.guarantees import Guarantee
from common.signals import stopped_by_signals
from common.wire import evaluation_pb2, evaluation_pb2_grpc
from common.wire import label_release_pb2_grpc as stubs
from label_party.config.sections import LabelPartyConfig
from label_party.config.serving import ServerSection
from label_party.events.submitted import Populations
from label_party.monitoring.budget_metrics import BudgetMetrics
from label_party.monitoring.calls import Call, Telemetry
from label_party.monitoring.status import Samples, status
from label_party.monitoring.tracing import NO_TRACES, SERVICE, make_traces
from label_party.queries.evaluation import Evaluation
from label_party.server.access import AccessPolicy
from label_party.server.catalog import Catalog
from label_party.server.credentials import ServerCredentials
from label_party.server.evaluation_service import EvaluationService
from label_party.server.handlers import streaming
from label_party.server.handshakes import Handshakes
from label_party.server.health import Vitals, watching
from label_party.server.http_probes import answering
from label_party.server.limits import RateLimits, StreamLimit, share_of
from label_party.server.release_service import LabelReleaseService
from label_party.server.submission import Reception
from label_party.server.unreadable_requests import ReadRequests
from label_party.store.account import AccountState, read_accounts
from label_party.store.disk import StoreBusy
from label_party.store.recovery import recover
from label_party.store.release_store import Store

_log = logging.getLogger(__name__)

EVALUATIONS = evaluation_pb2.DESCRIPTOR.services_by_name["EvaluationService"].full_name
_METADATA_BYTES = 8192
_STREAMS_PER_CONNECTION = 64


@dataclass(frozen=True)
class Running:
    """A server at work.

    Attributes
    ----------
    address
        Where it listens.
    observed_at
        Where probes and metrics are answered, if anywhere.
    question
        What the first question about a model will be charged, if it will be.
    """

    address: str
    observed_at: str | None
    question: Guarantee | None


def serve(
    config: LabelPartyConfig,
    *,
    port_file: Path | None = None,
    announce: Callable[[str], None] = print,
    handshakes: Handshakes | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; running fetches then get the grace period to finish.

    Parameters
    ----------
    config
        The whole configuration.
    port_file
        Where the port number is written, atomically, once requests are answered.
    announce
        Told the addresses.
    handshakes
        Where gRPC's log is read; without it, failed handshakes are not seen.

    Raises
    ------
    LabelveilError
        If certificates, address or store cannot be used.
    """
    with stopped_by_signals() as stop, open_server(config, handshakes) as server:
        announce(f"serving on {server.address}")
        if server.observed_at is not None:
            announce(f"probes and metrics on http://{server.observed_at}")
        if server.question is not None:
            announce(
                f"the first question about data set {config.data.data_set}, epoch"
                f" {config.data.epoch}, will charge account {config.account} {server.question}"
            )
        if port_file is not None:
            _write_port(port_file, server.address.rpartition(":")[2])
        stop.wait()
        _log.info("stopping", extra={"grace_seconds": config.server.grace_seconds})


@contextlib.contextmanager
def running(config: LabelPartyConfig) -> Iterator[str]:
    """Run a server in this process's background; yields the address that it listens on."""
    with open_server(config) as server:
        yield server.address


@contextlib.contextmanager
def open_server(
    config: LabelPartyConfig, handshakes: Handshakes | None = None
) -> Iterator[Running]:
    """Run a server in this process's background, with everything around it.

    Parameters
    ----------
    config
        The whole configuration.
    handshakes
        Where gRPC's log is read, if it is.
    """
    settings = config.server
    heard = handshakes is not None
    handshakes = handshakes or Handshakes()
    credentials = ServerCredentials(settings, handshakes)
    traces = make_traces() if config.observability.tracing else NO_TRACES
    telemetry = Telemetry(traces)
    store = _ready_store(config)
    catalog, populations = Catalog(store), Populations(store)
    populations.clean()
    data_sets = sorted({name for names in config.entitlements.values() for name in names})
    releases = catalog.open_all(data_sets)
    checker = health.HealthServicer()
    with contextlib.ExitStack() as stack:
        stack.callback(traces.close)
        stack.callback(catalog.close)
        each = share_of(settings.max_streams, settings.client_share, len(config.entitlements))
        streams = stack.enter_context(
            StreamLimit(settings.max_streams, settings.stall_seconds, each=each)
        )
        threads = ThreadPoolExecutor(settings.max_streams + settings.spare_threads, "call")
        server = _server(settings, threads)
        service = LabelReleaseService(
            catalog,
            AccessPolicy(config.entitlements),
            streams,
            RateLimits(settings.requests_per_minute),
            Reception(catalog, populations, config),
            telemetry,
        )
        stubs.add_LabelReleaseServiceServicer_to_server(service, server)
        evaluation = Evaluation(config, store)
        evaluation_pb2_grpc.add_EvaluationServiceServicer_to_server(
            EvaluationService(service, evaluation), server
        )
        health_pb2_grpc.add_HealthServicer_to_server(checker, server)
        if settings.reflection:
            names = (SERVICE, EVALUATIONS, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server(  # type: ignore[no-untyped-call]
                _AuthorizedReflection(names, service), server
            )
        address = _listen(server, settings, credentials)
        server.start()
        stack.callback(lambda: server.stop(None).wait())
        _check_handshakes(handshakes, address, heard)
        handshakes.on_refused = lambda reason: telemetry.refuse("handshake refused", reason)
        _measure(telemetry, config, catalog, streams, credentials, handshakes)
        vitals = Vitals(threads, streams, catalog, credentials, handshakes, address)
        observed_at = None
        if config.observability.listen is not None:
            observed_at = stack.enter_context(
                answering(
                    config.observability.listen,
                    vitals,
                    telemetry.registry,
                    lambda: status(
                        read_accounts(config),
                        Samples.of(telemetry.registry.collect()),
                        datetime.now(UTC),
                    ),
                )
            )
        stack.enter_context(watching(vitals, checker, ("", SERVICE)))
        # probes are answered until the last fetch has ended, or an orchestrator loses patience
        stack.callback(lambda: server.stop(settings.grace_seconds).wait())
        stack.callback(checker.enter_graceful_shutdown)
        stack.callback(vitals.stop)
        _log.info(
            "serving",
            extra={"address": address, "observed_at": observed_at, "releases": releases},
        )
        yield Running(address, observed_at, evaluation.price())


def _check_handshakes(handshakes: Handshakes, address: str, heard: bool) -> None:
    seen = handshakes.try_tls12(address, listening=heard)
    if heard and not seen:
        _log.warning(
            "failed handshakes are not counted",
            extra={"reason": "gRPC's log is silent; is GRPC_VERBOSITY set?"},
        )


def _measure(
    telemetry: Telemetry,
    config: LabelPartyConfig,
    catalog: Catalog,
    streams: StreamLimit,
    credentials: ServerCredentials,
    handshakes: Handshakes,
) -> None:
    telemetry.gauge("label_party_fetches_active", "Fetches running.", lambda: streams.active)
    telemetry.gauge(
        "label_party_releases_damaged",
        "Committed releases that are left out, because their bytes are damaged.",
        lambda: len(catalog.damaged),
    )
    telemetry.count(
        "label_party_connections",
        "Connections taken, whatever became of them.",
        lambda: {"": handshakes.connections},
    )
    telemetry.count(
        "label_party_certificate_reloads",
        "Changed certificate files, by what reading them gave.",
        lambda: credentials.reloads,
        label="outcome",
    )
    for which in ("server", "client_ca"):
        telemetry.gauge(
            f"label_party_{which}_certificate_expiry_timestamp_seconds",
            "When the certificate in use ends.",
            partial(_end, credentials, which),
        )

    def accounts() -> list[AccountState]:
        catalog.check()
        return read_accounts(config)

    telemetry.add(BudgetMetrics(accounts))
    telemetry.add(ProcessCollector(registry=None))


class _AuthorizedReflection(reflection.ReflectionServicer):
    """Describes the service to entitled clients alone, within the same limits."""

    def __init__(self, names: tuple[str, ...], service: LabelReleaseService) -> None:
        super().__init__(names)
        self._service = service
        self.telemetry = service.telemetry

    @streaming
    def ServerReflectionInfo(self, request_iterator: Any, context: Any, call: Call) -> Any:
        self._service.client(context, call)
        yield from super().ServerReflectionInfo(request_iterator, context)


def _ready_store(config: LabelPartyConfig) -> Store:
    """Open the store, and clear up after dead builders unless a living one is at work."""
    store = Store(config.store.directory)
    if not store.directory.is_dir():  # mistyped, or the server is started before the first release
        _log.warning("store is new: nothing is released", extra={"store": str(store.directory)})
    store.create()
    with contextlib.suppress(StoreBusy), store.building(), store.open_ledger() as ledger:
        found = recover(store, ledger)
        if found.undone:
            _log.warning("unfinished releases undone", extra={"count": found.undone})
        if found.counted:
            _log.warning("unknown releases counted as spent", extra={"releases": found.counted})
    return store


def _server(settings: ServerSection, threads: ThreadPoolExecutor) -> grpc.Server:
    return grpc.server(
        threads,
        interceptors=[ReadRequests(SERVICE.rpartition(".")[0])],
        options=[
            # two servers on one port would share clients by chance
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", settings.max_message_bytes),
            ("grpc.max_concurrent_streams", _STREAMS_PER_CONNECTION),
            ("grpc.max_metadata_size", _METADATA_BYTES),
            # a peer that vanished without a word frees its place
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
        ],
    )


def _listen(server: grpc.Server, settings: ServerSection, credentials: ServerCredentials) -> str:
    try:
        port = server.add_secure_port(settings.listen, credentials.grpc)
    except RuntimeError:
        port = 0
    if not port:
        raise ConfigError(
            f"listen={settings.listen!r} cannot be bound: the address is taken or not this"
            " machine's; set [server] listen"
        )
    return f"{settings.listen.rpartition(':')[0]}:{port}"


def _end(credentials: ServerCredentials, which: str) -> float:
    return credentials.ends(which).timestamp()


def _write_port(path: Path, port: str) -> None:
    try:
        with appearing(path, mode=PUBLIC) as file:
            file.write(f"{port}\n".encode())
    except OSError as error:
        raise ConfigError(f"port file {path} cannot be written: {error.strerror}") from error
