"""gRPC reflection: what services there are, to entitled clients alone, within their limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from grpc_reflection.v1alpha.reflection import ReflectionServicer

from labelveil.label_party.server.calls import REQUEST_SECONDS, Rpc
from labelveil.label_party.server.refusal import incomplete

_NO_CONTEXT: Any = None
"""The library takes it and does not look at it."""


class ReflectionService:
    """Describes some services.

    A stream that asks nothing more ends like a request that does not arrive.
    """

    def __init__(self, services: Iterable[ServiceDescriptor]) -> None:
        self._library = ReflectionServicer([service.full_name for service in services])

    async def ServerReflectionInfo(self, rpc: Rpc) -> None:
        question = await rpc.request()
        while question is not None:
            for answer in self._library.ServerReflectionInfo(iter([question]), _NO_CONTEXT):
                await rpc.write(answer)
            question = await rpc.read(REQUEST_SECONDS, incomplete)
