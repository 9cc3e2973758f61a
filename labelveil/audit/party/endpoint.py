"""A labels party as an auditor sees it: requests over the wire, answers and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc

from common.errors import ConfigError, ConnectionFailed
from common.files import read_private
from common.release.blocks import KEY_BYTES
from common.release.limits import MESSAGE_BYTES
from common.release.manifest import Manifest
from common.release.table import write_release
from common.security.tls import check_tls13_only
from common.wire import label_release_pb2 as pb2
from common.wire import label_release_pb2_grpc as pb2_grpc


@dataclass(frozen=True)
class Part:
    """One message of a fetch."""

    start_row: int
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

    @property
    def row_keys(self) -> list[bytes]:
        """One key a row."""
        keys = self.keys
        return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]

    def to_bytes(self) -> bytes:
        """Everything that was sent, as one string."""
        return b"".join([self.manifest, self.digest, self.keys, self.codes])


@dataclass(frozen=True)
class Refusal:
    """How a call ended: a status and its text, or ``OK``."""

    status: str
    text: str


class Endpoint(Protocol):
    """A labels party that can be asked; a test double is one, too."""

    def fetch(self, start_row: int = 0, chunk: int = 0) -> Fetched:
        """Describe the release and fetch its rows."""
        ...

    def refuse(self, request: str) -> Refusal:
        """Make one of the requests in ``REQUESTS`` and say how it ended."""
        ...


REQUESTS = {
    "another data set": "PERMISSION_DENIED",
    "no data set": "INVALID_ARGUMENT",
    "an epoch that does not exist": "NOT_FOUND",
    "another release's digest": "FAILED_PRECONDITION",
    "a short digest": "INVALID_ARGUMENT",
    "a row beyond the last": "OUT_OF_RANGE",
}
"""Requests that must be refused, with the status that the contract names."""

_WRONG: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "another data set": ({"data_set": "another-data-set", "epoch": ""}, {}),
    "no data set": ({"data_set": "", "epoch": ""}, {}),
    "an epoch that does not exist": ({"epoch": "no-such-epoch"}, {}),
    "another release's digest": ({}, {"manifest_sha256": bytes(32)}),
    "a short digest": ({}, {"manifest_sha256": bytes(5)}),
    "a row beyond the last": ({}, {"start_row": 1 << 50}),
    "nothing wrong": ({}, {}),
}
"""What is wrong about each, in describing the release or in fetching it; and a right request."""


@dataclass(frozen=True)
class Connection:
    """Where a labels party serves (host:port), and who the auditor is: the features party."""

    address: str
    ca: Path
    certificate: Path | None
    private_key: Path | None
    """PEM files: the authority that both sides trust, the auditor's certificate and key, or
    none."""
    data_set: str
    epoch: str = ""
    """Which release; an empty epoch is the latest."""
    server_name: str | None = None
    """Name in the server's certificate, where it is not the host."""
    timeout: float = 60.0


class WireEndpoint:
    """A labels party on the wire, over mutual TLS; one channel for all calls."""

    def __init__(self, connection: Connection, channel: grpc.Channel) -> None:
        self._connection = connection
        self._stub = pb2_grpc.LabelReleaseServiceStub(channel)

    def fetch(self, start_row: int = 0, chunk: int = 0) -> Fetched:
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

    def refuse(self, request: str) -> Refusal:
        described, fetched = _WRONG[request]
        try:
            answer = self.describe(**described)
            if fetched:
                next(self._fetch(answer, **fetched), None)
        except grpc.RpcError as error:
            return _refusal(error)
        return Refusal("OK", "")

    def describe(
        self, data_set: str | None = None, epoch: str | None = None
    ) -> pb2.DescribeReleaseResponse:
        request = pb2.DescribeReleaseRequest(
            data_set=self._connection.data_set if data_set is None else data_set,
            epoch=self._connection.epoch if epoch is None else epoch,
        )
        return self._stub.DescribeRelease(request, timeout=self._connection.timeout)

    def _fetch(self, described: pb2.DescribeReleaseResponse, **fields: Any) -> Iterator[Part]:
        request = pb2.FetchReleaseRequest(
            data_set=self._connection.data_set,
            epoch=self._connection.epoch or Manifest.parse(described.manifest).epoch,
            **{"manifest_sha256": described.manifest_sha256, **fields},
        )
        for message in self._stub.FetchRelease(request, timeout=self._connection.timeout):
            yield Part(message.start_row, message.keys, message.codes)


@contextmanager
def connected(connection: Connection) -> Iterator[WireEndpoint]:
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
    with grpc.secure_channel(connection.address, credentials, options=options) as channel:
        yield WireEndpoint(connection, channel)


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
