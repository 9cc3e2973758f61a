"""The releases that a server may hand out: committed in the ledger, verified once, kept open."""

from __future__ import annotations

import threading

from label_party.store.disk import StoreError
from label_party.store.release_store import Store, StoredRelease, is_release


class Catalog:
    """Finds committed releases; safe for any number of threads.

    The ledger is asked again every time, so that a release committed while the server runs is
    served, and an open file is only ever a cache.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[int, StoredRelease] = {}
        self._lock = threading.Lock()

    def find(self, data_set: str, epoch: str | None) -> StoredRelease | None:
        """Return the release of an epoch, or the latest one of the data set if epoch is None."""
        with self._store.open_ledger() as ledger:
            charge = ledger.committed(data_set, epoch)
        if charge is None:
            return None
        with self._lock:
            release = self._open.get(charge.id)
            if release is None:
                release = self._open[charge.id] = self._store.open_release(charge)
        return release

    def open_all(self, data_sets: list[str]) -> int:
        """Open and verify everything committed for some data sets; return how many releases."""
        with self._store.open_ledger() as ledger:
            entries = [
                entry
                for name in data_sets
                for entry in ledger.charges(name)
                if is_release(entry) and not entry.lost
            ]
        for entry in entries:
            self.find(entry.data_set, entry.epoch)
        return len(entries)

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
            ledger.data_sets()

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for release in self._open.values():
                release.close()
            self._open.clear()
