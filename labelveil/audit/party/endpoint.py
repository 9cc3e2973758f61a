"""A labels party as an auditor sees it: requests over the wire, answers and refusals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from common.arrays import Floats
from common.errors import ConfigError, ConnectionFailed, present
from common.files import read_private
from common.release.limits import MESSAGE_BYTES
from common.release.manifest import Manifest
from common.release.table import write_release
from common.security.tls import check_tls13_only
from common.wire import evaluation_pb2, evaluation_pb2_grpc
from common.wire import label_release_pb2 as pb2
from common.wire import label_release_pb2_grpc as pb2_grpc
from labelveil.audit.settings import Connection

Described = pb2.DescribeReleaseResponse


@dataclass(frozen=True)
class Part:
    """One message of a fetch."""

    keys: bytes
    codes: bytes


@dataclass(frozen=True)
class Fetched:
    """What a whole fetch returned: the manifest, its digest, and every message."""

    manifest: bytes
    digest: bytes
    parts: tuple[Part, ...]

    @property
    def keys(self) -> bytes:
        return b"".join(part.keys for part in self.parts)

    @property
    def codes(self) -> bytes:
        return b"".join(part.codes for part in self.parts)

    def to_bytes(self) -> bytes:
        """Everything that was sent, as one string."""
        return b"".join([self.manifest, self.digest, self.keys, self.codes])


@dataclass(frozen=True)
class Refusal:
    """How a call ended: a status and its text, or ``OK``."""

    status: str
    text: str


class Wrong(NamedTuple):
    """What is wrong about a request that must be refused, and with which status of the contract."""

    status: str
    described: Mapping[str, str] = {}  # in describing the release
    fetched: Mapping[str, Any] = {}  # in fetching it


REQUESTS = {
    "another data set": Wrong("PERMISSION_DENIED", {"data_set": "another-data-set", "epoch": ""}),
    "no data set": Wrong("INVALID_ARGUMENT", {"data_set": "", "epoch": ""}),
    "an epoch that does not exist": Wrong("NOT_FOUND", {"epoch": "no-such-epoch"}),
    "another release's digest": Wrong(
        "FAILED_PRECONDITION", fetched={"manifest_sha256": bytes(32)}
    ),
    "a short digest": Wrong("INVALID_ARGUMENT", fetched={"manifest_sha256": bytes(5)}),
    "a row beyond the last": Wrong("OUT_OF_RANGE", fetched={"start_row": 1 << 50}),
}
"""Requests that must be refused."""


class Endpoint:
    """A labels party on the wire, over mutual TLS; one channel for all calls."""

    def __init__(self, connection: Connection, channel: grpc.Channel, timeout: float) -> None:
        self._connection, self._timeout = connection, timeout
        self._stub = pb2_grpc.LabelReleaseServiceStub(channel)
        self._questions = evaluation_pb2_grpc.EvaluationServiceStub(channel)

    def fetch(self, start_row: int = 0, chunk: int = 0) -> Fetched:
        """Describe the release and fetch its rows."""
        try:
            described = self.describe()
            parts = self._fetch(described, start_row=start_row, max_chunk_bytes=chunk)
            return Fetched(described.manifest, described.manifest_sha256, tuple(parts))
        except grpc.RpcError as error:
            refusal = _refusal(error)
            raise ConnectionFailed(
                f"the labels party at {self._connection.address} answered {refusal.status}:"
                f" {refusal.text}; check --address, --ca, --certificate, --private-key,"
                " --server-name and --data-set"
            ) from error

    def refuse(self, wrong: Wrong) -> Refusal:
        """Make a request that must be refused, and say how it ended."""
        try:
            answer = self.describe(**wrong.described)
            if wrong.fetched:
                next(self._fetch(answer, **wrong.fetched), None)
        except grpc.RpcError as error:
            return _refusal(error)
        return Refusal("OK", "")

    def ask(self, described: Described, predictions: Floats) -> float | Refusal:
        """Ask how much better (rows,) predictions are than a constant, by their squared error."""
        header = evaluation_pb2.EvaluationHeader(
            data_set=self._connection.data_set,
            epoch=Manifest.parse(described.manifest).epoch,
            manifest_sha256=described.manifest_sha256,
            loss_name="squared gain",
        )
        message = evaluation_pb2.EvaluatePredictionsRequest
        sent = [message(header=header)]
        sent += [
            message(predictions=predictions[start : start + 100_000].astype("<f8").tobytes())
            for start in range(0, predictions.size, 100_000)
        ]
        try:
            return self._questions.EvaluatePredictions(iter(sent), timeout=self._timeout).loss
        except grpc.RpcError as error:
            return _refusal(error)

    def describe(self, data_set: str | None = None, epoch: str | None = None) -> Described:
        request = pb2.DescribeReleaseRequest(
            data_set=self._connection.data_set if data_set is None else data_set,
            epoch=self._connection.epoch if epoch is None else epoch,
        )
        return self._stub.DescribeRelease(request, timeout=self._timeout)

    def _fetch(self, described: Described, **fields: Any) -> Iterator[Part]:
        request = pb2.FetchReleaseRequest(
            data_set=self._connection.data_set,
            epoch=self._connection.epoch or Manifest.parse(described.manifest).epoch,
            **{"manifest_sha256": described.manifest_sha256, **fields},
        )
        for message in self._stub.FetchRelease(request, timeout=self._timeout):
            yield Part(message.keys, message.codes)


@contextmanager
def connected(connection: Connection, timeout: float = 60.0) -> Iterator[Endpoint]:
    """Open a channel; nothing is sent before the first call."""
    check_tls13_only()
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read("--ca", connection.ca),
        private_key=_read("--private-key", connection.private_key, secret=True)
        if connection.private_key
        else None,
        certificate_chain=_read("--certificate", connection.certificate)
        if connection.certificate
        else None,
    )
    options: list[tuple[str, str | int]] = [
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.enable_retries", 0),
    ]
    if connection.server_name:
        options.append(("grpc.ssl_target_name_override", connection.server_name))
    address = present(connection.address)
    with grpc.secure_channel(address, credentials, options=options) as channel:
        yield Endpoint(connection, channel, timeout)


def fetch_release(connection: Connection, folder: Path) -> None:
    """Fetch a release and keep it as a features party would, without believing it."""
    with connected(connection) as endpoint:
        answer = endpoint.fetch()
    write_release(folder, answer.manifest, answer.keys, answer.codes)


def _refusal(error: grpc.RpcError) -> Refusal:
    return Refusal(error.code().name, " ".join((error.details() or "").split()))


def _read(option: str, path: Path, *, secret: bool = False) -> bytes:
    try:
        return read_private(path, option) if secret else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be read: {error.strerror}") from error
