"""Plain HTTP for the operator alone: a page of status, ``/livez``, ``/readyz`` and ``/metrics``.

It listens on an address of its own, the loopback by default, and answers with constant words, with
what the server counts (:mod:`labelveil.label_party.monitoring.calls`) and with what the ledger
says.
"""

from __future__ import annotations

import html
import logging
import math
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from labelveil.common.errors import ConfigError, LabelveilError
from labelveil.common.files import file_errors
from labelveil.common.guarantees import Guarantee
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.monitoring.calls import Telemetry
from labelveil.label_party.monitoring.status import samples_of, status
from labelveil.label_party.server.catalog import Damaged, Unreadable
from labelveil.label_party.server.health import Probes
from labelveil.label_party.server.limits import Places
from labelveil.label_party.store.account import AccountState, read_accounts
from labelveil.label_party.store.reading import Current
from labelveil.label_party.store.release_store import Store

_log = logging.getLogger(__name__)

_SECONDS = 10.0
"""How long a connection may take to send its request, or to read its answer."""

_TEXT = "text/plain; charset=utf-8"
_HTML = "text/html; charset=utf-8"
_PAGE = """\
<!doctype html><html lang="en"><meta name="viewport" content="width=device-width">
<title>label-party</title><style>:root { color-scheme: light dark }
pre { font: 15px/1.5 ui-monospace, monospace; margin: 1.5em; white-space: pre-wrap }</style>
<pre>"""

Answer = tuple[HTTPStatus, str, bytes]
Accounts = Current[list[AccountState]]


@contextmanager
def observed(
    config: LabelPartyConfig, listen: str, probes: Probes, telemetry: Telemetry, streams: Places
) -> Iterator[str]:
    """Answer in the background on host:port, where port 0 lets the system choose one.

    Yields the address; ``ConfigError`` if it cannot be bound.
    """
    store = Store(config.store.directory)
    accounts = Current(store.ledger_path, lambda: read_accounts(config))
    _measure(store, accounts, probes, telemetry.registry, streams)
    host, _, port = listen.rpartition(":")
    place = host.strip("[]"), int(port)
    names = {name.lower() for name in (host, "localhost", *config.observability.hosts)}
    known = {"paths": _paths(accounts, probes, telemetry.registry), "hosts": names}
    handler = type("Handler", (_Handler,), known)
    # a slow reader must not hold up the end
    kept: dict[str, Any] = {"daemon_threads": True, "block_on_close": False}
    remedy = "; set [observability] listen"
    with file_errors(ConfigError, f"listen={listen!r} cannot be bound", remedy):
        kept["address_family"] = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0][0]
        server = type("Server", (ThreadingHTTPServer,), kept)(place, handler)
    thread = threading.Thread(target=server.serve_forever, name="probes", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _measure(
    store: Store,
    accounts: Accounts,
    probes: Probes,
    registry: CollectorRegistry,
    streams: Places,
) -> None:
    """Have everything measured that is asked for at each scrape."""
    catalog, credentials = probes.catalog, probes.credentials

    def gauge(name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(name, text, registry=registry).set_function(value)

    gauge("label_party_fetches_active", "Fetches running.", lambda: streams.active)
    gauge(
        "label_party_store_free_bytes",
        "Space that is free on the store's disk, for who may not fill it to the last.",
        lambda: _free_bytes(store.directory),
    )
    gauge(
        "label_party_releases_damaged",
        "Committed releases that are left out, because their bytes are damaged.",
        lambda: len(catalog.left_out(Damaged)),
    )
    gauge(
        "label_party_releases_unreadable",
        "Committed releases that could not be read when they were last asked for.",
        lambda: len(catalog.left_out(Unreadable)),
    )

    def end_of(which: str) -> Callable[[], float]:
        return lambda: credentials.ends(which).timestamp()

    for which in ("server", "client_ca"):
        gauge(
            f"label_party_{which}_certificate_expiry_timestamp_seconds",
            "When the certificate in use ends.",
            end_of(which),
        )

    def read() -> list[AccountState]:
        catalog.check()
        return accounts.value()

    registry.register(BudgetMetrics(read))
    registry.register(_Connections(probes))
    registry.register(ProcessCollector(registry=None))


def _free_bytes(folder: Path) -> float:
    try:
        return float(shutil.disk_usage(folder).free)
    except OSError:
        return math.nan


class BudgetMetrics(Collector):
    """Asks for the accounts, and so reads the ledger, and shows them."""

    def __init__(self, accounts: Callable[[], list[AccountState]]) -> None:
        self._accounts = accounts

    def describe(self) -> list[Metric]:
        """Name nothing in advance: the registry need not read the ledger to register this."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return the state of now, or that there is none to be had."""
        accounts, readable = [], 0
        with suppress(LabelveilError):
            accounts, readable = self._accounts(), 1
        yield GaugeMetricFamily(
            "label_party_ledger_readable", "Whether the ledger could be read.", value=readable
        )
        ledger = _family("label_party_ledger_info", "Which ledger this is.", "ledger")
        for name in {entry.ledger for entry in accounts}:
            ledger.add_metric([name], 1)
        yield ledger
        releases = _family("label_party_releases", "Committed releases.", "data_set")
        withdrawn = _family(
            "label_party_releases_withdrawn", "Those that are served no more.", "data_set"
        )
        families = {
            "limit": _family("label_party_budget_epsilon", "What an account may spend."),
            "spent": _family("label_party_budget_epsilon_spent", "What it has spent."),
            "left": _family("label_party_budget_epsilon_left", "What it has left."),
        }
        charges = _family(
            "label_party_budget_charges", "Charges that were committed; there are never fewer."
        )
        for entry in accounts:
            # one that is set aside may be given back
            paid = [charge for charge in entry.charges if charge.state != "reserved"]
            charges.add_metric([entry.account], len(paid))
            committed = Counter(charge.data_set for charge in entry.charges if charge.digest)
            for data_set, count in committed.items():
                releases.add_metric([data_set], count)
            gone = [charge for charge in entry.charges if charge.id in entry.withdrawals]
            for data_set, count in Counter(charge.data_set for charge in gone).items():
                withdrawn.add_metric([data_set], count)
            for name, family in families.items():
                epsilon = _epsilon(getattr(entry, name), nothing=0.0 if name == "spent" else None)
                if epsilon is not None:
                    family.add_metric([entry.account], epsilon)
        yield releases
        yield charges
        yield withdrawn
        yield from families.values()


def _family(name: str, text: str, label: str = "account") -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=[label])


def _epsilon(guarantee: Guarantee | None, *, nothing: float | None) -> float | None:
    """Return ε where a guarantee has one that needs no δ to be named first."""
    epsilon = nothing if guarantee is None else getattr(guarantee, "epsilon", None)
    return epsilon if isinstance(epsilon, float) else None


@dataclass(eq=False)
class _Connections(Collector):
    """Counts that are kept elsewhere."""

    probes: Probes

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(
            "label_party_connections",
            "Connections taken, whatever became of them.",
            self.probes.handshakes.connections,
        )
        reloads = CounterMetricFamily(
            "label_party_certificate_reloads",
            "Changed certificate files, by what reading them gave.",
            labels=["outcome"],
        )
        for outcome, count in self.probes.credentials.reloads.items():
            reloads.add_metric([outcome], count)
        yield reloads


def _paths(
    accounts: Accounts, probes: Probes, registry: CollectorRegistry
) -> dict[str, Callable[[str], Answer]]:
    def metrics(accept: str) -> Answer:
        encode, kind = choose_encoder(accept)
        return HTTPStatus.OK, kind, encode(registry)

    def page(accept: str) -> Answer:
        try:
            samples = samples_of(registry.collect())
            lines = "\n".join(status(accounts.value(), samples, datetime.now(UTC)))
        except LabelveilError as error:
            lines = str(error)
        return HTTPStatus.OK, _HTML, (_PAGE + html.escape(lines) + "\n").encode()

    def ready(accept: str) -> Answer:
        return _verdict([*probes.unready()], probes.notes())

    return {
        "/": page,
        "/livez": lambda accept: _verdict(probes.dead()),
        "/readyz": ready,
        "/metrics": metrics,
    }


def _verdict(problems: list[str], notes: Iterable[str] = ()) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    return status, _TEXT, "".join(f"{line}\n" for line in [*(problems or ["ok"]), *notes]).encode()


class _Handler(BaseHTTPRequestHandler):
    paths: dict[str, Callable[[str], Answer]]
    hosts: set[str]
    timeout = _SECONDS
    server_version = "label-party"
    sys_version = ""

    def do_GET(self) -> None:
        try:
            status, kind, body = self._answer()
        except Exception:
            _log.exception("probe failed")
            status, kind = HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT
            body = b"internal error\n"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def _answer(self) -> Answer:
        if not self._is_asked_for():
            text = b"another host is asked for; see [observability] hosts\n"
            return HTTPStatus.MISDIRECTED_REQUEST, _TEXT, text
        answer = self.paths.get(self.path.partition("?")[0])
        if answer is None:
            return HTTPStatus.NOT_FOUND, _TEXT, b"try /, /livez, /readyz or /metrics\n"
        return answer(self.headers.get("Accept", ""))

    def _is_asked_for(self) -> bool:
        """Whether the request names a host that this is.

        A web page elsewhere can have its own name lead here (DNS rebinding), and then read the
        answers as its own; an IP address cannot be led anywhere.
        """
        try:
            host = (urlsplit("//" + self.headers.get("Host", "")).hostname or "").lower()
            return host in self.hosts or bool(ip_address(host))
        except ValueError:
            return False

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: a probe every few seconds is no event."""
