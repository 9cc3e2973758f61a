"""Whether the server lives, and whether it is ready: what probes and health checks are answered.

*Alive* means that the event loop that takes calls, and the threads that work on them, still do so;
a restart is the remedy when they do not. *Ready* means that a client would be served now: the
ledger can be read, the certificates are valid, gRPC takes connections, and no stop has begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from labelveil.common.errors import LabelveilError
from labelveil.label_party.server.calls import ActiveCalls, Rpc
from labelveil.label_party.server.catalog import Catalog
from labelveil.label_party.server.credentials import ServerCredentials
from labelveil.label_party.server.handshakes import Handshakes
from labelveil.label_party.server.listener import start
from labelveil.label_party.server.refusal import Refusal

_log = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
"""How long the event loop and a free thread may take to be found."""

_WATCH_SECONDS = 5.0

STOPPING = "stopping"


@dataclass
class Probes:
    """What probes are answered from: the parts of one running server."""

    work: ActiveCalls
    catalog: Catalog
    credentials: ServerCredentials
    handshakes: Handshakes
    address: str = ""  # where it listens
    _stopping: bool = False

    def stop(self) -> None:
        self._stopping = True

    def dead(self) -> list[str]:
        """Return what is wrong that only a restart can repair, in constant words."""
        beat = start(self.work.run(bool))
        try:
            beat.result(BEAT_SECONDS)
        except (TimeoutError, RuntimeError):  # nobody came, or the threads are shut down
            beat.cancel()
            return ["calls are not worked on"]
        return []

    def unready(self) -> dict[str, str]:
        """Return why a client would not be served now, in constant words, with details for logs."""
        if self._stopping:
            return {STOPPING: ""}
        checks: dict[str, Callable[[], None]] = {
            "the ledger cannot be read": self.catalog.check,
            "a certificate is not valid": self.credentials.check,
        }
        problems = {}
        for problem, check in checks.items():
            try:
                check()
            except LabelveilError as error:
                problems[problem] = str(error)
        if not self.handshakes.probe_listener(self.address):
            problems["no connection is taken"] = self.address
        return problems

    def notes(self) -> list[str]:
        """Return what is wrong although clients are served."""
        notes = [f"release left out: {which}" for which in self.catalog.left_out()]
        with suppress(LabelveilError):
            if (last := self.catalog.from_the_future) is not None:
                notes.append(
                    f"the clock says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, before the ledger's"
                    f" last charge of {last:%Y-%m-%d %H:%M} UTC"
                )
        return notes


class HealthService:
    """gRPC's health service, for some names that stand for the server.

    The library's writes to a watcher while it holds what every other watcher needs.
    """

    def __init__(self, probes: Probes, names: tuple[str, ...]) -> None:
        self._probes, self._names = probes, names
        self._problems: dict[str, str] = {}
        self._changed = asyncio.Event()

    async def Check(self, rpc: Rpc) -> None:
        request: health_pb2.HealthCheckRequest = await rpc.request()
        if request.service not in self._names:
            raise Refusal(grpc.StatusCode.NOT_FOUND, "no such service", "invalid_request")
        await rpc.write(self._answer(request.service))

    async def Watch(self, rpc: Rpc) -> None:
        request: health_pb2.HealthCheckRequest = await rpc.request()
        while True:
            changed = self._changed
            await rpc.write(self._answer(request.service))
            await changed.wait()

    def _answer(self, name: str) -> health_pb2.HealthCheckResponse:
        states: Any = health_pb2.HealthCheckResponse
        if name not in self._names:
            return health_pb2.HealthCheckResponse(status=states.SERVICE_UNKNOWN)
        state = states.NOT_SERVING if self._problems else states.SERVING
        return health_pb2.HealthCheckResponse(status=state)

    async def update(self) -> None:
        """Look whether the server is ready, and say so."""
        # on a thread of its own: the others may be busy, which is no matter of readiness
        problems = await asyncio.to_thread(self._probes.unready)
        if problems.keys() == self._problems.keys():
            return
        if problems and STOPPING not in problems:
            _log.error("not ready", extra={"reasons": list(problems), "details": problems})
        elif not problems:
            _log.info("ready again")
        self._problems = problems
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self, also: Callable[[], object]) -> None:
        """Look every few seconds, until cancelled, and do something else each time."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            also()
            await self.update()
