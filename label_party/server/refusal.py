"""How the service says no: a status and a text that depends on the request alone."""

from __future__ import annotations

import grpc


class Refusal(Exception):
    """Ends a call with a status and a constant text.

    Parameters
    ----------
    code, text
        The text that the client gets.
    reason
        What logs and metrics call it: a stable word, by default the status.
    """

    def __init__(self, code: grpc.StatusCode, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.reason = reason or code.name.lower()


def unknown_client() -> Refusal:
    """Return the refusal of a client without a configured name, whatever it asks for."""
    return Refusal(grpc.StatusCode.PERMISSION_DENIED, "not permitted", "unknown_client")


def forbidden() -> Refusal:
    """Return the same for a client that asks for a data set which is none of its."""
    return Refusal(grpc.StatusCode.PERMISSION_DENIED, "not permitted", "data_set_not_permitted")


def not_found() -> Refusal:
    """Return the refusal of a release that does not exist."""
    return Refusal(grpc.StatusCode.NOT_FOUND, "no such release", "no_release")


def damaged() -> Refusal:
    """Return the refusal of a release whose bytes are not those that were committed."""
    return Refusal(grpc.StatusCode.DATA_LOSS, "the release cannot be read", "damaged")


def invalid(text: str) -> Refusal:
    """Return the refusal of a request that breaks the contract."""
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, text, "invalid_request")
