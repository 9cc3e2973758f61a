"""How calls end: nothing but a refusal's status and text reaches a client, and all is recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Protocol, TypeVar

import grpc

from label_party.monitoring.calls import Call, Telemetry
from label_party.server.refusal import Refusal

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Observed(Protocol):
    """A service whose calls are recorded."""

    telemetry: Telemetry


def unary(method: Callable[..., T]) -> Callable[..., T]:
    """Answer refusals with their status and everything unforeseen with a constant one.

    The method is given the call's record as a third argument.
    """

    @wraps(method)
    def answer(self: Observed, request: Any, context: Any) -> T:
        with self.telemetry.call(method.__name__) as call:
            try:
                return method(self, request, context, call)
            except Refusal as refusal:
                failure = refusal.with_traceback(None)  # see _end
            except Exception:
                failure = _unforeseen(method.__name__)
            _end(call, context, failure)
            raise AssertionError("a refused call was not ended")

    return answer


def streaming(method: Callable[..., Iterator[T]]) -> Callable[..., Iterator[T]]:
    """As :func:`unary`, for a stream of answers."""

    @wraps(method)
    def answer(self: Observed, request: Any, context: Any) -> Iterator[T]:
        with self.telemetry.call(method.__name__) as call:
            try:
                yield from method(self, request, context, call)
                return
            except Refusal as refusal:
                failure = refusal.with_traceback(None)  # see _end
            except Exception:
                failure = _unforeseen(method.__name__)
            _end(call, context, failure)

    return answer


def _unforeseen(method: str) -> Refusal:
    # gRPC would send the exception's text to the client
    _log.exception("call failed", extra={"method": method})
    return Refusal(grpc.StatusCode.INTERNAL, "internal error", "internal_error")


def _end(call: Call, context: grpc.ServicerContext, refusal: Refusal) -> None:
    """End a call; the refusal must have let go of where it was raised.

    That is a frame that holds the refusal, and the call: until garbage is collected, its place on
    the connection would stay taken, and gRPC refuses streams beyond so many.
    """
    call.refuse(refusal.code.name, refusal.reason, context.peer())
    context.abort(refusal.code, refusal.text)
