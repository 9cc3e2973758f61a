"""Purchases whose outcome is some bytes: everything but a label release.

    paid = pay_once(
        store,
        Purchase(
            data_set="conversions",
            epoch="2024-06-01",
            purpose="top-k by product",      # one outcome for each data set, epoch and purpose
            guarantee=mechanism.guarantee,   # of any kind: what the mechanism itself states
            limit=config.privacy.limit,
            composition=config.privacy.epochs,
            request={"by": "product", "k": 10},
        ),
        lambda: mechanism_to_bytes(...),     # draws noise, touches raw data, writes nothing
    )
    paid.data                                # the bytes, now and at every later call

What happens then, and what holds whatever happens, is :mod:`label_party.store.purchase`'s.
The bytes are ``<store>/outcomes/<data set>/<epoch>/<name>/outcome.bin``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from common.errors import ReleaseError
from common.guarantees import Guarantee
from label_party.store.entries import Charge
from label_party.store.ledger import Ledger
from label_party.store.purchase import Fingerprints, Purchase, Written, find_payment, pay
from label_party.store.release_store import OUTCOME_FILE, Store


@dataclass(frozen=True)
class Paid:
    """An outcome that is paid for.

    Attributes
    ----------
    digest
        SHA-256 of the bytes, in hexadecimal, as the ledger has it.
    existed
        Whether an earlier call made it; then nothing was spent.
    left
        What a charge of a new epoch may spend; None where that is not one number.
    """

    data: bytes
    digest: str
    existed: bool
    left: Guarantee | None


def find_paid(store: Store, purchase: Purchase) -> Paid | None:
    """Return the outcome if it was made already.

    Raises
    ------
    ReleaseError
        If it was made for another request, or its bytes are damaged.
    """
    found = find_payment(store, purchase)
    if found is None:
        return None
    data = read_outcome(store, found.charge)
    return Paid(data, str(found.charge.manifest_sha256), True, found.left)


def pay_once(
    store: Store,
    purchase: Purchase,
    build: Callable[[], bytes],
    fingerprints: Fingerprints | None = None,
) -> Paid:
    """Return the bytes that a purchase buys, building them only if they do not exist.

    Raises
    ------
    BudgetError
        If the charge does not fit; nothing is spent.
    LabelveilError
        For every other refusal; nothing is spent either.
    """
    found = find_paid(store, purchase)
    if found is not None:
        return found

    def write(_: Ledger) -> Written:
        data = build()
        digest = hashlib.sha256(data).hexdigest()
        store.write_outcome(purchase.data_set, purchase.epoch, purchase.purpose, data)
        return Written(digest)

    made = pay(store, purchase, write, fingerprints)
    data = read_outcome(store, made.charge)
    return Paid(data, str(made.charge.manifest_sha256), made.existed, made.left)


def read_outcome(store: Store, charge: Charge) -> bytes:
    """Read the bytes that a committed charge paid for, and verify their digest.

    Raises
    ------
    ReleaseError
        If they are gone, or others.
    """
    path = store.outcome_path(charge.data_set, charge.epoch, charge.purpose) / OUTCOME_FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ReleaseError(
            f"{path} cannot be read: {error.strerror}; restore it from a backup"
        ) from error
    if hashlib.sha256(data).hexdigest() != charge.manifest_sha256:
        raise ReleaseError(f"{path} does not match its digest; restore it from a backup")
    return data
