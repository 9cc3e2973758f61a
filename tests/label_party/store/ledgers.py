"""Charges as tests make them: named one by one, without a store."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from labelveil.common.guarantees import ApproximateDP, Guarantee, PureDP
from labelveil.label_party.store.entries import LABELS, Composition, Purchase
from labelveil.label_party.store.ledger import Ledger


def pure(epsilon: Any) -> PureDP:
    return PureDP.of(Fraction(str(epsilon)))


def approximate(epsilon: Any, delta: Any) -> ApproximateDP:
    return ApproximateDP.of(Fraction(str(epsilon)), Fraction(str(delta)))


def bought(epsilon: Any, epoch: str = "1", composition: Composition = "additive") -> Purchase:
    return Purchase("d", epoch, LABELS, pure(epsilon), composition=composition)


def reserve(
    ledger: Ledger, data_set: str, epoch: str, charge: Guarantee, limit: Guarantee, **terms: Any
) -> int:
    """Set a charge aside, and return its number."""
    purpose = terms.pop("purpose", LABELS)
    return ledger.reserve(Purchase(data_set, epoch, purpose, charge, **terms), limit).id
