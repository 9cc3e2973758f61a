"""Recovery at a start: what an interrupted command left in the store is completed or removed.

The store has folders, the ledger has rows. A folder gets its name while its row is *reserved*, and
the row goes only after the folder has gone. So a folder's row is

- *committed*: a release; nothing to do;
- *reserved*: its builder died before anybody could fetch it; folder and row are removed;
- *none*: the ledger is older than the folder, which some other ledger paid for and may have been
  served: it is *counted as spent*, with its digest, and served as it is; its epoch is never built
  again, be its bytes whole or not. If that ledger's secret is gone with it, nobody can tell whether
  its events are those of another epoch, so that it counts against all of its account's.

That a release is withdrawn stands in the ledger and beside its bytes; where one of the two does not
say so yet, it is told.

The last case is what a ledger restored from an older backup meets. It cannot be met for folders
that are gone too: what was released after the backup must then be stated to ``label-party
restore``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from labelveil.common.errors import LabelveilError, ReleaseError
from labelveil.common.release.event_keys import secret_check
from labelveil.common.release.folder import mark_withdrawn, withdrawn_reason
from labelveil.label_party.store.coverage import tidy
from labelveil.label_party.store.disk import StoreError, translating_errors
from labelveil.label_party.store.entries import LABELS, Charge
from labelveil.label_party.store.ledger import Ledger, LedgerError
from labelveil.label_party.store.release_store import Store, is_release


@dataclass(frozen=True, eq=False)
class Recovery:
    """What was found."""

    undone: int  # reservations of dead builders that were taken back
    counted: list[str]  # releases that the ledger did not know and that now count as spent


def recover(store: Store, ledger: Ledger) -> Recovery:
    """Bring store and ledger together again; the caller holds the builders' lock.

    ``LabelveilError`` if a folder that the ledger does not know cannot be read.
    """
    open_ = ledger.settle()
    rows = {store.folder(*charge.name): charge for charge in ledger.charges()}
    unknown = []
    for path in store.folders():
        charge = rows.get(path)
        if store.is_partial(path) or (charge is not None and charge.state == "reserved"):
            with translating_errors(store.directory):
                shutil.rmtree(path)
        elif charge is None:
            unknown.append(_read_charge(store, path))
    unknown.sort(key=lambda charge: charge.id)  # the order in which the other ledger sold them
    for charge in unknown:
        ledger.count(_as_known(charge, ledger))
    _agree_on_withdrawals(store, ledger)
    for entry in open_:
        ledger.abandon(entry.id)  # its bytes went first: dying before this leaves nothing unpaid
    tidy(store.covered, ledger)
    names = [
        f"{charge.data_set}/{charge.epoch}"
        + ("" if charge.purpose == LABELS else f" ({charge.purpose})")
        for charge in unknown
    ]
    return Recovery(len(open_), names)


@contextmanager
def undoing(store: Store, ledger: Ledger, charge: int) -> Iterator[None]:
    """Undo a reservation if the block fails, bytes first; what fails here the next start does.

    ``LedgerError`` if the commit failed in such a way that only the next start can tell whether it
    counts.
    """
    try:
        yield
    except BaseException as failure:
        settled = False
        with suppress(LabelveilError, OSError):
            open_ = [entry for entry in ledger.settle() if entry.id == charge]
            settled = True
            for entry in open_:
                store.remove(*entry.name)
                ledger.abandon(charge)
        if isinstance(failure, LedgerError) and not settled:
            raise LedgerError(
                f"ledger {ledger.path}: the disk failed while the charge was written, and the next"
                " start will find out whether it counts; repair the disk and run the same command"
                " again: it returns what was released, or releases it"
            ) from failure
        raise


def _as_known(charge: Charge, ledger: Ledger) -> Charge:
    """The charge as a ledger counts it that cannot tell its events from others.

    Under another fingerprint secret they are disjoint from nothing.
    """
    covered = charge.covered
    if covered is None or covered.secret == secret_check(ledger.fingerprint_secret()).hex():
        return charge
    return replace(charge, composition="additive")


def _read_charge(store: Store, path: Path) -> Charge:
    """Read what a charge was."""
    try:
        return store.read_charge(path)
    except ReleaseError as error:
        raise ReleaseError(
            f"{path} is not in the ledger, so that a later ledger paid for it, but what it cost"
            f" cannot be read ({error}); restore it from a backup, or restore the ledger with"
            " label-party restore --lost EPOCH[:PURPOSE]=SPENT for it"
        ) from error


def note_withdrawal(store: Store, charge: Charge, reason: str) -> None:
    """Note beside a release's bytes, if there are any, that it is withdrawn."""
    folder = store.folder(*charge.name)
    with translating_errors(folder):
        if folder.is_dir() and withdrawn_reason(folder) is None:
            mark_withdrawn(folder, reason)


def _agree_on_withdrawals(store: Store, ledger: Ledger) -> None:
    known = ledger.withdrawals()
    for charge in filter(is_release, ledger.charges()):
        if charge.id in known:
            note_withdrawal(store, charge, known[charge.id].reason)
            continue
        try:
            reason = withdrawn_reason(store.folder(*charge.name))
        except ReleaseError as error:  # of the disk, for now: what is withdrawn stays so
            raise StoreError(str(error)) from error
        if reason is not None:
            ledger.withdraw(charge, reason)
