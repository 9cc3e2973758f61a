"""``label-party serve``: mutual TLS, health checking, reflection, graceful stop."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from labelveil.common.guarantees import Guarantee
from labelveil.common.wire import evaluation_pb2, label_release_pb2
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.submitted import Populations
from labelveil.label_party.monitoring.calls import Telemetry, Traces
from labelveil.label_party.monitoring.tracing import SERVICE, make_traces
from labelveil.label_party.queries.evaluation import Evaluation
from labelveil.label_party.server.access import AccessPolicy
from labelveil.label_party.server.calls import ActiveCalls, Calls
from labelveil.label_party.server.catalog import Catalog
from labelveil.label_party.server.credentials import ServerCredentials
from labelveil.label_party.server.evaluation_service import EvaluationService
from labelveil.label_party.server.handshakes import Handshakes
from labelveil.label_party.server.health import HealthService, Probes
from labelveil.label_party.server.http_probes import observed
from labelveil.label_party.server.limits import Places, RateLimits, share_of
from labelveil.label_party.server.listener import Listener, start
from labelveil.label_party.server.reflection_service import ReflectionService
from labelveil.label_party.server.refusal import too_many_streams
from labelveil.label_party.server.release_service import LabelReleaseService
from labelveil.label_party.server.submission import Submissions
from labelveil.label_party.store.disk import StoreBusy, StoreError
from labelveil.label_party.store.ledger import LedgerError
from labelveil.label_party.store.recovery import recover
from labelveil.label_party.store.release_store import Store

_log = logging.getLogger(__name__)

_RELEASES = label_release_pb2.DESCRIPTOR.services_by_name["LabelReleaseService"]
_EVALUATIONS = evaluation_pb2.DESCRIPTOR.services_by_name["EvaluationService"]
# the stubs of these two have descriptors of another type
_HEALTH: Any = health_pb2.DESCRIPTOR.services_by_name["Health"]
_REFLECTION: Any = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]

_SPARE_THREADS = 8
"""Threads beyond those that streams may occupy."""

_CALLS = 24
"""Calls beyond its streams that one client may have open."""


@dataclass(frozen=True)
class Running:
    """A server at work."""

    address: str  # where it listens
    observed_at: str | None  # where probes and metrics are answered, if anywhere
    # what the first question about a model will be charged, if it will be
    question: Guarantee | None
    reload: Callable[[], None]  # reads the certificates again


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

    ``handshakes`` are where gRPC's log is read; without them, failed ones are not seen. At the end
    running fetches get the grace period to finish. ``LabelveilError`` if certificates, address or
    store cannot be used.
    """
    settings = config.server
    log_is_read = handshakes is not None
    handshakes = handshakes or Handshakes()
    credentials = ServerCredentials(settings, handshakes)
    traces = make_traces() if config.observability.tracing else Traces()
    telemetry = Telemetry(traces)
    store = _ready_store(config.store.directory)
    catalog = Catalog(store)
    policy = AccessPolicy(config.entitlements)
    each = share_of(settings.max_streams, settings.client_share, policy.clients)
    streams = Places(settings.max_streams, each, too_many_streams)
    submissions = Submissions(catalog, Populations(store), config)
    service = LabelReleaseService(
        catalog, policy, streams, settings.stall_seconds, submissions, telemetry
    )
    evaluation = Evaluation(config, store)
    with contextlib.ExitStack() as stack:
        stack.callback(traces.close)
        stack.callback(catalog.close)
        data_sets = {name for names in config.entitlements.values() for name in names}
        releases = catalog.open_all(sorted(data_sets))
        # a stream occupies one thread at most, so that streams never take the last ones
        threads = ThreadPoolExecutor(settings.max_streams + _SPARE_THREADS, "work")
        stack.callback(threads.shutdown)
        work, rate = ActiveCalls(threads), RateLimits(settings.requests_per_minute)
        calls = Calls(policy, rate, each + _CALLS, telemetry, work)
        calls.add(_RELEASES, service)
        calls.add(_EVALUATIONS, EvaluationService(service, evaluation))
        if settings.reflection:
            calls.add(_REFLECTION, ReflectionService([_RELEASES, _EVALUATIONS, _HEALTH]))
        probes = Probes(work, catalog, credentials, handshakes)
        health = HealthService(probes, ("", SERVICE))
        calls.add(_HEALTH, health, public=True)
        listener = Listener(settings, credentials, calls, work)
        stack.callback(listener.close)
        probes.address = listener.address
        seen = handshakes.try_tls12(listener.address, listening=log_is_read)
        if log_is_read and not seen:
            _log.warning(
                "failed handshakes are not counted",
                extra={"reason": "gRPC's log is silent; is GRPC_VERBOSITY set?"},
            )
        handshakes.on_refused = telemetry.refuse_connection
        observed_at = None
        if config.observability.listen is not None:
            observed_at = stack.enter_context(
                observed(config, config.observability.listen, probes, telemetry, streams)
            )
        stack.callback(telemetry.flush, ended=True)
        start(health.update()).result()
        stack.callback(start(health.watch(telemetry.flush)).cancel)
        # probes are answered until the last fetch has ended, or an orchestrator loses patience
        stack.callback(listener.drain, settings.grace_seconds)
        stack.callback(lambda: start(health.update()).result())
        stack.callback(probes.stop)
        stack.callback(_log.info, "stopping", extra={"grace_seconds": settings.grace_seconds})
        _log.info(
            "serving",
            extra={"address": listener.address, "observed_at": observed_at, "releases": releases},
        )

        def reload() -> None:
            _log.info("reloading", extra={"read_again": "certificates", "after_a_restart": "all"})
            credentials.forget()
            handshakes.probe_listener(listener.address)  # gRPC asks for them at a connection

        yield Running(listener.address, observed_at, evaluation.price(), reload)


def _ready_store(directory: Path) -> Store:
    """Open the store, and clear up after dead builders unless a living one is at work.

    ``LabelveilError`` if there is no store and none can be made, or its ledger is damaged.
    """
    store = Store(directory)
    if not store.directory.is_dir():  # mistyped, or the server is started before the first release
        _log.warning("store is new: nothing is released", extra={"store": str(store.directory)})
        store.create()
    store.check_ledger()
    try:
        store.create()
        Populations(store).clean()
        with contextlib.suppress(StoreBusy), store.building(), store.open_ledger() as ledger:
            recovery = recover(store, ledger)
            if recovery.undone:
                _log.warning("unfinished releases undone", extra={"count": recovery.undone})
            if recovery.counted:
                counted = {"releases": recovery.counted}
                _log.warning("unknown releases counted as spent", extra=counted)
    except (StoreError, LedgerError) as error:
        # a full disk: what is committed can be served, if it can be read, as is found out next
        _log.warning("store not cleared up", extra={"reason": str(error)})
    return store
