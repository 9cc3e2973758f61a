"""``label-party withdraw``: a release that is served no more, and stays spent.

The ledger says so, in one transaction with who did it, when and why; from then on a server that
runs refuses it, running fetches included. A note beside the release's bytes says the same, so that
an older ledger over them knows it, too (:mod:`labelveil.label_party.store.recovery`). It cannot be
taken back: partners were told, and may have acted on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from labelveil.common.errors import ReleaseError
from labelveil.label_party.store.disk import StoreError
from labelveil.label_party.store.entries import LABELS, Charge, Withdrawal
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.recovery import note_withdrawal
from labelveil.label_party.store.release_store import Store


@dataclass(frozen=True, eq=False)
class WithdrawnRelease:
    """A release that is withdrawn."""

    charge: Charge
    withdrawal: Withdrawal
    before: bool  # whether it was already
    latest: str | None  # the epoch that is the data set's latest now


def find_release(store: Store, data_set: str, epoch: str) -> Charge:
    """Return a committed release's charge, be its bytes at hand or lost.

    ``ReleaseError`` if there is none.
    """
    with store.read_ledger() as ledger:
        return _find(ledger, data_set, epoch)


def withdraw(store: Store, data_set: str, epoch: str, reason: str) -> WithdrawnRelease:
    """Withdraw a release; harmless to repeat, and while it is served or another one is built.

    ``ReleaseError`` if there is none; ``StoreError`` if only the ledger could be written, which
    counts.
    """
    charge = find_release(store, data_set, epoch)
    with store.open_ledger() as ledger:
        withdrawal, before = ledger.withdraw(charge, reason)
        try:
            note_withdrawal(store, charge, withdrawal.reason)
        except (ReleaseError, StoreError) as error:
            raise StoreError(
                f"epoch {epoch!r} is withdrawn, as the ledger says, but not beside its bytes:"
                f" {error}; then run the same command again"
            ) from error
        served = [sold for sold in ledger.releases() if sold.digest and sold.withdrawn is None]
    latest = next((sold.epoch for sold in reversed(served) if sold.data_set == data_set), None)
    return WithdrawnRelease(charge, withdrawal, before, latest)


def _find(ledger: Ledger, data_set: str, epoch: str) -> Charge:
    charge = ledger.find(data_set, epoch, LABELS)
    if charge is not None and charge.state == "committed":
        return charge
    if charge is not None:
        raise ReleaseError(
            f"epoch {epoch!r} of data set {data_set!r} is being built, and nobody is served it yet;"
            " stop its release, or withdraw it when that has ended"
        )
    known = [sold.epoch for sold in ledger.releases() if sold.data_set == data_set]
    there = f"its epochs are {', '.join(known[-8:])}" if known else "it has none"
    raise ReleaseError(
        f"data set {data_set!r} has no release of epoch {epoch!r}; {there}; label-party budget"
        " lists all"
    )
