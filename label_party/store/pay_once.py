"""Spend budget on any private computation, once: a charge whose outcome is some bytes.

Whatever leaves the labels party, other than a label release, goes through :func:`pay_once`:

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

*What happens.* Reserve the guarantee; run ``build``; write the bytes, sync, give them their name;
commit their digest and the charge in one transaction; only then return them. Nothing may be shown
to anybody before ``pay_once`` returns, and ``build`` must not send, print or log what it computes.

*What holds.* The same purchase again returns the same bytes and spends nothing. The same purpose
with another ``request`` is refused. An exception in ``build``, a full disk or a limit that would be
passed spend nothing. After a crash at any point either nothing was spent and nothing can be read,
or the outcome is there and paid for; the next start finds out which
(:mod:`label_party.store.recovery`). Builders exclude each other by the store's lock, across
processes, so ``build`` may take long.

*Guarantees.* State adjacency and privacy unit of the data set's limit (``config.privacy``), or the
charge is refused as not comparable. A pure ε fits every limit. (ε, δ), zCDP and RDP guarantees need
``[privacy] total_delta``; the sum is that of :mod:`label_party.store.budget`. ``composition`` is
``disjoint`` only if no record of this epoch occurs in another one.

*Where.* ``<store>/outcomes/<data set>/<epoch>/<name>/`` holds ``outcome.bin`` and ``charge.json``,
the facts from which a ledger that was restored from an older backup counts it as spent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from common.errors import ReleaseError
from common.guarantees import Guarantee
from label_party.store.budget import Composition
from label_party.store.ledger import Charge, Ledger
from label_party.store.recovery import recover, undoing
from label_party.store.release_store import OUTCOME_FILE, Store


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
    if not store.ledger_path.exists():
        return None
    with store.open_ledger() as ledger:
        return _find(store, ledger, purchase)


def pay_once(store: Store, purchase: Purchase, build: Callable[[], bytes]) -> Paid:
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
    store.create()
    with store.building(), store.open_ledger() as ledger:
        recover(store, ledger)
        found = _find(store, ledger, purchase)  # another process may have been faster
        if found is not None:
            return found
        charge = ledger.reserve(
            purchase.data_set,
            purchase.epoch,
            purchase.guarantee,
            purchase.limit,
            composition=purchase.composition,
            request=purchase.request,
            purpose=purchase.purpose,
        )
        with undoing(store, ledger, charge):
            data = build()
            digest = hashlib.sha256(data).hexdigest()
            store.write_outcome(
                purchase.data_set, purchase.epoch, purchase.purpose, data, _facts(purchase, digest)
            )
            ledger.commit(charge, digest, 0)
        return Paid(data, digest, False, _left(ledger, purchase))


def _facts(purchase: Purchase, digest: str) -> bytes:
    facts = {
        "data_set": purchase.data_set,
        "epoch": purchase.epoch,
        "purpose": purchase.purpose,
        "composition": purchase.composition,
        "guarantee": purchase.guarantee.to_json(),
        "request": purchase.request,
        "sha256": digest,
    }
    return json.dumps(facts, sort_keys=True, ensure_ascii=False).encode()


def _find(store: Store, ledger: Ledger, purchase: Purchase) -> Paid | None:
    charge = ledger.committed(purchase.data_set, purchase.epoch, purchase.purpose)
    if charge is None:
        return None
    different = sorted(
        key for key, value in purchase.request.items() if charge.request.get(key) != value
    )
    if different:
        raise ReleaseError(
            f"{purchase.purpose!r} of epoch {charge.epoch!r} was released with other settings"
            f" ({', '.join(different)}) and stays as it is; name another epoch with --epoch"
        )
    data = read_outcome(store, charge)
    return Paid(data, hashlib.sha256(data).hexdigest(), True, _left(ledger, purchase))


def read_outcome(store: Store, charge: Charge) -> bytes:
    """Read the bytes that a committed charge paid for, and verify their digest."""
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


def _left(ledger: Ledger, purchase: Purchase) -> Guarantee | None:
    return ledger.left(purchase.data_set, purchase.limit, purchase.composition)
