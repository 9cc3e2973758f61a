"""A receipt of every store that a configuration has been used with, beside its file.

A disk that is not mounted, or a folder that was moved, looks as if nothing had ever been spent. So
the first command that meets a ledger notes it in ``label_party.toml.receipt``, and where the ledger
is gone no command goes on that would spend, or say what was spent. Where that file cannot be
written, as beside a configuration that is mounted read-only, nothing is known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labelveil.common.errors import LabelveilError
from labelveil.common.files import PUBLIC, appearing
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.store.disk import StoreError
from labelveil.label_party.store.release_store import Store

_SUFFIX = ".receipt"


@contextmanager
def checked(path: Path, config: LabelPartyConfig) -> Iterator[None]:
    """Run a command over a store that is there, if it ever was, and remember it.

    ``StoreError`` if its ledger is gone.
    """
    store, receipt = Store(config.store.directory), _Receipt(path)
    ledger = receipt.ledgers.get(receipt.name(store))
    if ledger is not None and not (store.has_ledger() or store.folders()):  # else it says more
        raise StoreError(
            f"store {store.directory} is gone, or empty: {receipt.path} says that ledger {ledger}"
            " was there, and nobody can say what was spent; bring it back (is its disk mounted?) or"
            " restore a backup with label-party restore; where it never counted, remove the receipt"
        )
    if ledger is None:
        receipt.note(store)
    try:
        yield
    finally:
        if ledger is None:
            receipt.note(store)


@contextmanager
def remembered(path: Path, config: LabelPartyConfig) -> Iterator[None]:
    """Note which ledger the store has after a command, whichever it had before."""
    yield
    _Receipt(path).note(Store(config.store.directory))


class _Receipt:
    """Names of ledgers, by the directories of their stores as seen from the receipt's."""

    def __init__(self, configuration: Path) -> None:
        self.path = configuration.with_name(configuration.name + _SUFFIX)
        self.ledgers: dict[str, str] = {}
        with suppress(OSError, ValueError, TypeError):
            self.ledgers = dict(json.loads(self.path.read_bytes()))

    def name(self, store: Store) -> str:
        return os.path.relpath(store.directory, self.path.parent)

    def note(self, store: Store) -> None:
        if not store.has_ledger():
            return
        with suppress(LabelveilError, OSError):
            with store.read_ledger() as ledger:
                if not ledger.charges():  # nothing was spent that could be forgotten
                    return
                identity = ledger.identity()
            if self.ledgers.get(self.name(store)) != identity:
                self.ledgers[self.name(store)] = identity
                with appearing(self.path, mode=PUBLIC) as file:
                    file.write(json.dumps(self.ledgers, indent=1).encode() + b"\n")
