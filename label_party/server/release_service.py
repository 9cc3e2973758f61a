"""The gRPC service: take in a population, describe a release, stream its rows.

Everything that a client can observe, row count, order, sizes, errors, is a function of its request
and the public population. Refusals have constant texts, and unknown clients get the same one
whatever they ask for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from common.wire import label_release_pb2 as wire
from common.wire import label_release_pb2_grpc as stubs
from label_party.monitoring.calls import Call, Telemetry
from label_party.server.access import AccessPolicy
from label_party.server.catalog import Catalog, Damaged
from label_party.server.handlers import streaming, unary
from label_party.server.limits import RateLimits, Stream, StreamLimit
from label_party.server.refusal import (
    Refusal,
    damaged,
    forbidden,
    invalid,
    not_found,
    unknown_client,
)
from label_party.server.submission import Reception
from label_party.store.release_store import StoredRelease

_log = logging.getLogger(__name__)

DEFAULT_CHUNK_BYTES = 1 << 20
MAX_CHUNK_BYTES = 3 << 20
_DIGEST_BYTES = 32
_NAME_CHARACTERS = 64


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
    telemetry
        Told of every call.
    """

    def __init__(
        self,
        catalog: Catalog,
        policy: AccessPolicy,
        streams: StreamLimit,
        rate: RateLimits,
        reception: Reception,
        telemetry: Telemetry,
    ) -> None:
        self.telemetry = telemetry
        self._catalog = catalog
        self._policy = policy
        self._streams = streams
        self._rate = rate
        self._reception = reception

    def client(self, context: grpc.ServicerContext, call: Call) -> str:
        """Return the name of an authorized client; refuse one unknown, or over its rate limit."""
        name = self._policy.identify(context.auth_context())
        if name is None:
            raise unknown_client()
        call.facts["client"] = name
        if not self._rate.allow(name):
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "too many requests; try again later",
                "too_many_requests",
            )
        return name

    @unary
    def DescribeRelease(
        self, request: wire.DescribeReleaseRequest, context: grpc.ServicerContext, call: Call
    ) -> wire.DescribeReleaseResponse:
        client = self.client(context, call)
        release = self.find(client, request.data_set, request.epoch or None)
        call.facts |= _names(release)
        _log.info("described", extra=call.facts)
        return wire.DescribeReleaseResponse(
            manifest=release.manifest_bytes,
            manifest_sha256=bytes.fromhex(release.digest),
            signature=release.signature,
        )

    @streaming
    def FetchRelease(
        self, request: wire.FetchReleaseRequest, context: grpc.ServicerContext, call: Call
    ) -> Iterator[wire.FetchReleaseResponse]:
        client = self.client(context, call)
        if not request.epoch:
            raise invalid("epoch is required")
        if len(request.manifest_sha256) != _DIGEST_BYTES:
            raise invalid("manifest_sha256 must have 32 bytes")
        release = self.find(client, request.data_set, request.epoch)
        call.facts |= _names(release)
        if request.manifest_sha256.hex() != release.digest:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                "manifest_sha256 is not this release's",
                "another_release",
            )
        if request.start_row > release.rows:
            raise Refusal(
                grpc.StatusCode.OUT_OF_RANGE, "start_row is beyond the last row", "invalid_request"
            )
        with self.stream(context, client) as stream:
            began = time.monotonic()
            call.facts |= {"from_row": request.start_row, "rows": 0, "bytes": 0}
            for message in _rows(release, request.start_row, request.max_chunk_bytes):
                yield message
                stream.progress()
                call.sent(
                    request.data_set,
                    len(message.codes) // release.manifest.content.code_bytes,
                    len(message.keys) + len(message.codes),
                )
            seconds = round(time.monotonic() - began, 3)
            _log.info("fetched", extra={**call.facts, "seconds": seconds})
            self.telemetry.fetched(client, release.manifest.data_set, release.manifest.epoch)

    @unary
    def SubmitPopulation(
        self,
        request: Iterator[wire.SubmitPopulationRequest],
        context: grpc.ServicerContext,
        call: Call,
    ) -> wire.SubmitPopulationResponse:
        client = self.client(context, call)
        # before a place is taken: no header of anybody else could be accepted
        self.check_entitled(client, self._reception.data_set)
        with self.stream(context, client) as stream:
            began = time.monotonic()
            try:
                header = next(request, wire.SubmitPopulationRequest()).header
                # a stream that begins otherwise has an empty header, which names no data set
                self._check_access(client, header.data_set, header.epoch)
                answer = self._reception.receive(header, request, client, stream.progress)
            except grpc.RpcError as error:  # the client left, or stood still for too long
                raise Refusal(grpc.StatusCode.CANCELLED, "the submission broke off") from error
        call.facts |= {
            "data_set": header.data_set,
            "epoch": header.epoch,
            "rows": header.rows,
            "status": wire.PopulationStatus.Name(answer.status),
        }
        seconds = round(time.monotonic() - began, 3)
        _log.info("population submitted", extra={**call.facts, "seconds": seconds})
        return answer

    @contextmanager
    def stream(self, context: grpc.ServicerContext, client: str) -> Iterator[Stream]:
        """Hold one of the places for calls that last."""
        with self._streams.place(context.cancel, client) as stream:
            if stream is None:
                raise Refusal(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    "too many streams; try again later",
                    "too_many_streams",
                )
            yield stream

    def check_entitled(self, client: str, data_set: str) -> None:
        """Refuse a client that may not ask about a data set."""
        if not self._policy.allows(client, data_set):
            raise forbidden()

    def _check_access(self, client: str, data_set: str, epoch: str) -> None:
        if not data_set:
            raise invalid("data_set is required")
        if len(data_set) > _NAME_CHARACTERS or len(epoch) > _NAME_CHARACTERS:
            raise invalid("data_set and epoch have at most 64 characters")
        self.check_entitled(client, data_set)

    def find(self, client: str, data_set: str, epoch: str | None) -> StoredRelease:
        """Return a release that a client may ask about; refuse if it may not, or there is none."""
        self._check_access(client, data_set, epoch or "")
        try:
            release = self._catalog.find(data_set, epoch)
        except Damaged as error:
            raise damaged() from error
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
