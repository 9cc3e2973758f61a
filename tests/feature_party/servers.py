"""A labels party made of one release and a few misbehaviours, on a free port, over mutual TLS."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from labelveil.common.errors import LabelveilError
from labelveil.common.security.pilot_certificates import CertificateFiles, write_certificates
from labelveil.common.wire import evaluation_pb2, evaluation_pb2_grpc
from labelveil.common.wire import label_release_pb2 as pb2
from labelveil.common.wire import label_release_pb2_grpc as pb2_grpc
from labelveil.feature_party.client.release_client import ReleaseClient, RetryPolicy
from labelveil.feature_party.config.labels_party import LabelsPartySection
from tests.feature_party.worlds import World

QUICK = RetryPolicy(attempts=3, first=0.001, longest=0.01)


@dataclass
class Behaviour:
    """What goes wrong, and what was asked."""

    break_after: list[int] = field(default_factory=list)
    """Rows after which each fetch breaks, one entry a call; later calls go through."""
    withdrawn: tuple[tuple[str, bytes], ...] | None = None
    """What a fetch that breaks ends with, if the release was withdrawn meanwhile, and what is said
    of yesterday's."""
    damage_row: int | None = None
    chunk_rows: int = 100
    refuse: grpc.StatusCode | None = None
    refuse_first: list[tuple[tuple[str, bytes], ...]] = field(default_factory=list)
    """What each of the first calls is refused with beside UNAVAILABLE; later calls go through."""
    described: int = 0
    signature: bytes = b""
    manifest: bytes | None = None
    """Sent in place of the release's own."""
    digest: bytes | None = None
    """Sent in place of what is sent's."""
    server: pb2.Software = field(default_factory=pb2.Software)
    """What it says of its software."""
    asked: list[pb2.DescribeReleaseRequest] = field(default_factory=list)
    stall_after: int | None = None
    """Rows after which each fetch stands still until the client leaves."""
    stalled: threading.Event = field(default_factory=threading.Event)
    started_at: list[int] = field(default_factory=list)
    absent: int = 0
    """How often to say that there is no release yet."""
    cut_submissions: list[int] = field(default_factory=list)
    """Keys after which each submission breaks, one entry a call; later calls go through."""
    refuse_submission: grpc.StatusCode | None = None
    confirm: bytes | None = None
    """Digest to confirm in place of the one received."""
    ending: pb2.PopulationStatus = pb2.POPULATION_STATUS_STORED
    submitted: list[tuple[pb2.PopulationHeader, bytes]] = field(default_factory=list)
    questions: list[list[bytes]] = field(default_factory=list)
    """The parts of each submission's question."""
    evaluated: list[tuple[evaluation_pb2.EvaluationHeader, list[bytes]]] = field(
        default_factory=list
    )
    patient: int = 0
    """Questions that would have waited for their answer forever."""


class LabelsPartyDouble(
    pb2_grpc.LabelReleaseServiceServicer, evaluation_pb2_grpc.EvaluationServiceServicer
):
    """Serves one release."""

    def __init__(self, world: World, behaviour: Behaviour) -> None:
        self.world, self.behaviour = world, behaviour

    def SubmitPopulation(
        self, request: Iterator[pb2.SubmitPopulationRequest], context: grpc.ServicerContext
    ) -> pb2.SubmitPopulationResponse:
        behaviour = self.behaviour
        if behaviour.refuse_submission is not None:
            context.abort(behaviour.refuse_submission, "not this one")
        header, keys, question = next(request).header, b"", list[bytes]()
        stop = behaviour.cut_submissions.pop(0) if behaviour.cut_submissions else None
        for message in request:
            keys += message.keys
            question += [message.question] if message.question else []
            if stop is not None and len(keys) >= 16 * stop:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the stream broke")
        behaviour.submitted.append((header, keys))
        behaviour.questions.append(question)
        digest = behaviour.confirm or hashlib.sha256(keys).digest()
        return pb2.SubmitPopulationResponse(
            rows=len(keys) // 16, population_sha256=digest, status=behaviour.ending
        )

    def EvaluatePredictions(
        self,
        request: Iterator[evaluation_pb2.EvaluatePredictionsRequest],
        context: grpc.ServicerContext,
    ) -> evaluation_pb2.EvaluatePredictionsResponse:
        header, *sent = request
        if self.behaviour.refuse is not None:
            context.abort(self.behaviour.refuse, "not\nfor you")
        self.behaviour.evaluated.append((header.header, [each.predictions for each in sent]))
        return evaluation_pb2.EvaluatePredictionsResponse(loss=0.25)

    def DescribeRelease(
        self, request: pb2.DescribeReleaseRequest, context: grpc.ServicerContext
    ) -> pb2.DescribeReleaseResponse:
        self.behaviour.described += 1
        self.behaviour.patient += context.time_remaining() > 3600
        if self.behaviour.refuse_first:
            context.set_trailing_metadata(self.behaviour.refuse_first.pop(0))
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        if self.behaviour.refuse is not None:
            context.abort(self.behaviour.refuse, "not for you")
        if self.behaviour.absent:
            self.behaviour.absent -= 1
            context.abort(grpc.StatusCode.NOT_FOUND, "no such release")
        if request.data_set != "sales":
            context.abort(grpc.StatusCode.NOT_FOUND, f"no data set {request.data_set!r}")
        if self.behaviour.withdrawn is not None and request.epoch == "yesterday":
            context.set_trailing_metadata(self.behaviour.withdrawn)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "withdrawn: a mistake")
        self.behaviour.asked.append(request)
        manifest = self.behaviour.manifest or self.world.release.manifest_bytes
        return pb2.DescribeReleaseResponse(
            manifest=manifest,
            manifest_sha256=self.behaviour.digest or hashlib.sha256(manifest).digest(),
            signature=self.behaviour.signature,
            server=self.behaviour.server,
        )

    def FetchRelease(
        self, request: pb2.FetchReleaseRequest, context: grpc.ServicerContext
    ) -> Iterator[pb2.FetchReleaseResponse]:
        behaviour, world = self.behaviour, self.world
        behaviour.started_at.append(request.start_row)
        stop = behaviour.break_after.pop(0) if behaviour.break_after else None
        rows, sent = len(world.codes), 0
        for start in range(request.start_row, rows, behaviour.chunk_rows):
            if stop is not None and sent >= stop:
                if behaviour.withdrawn is not None:
                    context.set_trailing_metadata(behaviour.withdrawn)
                    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "withdrawn: a mistake")
                context.abort(grpc.StatusCode.UNAVAILABLE, "the stream broke")
            end = min(start + behaviour.chunk_rows, rows)
            codes = bytearray(world.codes[start:end])
            if behaviour.damage_row is not None and start <= behaviour.damage_row < end:
                codes[behaviour.damage_row - start] ^= 1
            keys = world.keys[16 * start : 16 * end]
            if behaviour.stall_after is not None and sent >= behaviour.stall_after:
                behaviour.stalled.set()
                left = threading.Event()
                if context.add_callback(left.set):
                    left.wait()
                return
            sent += end - start
            yield pb2.FetchReleaseResponse(start_row=start, keys=keys, codes=bytes(codes))


@contextmanager
def serving(world: World, behaviour: Behaviour, files: CertificateFiles) -> Iterator[str]:
    """Serve a release on the loopback; yields the address. No call may wait for ever."""
    credentials = grpc.ssl_server_credentials(
        [(files.label_party_key.read_bytes(), files.label_party_certificate.read_bytes())],
        root_certificates=files.authority.read_bytes(),
        require_client_auth=True,
    )
    server = grpc.server(futures.ThreadPoolExecutor(4))
    double = LabelsPartyDouble(world, behaviour)
    pb2_grpc.add_LabelReleaseServiceServicer_to_server(double, server)
    evaluation_pb2_grpc.add_EvaluationServiceServicer_to_server(double, server)
    port = server.add_secure_port("localhost:0", credentials)
    server.start()
    try:
        yield f"localhost:{port}"
    finally:
        server.stop(None).wait()
    assert not behaviour.patient


def client_settings(address: str, files: CertificateFiles, **changes: object) -> LabelsPartySection:
    """What a client of that server is configured with."""
    values: dict[str, object] = {
        "address": address,
        "ca": files.authority,
        "certificate": files.feature_party_certificate,
        "private_key": files.feature_party_key,
        "data_set": "sales",
        "timeout": 10.0,
    }
    return LabelsPartySection.model_validate(values | changes)


def certificates(folder: Path) -> CertificateFiles:
    """A test authority and both parties' certificates."""
    return write_certificates(folder)


def fetch_error(
    world: World,
    files: CertificateFiles,
    directory: Path,
    behaviour: Behaviour | None = None,
    **changes: object,
) -> LabelveilError:
    """The error that a fetch ends with, which must be one line."""
    with serving(world, behaviour or Behaviour(), files) as address:
        settings = client_settings(address, files, **changes)
        with pytest.raises(LabelveilError) as caught:
            ReleaseClient(settings, QUICK).fetch(directory)
    assert "\n" not in str(caught.value)
    return caught.value
