"""Fetch a release: verify its claims, resume wherever its stream breaks."""

from __future__ import annotations

import hashlib
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from labelveil.common.errors import ConnectionFailed, ReleaseError
from labelveil.common.files import writing
from labelveil.common.formats import RELEASE
from labelveil.common.release.folder import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    check_question,
    is_complete,
    mark_withdrawn,
    read_manifest,
)
from labelveil.common.release.manifest import Manifest, OlderForm
from labelveil.common.release.peers import own_software, version_of, writes_ours
from labelveil.common.release.signature import read_public_key, verify
from labelveil.common.version import software
from labelveil.common.wire import label_release_pb2 as pb2
from labelveil.common.wire import label_release_pb2_grpc as pb2_grpc
from labelveil.feature_party.client.channel import (
    Withdrawn,
    error_details,
    explain,
    hangs_up,
    not_accepted,
    open_channel,
    retryable,
)
from labelveil.feature_party.client.spool import Spool, discard_partial
from labelveil.feature_party.config.labels_party import LabelsPartySection

T = TypeVar("T")
RowsCallback = Callable[[int, int], None]
"""Called with rows received so far and rows in all."""
_SOONEST = 0.1
"""Seconds from one look for a release to the next, at least."""
_SILENT = 5.0
"""Seconds that a release may be waited for without a word."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often a broken call is repeated: exponential backoff with full jitter."""

    attempts: int = 6  # calls in a row that may fail without a single new row
    # first, longest: bounds of the waiting time before the second call, and before any call, in
    # seconds
    first: float = 0.25
    longest: float = 20.0
    # seconds between two looks for a release that does not exist yet, at most: a quarter of the
    # time waited so far, so that what comes soon is seen soon
    poll: float = 2.0
    longest_told: float = 120.0  # seconds that a labels party may have us wait before one call

    def delay(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row, at random up to the bound."""
        return random.uniform(0, min(self.longest, self.first * 2**failures))


@dataclass(frozen=True)
class Fetched:
    """A release that was fetched into a directory."""

    manifest: Manifest
    directory: Path
    received: int  # rows that this call received; 0 when the release was there already
    seconds: float  # time taken
    replaced: tuple[str, str] | None = None  # data set and epoch of what lay there, if another
    withdrawn: str | None = None  # why that was withdrawn, if it was

    @property
    def rows(self) -> int:
        return self.manifest.rows


class Patience:
    """Cancels a call that makes no progress for some seconds."""

    def __init__(self, cancel: Callable[[], object], seconds: float) -> None:
        self._cancel, self._seconds = cancel, seconds
        self._stopped = threading.Event()
        self.progress()
        threading.Thread(target=self._watch, name="patience", daemon=True).start()

    def progress(self) -> None:
        self._until = time.monotonic() + self._seconds

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while (seconds := self._until - time.monotonic()) > 0:
            if self._stopped.wait(seconds):
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
    """One labels party, as seen from here."""

    def __init__(
        self,
        settings: LabelsPartySection,
        retry: RetryPolicy = RetryPolicy(),
        tell: Callable[[str], object] = lambda line: None,
    ) -> None:
        """``tell`` is called, in words, where a release is waited for."""
        self.settings, self.retry, self.tell = settings, retry, tell
        self._wake = threading.Event()
        self._answered = False
        self._until = math.inf

    def fetch(self, directory: Path, on_rows: RowsCallback = lambda done, total: None) -> Fetched:
        """Fetch the release into a directory, going on with a partial one if there is one.

        ``ConnectionFailed`` if the labels party cannot be reached, cannot prove its name, or
        refuses us; ``ReleaseError`` if there is no such release, or what arrives is not what the
        manifest states; ``Withdrawn``, and what was fetched before is marked as such.
        """
        with noting_withdrawal(directory, self.settings):
            return self._fetch(directory, on_rows)

    def _fetch(self, directory: Path, on_rows: RowsCallback) -> Fetched:
        begun, received = time.monotonic(), 0
        self._until = begun + (self.settings.deadline or math.inf)
        key = self._pinned()
        with open_channel(self.settings) as channel:
            stub = pb2_grpc.LabelReleaseServiceStub(channel)
            try:
                described = self._describe(stub)
            except ReleaseError as error:
                # no release at all, perhaps because the one that lies here was the only one
                if not self.settings.epoch and (gone := self._withdrawal_of(stub, directory)):
                    raise gone from error
                raise
            manifest = self._verify(described, key)
            kept = directory / MANIFEST_FILE
            replaced = withdrawn = None
            if is_complete(directory) and kept.read_bytes() == described.manifest:
                discard_partial(directory)
            else:
                replaced = name_of(directory)
                withdrawn = self._withdrawal_of(stub, directory)
                self._check_rows(manifest.rows)
                if manifest.sums is not None:
                    check_question(directory, manifest.sums.question)
                with Spool(directory, manifest, described.manifest) as spool:
                    received = manifest.rows - spool.rows
                    spool.check_room()
                    try:
                        self._stream(stub, spool, described.manifest_sha256, on_rows)
                    except Withdrawn:
                        discard_partial(directory)
                        raise
                    spool.finish()
        signature = directory / SIGNATURE_FILE
        if described.signature:
            with writing(signature):
                signature.write_bytes(described.signature)
        else:
            signature.unlink(missing_ok=True)  # of another release that was here before
        return Fetched(
            manifest,
            directory,
            received,
            time.monotonic() - begun,
            replaced,
            withdrawn.reason if withdrawn else None,
        )

    def describe(self, command: str) -> Manifest:
        """What the labels party states of the release, verified; errors as of a fetch, but that
        they say which ``command`` to run again."""
        key = self._pinned()
        with open_channel(self.settings) as channel:
            stub = pb2_grpc.LabelReleaseServiceStub(channel)
            return self._verify(self._describe(stub, command), key)

    def _pinned(self) -> Ed25519PublicKey | None:
        path = self.settings.signing_key
        return None if path is None else read_public_key(path, "[labels_party] signing_key")

    def _describe(
        self, stub: pb2_grpc.LabelReleaseServiceStub, command: str = "fetch"
    ) -> pb2.DescribeReleaseResponse:
        request = pb2.DescribeReleaseRequest(
            data_set=self.settings.data_set, epoch=self.settings.epoch, client=own_software()
        )
        failures, told = 0, False
        begun = time.monotonic()
        until = begun + self.settings.wait
        while True:
            try:
                timeout = min(self.settings.timeout, self._seconds_left())
                described = stub.DescribeRelease(request, timeout=timeout)
                self._answered = True
                return described
            except grpc.RpcError as error:
                waiting = until - time.monotonic()
                if error.code() == grpc.StatusCode.NOT_FOUND and waiting > 0:
                    waited = time.monotonic() - begun
                    if waited >= _SILENT and not told:
                        told = True
                        self.tell(
                            f"the labels party at {self.settings.address} has not released data"
                            f" set {self.settings.data_set!r}, epoch {self.settings.epoch!r}, yet:"
                            f" waiting {waiting:,.0f} s at most ([labels_party] wait)"
                        )
                    looks = max(_SOONEST, waited / 4)
                    self._wake.wait(min(waiting, self.retry.poll, looks))
                    continue
                failures = self._wait_or_raise(error, failures, command)

    def _withdrawal_of(
        self, stub: pb2_grpc.LabelReleaseServiceStub, directory: Path
    ) -> Withdrawn | None:
        """Ask whether what lies here was withdrawn, before another takes its place, and mark it."""
        name = name_of(directory)
        if name is None or name[0] != self.settings.data_set:
            return None
        of_it = self.settings.model_copy(update={"epoch": name[1]})
        request = pb2.DescribeReleaseRequest(data_set=of_it.data_set, epoch=of_it.epoch)
        try:
            stub.DescribeRelease(request, timeout=self.settings.timeout)
        except grpc.RpcError as error:
            answer = explain(error, of_it)
            if isinstance(answer, Withdrawn):
                _mark(directory, of_it, answer)
                return answer
        return None

    def _verify(
        self, described: pb2.DescribeReleaseResponse, key: Ed25519PublicKey | None
    ) -> Manifest:
        settings, who = self.settings, f"the labels party at {self.settings.address}"
        if key is not None and not described.signature:
            raise ReleaseError(
                f"{who} sent no signature, but {settings.signing_key} is pinned; ask it to"
                " sign its release, or remove [labels_party] signing_key"
            )
        if key is not None and not verify(key, described.signature, described.manifest):
            raise ReleaseError(
                f"the manifest from {who} is not signed by {settings.signing_key}; nothing was"
                " fetched; ask the labels party, by another way, which key it signs with"
            )
        if hashlib.sha256(described.manifest).digest() != described.manifest_sha256:
            raise ReleaseError("the manifest does not have the digest it was sent with")
        try:
            manifest = Manifest.from_bytes(described.manifest, "the features party")
        except OlderForm as error:
            raise ReleaseError(f"{error}. {_who_updates(described.server)}") from error
        wanted = settings.data_set, settings.epoch or manifest.epoch
        if (manifest.data_set, manifest.epoch) != wanted:
            raise ReleaseError(
                f"the labels party sent data set {manifest.data_set!r}, epoch {manifest.epoch!r}"
                f" instead of {wanted[0]!r}, {wanted[1]!r}"
            )
        return manifest

    def _check_rows(self, rows: int) -> None:
        most = self.settings.max_rows
        if most is not None and rows > most:
            raise ReleaseError(
                f"the labels party at {self.settings.address} states {rows:,} rows, more than"
                f" max_rows={most:,}; nothing was fetched. Raise [labels_party] max_rows if it is"
                " right"
            )

    def _stream(
        self,
        stub: pb2_grpc.LabelReleaseServiceStub,
        spool: Spool,
        digest: bytes,
        on_rows: RowsCallback,
    ) -> None:
        failures, total = 0, spool.manifest.rows
        while not spool.complete:
            received = before = spool.rows
            spool.drop_pending()
            request = pb2.FetchReleaseRequest(
                data_set=spool.manifest.data_set,
                epoch=spool.manifest.epoch,
                manifest_sha256=digest,
                start_row=received,
            )
            deadline = self._seconds_left() if self.settings.deadline else None
            call = stub.FetchRelease(request, timeout=deadline)
            patience = Patience(call.cancel, self.settings.timeout)
            try:
                on_rows(received, total)  # rates are counted from here
                for message in call:
                    received += spool.append(message.start_row, message.keys, message.codes)
                    patience.progress()
                    on_rows(received, total)
                if not spool.complete:
                    raise ReleaseError(
                        f"the stream ended after {received:,} of {total:,} rows; run fetch again to"
                        " go on"
                    )
            except grpc.RpcError as error:
                failures = self._wait_or_raise(error, 0 if spool.rows > before else failures)
            finally:
                patience.stop()
                call.cancel()

    def repeat(self, call: Callable[[], T], command: str) -> T:
        """Make a call again, from its start, until it succeeds or there is no hope that it will."""
        failures = 0
        while True:
            try:
                return call()
            except grpc.RpcError as error:
                failures = self._wait_or_raise(error, failures, command)

    def _wait_or_raise(self, error: grpc.RpcError, failures: int, command: str = "fetch") -> int:
        """Wait before a call that failed so often in a row is repeated; return one more."""
        failures += 1
        if time.monotonic() >= self._until:
            raise ConnectionFailed(
                f"{command} took longer than deadline={self.settings.deadline:g} seconds; what has"
                f" arrived is kept; run {command} again to go on, or raise [labels_party] deadline"
            ) from error
        said = error_details(error)
        if said is None and not self._answered and failures == 1 and hangs_up(self.settings):
            raise not_accepted(self.settings.address) from error
        after = 0.0 if said is None else said.retry_after or 0.0
        patient = failures < self.retry.attempts and after <= self.retry.longest_told
        if not patient or not retryable(error):
            raise explain(error, self.settings, command) from error
        # all who were told the same shall not come at once
        delay = after + self.retry.delay(failures)
        self._wake.wait(min(delay, self._until - time.monotonic()))
        return failures

    def _seconds_left(self) -> float:
        """Seconds until the deadline, infinitely many without one."""
        return max(self._until - time.monotonic(), 0.0)


@contextmanager
def noting_withdrawal(directory: Path, settings: LabelsPartySection) -> Iterator[None]:
    """Mark what was fetched into a directory, if it is what a labels party says is withdrawn."""
    try:
        yield
    except Withdrawn as error:
        _mark(directory, settings, error)
        raise


def _mark(directory: Path, settings: LabelsPartySection, error: Withdrawn) -> None:
    if name_of(directory) == (settings.data_set, settings.epoch):
        with suppress(OSError):  # it is said anyway
            mark_withdrawn(directory, error.reason)


def _who_updates(labels_party: pb2.Software) -> str:
    """What helps where a release is older than what is read here, which never changes."""
    runs = version_of(labels_party)
    if writes_ours(labels_party):
        return (
            f"The labels party runs {runs or 'a later version'} by now: its later epochs can be"
            " fetched"
        )
    return (
        f"The labels party{f', which runs {runs},' if runs else ''} must update labelveil before"
        f" its next epoch, to a version that writes {RELEASE}, as {software()} here does"
    )


def name_of(directory: Path) -> tuple[str, str] | None:
    """Data set and epoch of the release in a directory; None if there is none that can be read."""
    try:
        manifest = Manifest.from_bytes(read_manifest(directory))
    except ReleaseError:
        return None
    return manifest.data_set, manifest.epoch
