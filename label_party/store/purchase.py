"""The one way in which budget is spent: reserve, write, sync, commit, and only then show.

Everything that leaves the labels party is a *purchase*: releases, those of a watch and the session
that pays for its tests, top-k, synthetic tables, evaluation sessions. Each names what it is and
what it costs, and says how its bytes come to lie in the store:

    paid = find_paid(store, order)  # what was bought already; else what no budget allows is refused
    paid = paid or pay(store, order, write)

Under the store's lock: settle what dead processes left; reserve the guarantee; ``write`` draws
noise, touches raw data, and puts the bytes into the store, durably and under their name; their
digest and the charge are committed in one transaction. Nothing may be shown to anybody before
``pay`` returns, and ``write`` must not send, print or log what it computes; it may take long, for
builders exclude each other across processes.

Of everything but a label release the outcome is some bytes, one for each data set, epoch and
purpose:

    outcome = pay_once(
        store,
        Order.configured(config, "top-k by product", mechanism.guarantee, {"k": 10}),
        lambda: mechanism_to_bytes(...),     # draws noise, touches raw data, writes nothing
    )

The same purchase again is found and spends nothing. What has its name, but was sold on other terms
(guarantee, unit, records of a unit, answers, request), is refused. An exception in ``write``, a
full disk or a limit that would be passed spend nothing. After a crash at any point either nothing
was spent and nothing can be read, or the bytes are there and paid for; the next start finds out
which (:mod:`labelveil.label_party.store.recovery`), if need be from the ``charge.json`` beside
them.

Guarantees state adjacency and privacy unit of the data set's limit, or the charge is refused as not
comparable; how they add up says :mod:`labelveil.label_party.store.budget`. ``composition`` is
``disjoint`` only if no record of this epoch occurs in another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from labelveil.common.errors import ReleaseError
from labelveil.common.files import write_durably
from labelveil.common.formats import TERMS
from labelveil.common.guarantees import Guarantee
from labelveil.label_party.config.data import SUBMITTED
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.store.coverage import Coverable, cover
from labelveil.label_party.store.coverage import check as check_coverage
from labelveil.label_party.store.disk import translating_errors
from labelveil.label_party.store.entries import Charge, Purchase
from labelveil.label_party.store.ledger import Ledger, LedgerError
from labelveil.label_party.store.receipt import note_ledger
from labelveil.label_party.store.recovery import recover, undoing
from labelveil.label_party.store.release_store import (
    CHARGE_FILE,
    OUTCOME_FILE,
    Store,
    read_paid,
)


@dataclass(frozen=True, kw_only=True)
class Order(Purchase):
    """A purchase that is to be made, and what its account may spend."""

    limit: Guarantee  # what the account may spend in all
    # whether somebody wrote the limit down; else the account's cap holds once there is one
    limit_is_stated: bool = True
    # why the account pays by itself although others have paid for some of its events
    separate_reason: str = ""

    @classmethod
    def configured(
        cls,
        config: LabelPartyConfig,
        purpose: str,
        guarantee: Guarantee,
        request: dict[str, Any],
        *,
        answers: int = 0,
    ) -> Self:
        """Order for the configured epoch and privacy unit, from the configured account.

        What says which events these are, and what an event is, is part of every request.
        """
        privacy, data = config.privacy, config.data
        events = {"user": privacy.user, "date": data.date, "duplicates": data.duplicates}
        events["population"] = SUBMITTED if data.submitted else None
        events["format"] = str(TERMS)
        return cls(
            data.data_set,
            data.epoch,
            purpose,
            guarantee,
            config.account,
            privacy.epochs,
            privacy.group,
            answers,
            events | request,
            limit=privacy.limit,
            limit_is_stated=privacy.limit_is_stated,
            separate_reason=privacy.separate_reason or "",
        )


@dataclass(frozen=True)
class Payment:
    """A purchase that is paid for."""

    charge: Charge  # its committed entry in the ledger
    existed: bool  # whether an earlier call made it; then nothing was spent
    limit: Guarantee  # what the account may spend in all
    # what a charge of a new epoch may spend; None where that is not one number
    left: Guarantee | None
    recovered: int = 0  # reservations of dead processes that were taken back on the way


@dataclass(frozen=True)
class Outcome:
    """Bytes that are paid for: those of everything but a label release."""

    data: bytes
    payment: Payment

    @property
    def document(self) -> dict[str, Any]:
        """The bytes as JSON values, of an outcome that is such."""
        parsed: dict[str, Any] = json.loads(self.data)
        return parsed

    def to_json(self) -> dict[str, Any]:
        """Return such an outcome, and what it left of the budget, as JSON values."""
        paid = self.payment
        return {
            "released": self.document,
            "digest": paid.charge.digest,
            "existed": paid.existed,
            "left": None if paid.left is None else paid.left.to_json(),
        }


@dataclass(frozen=True)
class Outlook:
    """What an account has spent, and what purchases would leave."""

    account: str
    limit: Guarantee  # what it may spend in all
    recorded: bool  # whether the ledger has a cap for it; else the first charge records the limit
    spent: Guarantee | None
    left: Guarantee | None


@dataclass(frozen=True)
class Rehearsal:
    """Makes purchases on one copy of the ledger, of which nothing stays."""

    ledger: Ledger
    paid: Path  # the folder of fingerprints of events that have paid
    covered: Path  # one that takes those of what is rehearsed, too

    def buy(self, orders: Sequence[Order], events: Coverable | None = None) -> Outlook:
        """Say what orders from one account would leave, on top of those before.

        The last one is about these events; without them the comparison with events that have paid
        is left out. ``LabelveilError`` if an order would be refused.
        """
        last, ledger = orders[-1], self.ledger
        if events is not None and self.paid.is_dir():
            for path in self.paid.iterdir():
                with suppress(FileExistsError):
                    (self.covered / path.name).symlink_to(path.resolve())
        account, limit = last.account, _limit(ledger, last)
        recorded, before = ledger.cap(account) is not None, ledger.spent(account, limit)
        for order in orders:
            _reserve(ledger, self.covered, order, events if order is last else None)
        left = ledger.left(account, limit, last.composition)
        return Outlook(account, limit, recorded, before, left)


@contextmanager
def rehearsing(store: Store) -> Iterator[Rehearsal]:
    """Yield a rehearsal.

    Open reservations do not count: a dead process's is taken back before anything is charged, and
    while a living one builds, nobody else does.
    """
    with TemporaryDirectory() as folder, store.read_ledger() as ledger:
        for entry in ledger.reservations():
            ledger.abandon(entry.id)
        yield Rehearsal(ledger, store.covered, Path(folder))


def find_paid(store: Store, order: Order) -> Payment | None:
    """Return the payment if it was made already; waits for no builder.

    ``ReleaseError`` if it was made on other terms; ``LabelveilError`` if it was not, and would be
    refused whichever events it is about: so before a row is read.
    """
    with rehearsing(store) as rehearsal:
        charge = sold(rehearsal.ledger, order)
        if charge is not None:
            return _paid(rehearsal.ledger, order, charge, True)
        rehearsal.buy([order])
    return None


def pay(
    store: Store,
    order: Order,
    write: Callable[[Ledger], tuple[str, int]],
    events: Coverable | None = None,
) -> Payment:
    """Make a purchase, unless another process was faster.

    ``write`` is given the ledger, to read what was committed before; it returns the digest of what
    then lies in the store, and its rows, if it has any. ``events`` are those that the purchase is
    about; None for what is about no particular epoch's: the tests of a watch. ``BudgetError`` if
    the charge does not fit, ``LabelveilError`` for every other refusal; nothing is spent.
    """
    store.check_ledger()
    store.create()
    with store.building(), store.open_ledger() as ledger:
        recovered = recover(store, ledger).undone
        charge = sold(ledger, order)
        existed = charge is not None
        if charge is None:
            reserved = _reserve(ledger, store.covered, order, events)
            with undoing(store, ledger, reserved.id):
                digest, rows = write(ledger)
                # beside the bytes before the commit: an older ledger that is put back learns from
                # it what they cost, and of bytes without a charge nobody could say that
                bought = replace(reserved, digest=digest, rows=rows)
                path = store.folder(*bought.name) / CHARGE_FILE
                with translating_errors(path):
                    write_durably(path, bought.to_bytes())
                _note(bought)  # first: a commit may count although it is not known to have ended
                ledger.commit(reserved.id, digest, rows)
            note_ledger(store)
            charge = sold(ledger, order)
            if charge is None:
                raise LedgerError(f"ledger {ledger.path} lost a charge that it committed")
        return _paid(ledger, order, charge, existed, recovered)


def find_outcome(store: Store, order: Order) -> Outcome | None:
    """Return the outcome if it was made already; errors as of :func:`find_paid`.

    ``ReleaseError``, too, if its bytes are damaged.
    """
    payment = find_paid(store, order)
    return None if payment is None else Outcome(read_outcome(store, payment.charge), payment)


def pay_once(
    store: Store,
    order: Order,
    build: Callable[[], bytes],
    events: Coverable | None = None,
) -> Outcome:
    """Return the bytes that an order buys, building them only if they do not exist.

    Whoever may have bought them earlier asks ``find_outcome`` first, which waits for no builder.

    ``BudgetError`` if the charge does not fit, ``LabelveilError`` for every other refusal; nothing
    is spent.
    """

    def write(_: Ledger) -> tuple[str, int]:
        data = build()
        store.write_outcome(*order.name, data)
        return hashlib.sha256(data).hexdigest(), 0

    payment = pay(store, order, write, events)
    return Outcome(read_outcome(store, payment.charge), payment)


def read_outcome(store: Store, charge: Charge) -> bytes:
    """Read the bytes that a committed charge paid for, and verify their digest.

    ``ReleaseError`` if they are gone, or others.
    """
    path = store.folder(*charge.name) / OUTCOME_FILE
    data = read_paid(path)
    if hashlib.sha256(data).hexdigest() != charge.digest:
        raise ReleaseError(f"{path} does not match its digest; restore it from a backup")
    return data


_noted: ContextVar[list[Charge] | None] = ContextVar("noted", default=None)


@contextmanager
def noting_charges(noted: list[Charge]) -> Iterator[None]:
    """List what is charged within, for who has to say so whatever comes after it.

    A charge is on the list from just before its commit on: :func:`committed` finds out.
    """
    token = _noted.set(noted)
    try:
        yield
    finally:
        _noted.reset(token)


def _note(charge: Charge) -> None:
    if (noted := _noted.get()) is not None:
        noted.append(charge)


def committed(store: Store, charge: Charge) -> bool:
    """Whether a noted charge counts; ``LabelveilError`` if the ledger cannot be read."""
    with store.read_ledger() as ledger:
        return ledger.committed(*charge.name) is not None


def _reserve(ledger: Ledger, folder: Path, order: Order, events: Coverable | None) -> Charge:
    """Set the charge aside, unless its events have paid elsewhere."""
    if events is not None:
        covered = cover(folder, events, ledger.fingerprint_secret())
        order = replace(order, covered=covered)
        check_coverage(folder, ledger, order, order.separate_reason)
    return ledger.reserve(order, _limit(ledger, order))


def sold(ledger: Ledger, order: Order) -> Charge | None:
    """Return what was sold under an order's name, if that is at hand.

    ``ReleaseError`` if it was sold on other terms than are ordered now, or is withdrawn.
    """
    charge = ledger.committed(*order.name)
    if charge is not None:
        withdrawn = ledger.withdrawals().get(charge.id)
        if withdrawn is not None:
            raise ReleaseError(
                f"epoch {order.epoch!r} of data set {order.data_set!r} was withdrawn"
                f" {withdrawn.withdrawn_at[:10]} ({withdrawn.reason}): it stays spent, and is never"
                " built again; name another epoch with --epoch"
            )
        check_terms(charge, order)
    return charge


def check_terms(charge: Charge, order: Order) -> None:
    """Raise a ``ReleaseError`` if what has an order's name was sold on other terms."""
    if different := charge.differences(order):
        remedy = "restore that setting, or name another epoch with --epoch"
        if charge.terms_format != order.terms_format:
            remedy = (
                f"restore that setting; {charge.software} sold it, and nothing is charged again"
            )
        raise ReleaseError(
            f"{order.purpose!r} of data set {order.data_set!r}, epoch {order.epoch!r}, stays as it"
            f" was sold: {'; '.join(different)}; {remedy}"
        )


def _paid(
    ledger: Ledger, order: Order, charge: Charge, existed: bool, recovered: int = 0
) -> Payment:
    limit = _limit(ledger, order)
    left = ledger.left(order.account, limit, order.composition)
    return Payment(charge, existed, limit, left, recovered)


def _limit(ledger: Ledger, order: Order) -> Guarantee:
    cap = ledger.cap(order.account)
    return order.limit if cap is None or order.limit_is_stated else cap
