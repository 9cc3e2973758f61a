"""``label-party serve``: mutual TLS, health checking, reflection, graceful stop.

The server is the threaded one. A fetch holds a thread while its reader is slow, so fetches are
limited to fewer than there are threads, and health checks always find a free one; in return disk
reads and digests never block an event loop, and a stalled reader costs one message of memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from common.errors import ConfigError, LabelveilError
from common.wire import label_release_pb2 as wire
from common.wire import label_release_pb2_grpc as stubs
from label_party.access import AccessPolicy
from label_party.catalog import Catalog
from label_party.config import LabelPartyConfig, ServerSection
from label_party.credentials import ServerCredentials
from label_party.disk import StoreBusy
from label_party.limits import RateLimit, StreamLimit
from label_party.populations import Populations
from label_party.refusal import Refusal
from label_party.service import LabelReleaseService
from label_party.store import Store
from label_party.submission import Reception

_log = logging.getLogger(__name__)

SERVICE = wire.DESCRIPTOR.services_by_name["LabelReleaseService"].full_name
_HEALTH_SECONDS = 5.0
_METADATA_BYTES = 8192
_STREAMS_PER_CONNECTION = 64


def serve(
    config: LabelPartyConfig,
    *,
    port_file: Path | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or SIGINT; running fetches then get the grace period to finish.

    Parameters
    ----------
    config
        The whole configuration.
    port_file
        Where the port number is written, atomically, once requests are answered.
    announce
        Told the address.

    Raises
    ------
    LabelveilError
        If certificates, address or store cannot be used.
    """
    stop = threading.Event()
    with _signals(stop), running(config) as address:
        announce(f"serving on {address}")
        if port_file is not None:
            _write_atomically(port_file, address.rpartition(":")[2] + "\n")
        stop.wait()
        _log.info("stopping", extra={"grace_seconds": config.server.grace_seconds})


@contextlib.contextmanager
def running(config: LabelPartyConfig) -> Iterator[str]:
    """Run a server in this process's background; yields the address that it listens on."""
    settings = config.server
    credentials = ServerCredentials(settings)
    store = _ready_store(config)
    catalog, populations = Catalog(store), Populations(store)
    populations.clean()
    data_sets = sorted({name for names in config.entitlements.values() for name in names})
    releases = catalog.open_all(data_sets)
    checker = health.HealthServicer()
    with StreamLimit(settings.max_streams, settings.stall_seconds) as streams:
        server = _server(settings)
        service = LabelReleaseService(
            catalog,
            AccessPolicy(config.entitlements),
            streams,
            RateLimit(settings.requests_per_minute),
            Reception(catalog, populations, config),
        )
        stubs.add_LabelReleaseServiceServicer_to_server(service, server)
        health_pb2_grpc.add_HealthServicer_to_server(checker, server)
        if settings.reflection:
            names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server(  # type: ignore[no-untyped-call]
                _AuthorizedReflection(names, service), server
            )
        address = _listen(server, settings, credentials)
        server.start()
        with _watching(checker, catalog):
            _log.info("serving", extra={"address": address, "releases": releases})
            try:
                yield address
            finally:
                checker.enter_graceful_shutdown()
                server.stop(settings.grace_seconds).wait()
    catalog.close()


class _AuthorizedReflection(reflection.ReflectionServicer):
    """Describes the service to entitled clients alone, within the same limits."""

    def __init__(self, names: tuple[str, ...], service: LabelReleaseService) -> None:
        super().__init__(names)
        self._service = service

    def ServerReflectionInfo(self, request_iterator: Any, context: Any) -> Any:
        try:
            self._service.client(context)
        except Refusal as refusal:
            context.abort(refusal.code, refusal.text)
        yield from super().ServerReflectionInfo(request_iterator, context)


def _ready_store(config: LabelPartyConfig) -> Store:
    """Open the store, and clear up after dead builders unless a living one is at work."""
    store = Store(config.store.directory)
    store.create()
    with contextlib.suppress(StoreBusy), store.building(), store.open_ledger() as ledger:
        recovered = store.recover(ledger)
        if recovered:
            _log.warning("unfinished releases undone", extra={"count": recovered})
    return store


def _server(settings: ServerSection) -> grpc.Server:
    return grpc.server(
        ThreadPoolExecutor(settings.max_streams + settings.spare_threads, "call"),
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


@contextlib.contextmanager
def _watching(checker: health.HealthServicer, catalog: Catalog) -> Iterator[None]:
    """Report health: serving as long as the ledger can be read."""
    stopped = threading.Event()

    def check() -> None:
        status: Any = health_pb2.HealthCheckResponse.SERVING
        try:
            catalog.check()
        except LabelveilError as error:
            _log.error("not healthy", extra={"reason": str(error)})
            status = health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", SERVICE):
            checker.set(name, status)

    def watch() -> None:
        while not stopped.wait(_HEALTH_SECONDS):
            check()

    check()
    thread = threading.Thread(target=watch, name="health-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@contextlib.contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    def handle(number: int, frame: object) -> None:
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"port file {path} cannot be written: {error.strerror}") from error
