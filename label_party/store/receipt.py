"""A receipt of every store that a configuration has been used with, beside its file.

A disk that is not mounted, or a folder that was moved, looks as if nothing had ever been spent. So
the first command that meets a ledger notes it in ``label_party.toml.receipt``, and where the ledger
is gone no command goes on that would spend, or say what was spent. Nor does one begin a second
ledger: in another directory, or seen from another one, the same events would be paid for again. A
configuration under another name may be about other events, so that its own ledger is warned of,
where both lie in one folder. Where that file cannot be written, as beside a configuration that is
mounted read-only, nothing is known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from labelveil.common.errors import LabelveilError, listed
from labelveil.common.files import PUBLIC, appearing
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.store.disk import StoreError
from labelveil.label_party.store.release_store import Store

_SUFFIX = ".receipt"


@contextmanager
def with_receipt(path: Path, config: LabelPartyConfig) -> Iterator[None]:
    """Run a command over a store that is there, if it ever was, and remember it.

    ``StoreError`` if its ledger is gone, or if it would be a second one.
    """
    store, receipt = Store(config.store.directory), _Receipt(path)
    ledger = receipt.ledgers.get(receipt.name(store))
    is_new = not (store.has_ledger() or store.folders())  # else it says more
    if receipt.damaged and is_new:
        raise StoreError(
            f"{receipt.path} is damaged, which says whether store {store.directory} ever had a"
            " ledger; put it back, or remove it if nothing was released under this configuration"
        )
    if ledger is None and receipt.ledgers and is_new:
        name, other = next(iter(receipt.ledgers.items()))
        raise StoreError(
            f"store {store.directory} has no ledger, but {receipt.path} says that ledger {other} in"
            f" {os.path.normpath(receipt.path.parent / name)} paid for what was released: a second"
            " ledger would not count that; set [store] directory to that store or move it here, and"
            " for other events use a configuration file of their own"
        )
    elsewhere = []
    for known in (receipt, *receipt.others()) if is_new else ():
        for name, other in known.ledgers.items():
            if name == receipt.name(store):
                raise StoreError(
                    f"store {store.directory} is gone, or empty: {known.path} says that ledger"
                    f" {other} was there, and nobody can say what was spent; bring it back (is its"
                    " disk mounted?) or restore a backup with label-party restore; where it never"
                    " counted, remove the receipt"
                )
            elsewhere.append(os.path.normpath(known.path.parent / name))
    if elsewhere:
        from labelveil.common.console import warn  # slow to import, rarely needed

        warn(
            f"store {store.directory} has no ledger yet, and one that begins there counts nothing"
            f" that other configurations beside {path} spent from {listed(sorted(set(elsewhere)))};"
            " if any event is the same, set [store] directory to that store"
        )
    if ledger is None:
        receipt.note(store)
    token = _kept.set(receipt)
    try:
        yield
    finally:
        _kept.reset(token)
        if receipt.name(store) not in receipt.ledgers:  # as of a ledger that a purchase began
            receipt.note(store)


def note_ledger(store: Store) -> None:
    """Note a ledger that was begun :func:`with_receipt`, which may go on for months, or die."""
    receipt = _kept.get()
    if receipt is not None and receipt.name(store) not in receipt.ledgers:
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
        self.damaged = False
        try:
            self.ledgers |= json.loads(self.path.read_bytes())
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, RecursionError):
            self.damaged = True

    def others(self) -> list[_Receipt]:
        """Those of other configurations in the same folder."""
        with suppress(OSError):
            paths = sorted(self.path.parent.glob(f"*{_SUFFIX}"))
            return [_Receipt(path.with_suffix("")) for path in paths if path != self.path]
        return []

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


_kept: ContextVar[_Receipt | None] = ContextVar("kept", default=None)
