"""The releases that a server may hand out: committed in the ledger, verified once."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from common.errors import LabelveilError
from label_party.store.disk import StoreError
from label_party.store.release_store import Store, StoredRelease, is_release

_log = logging.getLogger(__name__)


class Damaged(LabelveilError):
    """A release is committed, but its bytes are not those that were; the others are served."""


class Catalog:
    """Finds committed releases; safe for any number of threads.

    The ledger is asked again every time, so that a release committed while the server runs is
    served, and what was verified is only ever a cache.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._whole: dict[int, StoredRelease] = {}
        self._damaged: dict[int, str] = {}
        self._lock = threading.Lock()

    def find(self, data_set: str, epoch: str | None) -> StoredRelease | None:
        """Return the release of an epoch, or the latest one of the data set if epoch is None.

        ``Damaged`` if its bytes are not those that were committed: it is left out until the next
        start.
        """
        with self._store.open_ledger() as ledger:
            charge = ledger.committed(data_set, epoch)
        if charge is None:
            return None
        with self._lock:
            release = self._whole.get(charge.id)
            if release is None and charge.id not in self._damaged:
                try:
                    release = self._whole[charge.id] = self._store.open_release(charge)
                except (LabelveilError, OSError, ValueError) as error:
                    self._damaged[charge.id] = f"{charge.data_set} {charge.epoch}"
                    facts = {"data_set": charge.data_set, "epoch": charge.epoch}
                    _log.error("damaged release left out", extra={**facts, "reason": str(error)})
        if release is None:
            raise Damaged(f"{self._damaged[charge.id]} is damaged")
        return release

    @property
    def damaged(self) -> list[str]:
        """Data set and epoch of every release that is left out."""
        with self._lock:
            return sorted(self._damaged.values())

    def open_all(self, data_sets: list[str]) -> int:
        """Open and verify everything committed for some data sets; return how many are whole."""
        with self._store.open_ledger() as ledger:
            entries = [
                entry
                for name in data_sets
                for entry in ledger.charges(name)
                if is_release(entry) and not entry.lost
            ]
        for entry in entries:
            with suppress(Damaged):
                self.find(entry.data_set, entry.epoch)
        return len(self._whole)

    def epochs(self, data_set: str) -> set[str]:
        """Return the epochs of a data set that have a release."""
        with self._store.open_ledger() as ledger:
            charges = ledger.charges(data_set)
        return {charge.epoch for charge in charges if is_release(charge)}

    def check(self) -> None:
        """Raise a ``LabelveilError`` if the ledger cannot be read, or is gone."""
        if not self._store.ledger_path.exists():  # opening it would make a new one
            raise StoreError(f"{self._store.ledger_path} is gone; restore it from a backup")
        with self._store.open_ledger() as ledger:
            ledger.identity()
