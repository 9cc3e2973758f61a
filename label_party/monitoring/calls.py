"""What an operator sees of the server: one record a call, as a log line, in metrics and as a span.

Records carry public facts only: names, row numbers, sizes, durations, reasons of refusals. Label
values of metrics come from the configuration, the ledger or this package, never from a request or
a certificate, so that no client can make them grow. A call that ended well, or that moved data, has
a log line of its own: ``[server] requests_per_minute`` bounds how many there are. Of the others, of
which clients can cause as many as they like, those of one client and reason share a line a minute.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
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

    def __init__(self, telemetry: Telemetry, method: str, peer: str) -> None:
        self.method = method
        self.status = CANCELLED  # until it is known to have ended otherwise
        self.reason = self.cause = ""  # of a refusal
        self.counted = False  # health checks are not
        self.facts: dict[str, Any] = {"peer": peer, "rows": 0, "bytes": 0}
        self._telemetry = telemetry
        self._began = time.monotonic()

    def sent(self, data_set: str, rows: int, size: int) -> None:
        """Count rows that are about to leave; of a call that breaks, the last may not have."""
        self.moved(rows, size)
        self._telemetry.rows.labels(data_set).inc(rows)
        self._telemetry.bytes.labels(data_set).inc(size)

    def moved(self, rows: int, size: int) -> None:
        """Note rows, and their bytes, that came or went."""
        self.facts["rows"] += rows
        self.facts["bytes"] += size

    def refuse(self, status: str, reason: str, cause: str) -> None:
        """Record a refusal: before it is sent, since a client may put off for ever to take it.

        ``cause`` is an error's line, which nobody but the log is told.
        """
        self.status, self.reason, self.cause = status, reason, cause
        self._telemetry.refused(reason)
        self._telemetry.ended(self)

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self._began


class Traces:
    """Traces of calls; these are none (:mod:`labelveil.label_party.monitoring.tracing` makes
    some)."""

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
        self._called = OncePerMinute("call")
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
        call.counted = True
        with self._traces.traced(call):
            try:
                yield
                call.status = OK
            finally:
                if not call.reason:
                    self.ended(call)

    def ended(self, call: Call) -> None:
        """Count a call and have it logged: alone, or with others of its minute."""
        seconds = call.seconds
        if call.counted:
            self._requests.labels(call.method, call.status).inc()
            self._seconds.labels(call.method).observe(seconds)
        facts = {"method": call.method, "status": call.status, "reason": call.reason, **call.facts}
        facts["seconds"] = round(seconds, 3)
        if call.cause:
            facts["cause"] = f"{call.cause:.500}"
        if call.status == OK:
            _log.info("call", extra=facts)
        elif facts["bytes"]:
            _log.warning("call", extra=facts)
        else:
            whose = facts.get("client") or facts.get("serial", "")
            self._called.add((whose, call.reason or call.status), facts)

    def seen(self, client: str, ends: datetime | None) -> None:
        """Remember until when a client can come with the certificate that it has now."""
        if ends is not None:
            self._client_ends.labels(client).set(ends.timestamp())

    def fetched(self, client: str, data_set: str, epoch: str) -> None:
        """Remember when a client got a release to its end."""
        self._fetched.labels(client, data_set, epoch).set_to_current_time()

    def refused(self, reason: str) -> None:
        """Count one refusal."""
        self._refusals.labels(reason).inc()

    def refuse_connection(self, reason: str) -> None:
        """Count a connection that never became a call, and have it logged."""
        self.refused(reason)
        self._refused.add((reason,), {"reason": reason})

    def failed(self, method: str) -> None:
        """Have the exception that is being handled logged, if it is the minute's first."""
        self._failed.add((method,), {"method": method}, trace=True)

    def flush(self, *, ended: bool = False) -> None:
        """Log what a minute has brought, and at the end also what less than one has."""
        for events in (self._refused, self._called, self._failed):
            events.flush(ended=ended)


@dataclass
class _Repeated:
    """What happened again and again, since it was last logged."""

    next: float  # when it may be logged again
    count: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the last
    trace: Any = None


class OncePerMinute:
    """Logs what clients can cause as often as they like: of each kind the first at once, then one
    line a minute.

    A line tells all about the last, and how many there were (``count``) since the kind's last line.
    At most ``KINDS`` are told apart at a time: all further ones are one kind. The log calls them
    ``event``.
    """

    KINDS = 64

    def __init__(
        self,
        event: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        level: int = logging.WARNING,
    ) -> None:
        self._event, self._clock, self._level = event, clock, level
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, ...], _Repeated] = {}

    def add(self, kind: tuple[str, ...], facts: Mapping[str, Any], *, trace: bool = False) -> None:
        """Count one, and log it if its kind is due."""
        with self._lock:
            if kind not in self._kinds and len(self._kinds) >= self.KINDS:
                kind = ()
            found = self._kinds.setdefault(kind, _Repeated(-math.inf))
            found.count += 1
            found.facts = facts
            found.trace = sys.exc_info() if trace else None
            now = self._clock()
            if now < found.next:
                return
            self._kinds[kind] = _Repeated(now + _MINUTE)
        self._write(found)

    def flush(self, *, ended: bool = False) -> None:
        """Log what is due; at the end, all that is left."""
        due = []
        with self._lock:
            now = self._clock()
            for kind, found in [*self._kinds.items()]:
                if now < found.next and not ended:
                    continue
                del self._kinds[kind]
                if found.count:  # not a quiet minute
                    due.append(found)
                    self._kinds[kind] = _Repeated(now + _MINUTE)
        for found in due:
            self._write(found)

    def _write(self, found: _Repeated) -> None:
        _log.log(
            logging.ERROR if found.trace else self._level,
            self._event,
            extra={"count": found.count, **found.facts},
            exc_info=found.trace,
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
    "no_such_method",
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
    "withdrawn",
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
