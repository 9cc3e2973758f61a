"""Requests that are no message of the contract.

gRPC answers them itself, before anybody has asked who is calling: it counts nothing, writes a
traceback to the log for each, and says ``INTERNAL`` as if the fault were ours. Here they reach the
service as an object that refuses to be read, and so end like any other bad request, after unknown
clients and clients over their rate limit have been refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from label_party.server.refusal import invalid


class Unreadable:
    """Stands in for a message; reading it ends the call."""

    def __getattr__(self, name: str) -> NoReturn:
        raise invalid("the request cannot be read as a message of this call")


class ReadRequests(grpc.ServerInterceptor):
    """Gives a service's calls :class:`Unreadable` in place of what cannot be read.

    Parameters
    ----------
    package
        Prefix of the services that end refusals themselves; others are left alone.
    """

    def __init__(self, package: str) -> None:
        self._prefix = f"/{package}."

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of a call, with a reader that does not fail."""
        handler = continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._prefix):
            return handler
        read: Any = handler.request_deserializer

        def lenient(data: bytes) -> Any:
            try:
                return read(data)
            except DecodeError:
                return Unreadable()

        make, method = _KINDS[bool(handler.request_streaming), bool(handler.response_streaming)]
        return make(getattr(handler, method), lenient, handler.response_serializer)


_KINDS: dict[tuple[bool, bool], tuple[Callable[..., grpc.RpcMethodHandler[Any, Any]], str]] = {
    (False, False): (grpc.unary_unary_rpc_method_handler, "unary_unary"),
    (False, True): (grpc.unary_stream_rpc_method_handler, "unary_stream"),
    (True, False): (grpc.stream_unary_rpc_method_handler, "stream_unary"),
    (True, True): (grpc.stream_stream_rpc_method_handler, "stream_stream"),
}
