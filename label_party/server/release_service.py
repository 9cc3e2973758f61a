"""The gRPC service: take in a population, describe a release, stream its rows.

Everything that a client can observe, row count, order, sizes, errors, is a function of its request
and the public population. Refusals have constant texts, and unknown clients get the same one
whatever they ask for.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

import grpc

from labelveil.common.release.limits import CHUNK_BYTES, MOST_CHUNK_BYTES
from labelveil.common.release.peers import (
    MOST_CHARACTERS,
    MOST_FORMATS,
    is_bounded,
    own_software,
    version_of,
)
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.monitoring.calls import Telemetry
from labelveil.label_party.server.access import AccessPolicy
from labelveil.label_party.server.calls import Rpc
from labelveil.label_party.server.catalog import Catalog, found, reading
from labelveil.label_party.server.limits import Places
from labelveil.label_party.server.refusal import (
    Refusal,
    finding,
    forbidden,
    invalid,
    not_found,
    refused,
)
from labelveil.label_party.store.release_store import StoredRelease

_DIGEST_BYTES = 32
_NAME_CHARACTERS = 64


class PopulationReceiver(Protocol):
    """Takes in populations that clients submit."""

    data_set: str

    async def receive(
        self, header: wire.PopulationHeader, rpc: Rpc, stall_seconds: float
    ) -> wire.SubmitPopulationResponse:
        """Take in one submission whose sender and data set are authorized, or refuse it."""
        ...


@dataclass(frozen=True)
class LabelReleaseService:
    """Serves committed releases to entitled clients."""

    catalog: Catalog
    policy: AccessPolicy
    streams: Places  # for calls that last
    stall_seconds: float  # how long such a call may stand still
    submissions: PopulationReceiver
    telemetry: Telemetry

    async def DescribeRelease(self, rpc: Rpc) -> None:
        request: wire.DescribeReleaseRequest = await rpc.request()
        release = await self.find(rpc, request.data_set, request.epoch)
        _note_software(rpc, request.client)
        await rpc.write(await rpc.run(_described, release), self.stall_seconds)

    async def FetchRelease(self, rpc: Rpc) -> None:
        request: wire.FetchReleaseRequest = await rpc.request()
        if not request.epoch:
            raise invalid("epoch is required")
        if len(request.manifest_sha256) != _DIGEST_BYTES:
            raise invalid("manifest_sha256 must have 32 bytes")
        release = await self.find(rpc, request.data_set, request.epoch)
        if request.manifest_sha256.hex() != release.digest:
            raise refused("manifest_sha256 is not this release's", "another_release")
        if request.start_row > release.rows:
            raise Refusal(
                grpc.StatusCode.OUT_OF_RANGE, "start_row is beyond the last row", "invalid_request"
            )
        chunk = min(request.max_chunk_bytes or CHUNK_BYTES, MOST_CHUNK_BYTES)
        step = max(chunk // release.row_bytes, 1)
        record = rpc.record
        with self.streams.hold(rpc.client):
            record.facts["from_row"] = request.start_row
            for start in range(request.start_row, release.rows, step):
                stop = min(start + step, release.rows)
                message = await rpc.run(self._rows, release, start, stop)
                rows = stop - start
                record.sent(request.data_set, rows, rows * release.row_bytes)
                await rpc.write(message, self.stall_seconds)
            self.telemetry.fetched(rpc.client, request.data_set, request.epoch)

    async def SubmitPopulation(self, rpc: Rpc) -> None:
        # before a place is taken: no header of anybody else could be accepted
        self.check_entitled(rpc.client, self.submissions.data_set)
        with self.streams.hold(rpc.client):
            header = (await rpc.request()).header
            # a stream that begins otherwise has an empty header, which names no data set
            self._check_access(rpc, header.data_set, header.epoch)
            _note_software(rpc, header.client)
            answer = await self.submissions.receive(header, rpc, self.stall_seconds)
        rpc.record.facts |= {
            "epoch": header.epoch,
            "population": wire.PopulationStatus.Name(answer.status),
        }
        await rpc.write(answer)

    def check_entitled(self, client: str, data_set: str) -> None:
        """Refuse a client that may not ask about a data set."""
        if not self.policy.allows(client, data_set):
            raise forbidden()

    def _check_access(self, rpc: Rpc, data_set: str, epoch: str) -> None:
        if not data_set:
            raise invalid("data_set is required")
        if len(data_set) > _NAME_CHARACTERS or len(epoch) > _NAME_CHARACTERS:
            raise invalid("data_set and epoch have at most 64 characters")
        self.check_entitled(rpc.client, data_set)
        rpc.record.facts["data_set"] = data_set  # a name of the configuration's, then

    async def find(self, rpc: Rpc, data_set: str, epoch: str) -> StoredRelease:
        """Return a release that a client may ask about, of no epoch the latest; refuse if it may
        not, or there is none."""
        self._check_access(rpc, data_set, epoch)
        with finding():
            opening = await rpc.run(self.catalog.opening, data_set, epoch)
            if opening is None:
                raise not_found()
            # no thread waits, nor does who leaves take it away from the others
            release = found(await asyncio.shield(asyncio.wrap_future(opening)))
        rpc.record.facts["epoch"] = release.heading.epoch
        return release

    def _rows(self, release: StoredRelease, start: int, stop: int) -> bytes:
        with finding():
            self.catalog.check_served(release.heading.data_set, release.heading.epoch)
            with reading("the release"):
                keys, codes = release.read(start, stop)
        message = wire.FetchReleaseResponse(start_row=start, keys=keys, codes=codes)
        return message.SerializeToString()


def _note_software(rpc: Rpc, said: wire.Software) -> None:
    """Have what a client says of its software logged; nothing depends on it."""
    if not is_bounded(said):
        raise invalid(
            f"client has a version and at most {MOST_FORMATS} formats, each of at most"
            f" {MOST_CHARACTERS} characters"
        )
    rpc.record.facts |= {"software": version_of(said) or "unknown"}


def _described(release: StoredRelease) -> bytes:
    with finding(), reading("the release"):
        manifest, signature = release.manifest_bytes, release.signature
    return wire.DescribeReleaseResponse(
        manifest=manifest,
        manifest_sha256=bytes.fromhex(release.digest),
        signature=signature,
        server=own_software(),
    ).SerializeToString()
