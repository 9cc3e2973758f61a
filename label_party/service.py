"""The gRPC service: take in a population, describe a release, stream its rows.

Everything that a client can observe, row count, order, sizes, errors, is a function of its request
and the public population. Refusals have constant texts, and strangers get the same one whatever
they ask for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn, TypeVar

import grpc

from common.wire import label_release_pb2 as wire
from common.wire import label_release_pb2_grpc as stubs
from label_party.access import AccessPolicy
from label_party.catalog import Catalog
from label_party.limits import RateLimit, Stream, StreamLimit
from label_party.refusal import Refusal, forbidden, invalid, not_found
from label_party.store import StoredRelease
from label_party.submission import Reception

_log = logging.getLogger(__name__)

DEFAULT_CHUNK_BYTES = 1 << 20
MAX_CHUNK_BYTES = 3 << 20
_DIGEST_BYTES = 32
_NAME_CHARACTERS = 64

T = TypeVar("T")


def _unary(method: Callable[..., T]) -> Callable[..., T]:
    """Answer refusals with their status and everything unforeseen with a constant one."""

    @wraps(method)
    def answer(self: Any, request: Any, context: Any) -> T:
        try:
            return method(self, request, context)
        except Refusal as refusal:
            failure = refusal
        except Exception:
            failure = _unforeseen(method.__name__)
        _abort(context, method.__name__, failure)

    return answer


def _streaming(method: Callable[..., Iterator[T]]) -> Callable[..., Iterator[T]]:
    """As :func:`_unary`, for a stream of answers."""

    @wraps(method)
    def answer(self: Any, request: Any, context: Any) -> Iterator[T]:
        try:
            yield from method(self, request, context)
            return
        except Refusal as refusal:
            failure = refusal
        except Exception:
            failure = _unforeseen(method.__name__)
        _abort(context, method.__name__, failure)

    return answer


def _unforeseen(method: str) -> Refusal:
    # gRPC would send the exception's text to the client
    _log.exception("call failed", extra={"method": method})
    return Refusal(grpc.StatusCode.INTERNAL, "internal error")


def _abort(context: grpc.ServicerContext, method: str, refusal: Refusal) -> NoReturn:
    _log.warning(
        "call refused",
        extra={"method": method, "status": refusal.code.name, "peer": context.peer()},
    )
    context.abort(refusal.code, refusal.text)


class LabelReleaseService(stubs.LabelReleaseServiceServicer):
    """Serves committed releases to entitled clients.

    Parameters
    ----------
    catalog
        Where releases are found.
    policy
        Who may fetch what.
    streams, rate
        How much at a time.
    reception
        Takes in submitted populations.
    """

    def __init__(
        self,
        catalog: Catalog,
        policy: AccessPolicy,
        streams: StreamLimit,
        rate: RateLimit,
        reception: Reception,
    ) -> None:
        self._catalog = catalog
        self._policy = policy
        self._streams = streams
        self._rate = rate
        self._reception = reception

    def client(self, context: grpc.ServicerContext) -> str:
        """Return the name of an authorized client; refuse a stranger, or one in too much haste."""
        name = self._policy.identify(context.auth_context())
        if name is None:
            raise forbidden()
        if not self._rate.allow():
            raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests; try again later")
        return name

    @_unary
    def DescribeRelease(
        self, request: wire.DescribeReleaseRequest, context: grpc.ServicerContext
    ) -> wire.DescribeReleaseResponse:
        client = self.client(context)
        release = self._find(client, request.data_set, request.epoch or None)
        _log.info("described", extra={"client": client, **_names(release)})
        return wire.DescribeReleaseResponse(
            manifest=release.manifest_bytes, manifest_sha256=bytes.fromhex(release.digest)
        )

    @_streaming
    def FetchRelease(
        self, request: wire.FetchReleaseRequest, context: grpc.ServicerContext
    ) -> Iterator[wire.FetchReleaseResponse]:
        client = self.client(context)
        if not request.epoch:
            raise invalid("epoch is required")
        if len(request.manifest_sha256) != _DIGEST_BYTES:
            raise invalid("manifest_sha256 must have 32 bytes")
        release = self._find(client, request.data_set, request.epoch)
        if request.manifest_sha256.hex() != release.digest:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION, "manifest_sha256 is not this release's"
            )
        if request.start_row > release.rows:
            raise Refusal(grpc.StatusCode.OUT_OF_RANGE, "start_row is beyond the last row")
        with self._stream(context) as stream:
            began, row = time.monotonic(), request.start_row
            for message in _rows(release, request.start_row, request.max_chunk_bytes):
                yield message
                stream.progress()
                row = message.start_row + len(message.codes) // release.manifest.content.code_bytes
            _log.info(
                "fetched",
                extra={
                    "client": client,
                    **_names(release),
                    "from_row": request.start_row,
                    "rows": row - request.start_row,
                    "bytes": (row - request.start_row) * release.row_bytes,
                    "seconds": round(time.monotonic() - began, 3),
                },
            )

    @_unary
    def SubmitPopulation(
        self, request: Iterator[wire.SubmitPopulationRequest], context: grpc.ServicerContext
    ) -> wire.SubmitPopulationResponse:
        client = self.client(context)
        with self._stream(context) as stream:
            began = time.monotonic()
            try:
                header = next(request, wire.SubmitPopulationRequest()).header
                # a stream that begins otherwise has an empty header, which names no data set
                self._check_access(client, header.data_set, header.epoch)
                answer = self._reception.receive(header, request, client, stream.progress)
            except grpc.RpcError as error:  # the client left, or stood still for too long
                raise Refusal(grpc.StatusCode.CANCELLED, "the submission broke off") from error
        _log.info(
            "population submitted",
            extra={
                "client": client,
                "data_set": header.data_set,
                "epoch": header.epoch,
                "rows": header.rows,
                "status": wire.PopulationStatus.Name(answer.status),
                "seconds": round(time.monotonic() - began, 3),
            },
        )
        return answer

    @contextmanager
    def _stream(self, context: grpc.ServicerContext) -> Iterator[Stream]:
        """Hold one of the places for calls that last."""
        with self._streams.place(context.cancel) as stream:
            if stream is None:
                raise Refusal(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams; try again later"
                )
            yield stream

    def _check_access(self, client: str, data_set: str, epoch: str) -> None:
        if not data_set:
            raise invalid("data_set is required")
        if len(data_set) > _NAME_CHARACTERS or len(epoch) > _NAME_CHARACTERS:
            raise invalid("data_set and epoch have at most 64 characters")
        if not self._policy.allows(client, data_set):
            raise forbidden()

    def _find(self, client: str, data_set: str, epoch: str | None) -> StoredRelease:
        self._check_access(client, data_set, epoch or "")
        release = self._catalog.find(data_set, epoch)
        if release is None:
            raise not_found()
        return release


def _rows(
    release: StoredRelease, start_row: int, max_chunk_bytes: int
) -> Iterator[wire.FetchReleaseResponse]:
    chunk = min(max_chunk_bytes or DEFAULT_CHUNK_BYTES, MAX_CHUNK_BYTES)
    step = max(chunk // release.row_bytes, 1)
    for start in range(start_row, release.rows, step):
        keys, codes = release.read(start, min(start + step, release.rows))
        yield wire.FetchReleaseResponse(start_row=start, keys=keys, codes=codes)


def _names(release: StoredRelease) -> dict[str, str]:
    return {"data_set": release.manifest.data_set, "epoch": release.manifest.epoch}
