"""What an operator sees of the server: one record a call, as a log line, in metrics and as a span.

Records carry public facts only: names, row numbers, sizes, durations, reasons of refusals. Label
values of metrics come from the configuration, the ledger or this package, never from a request, so
that no client can make them grow.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_log = logging.getLogger(__name__)

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

OK = "OK"
CANCELLED = "CANCELLED"

_MINUTE = 60.0


class Call:
    """One call while it runs."""

    def __init__(self, telemetry: Telemetry, method: str) -> None:
        self.method = method
        self.status = CANCELLED  # until it is known to have ended otherwise
        self.facts: dict[str, Any] = {}
        self._telemetry = telemetry

    def sent(self, data_set: str, rows: int, size: int) -> None:
        """Count rows that the transport has taken."""
        self.facts["rows"] = self.facts.get("rows", 0) + rows
        self.facts["bytes"] = self.facts.get("bytes", 0) + size
        self._telemetry.rows.labels(data_set).inc(rows)
        self._telemetry.bytes.labels(data_set).inc(size)

    def refuse(self, status: str, reason: str, peer: str) -> None:
        """Record a refusal."""
        self.status = status
        self._telemetry.refuse(reason, method=self.method, status=status, peer=peer, **self.facts)


class Traces:
    """Traces of calls; these are none (:mod:`label_party.monitoring.tracing` makes some)."""

    def traced(self, call: Call) -> AbstractContextManager[None]:
        """Trace one call, whose end its status and facts tell."""
        return nullcontext()

    def close(self) -> None:
        """Export what is left."""


class Telemetry:
    """Metrics, log and traces of one server."""

    def __init__(self, traces: Traces) -> None:
        self.registry = CollectorRegistry()  # all that ``/metrics`` shows
        self._traces = traces
        self._requests = self._counter(
            "label_party_requests",
            "Calls that ended, by method and gRPC status.",
            "method",
            "status",
        )
        self._seconds = Histogram(
            "label_party_request_seconds",
            "Duration of calls, from the request to the last byte handed to the transport.",
            ["method"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._refusals = self._counter(
            "label_party_refusals", "Connections and calls refused, by reason.", "reason"
        )
        # from the beginning: an alert sees how a count grew, and not how one appeared
        for reason in REASONS:
            self._refusals.labels(reason)
        self._refused = OncePerMinute("refused")
        self._failed = OncePerMinute("call failed")
        self._fetched = Gauge(
            "label_party_last_fetch_timestamp_seconds",
            "When a client last got a release's last row.",
            ["client", "data_set", "epoch"],
            registry=self.registry,
        )
        self._client_ends = Gauge(
            "label_party_client_certificate_expiry_timestamp_seconds",
            "When the certificate ends with which a client last called.",
            ["client"],
            registry=self.registry,
        )
        self.rows = self._counter("label_party_rows_sent", "Rows sent.", "data_set")
        self.bytes = self._counter(
            "label_party_bytes_sent", "Bytes of keys and codes sent.", "data_set"
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    @contextmanager
    def recorded(self, call: Call) -> Iterator[None]:
        """Record one call from its beginning to its end, however it ends."""
        began = time.monotonic()
        with self._traces.traced(call):
            try:
                yield
                call.status = OK
            finally:
                self._requests.labels(call.method, call.status).inc()
                self._seconds.labels(call.method).observe(time.monotonic() - began)

    def seen(self, client: str, ends: datetime | None) -> None:
        """Remember until when a client can come with the certificate that it has now."""
        if ends is not None:
            self._client_ends.labels(client).set(ends.timestamp())

    def fetched(self, client: str, data_set: str, epoch: str) -> None:
        """Remember when a client got a release to its end."""
        self._fetched.labels(client, data_set, epoch).set_to_current_time()

    def refuse(self, reason: str, **facts: Any) -> None:
        """Count one refusal, and have it logged with all others of its minute."""
        self._refusals.labels(reason).inc()
        self._refused.add(reason, facts)

    def failed(self, method: str) -> None:
        """Have the exception that is being handled logged, if it is the minute's first."""
        self._failed.add(method, {"method": method}, trace=True)

    def flush(self, *, ended: bool = False) -> None:
        """Log what a minute has brought, and at the end also what less than one has."""
        for events in (self._refused, self._failed):
            events.flush(ended=ended)


class OncePerMinute:
    """Logs what clients can cause as often as they like: the first at once, then one line a minute.

    A line says how many there were of each kind and of each client, and all about the last. The
    log calls them ``event``.
    """

    def __init__(self, event: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._event, self._clock = event, clock
        self._lock = threading.Lock()
        self._next = -math.inf
        self._kinds: Tally[str] = Tally()
        self._clients: Tally[str] = Tally()
        self._last: dict[str, Any] = {}
        self._trace: Any = None

    def add(self, kind: str, facts: Mapping[str, Any], *, trace: bool = False) -> None:
        """Count one, by names that no request can invent."""
        with self._lock:
            self._kinds[kind] += 1
            self._clients[str(facts.get("client", "unknown"))] += 1
            self._last = {"reason": kind, **facts}
            self._trace = sys.exc_info() if trace else None
        self.flush()

    def flush(self, *, ended: bool = False) -> None:
        with self._lock:
            now = self._clock()
            if not self._kinds or (now < self._next and not ended):
                return
            self._next = now + _MINUTE
            facts = {
                "count": self._kinds.total(),
                "reasons": dict(self._kinds),
                "clients": dict(self._clients),
                "last": self._last,
            }
            trace, self._trace = self._trace, None
            self._kinds.clear()
            self._clients.clear()
        _log.log(
            logging.ERROR if trace else logging.WARNING, self._event, extra=facts, exc_info=trace
        )


REASONS: Final = (
    # connections that never became a call
    "no_certificate",
    "certificate_untrusted",
    "certificate_expired",
    "certificate_not_yet_valid",
    "tls_version",
    "plaintext",
    "handshake",
    # who asks, and how much
    "unknown_client",
    "data_set_not_permitted",
    "too_many_requests",
    "too_many_calls",
    "too_many_streams",
    "incomplete_request",
    "stalled",
    # what is asked for
    "invalid_request",
    "no_release",
    "damaged",
    "another_release",
    "out_of_range",
    "failed_precondition",
    "already_exists",
    "not_offered",
    "used_up",
    "unsure",
    # what came in between
    "unavailable",
    "release_unreadable",
    "ledger_unreadable",
    "not_available",
    "internal_error",
)
"""Every reason that logs and metrics give. RUNBOOK.md explains each."""
