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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from common.errors import ReleaseError
from common.guarantees import Guarantee
from label_party.config.sections import LabelPartyConfig
from label_party.store.budget import (
    Composition,
    Spending,
    check_fits,
    remaining,
    seen_by_next,
    spent,
)
from label_party.store.coverage import check as check_coverage
from label_party.store.coverage import cover
from label_party.store.entries import Charge
from label_party.store.fingerprints import Prints
from label_party.store.ledger import Ledger, LedgerError
from label_party.store.recovery import recover, undoing
from label_party.store.release_store import Store

Fingerprints = Callable[[bytes], Iterable[Prints]]


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
        What the account may spend in all.
    request
        What was asked for, as JSON values; a later call with another request is refused.
    account
        Whose budget pays; the data set's own by default.
    limit_is_stated
        Whether somebody wrote the limit down; else the account's cap holds once there is one.
    separate_reason
        Why the account pays by itself although others have paid for some of its events.
    """

    data_set: str
    epoch: str
    purpose: str
    guarantee: Guarantee
    limit: Guarantee
    composition: Composition = "additive"
    request: dict[str, Any] = field(default_factory=dict)
    account: str = ""
    limit_is_stated: bool = True
    separate_reason: str = ""

    @classmethod
    def configured(
        cls, config: LabelPartyConfig, purpose: str, guarantee: Guarantee, request: dict[str, Any]
    ) -> Self:
        """Return a purchase for the configured epoch, from the configured account."""
        privacy = config.privacy
        return cls(
            config.data.data_set,
            config.data.epoch,
            purpose,
            guarantee,
            privacy.limit,
            privacy.epochs,
            request,
            config.account,
            privacy.limit_is_stated,
            privacy.separate_reason or "",
        )


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


@dataclass(frozen=True)
class Outlook:
    """What an account has spent, and what purchases would leave.

    Attributes
    ----------
    limit
        What it may spend in all.
    recorded
        Whether the ledger has a cap for it; else the first charge records the limit.
    """

    account: str
    limit: Guarantee
    recorded: bool
    spent: Guarantee | None
    left: Guarantee | None


def look_ahead(store: Store, purchases: Sequence[Purchase]) -> Outlook:
    """Say what purchases from one account, one after the other, would leave; nothing is reserved.

    Open reservations do not count: a dead process's is taken back before anything is charged, and
    while a living one builds, nobody else does. Nor is it checked which events were paid for.

    Raises
    ------
    BudgetError
        If one would not fit.
    """
    first = purchases[-1]
    account, limit, recorded = first.account or first.data_set, first.limit, False
    charges: list[Spending] = []
    if store.ledger_path.exists():
        with store.open_ledger() as ledger:
            limit, recorded = _limit(ledger, first), ledger.cap(account) is not None
            opened = {(each.data_set, each.epoch, each.purpose) for each in ledger.reservations()}
            for one in purchases:
                if (one.data_set, one.epoch, one.purpose) not in opened:
                    ledger.check(account, one.data_set, one.epoch, one.purpose, limit)
            charges += [e for e in ledger.charges(account=account) if e.state == "committed"]
    after = list(charges)
    for one in purchases:
        check_fits(account, after, one, limit)
        after.append(one)
    left = remaining(limit, spent(seen_by_next(after, first.composition), limit))
    return Outlook(account, limit, recorded, spent(charges, limit), left)


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


def pay(
    store: Store,
    purchase: Purchase,
    write: Callable[[Ledger], Written],
    fingerprints: Fingerprints | None = None,
) -> Payment:
    """Make a purchase, unless another process was faster.

    Parameters
    ----------
    fingerprints
        Given the ledger's secret, those of the events that the purchase is about. None for what is
        about no particular epoch's: the tests of a watch.
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
            covered = None
            if fingerprints is not None:
                covered = cover(store.covered, fingerprints(ledger.fingerprint_secret()))
                check_coverage(
                    store.covered,
                    ledger,
                    covered,
                    account=purchase.account or purchase.data_set,
                    data_set=purchase.data_set,
                    epoch=purchase.epoch,
                    composition=purchase.composition,
                    separate_reason=purchase.separate_reason,
                )
            number = ledger.reserve(
                purchase.data_set,
                purchase.epoch,
                purchase.guarantee,
                _limit(ledger, purchase),
                account=purchase.account,
                covered=covered,
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
    account = purchase.account or purchase.data_set
    return ledger.left(account, _limit(ledger, purchase), purchase.composition)


def _limit(ledger: Ledger, purchase: Purchase) -> Guarantee:
    cap = ledger.cap(purchase.account or purchase.data_set)
    return purchase.limit if cap is None or purchase.limit_is_stated else cap
