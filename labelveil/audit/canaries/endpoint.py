"""A labels party as an auditor sees it: requests over the wire, answers, refusals, their checks."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np

from labelveil.audit.attacks.implementation import byte_equality_check
from labelveil.audit.attacks.one_run import draw_secrets
from labelveil.audit.certificate.run import certify
from labelveil.audit.settings import Connection
from labelveil.audit.verdict import Audit, Check, Probes, Verdict, verdict_of
from labelveil.common.arrays import Floats, Integers
from labelveil.common.error_details import details_of
from labelveil.common.errors import ConfigError, ConnectionFailed, not_none
from labelveil.common.files import file_errors, read_private
from labelveil.common.release.blocks import KEY_BYTES, decode_codes
from labelveil.common.release.limits import CHUNK_BYTES, MESSAGE_BYTES
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.peers import own_software
from labelveil.common.release.table import write_release
from labelveil.common.security.pilot_certificates import write_certificates
from labelveil.common.security.proxies import through_proxy
from labelveil.common.security.tls import check_tls13_only
from labelveil.common.wire import evaluation_pb2, evaluation_pb2_grpc
from labelveil.common.wire import label_release_pb2 as pb2
from labelveil.common.wire import label_release_pb2_grpc as pb2_grpc

_PART = 1 << 20

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

    @cached_property
    def stated(self) -> Manifest:
        """What the manifest says: parsed for its form alone."""
        return Manifest.parse(self.manifest)

    @property
    def outputs(self) -> Integers:
        """(n,) codes, in the order of the rows."""
        return decode_codes(self.codes, self.stated.content.code_bytes).astype(np.int64)

    def to_bytes(self) -> bytes:
        """Everything that was sent, as one string."""
        return b"".join([self.manifest, self.digest, self.keys, self.codes])


@dataclass(frozen=True)
class Refusal:
    """How a call ended: a status and its text, or ``OK``."""

    status: str
    text: str


class WrongRequest(NamedTuple):
    """What is wrong about a request that must be refused, and with which status of the contract."""

    status: str
    described: Mapping[str, str] = {}  # in describing the release
    fetched: Mapping[str, Any] = {}  # in fetching it


REQUESTS = {
    "another data set": WrongRequest(
        "PERMISSION_DENIED", {"data_set": "another-data-set", "epoch": ""}
    ),
    "no data set": WrongRequest("INVALID_ARGUMENT", {"data_set": "", "epoch": ""}),
    "an epoch that does not exist": WrongRequest("NOT_FOUND", {"epoch": "no-such-epoch"}),
    "another release's digest": WrongRequest(
        "FAILED_PRECONDITION", fetched={"manifest_sha256": bytes(32)}
    ),
    "a short digest": WrongRequest("INVALID_ARGUMENT", fetched={"manifest_sha256": bytes(5)}),
    "a row beyond the last": WrongRequest("OUT_OF_RANGE", fetched={"start_row": 1 << 50}),
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
                f" --server-name and --data-set{through_proxy(not_none(self._connection.address))}"
            ) from error

    def refuse(self, wrong: WrongRequest) -> Refusal:
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

    def submit(self, epoch: str, keys: bytes, check: bytes, question: bytes) -> None:
        """Submit a population of hashed keys, the check of their secret, and a question or none."""
        header = pb2.PopulationHeader(
            data_set=self._connection.data_set,
            epoch=epoch,
            rows=len(keys) // KEY_BYTES,
            population_sha256=hashlib.sha256(keys).digest(),
            secret_check=check,
            question_sha256=hashlib.sha256(question).digest() if question else b"",
            client=own_software(),
        )
        sent = [pb2.SubmitPopulationRequest(header=header)]
        message = pb2.SubmitPopulationRequest
        parts = range(0, max(len(keys), len(question)), _PART)
        sent += [message(keys=part) for at in parts if (part := keys[at : at + _PART])]
        sent += [message(question=part) for at in parts if (part := question[at : at + _PART])]
        self._stub.SubmitPopulation(iter(sent), timeout=self._timeout)

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
    address = not_none(connection.address)
    with grpc.secure_channel(address, credentials, options=options) as channel:
        yield Endpoint(connection, channel, timeout)


def fetch_release(connection: Connection, folder: Path) -> None:
    """Fetch a release and keep it as a features party would, without believing it."""
    with connected(connection) as endpoint:
        answer = endpoint.fetch()
    write_release(folder, answer.manifest, answer.keys, answer.codes)


def _refusal(error: grpc.RpcError) -> Refusal:
    said = details_of(error.trailing_metadata())
    reason = f" ({said.reason})" if said else ""
    return Refusal(error.code().name, " ".join((error.details() or "").split()) + reason)


def _read(option: str, path: Path, *, secret: bool = False) -> bytes:
    with file_errors(ConfigError, f"{option} {path} cannot be read"):
        return read_private(path, option) if secret else path.read_bytes()


@dataclass(frozen=True)
class Served:
    """A labels party that is asked, and what it sent at first."""

    endpoint: Endpoint
    whole: Fetched
    connection: Connection | None = None


SERVED = Probes[Served](refused=Verdict.FAIL)
"""What a correct server answers in one way, whoever runs it."""


@SERVED.add(
    "byte equality of repeated requests",
    "Does asking again give the same bytes?",
    "A release is built once: the same request returns the same bytes forever.",
)
def again_check(served: Served) -> Check:
    return byte_equality_check(lambda: served.endpoint.fetch().to_bytes())


@SERVED.add(
    "resumed and cut fetches",
    "Has each row one output, however it is fetched?",
    "However a fetch is cut or resumed, each row has one output forever.",
)
def resume_check(served: Served) -> Check:
    endpoint, whole, rows = served.endpoint, served.whole, served.whole.stated.rows
    small = endpoint.fetch(chunk=4096)
    middle = rows // 2
    rest = endpoint.fetch(start_row=middle)
    same = (small.keys, small.codes) == (whole.keys, whole.codes)
    tail = rest.codes == whole.codes[middle * (len(whole.codes) // rows) :]
    return Check(
        verdict=verdict_of(same and tail),
        tried=f"The release was fetched in messages of 4 KB, and again from row {middle:,}.",
        found=f"The rows {'agree' if same else 'differ'}, the resumed ones"
        f" {'agree' if tail else 'differ'}.",
    )


@SERVED.add(
    "message sizes",
    "Do sizes of messages say anything about labels?",
    "The number and size of messages follow from the number of rows and the request.",
)
def sizes_check(served: Served) -> Check:
    """Sizes are a function of the number of rows and of what was asked for: computed here."""
    endpoint, whole = served.endpoint, served.whole
    rows, content = whole.stated.rows, whole.stated.content
    chunks = [0, 4096, *draw_secrets(2, 100_000).tolist()]
    wrong = []
    for chunk in chunks:
        step = max((chunk or CHUNK_BYTES) // (content.key_bytes + content.code_bytes), 1)
        cuts = [min(step, rows - start) for start in range(0, rows, step)]
        sizes = [(content.key_bytes * n, content.code_bytes * n) for n in cuts]
        answer = endpoint.fetch(chunk=chunk) if chunk else whole
        sent = [(len(part.keys), len(part.codes)) for part in answer.parts]
        if sent != sizes or len(answer.digest) != hashlib.sha256().digest_size:
            wrong.append(chunk)
    return Check(
        verdict=verdict_of(not wrong),
        tried=f"The release was fetched in messages of at most {', '.join(map(str, chunks))} bytes"
        " (0: as many as it likes), and the size of each compared with the one computed.",
        found=f"Others came for {wrong}." if wrong else "All are as computed.",
    )


@SERVED.add(
    "refusals",
    "Does the server refuse what it must, in constant words?",
    "Errors depend on the request alone.",
)
def refusals_check(served: Served) -> Check:
    endpoint = served.endpoint
    refusals, again = (
        {name: endpoint.refuse(wrong) for name, wrong in REQUESTS.items()} for _ in range(2)
    )
    wrong = {name: r.status for name, r in refusals.items() if r.status != REQUESTS[name].status}
    return Check(
        verdict=verdict_of(not wrong and refusals == again),
        tried=f"{len(REQUESTS)} wrong requests were made twice: {', '.join(REQUESTS)}.",
        found=f"{len(wrong)} of them did not get the status that the contract names"
        + (f" ({wrong})" if wrong else "")
        + f"; the texts are {'constant' if refusals == again else 'not constant'}.",
        details={name: [refusal.status, refusal.text] for name, refusal in refusals.items()},
    )


@SERVED.add(
    "unknown clients are refused",
    "Is anybody answered who should not be?",
    "Only a client with the configured certificate is answered.",
    fits=lambda served: served.connection is not None,
)
def unknown_clients_check(served: Served) -> Check:
    connection = not_none(served.connection)
    with tempfile.TemporaryDirectory() as folder:
        foreign = write_certificates(Path(folder) / "foreign", days=1)
        stranger = foreign.feature_party_certificate, foreign.feature_party_key
        clients = {"no certificate": (None, None), "a certificate of another authority": stranger}
        refusals = {}
        for name, (certificate, key) in clients.items():
            own = {"certificate": certificate, "private_key": key}
            with connected(connection.model_copy(update=own), timeout=10.0) as endpoint:
                refusals[name] = endpoint.refuse(WrongRequest("UNAUTHENTICATED"))
    admitted = sum(refusal == Refusal("OK", "") for refusal in refusals.values())
    return Check(
        verdict=verdict_of(not admitted),
        tried=f"A describe request was made with {' and with '.join(refusals)}.",
        found=f"{admitted} of them were answered.",
        details={name: [refusal.status, refusal.text] for name, refusal in refusals.items()},
    )


def fetched_certificate(answer: Fetched) -> Audit:
    """The certificate of exactly what was fetched."""
    with tempfile.TemporaryDirectory() as folder:
        write_release(Path(folder), answer.manifest, answer.keys, answer.codes)
        return certify(Path(folder))


NOT_CHECKABLE = Probes[Served]()
"""What nobody can see who only asks a running party, and what would show it."""

not_checkable = partial(
    NOT_CHECKABLE.not_checkable, tried="Not over the wire, without labels of the auditor's own."
)

not_checkable(
    "cold starts differ",
    "Does a server that starts again draw the same noise?",
    "Every release has fresh randomness.",
    "Plant the same canaries in two epochs, or run `labelveil audit party` without --address on the"
    " software.",
)
not_checkable(
    "latency and refusals do not depend on labels",
    "Do times, sizes or errors change with a label?",
    "What the server does depends on requests and the public population alone.",
    "It takes two data sets that differ in one label: run the software, without --address.",
)
not_checkable(
    "labels that change later",
    "What happens when a label is changed after its release?",
    "A release is frozen, or charged again.",
    "Plant canaries, have labels changed, and fetch again.",
)
not_checkable(
    "logs and backups",
    "Do logs or backups hold labels or keys of noise?",
    "Nothing that leaves the machine holds them.",
    "Look at the labels party's machine.",
)
