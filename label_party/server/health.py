"""Whether the server lives, and whether it is ready: what probes and health checks are answered.

*Alive* means that the threads that answer calls and watch streams still do their work; a restart is
the remedy when they do not. *Ready* means that a client would be served now: the ledger can be
read, the certificates are valid, gRPC takes connections, and no stop has begun.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

from grpc_health.v1 import health, health_pb2

from common.errors import LabelveilError
from label_party.server.catalog import Catalog
from label_party.server.credentials import ServerCredentials
from label_party.server.handshakes import Handshakes
from label_party.server.limits import StreamLimit

_log = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
"""How long a free serving thread may take to be found."""

_WATCH_SECONDS = 5.0


class Vitals:
    """The state of one running server.

    Parameters
    ----------
    threads
        What calls are answered on.
    streams, catalog, credentials, handshakes
        Parts of the server.
    address
        Where it listens.
    """

    def __init__(
        self,
        threads: Executor,
        streams: StreamLimit,
        catalog: Catalog,
        credentials: ServerCredentials,
        handshakes: Handshakes,
        address: str,
    ) -> None:
        self._threads = threads
        self._streams = streams
        self._catalog = catalog
        self._credentials = credentials
        self._handshakes = handshakes
        self._address = address
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Be not ready from now on."""
        self._stopping.set()

    def dead(self) -> list[str]:
        """Return what is wrong that only a restart can repair, in constant words."""
        problems = []
        if not self._responds():
            problems.append("no serving thread is free")
        if not self._streams.watching:
            problems.append("stalled fetches are not watched")
        return problems

    def unready(self) -> list[str]:
        """Return why a client would not be served now, in constant words; details are logged."""
        if self._stopping.is_set():
            return ["stopping"]
        checks: dict[str, Callable[[], None]] = {
            "the ledger cannot be read": self._catalog.check,
            "a certificate is not valid": self._credentials.check,
        }
        problems = []
        for problem, check in checks.items():
            try:
                check()
            except LabelveilError as error:
                _log.debug("not ready", extra={"reason": str(error)})
                problems.append(problem)
        if not self._handshakes.probe_listener(self._address):
            problems.append("no connection is taken")
        return problems

    def notes(self) -> list[str]:
        """Return what is wrong although clients are served."""
        return [f"damaged release left out: {name}" for name in self._catalog.damaged]

    def _responds(self) -> bool:
        """Whether a serving thread does a small piece of work in time."""
        try:
            beat = self._threads.submit(lambda: None)
        except RuntimeError:  # shut down
            return False
        try:
            beat.result(BEAT_SECONDS)
        except TimeoutError:
            beat.cancel()
            return False
        return True


@contextlib.contextmanager
def watching(
    vitals: Vitals, checker: health.HealthServicer, names: tuple[str, ...]
) -> Iterator[None]:
    """Tell gRPC's health service, under some names, whether the server is ready."""
    stopped = threading.Event()
    last: list[str] | None = None

    def check() -> None:
        nonlocal last
        problems = vitals.unready()
        if problems and problems != last:
            _log.error("not ready", extra={"reasons": problems})
        elif last and not problems:
            _log.info("ready again")
        last = problems
        status: Any = health_pb2.HealthCheckResponse
        for name in names:
            checker.set(name, status.NOT_SERVING if problems else status.SERVING)

    def watch() -> None:
        while not stopped.wait(_WATCH_SECONDS):
            check()

    check()
    thread = threading.Thread(target=watch, name="health-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
