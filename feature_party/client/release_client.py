"""Submit a population; fetch a release: verify its claims, resume wherever its stream breaks."""

from __future__ import annotations

import hashlib
import math
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from common.errors import ConnectionFailed, ReleaseError
from common.release.folder import MANIFEST_FILE, SIGNATURE_FILE, is_complete
from common.release.manifest import Manifest
from common.release.signature import read_public_key, verify
from common.wire import label_release_pb2 as pb2
from common.wire import label_release_pb2_grpc as pb2_grpc
from feature_party.client.channel import explain, hangs_up, not_accepted, open_channel, retryable
from feature_party.client.spool import Spool, discard_partial
from feature_party.config import LabelsPartySection

RowsCallback = Callable[[int, int], None]
"""Called with rows received so far and rows in all."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often a broken call is repeated: exponential backoff with full jitter.

    Attributes
    ----------
    attempts
        Calls in a row that may fail without a single new row.
    first, longest
        Bounds of the waiting time before the second call, and before any call, in seconds.
    poll
        Seconds between two looks for a release that does not exist yet.
    """

    attempts: int = 6
    first: float = 0.25
    longest: float = 20.0
    poll: float = 2.0

    def delay(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, at random up to the bound."""
        return random.uniform(0, min(self.longest, self.first * 2**failures))


@dataclass(frozen=True)
class Fetched:
    """What a fetch left behind.

    Attributes
    ----------
    manifest
        The release's manifest.
    directory
        Where it is.
    rows
        Rows in the release.
    received
        Rows that this call received; 0 when the release was there already.
    seconds
        Time taken.
    """

    manifest: Manifest
    directory: Path
    rows: int
    received: int
    seconds: float


class Patience:
    """Cancels a call that makes no progress for some seconds."""

    def __init__(self, cancel: Callable[[], object], seconds: float) -> None:
        self._cancel, self._seconds = cancel, seconds
        self._stopped = threading.Event()
        self.progress()
        threading.Thread(target=self._watch, name="patience", daemon=True).start()

    def progress(self) -> None:
        """Start counting anew."""
        self._until = time.monotonic() + self._seconds

    def stop(self) -> None:
        """Cancel nothing any more."""
        self._stopped.set()

    def _watch(self) -> None:
        while (left := self._until - time.monotonic()) > 0:
            if self._stopped.wait(left):
                return
        self._cancel()


class NoProgress(grpc.RpcError):
    """A call that our patience has ended, as a failure like others."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.CANCELLED

    def details(self) -> str:
        return f"no progress for {self._seconds:g} s"


class ReleaseClient:
    """One labels party, as seen from here.

    Parameters
    ----------
    settings
        Address, identity, data set and epoch.
    retry
        When to give up.
    """

    def __init__(self, settings: LabelsPartySection, retry: RetryPolicy | None = None) -> None:
        self.settings = settings
        self.retry = retry or RetryPolicy()
        self._wake = threading.Event()
        self._answered = False
        self._until = math.inf

    def fetch(self, directory: Path, on_rows: RowsCallback | None = None) -> Fetched:
        """Fetch the release into a directory, going on with a partial one if there is one.

        Raises
        ------
        ConnectionFailed
            If the labels party cannot be reached, cannot prove its name, or refuses us.
        ReleaseError
            If there is no such release, or what arrives is not what the manifest states.
        """
        begun = time.monotonic()
        self._until = begun + (self.settings.deadline or math.inf)
        pinned = self.settings.signing_key
        key = None if pinned is None else read_public_key(pinned, "[labels_party] signing_key")
        with open_channel(self.settings) as channel:
            stub = pb2_grpc.LabelReleaseServiceStub(channel)
            described = self._describe(stub)
            manifest = self._verify(described, key)
            rows = manifest.population.rows
            if _present(directory, described.manifest):
                discard_partial(directory)
                _keep_signature(directory, described.signature)
                return Fetched(manifest, directory, rows, 0, time.monotonic() - begun)
            self._check_rows(manifest)
            with Spool(directory, manifest, described.manifest) as spool:
                received = rows - spool.rows
                spool.check_room()
                self._stream(stub, spool, described.manifest_sha256, on_rows)
                spool.finish()
        _keep_signature(directory, described.signature)
        return Fetched(manifest, directory, rows, received, time.monotonic() - begun)

    def _describe(self, stub: pb2_grpc.LabelReleaseServiceStub) -> pb2.DescribeReleaseResponse:
        request = pb2.DescribeReleaseRequest(
            data_set=self.settings.data_set, epoch=self.settings.epoch
        )
        failures = 0
        until = time.monotonic() + self.settings.wait
        while True:
            try:
                described = stub.DescribeRelease(request, timeout=self._seconds())
                self._answered = True
                return described
            except grpc.RpcError as error:
                left = until - time.monotonic()
                if error.code() == grpc.StatusCode.NOT_FOUND and left > 0:
                    self._wake.wait(min(left, self.retry.poll))
                    continue
                failures = self.wait_or_raise(error, failures)

    def _verify(
        self, described: pb2.DescribeReleaseResponse, key: Ed25519PublicKey | None
    ) -> Manifest:
        if key is not None:
            self._verify_signature(described, key)
        if hashlib.sha256(described.manifest).digest() != described.manifest_sha256:
            raise ReleaseError("the manifest does not have the digest it was sent with")
        manifest = Manifest.from_bytes(described.manifest)
        wanted = self.settings.data_set, self.settings.epoch or manifest.epoch
        if (manifest.data_set, manifest.epoch) != wanted:
            raise ReleaseError(
                f"the labels party sent data set {manifest.data_set!r}, epoch {manifest.epoch!r}"
                f" instead of {wanted[0]!r}, {wanted[1]!r}"
            )
        return manifest

    def _check_rows(self, manifest: Manifest) -> None:
        rows, most = manifest.population.rows, self.settings.max_rows
        if most is not None and rows > most:
            raise ReleaseError(
                f"the labels party at {self.settings.address} states {rows:,} rows, more than"
                f" max_rows={most:,}; nothing was fetched. Raise [labels_party] max_rows if it is"
                " right"
            )

    def _verify_signature(
        self, described: pb2.DescribeReleaseResponse, key: Ed25519PublicKey
    ) -> None:
        who = f"the labels party at {self.settings.address}"
        if not described.signature:
            raise ReleaseError(
                f"{who} sent no signature, but {self.settings.signing_key} is pinned; ask it to"
                " sign its release, or remove [labels_party] signing_key"
            )
        if not verify(key, described.signature, described.manifest):
            raise ReleaseError(
                f"the manifest from {who} is not signed by {self.settings.signing_key}; nothing was"
                " fetched; ask the labels party, by another way, which key it signs with"
            )

    def _stream(
        self,
        stub: pb2_grpc.LabelReleaseServiceStub,
        spool: Spool,
        digest: bytes,
        on_rows: RowsCallback | None,
    ) -> None:
        failures = 0
        while not spool.complete:
            before = spool.rows
            spool.drop_pending()
            request = pb2.FetchReleaseRequest(
                data_set=spool.manifest.data_set,
                epoch=spool.manifest.epoch,
                manifest_sha256=digest,
                start_row=spool.rows,
            )
            call = stub.FetchRelease(request, timeout=self._left())
            patience = Patience(call.cancel, self.settings.timeout)
            try:
                self._receive(call, spool, patience, on_rows)
            except grpc.RpcError as error:
                failures = self.wait_or_raise(error, 0 if spool.rows > before else failures)
            finally:
                patience.stop()
                call.cancel()

    def _receive(
        self,
        call: Iterable[pb2.FetchReleaseResponse],
        spool: Spool,
        patience: Patience,
        on_rows: RowsCallback | None,
    ) -> None:
        received, total = spool.rows, spool.manifest.population.rows
        if on_rows is not None:
            on_rows(received, total)  # rates are counted from here
        for message in call:
            received += spool.append(message.start_row, message.keys, message.codes)
            patience.progress()
            if on_rows is not None:
                on_rows(received, total)
        if not spool.complete:
            raise ReleaseError(
                f"the stream ended after {received:,} of {total:,} rows; run fetch again to go on"
            )

    def wait_or_raise(self, error: grpc.RpcError, failures: int, command: str = "fetch") -> int:
        """Wait before a call that failed so often in a row is repeated; return one more."""
        failures += 1
        if self._overdue():
            raise ConnectionFailed(
                f"{command} took longer than deadline={self.settings.deadline:g} seconds; what has"
                f" arrived is kept; run {command} again to go on, or raise [labels_party] deadline"
            ) from error
        if not self._answered and failures == 1 and hangs_up(self.settings):
            raise not_accepted(self.settings) from error
        if failures >= self.retry.attempts or not retryable(error):
            raise explain(error, self.settings, command) from error
        self._wake.wait(min(self.retry.delay(failures), self._until - time.monotonic()))
        return failures

    def _overdue(self) -> bool:
        return time.monotonic() >= self._until

    def _left(self) -> float | None:
        """Seconds until the deadline; None if there is none."""
        return None if self._until == math.inf else max(self._until - time.monotonic(), 0.0)

    def _seconds(self) -> float:
        """Seconds that a short call may take."""
        left = self._left()
        return self.settings.timeout if left is None else min(self.settings.timeout, left)


def _keep_signature(directory: Path, signature: bytes) -> None:
    path = directory / SIGNATURE_FILE
    if signature:
        path.write_bytes(signature)
    else:
        path.unlink(missing_ok=True)  # of another release that was here before


def _present(directory: Path, manifest: bytes) -> bool:
    """Whether the complete release is in the directory already."""
    return is_complete(directory) and (directory / MANIFEST_FILE).read_bytes() == manifest
