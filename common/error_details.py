"""What a refused call says beside its status: why, in a word, and when to come again.

Both are messages of ``google.rpc`` (``ErrorInfo`` and ``RetryInfo``) in the trailer that gRPC keeps
for them, so that any client's library reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

DOMAIN = "labelveil"
"""Whose words the reasons are."""

_TRAILER = "grpc-status-details-bin"
_REASON = re.compile(r"[A-Z][A-Z0-9_]{1,62}", re.ASCII)


@dataclass(frozen=True)
class ErrorDetails:
    """Why a call was refused, and after how many seconds it may succeed; None: not of itself."""

    reason: str  # lower case, as logs and metrics call it
    retry_after: float | None = None

    def trailers(self, code: int, text: str) -> tuple[tuple[str, bytes], ...]:
        """Return the metadata that ends a call of this gRPC status and text."""
        status = Status(code=code, message=text)
        status.details.add().Pack(ErrorInfo(reason=self.reason.upper(), domain=DOMAIN))
        if self.retry_after is not None:
            retry = RetryInfo()
            retry.retry_delay.FromMilliseconds(round(1000 * self.retry_after))
            status.details.add().Pack(retry)
        return ((_TRAILER, status.SerializeToString()),)


def details_of(trailers: Iterable[Any] | None) -> ErrorDetails | None:
    """Read what a labels party said in the pairs of its trailers; None if it said nothing.

    Nothing in it is trusted: a reason is a word, and a time not negative.
    """
    found = [value for key, value in trailers or () if key == _TRAILER]
    if len(found) != 1:
        return None
    info, retry, after = ErrorInfo(), RetryInfo(), None
    try:
        for detail in Status.FromString(found[0]).details:
            if detail.Is(ErrorInfo.DESCRIPTOR):
                detail.Unpack(info)
            elif detail.Is(RetryInfo.DESCRIPTOR):
                detail.Unpack(retry)
                after = max(0.0, retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9)
    except DecodeError:
        return None
    if info.domain != DOMAIN or not _REASON.fullmatch(info.reason):
        return None
    return ErrorDetails(info.reason.lower(), after)
