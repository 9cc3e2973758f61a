"""How the service says no: a status and a text that depends on the request alone."""

from __future__ import annotations

import grpc


class Refusal(Exception):
    """Ends a call with a status and a constant text."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def forbidden() -> Refusal:
    """Return what strangers get, whatever they ask for."""
    return Refusal(grpc.StatusCode.PERMISSION_DENIED, "not permitted")


def not_found() -> Refusal:
    """Return the refusal of a release that does not exist."""
    return Refusal(grpc.StatusCode.NOT_FOUND, "no such release")


def invalid(text: str) -> Refusal:
    """Return the refusal of a request that breaks the contract."""
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, text)
