"""The one way in which budget is spent: reserve, write, sync, commit, and only then show.

Everything that leaves the labels party is a *purchase*: releases, those of a watch and the session
that pays for its tests, top-k, synthetic tables, evaluation sessions. Each names what it is and
what it costs, and says how its bytes come to lie in the store:

    paid = find_payment(store, purchase) or pay(store, purchase, write)

*What happens.* Under the store's lock: settle what dead processes left; reserve the guarantee;
``write`` draws noise, touches raw data, and puts the bytes into the store, durably and under their
name; their digest and the charge are committed in one transaction. Nothing may be shown to anybody
before ``pay`` returns, and ``write`` must not send, print or log what it computes.

*What holds.* The same purchase again is found and spends nothing. The same purpose with another
``request`` is refused. An exception in ``write``, a full disk or a limit that would be passed spend
nothing. After a crash at any point either nothing was spent and nothing can be read, or the bytes
are there and paid for; the next start finds out which (:mod:`label_party.store.recovery`). Builders
exclude each other across processes, so ``write`` may take long.

*Guarantees.* State adjacency and privacy unit of the data set's limit (``config.privacy``), or the
charge is refused as not comparable. A pure ε fits every limit. (ε, δ), zCDP and RDP guarantees need
``[privacy] total_delta``; the sum is that of :mod:`label_party.store.budget`. ``composition`` is
``disjoint`` only if no record of this epoch occurs in another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from common.errors import ReleaseError
from common.guarantees import Guarantee
from label_party.store.budget import Composition
from label_party.store.ledger import Charge, Ledger, LedgerError
from label_party.store.recovery import recover, undoing
from label_party.store.release_store import Store


@dataclass(frozen=True)
class Purchase:
    """What is paid for.

    Attributes
    ----------
    purpose
        What the bytes are; part of their name in the ledger.
    guarantee
        What is spent at most.
    limit
        What the data set may spend in all.
    request
        What was asked for, as JSON values; a later call with another request is refused.
    """

    data_set: str
    epoch: str
    purpose: str
    guarantee: Guarantee
    limit: Guarantee
    composition: Composition = "additive"
    request: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """What lies in the store and waits for its commit: digest, and rows if it has any."""

    digest: str
    rows: int = 0


@dataclass(frozen=True)
class Payment:
    """A purchase that is paid for.

    Attributes
    ----------
    charge
        Its committed entry in the ledger.
    existed
        Whether an earlier call made it; then nothing was spent.
    left
        What a charge of a new epoch may spend; None where that is not one number.
    recovered
        Reservations of dead processes that were taken back on the way.
    """

    charge: Charge
    existed: bool
    left: Guarantee | None
    recovered: int = 0


def find_payment(store: Store, purchase: Purchase) -> Payment | None:
    """Return the payment if it was made already.

    Raises
    ------
    ReleaseError
        If it was made for another request.
    """
    if not store.ledger_path.exists():
        return None
    with store.open_ledger() as ledger:
        charge = _committed(ledger, purchase)
        return None if charge is None else Payment(charge, True, _left(ledger, purchase))


def pay(store: Store, purchase: Purchase, write: Callable[[Ledger], Written]) -> Payment:
    """Make a purchase, unless another process was faster.

    Parameters
    ----------
    write
        Given the ledger, to read what was committed before.

    Raises
    ------
    BudgetError
        If the charge does not fit; nothing is spent.
    LabelveilError
        For every other refusal; nothing is spent either.
    """
    store.create()
    with store.building(), store.open_ledger() as ledger:
        recovered = recover(store, ledger).undone
        charge = _committed(ledger, purchase)
        existed = charge is not None
        if charge is None:
            number = ledger.reserve(
                purchase.data_set,
                purchase.epoch,
                purchase.guarantee,
                purchase.limit,
                composition=purchase.composition,
                request=purchase.request,
                purpose=purchase.purpose,
            )
            with undoing(store, ledger, number):
                written = write(ledger)
                ledger.commit(number, written.digest, written.rows)
            charge = _committed(ledger, purchase)
            if charge is None:
                raise LedgerError(f"ledger {ledger.path} lost a charge that it committed")
        return Payment(charge, existed, _left(ledger, purchase), recovered)


def _committed(ledger: Ledger, purchase: Purchase) -> Charge | None:
    charge = ledger.committed(purchase.data_set, purchase.epoch, purchase.purpose)
    if charge is None or not charge.request:  # unknown for what was found in the store
        return charge
    either = purchase.request.keys() | charge.request.keys()
    different = sorted(
        key for key in either if charge.request.get(key) != purchase.request.get(key)
    )
    if different:
        raise ReleaseError(
            f"{purchase.purpose!r} of data set {charge.data_set!r}, epoch {charge.epoch!r}, was"
            f" released with other settings ({', '.join(different)}) and stays as it is; name"
            " another epoch with --epoch"
        )
    return charge


def _left(ledger: Ledger, purchase: Purchase) -> Guarantee | None:
    return ledger.left(purchase.data_set, purchase.limit, purchase.composition)
