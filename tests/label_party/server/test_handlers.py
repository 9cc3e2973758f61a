"""How calls end."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from label_party.monitoring.calls import Call, Telemetry
from label_party.server.handlers import streaming, unary
from label_party.server.refusal import Refusal


class Context:
    """As gRPC's, which ends a call by an exception."""

    def peer(self) -> str:
        return "somebody"

    def abort(self, code: grpc.StatusCode, text: str) -> None:
        raise RuntimeError(text)


class Service:
    def __init__(self) -> None:
        self.telemetry = Telemetry()

    @unary
    def one(self, request: Any, context: Any, call: Call) -> None:
        raise Refusal(grpc.StatusCode.NOT_FOUND, "not here", "not_found")

    @streaming
    def many(self, request: Any, context: Any, call: Call) -> Iterator[int]:
        yield 1
        raise Refusal(grpc.StatusCode.NOT_FOUND, "not here", "not_found")


@pytest.mark.parametrize("method", [Service.one, lambda *given: list(Service.many(*given))])
def test_a_refused_call_is_let_go_of_without_the_garbage_collector(
    method: Callable[..., object],
) -> None:
    context = Context()
    held = weakref.ref(context)
    gc.disable()
    try:
        with pytest.raises(RuntimeError, match="not here"):
            method(Service(), b"", context)
        del context
        assert held() is None
    finally:
        gc.enable()
