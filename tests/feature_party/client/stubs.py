"""Calls that fail, time that only waiting lets pass, and a client with both."""

from __future__ import annotations

from typing import Any

import grpc

from labelveil.common.error_details import ErrorDetails
from labelveil.feature_party.client.release_client import (
    ReleaseClient,
    RetryPolicy,
)
from labelveil.feature_party.config.labels_party import LabelsPartySection

Code = grpc.StatusCode
SETTINGS = LabelsPartySection(address="h:1", data_set="sales", timeout=9.0)
WHO = "the labels party at h:1"


class Failed(grpc.RpcError):
    """A call that failed."""

    def __init__(self, code: Code, text: str = "no", said: ErrorDetails | None = None) -> None:
        super().__init__()
        self._code, self._text, self._said = code, text, said

    def code(self) -> Code:
        return self._code

    def details(self) -> str:
        return self._text

    def trailing_metadata(self) -> Any:
        return () if self._said is None else self._said.trailers(14, "")


class Clock:
    """Time that only waiting lets pass."""

    def __init__(self) -> None:
        self.now, self.waits = 1000.0, list[float]()

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def set(self) -> None: ...


class Stub:
    """A labels party that answers calls one after another with these, or raises them."""

    def __init__(self, *answers: object) -> None:
        self.answers, self.asked = list(answers), list[tuple[Any, float]]()

    def DescribeRelease(self, request: Any, timeout: float) -> object:
        self.asked.append((request, timeout))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def client_of(clock: Clock, retry: RetryPolicy | None = None, **changes: Any) -> ReleaseClient:
    client = ReleaseClient(SETTINGS.model_copy(update=changes), retry or RetryPolicy())
    client._wake = clock  # type: ignore[assignment]
    return client
