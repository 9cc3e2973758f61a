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


def too_many_calls() -> Refusal:
    """Return the refusal of a client that has too many calls open."""
    text = "too many calls at once; try again later"
    return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, text, "too_many_calls")


def too_many_streams() -> Refusal:
    """Return the refusal of a fetch or a submission where too many run."""
    text = "too many streams; try again later"
    return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, text, "too_many_streams")


def too_many_requests() -> Refusal:
    """Return the refusal of a client over its rate limit."""
    text = "too many requests; try again later"
    return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, text, "too_many_requests")


def incomplete() -> Refusal:
    """Return the refusal of a call whose request does not arrive."""
    text = "the request was not complete in time"
    return Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, text, "incomplete_request")


def stalled() -> Refusal:
    """Return the end of a stream whose client neither reads nor writes any more."""
    return Refusal(grpc.StatusCode.CANCELLED, "no progress for too long", "stalled")


def internal_error() -> Refusal:
    """Return what a client learns of an error of ours."""
    return Refusal(grpc.StatusCode.INTERNAL, "internal error", "internal_error")


def not_found() -> Refusal:
    """Return the refusal of a release that does not exist."""
    return Refusal(grpc.StatusCode.NOT_FOUND, "no such release", "no_release")


def damaged() -> Refusal:
    """Return the refusal of a release whose bytes are not those that were committed."""
    return Refusal(grpc.StatusCode.DATA_LOSS, "the release cannot be read", "damaged")


def invalid(text: str) -> Refusal:
    """Return the refusal of a request that breaks the contract."""
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, text, "invalid_request")
