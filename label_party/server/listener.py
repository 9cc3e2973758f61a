"""The listening end: gRPC on an event loop of its own thread, its limits, and its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

from grpc import aio

from labelveil.common.errors import ConfigError
from labelveil.label_party.config.serving import ServerSection
from labelveil.label_party.server.calls import ActiveCalls, Calls
from labelveil.label_party.server.credentials import ServerCredentials

T = TypeVar("T")

_OPTIONS = {
    # two servers on one port would share clients by chance
    "grpc.so_reuseport": 0,
    "grpc.max_concurrent_streams": 64,
    "grpc.max_metadata_size": 8192,
    # the system lets a process open 1,024 files at least, releases' among them while they are read
    "grpc.max_allowed_incoming_connections": 512,
    "grpc.server_handshake_timeout_ms": 10_000,
    # calls that wait to be looked at; of more, gRPC cancels some by chance, whoever's they are
    "grpc.server.max_pending_requests": 8192,
    "grpc.server.max_pending_requests_hard_limit": 16384,
    # a peer that vanished without a word frees its place
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 20_000,
    # who proved an identity proves it again now and then; calls that run are let finish
    "grpc.max_connection_idle_ms": 300_000,
    "grpc.max_connection_age_ms": 3_600_000,
}

_END_SECONDS = 1.0
"""How long the last words of calls may take when nothing is worked on any more."""


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all servers of this process.

    Nobody ends it: gRPC has one poller a process, which does not bear that loops come and go.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="calls", daemon=True).start()
    return loop


def start(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Begin something on the event loop."""
    return asyncio.run_coroutine_threadsafe(coroutine, event_loop())


class Listener:
    """A server that takes calls, from when it is made until it is drained or closed.

    It listens on ``address``, with the port that the system chose; its end waits for ``work``.
    ``ConfigError`` if the address cannot be bound.
    """

    def __init__(
        self,
        settings: ServerSection,
        credentials: ServerCredentials,
        calls: Calls,
        work: ActiveCalls,
    ) -> None:
        self._work = work
        start(self._open(settings, credentials, calls)).result()

    async def _open(
        self, settings: ServerSection, credentials: ServerCredentials, calls: Calls
    ) -> None:
        size = ("grpc.max_receive_message_length", settings.max_message_bytes)
        self._server = aio.server(options=[*_OPTIONS.items(), size])
        self._server.add_generic_rpc_handlers((calls,))
        try:
            port = self._server.add_secure_port(settings.listen, credentials.grpc)
        except RuntimeError:
            port = 0
        if not port:
            raise ConfigError(
                f"listen={settings.listen!r} cannot be bound: the address is taken or not this"
                " machine's; set [server] listen"
            )
        self.address = f"{settings.listen.rpartition(':')[0]}:{port}"
        await self._server.start()

    def drain(self, seconds: float) -> None:
        """Take no new calls, and give those that are worked on so long to finish."""
        start(self._drain(seconds)).result()

    async def _drain(self, seconds: float) -> None:
        stopping = asyncio.ensure_future(self._server.stop(seconds))
        ended = asyncio.ensure_future(self._work.ended())
        await asyncio.wait([stopping, ended], return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        # others may stay open without ever completing a request, or reading an answer
        await asyncio.wait([stopping], timeout=_END_SECONDS)
        await self._server.stop(None)
        await stopping

    def close(self) -> None:
        start(self._server.stop(None)).result()
