"""Purchases whose outcome is some bytes: everything but a label release.

    outcome = pay_once(
        store,
        Order.configured(config, "top-k by product", mechanism.guarantee, {"k": 10}),
        lambda: mechanism_to_bytes(...),     # draws noise, touches raw data, writes nothing
    )

There is one outcome for each data set, epoch and purpose. What happens when is
:mod:`labelveil.label_party.store.purchase`'s.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labelveil.common.errors import ReleaseError
from labelveil.label_party.store.coverage import Coverable
from labelveil.label_party.store.entries import Charge
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.purchase import Order, Payment, find_paid, pay
from labelveil.label_party.store.release_store import OUTCOME_FILE, Store, read_paid


@dataclass(frozen=True)
class Outcome:
    """Bytes that are paid for."""

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
