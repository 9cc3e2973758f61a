"""Charges as tests make them: named one by one, without a store."""

from __future__ import annotations

from typing import Any

from labelveil.common.guarantees import Guarantee
from labelveil.label_party.store.entries import LABELS, Purchase
from labelveil.label_party.store.ledger import Ledger


def reserve(
    ledger: Ledger, data_set: str, epoch: str, charge: Guarantee, limit: Guarantee, **terms: Any
) -> int:
    """Set a charge aside, and return its number."""
    purpose = terms.pop("purpose", LABELS)
    return ledger.reserve(Purchase(data_set, epoch, purpose, charge, **terms), limit).id
