"""How the service says no: a status and a text that depends on the request alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from grpc import StatusCode

from labelveil.common.error_details import ErrorDetails
from labelveil.common.errors import LabelveilError
from labelveil.common.release.limits import WITHDRAWN
from labelveil.label_party.server.catalog import Damaged, LeftOut, Withdrawn

_AGAIN, _LATER = 1.0, 5.0
"""Seconds until a call may succeed that others stood in the way of, and one that needs a remedy."""


class Refusal(Exception):
    """Ends a call with a status and a constant text for the client.

    Logs, metrics and the client call it by its reason: a stable word, by default the status. The
    client is told after how many seconds it may try again, where that can help.
    """

    def __init__(
        self, code: StatusCode, text: str, reason: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.reason = reason or code.name.lower()
        self.retry_after = retry_after

    def trailers(self) -> tuple[tuple[str, bytes], ...]:
        """Return the metadata that says so."""
        details = ErrorDetails(self.reason, self.retry_after)
        return details.trailers(self.code.value[0], self.text)


def _maker(
    code: StatusCode, text: str, reason: str, retry_after: float | None = None
) -> Callable[[], Refusal]:
    """Return what makes a refusal: a new one each time, for it keeps what it was raised in."""
    return lambda: Refusal(code, text, reason, retry_after)


unknown_client = _maker(StatusCode.PERMISSION_DENIED, "not permitted", "unknown_client")
"""Of a client without a configured name, whatever it asks for."""

forbidden = _maker(StatusCode.PERMISSION_DENIED, "not permitted", "data_set_not_permitted")
"""The same for a client that asks for a data set which is none of its."""

no_such_method = _maker(
    StatusCode.UNIMPLEMENTED, "this labels party has no such method", "no_such_method"
)
"""Of a method that this version, or this configuration, does not have."""

too_many_calls = _maker(
    StatusCode.RESOURCE_EXHAUSTED,
    "too many calls at once; try again later",
    "too_many_calls",
    _AGAIN,
)
"""Of a client that has too many calls open."""

too_many_streams = _maker(
    StatusCode.RESOURCE_EXHAUSTED, "too many streams; try again later", "too_many_streams", _LATER
)
"""Of a fetch or a submission where too many run."""


def too_many_requests(retry_after: float) -> Refusal:
    """Return the refusal of a client over its rate limit, for ``retry_after`` seconds."""
    return Refusal(
        StatusCode.RESOURCE_EXHAUSTED,
        "too many requests; try again later",
        "too_many_requests",
        retry_after,
    )


incomplete = _maker(
    StatusCode.DEADLINE_EXCEEDED,
    "the request was not complete in time",
    "incomplete_request",
    _AGAIN,
)
"""Of a call whose request does not arrive."""

stalled = _maker(StatusCode.DEADLINE_EXCEEDED, "no progress for too long", "stalled", _AGAIN)
"""The end of a stream whose client neither reads nor writes any more; CANCELLED is what a client
does itself."""

internal_error = _maker(StatusCode.INTERNAL, "internal error", "internal_error", _LATER)
"""What a client learns of an error of ours."""

not_found = _maker(StatusCode.NOT_FOUND, "no such release", "no_release")
"""Of a release that does not exist."""

damaged = _maker(StatusCode.DATA_LOSS, "the release cannot be read", "damaged")
"""Of a release whose bytes are not those that were committed."""


def invalid(text: str) -> Refusal:
    """Return the refusal of a request that breaks the contract."""
    return Refusal(StatusCode.INVALID_ARGUMENT, text, "invalid_request")


def refused(text: str, reason: str = "failed_precondition") -> Refusal:
    """Return the refusal of what this labels party, or this release, is not there for."""
    return Refusal(StatusCode.FAILED_PRECONDITION, text, reason)


def unavailable(text: str, reason: str = "unavailable") -> Refusal:
    """Return the refusal of what may succeed later."""
    return Refusal(StatusCode.UNAVAILABLE, f"{text}; try again later", reason, _LATER)


@contextmanager
def finding() -> Iterator[None]:
    """Refuse, where a release, or the ledger that says which there are, cannot be read."""
    try:
        yield
    except Damaged as error:
        raise damaged() from error
    except Withdrawn as error:
        raise refused(f"{WITHDRAWN}{error}", "withdrawn") from error
    except LeftOut as error:
        raise unavailable("the release cannot be read now", "release_unreadable") from error
    except LabelveilError as error:
        raise unavailable("the ledger cannot be read now", "ledger_unreadable") from error
