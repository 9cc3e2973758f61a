"""The releases that a server may hand out: committed in the ledger, verified once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from labelveil.common.errors import LabelveilError
from labelveil.common.files import file_errors
from labelveil.label_party.monitoring.calls import OncePerMinute
from labelveil.label_party.store.disk import StoreError
from labelveil.label_party.store.entries import CommittedRelease
from labelveil.label_party.store.reading import Current
from labelveil.label_party.store.release_store import Store, StoredRelease

_VERIFIED_AT_ONCE = 2
"""Releases that are read to their end beside each other; others wait, and hold no thread."""

_CLOCKS_DIFFER = timedelta(minutes=5)


class LeftOut(LabelveilError):
    """A release is committed, and not served; the others are."""


class Damaged(LeftOut):
    """Its bytes are not those that were committed."""


class Withdrawn(LabelveilError):
    """It is served no more; its text is the reason."""


class Unreadable(LeftOut):
    """It cannot be read now, and perhaps later."""


Opening = Future[StoredRelease | LeftOut]
"""A release that is verified, or was: by one thread, whoever asks for it meanwhile."""


@dataclass(frozen=True, eq=False)
class _Releases:
    """What the ledger says of releases."""

    by_epoch: dict[str, dict[str, CommittedRelease]]  # by data set; lost ones, too
    # by data set; of those whose bytes are at hand, and not withdrawn
    latest: dict[str, CommittedRelease]
    last_change: datetime | None


class Catalog:
    """Finds committed releases; safe for any number of threads.

    The ledger is read again whenever its files have changed, so that a release committed while the
    server runs is served, and what was verified is only ever a cache.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._releases = Current(store.ledger_path, self._read)
        # both by the charge's number
        self._opened: dict[int, Opening] = {}
        self._left_out: dict[int, LeftOut] = {}
        self._lock = threading.Lock()  # never held while a disk is read
        # one that cannot be read is tried again at each call
        self._said = OncePerMinute("release left out", level=logging.ERROR)
        self._readers = ThreadPoolExecutor(_VERIFIED_AT_ONCE, "verify")

    def close(self) -> None:
        """Verify nothing more."""
        self._readers.shutdown(cancel_futures=True)

    def find(self, data_set: str, epoch: str | None) -> StoredRelease | None:
        """Return the release of an epoch, or the latest one of the data set if epoch is None.

        Waits until it is verified. ``Damaged`` if its bytes are not those that were committed: it
        is left out until the next start. ``Unreadable`` if it cannot be read now; ``Withdrawn``;
        another ``LabelveilError`` if the ledger cannot be read.
        """
        opening = self.opening(data_set, epoch)
        return None if opening is None else found(opening.result())

    def opening(self, data_set: str, epoch: str | None) -> Opening | None:
        """Have a release verified, if it was not, and do not wait; None if there is none.

        :func:`found` says what came of it. ``Withdrawn``; another ``LabelveilError`` if the ledger
        cannot be read.
        """
        known = self._sold()
        sold = known.by_epoch.get(data_set, {}).get(epoch) if epoch else known.latest.get(data_set)
        if sold is not None and sold.withdrawn is not None:
            raise Withdrawn(sold.withdrawn)
        if sold is None or not sold.digest:
            return None
        with self._lock:
            opened = self._opened.get(sold.id)
            if opened is None:
                opened = self._opened[sold.id] = self._readers.submit(self._open, sold)
            return opened

    def check_served(self, data_set: str, epoch: str) -> None:
        """Raise ``Withdrawn`` if a release that was found is withdrawn meanwhile."""
        sold = None
        with suppress(LabelveilError):  # who was served before goes on while no ledger can be read
            sold = self._sold().by_epoch.get(data_set, {}).get(epoch)
        if sold is not None and sold.withdrawn is not None:
            raise Withdrawn(sold.withdrawn)

    def left_out(self, kind: type[LeftOut] = LeftOut) -> list[str]:
        """Return every release that was not served when last asked for, and why."""
        with self._lock:
            errors = [error for error in self._left_out.values() if isinstance(error, kind)]
        return sorted(map(str, errors))

    def open_all(self, data_sets: list[str]) -> int:
        """Open and verify everything committed for some data sets; return how many are whole."""
        by_epoch, whole = self._sold().by_epoch, 0
        for data_set in data_sets:
            for epoch in by_epoch.get(data_set, {}):
                with suppress(LeftOut, Withdrawn):
                    whole += self.find(data_set, epoch) is not None
        return whole

    def epochs(self, data_set: str) -> set[str]:
        """Return the epochs of a data set that have a release."""
        return set(self._sold().by_epoch.get(data_set, {}))

    def check(self) -> None:
        """Raise a ``LabelveilError`` if the ledger cannot be read, or is gone."""
        if not self._store.ledger_path.exists():  # a server's start has made one
            raise StoreError(f"{self._store.ledger_path} is gone; restore it from a backup")
        self._sold()

    @property
    def from_the_future(self) -> datetime | None:
        """When something was charged at the latest, if the clock says that it is to come yet."""
        last = self._sold().last_change
        return last if last is not None and last > datetime.now(UTC) + _CLOCKS_DIFFER else None

    def _sold(self) -> _Releases:
        with file_errors(StoreError, f"{self._store.ledger_path} cannot be read"):
            return self._releases.value()

    def _read(self) -> _Releases:
        with self._store.read_ledger() as ledger:
            releases, last = ledger.releases(), ledger.last_change()
        by_epoch: dict[str, dict[str, CommittedRelease]] = {}
        latest = {
            sold.data_set: sold for sold in releases if sold.digest and sold.withdrawn is None
        }
        for sold in releases:
            by_epoch.setdefault(sold.data_set, {})[sold.epoch] = sold
        return _Releases(by_epoch, latest, last)

    def _open(self, sold: CommittedRelease) -> StoredRelease | LeftOut:
        """Verify a release, or say why it is left out."""
        outcome: StoredRelease | LeftOut
        try:
            with reading(f"data set {sold.data_set}, epoch {sold.epoch},"):
                outcome = self._store.open_release(sold)
        except LeftOut as error:
            facts = {"data_set": sold.data_set, "epoch": sold.epoch, "reason": str(error.__cause__)}
            self._said.add((sold.data_set, sold.epoch), facts)
            outcome = error.with_traceback(None)
        except BaseException:
            with self._lock:
                del self._opened[sold.id]
            raise
        with self._lock:
            self._left_out.pop(sold.id, None)
            if isinstance(outcome, LeftOut):
                self._left_out[sold.id] = outcome
            if isinstance(outcome, Unreadable):  # whoever asks next tries again
                del self._opened[sold.id]
        return outcome


def found(outcome: StoredRelease | LeftOut) -> StoredRelease:
    """Return a release; raise the error that says why it is left out."""
    if isinstance(outcome, LeftOut):
        raise type(outcome)(str(outcome))  # another each time: a raised one keeps who raised it
    return outcome


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Say of an error while a release is read whether it is damaged, or cannot be read now.

    Only bytes that are not those that were committed are damage: a disk that does not answer,
    rights, or too many open files say nothing about them.
    """
    try:
        yield
    except (LabelveilError, OSError) as error:
        if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
            raise Unreadable(f"{what} cannot be read now") from error
        raise Damaged(f"{what} is damaged") from error
