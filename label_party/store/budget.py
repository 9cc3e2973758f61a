"""The arithmetic of an account's budget: what one record may have lost, and what is left.

The limit's kind decides how charges add up. A pure limit admits charges with a pure ε, which add
exactly. An (ε, δ) limit admits every kind, by :func:`common.guarantees.adaptive_total`; half of its
δ is for the charges' own failure probabilities, the other half for adding up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import reduce
from typing import Literal, Protocol

from common.errors import BudgetError, PrivacyError
from common.guarantees import ApproximateDP, Filter, Guarantee, PureDP, adaptive_total, compose

Composition = Literal["additive", "disjoint"]


class Spending(Protocol):
    """What the arithmetic needs to know of a charge."""

    @property
    def epoch(self) -> str: ...
    @property
    def composition(self) -> Composition: ...
    @property
    def guarantee(self) -> Guarantee: ...


def spent(charges: Iterable[Spending], limit: Guarantee) -> Guarantee | None:
    """Return what one record may have lost at most, as the limit counts; None if nothing.

    Every record may be in all additive charges. Charges over disjoint records are distinguished by
    their epoch: a record is in one epoch at most, so it loses the additive charges and those of its
    own epoch together, and the epoch that costs most counts (parallel composition, McSherry 2009,
    Theorem 4).

    Raises
    ------
    PrivacyError
        If charges are about different neighbours, or a kind does not add up under this limit.
    """
    additive: list[Guarantee] = []
    epochs: dict[str, list[Guarantee]] = defaultdict(list)
    for charge in charges:
        if charge.composition == "additive":
            additive.append(charge.guarantee)
        else:
            epochs[charge.epoch].append(charge.guarantee)
    histories = {tuple(additive + own) for own in epochs.values()} or {tuple(additive)}
    sums = [_sum(history, limit) for history in histories if history]
    return reduce(_larger, sums) if sums else None


def check_fits(
    account: str, charges: Iterable[Spending], proposal: Spending, limit: Guarantee
) -> None:
    """Refuse a charge that would bring any record above the limit.

    Raises
    ------
    BudgetError
        One line with what was asked, what is left and the limit.
    PrivacyError
        If the charge is about other neighbours than the limit or earlier charges.
    """
    existing = list(charges)
    for charge in (proposal, *existing):
        limit.same_neighbours(charge.guarantee)
    try:
        after = spent([*existing, proposal], limit)
    except PrivacyError as error:
        asked = f"account {account!r}: {proposal.guarantee} and earlier charges"
        if isinstance(limit, ApproximateDP) and limit.exact_delta > 0:
            raise BudgetError(f"{asked} do not add up under {limit}: {error}") from error
        raise BudgetError(
            f"{asked} do not fit a budget without a delta ({limit}); set [privacy] total_delta"
        ) from error
    if after is not None and not after.within(limit):
        before = spent(_seen_by(existing, proposal), limit)
        left = remaining(limit, before)
        rest = f"{left} is left of {limit}" if left is not None else f"{before} of {limit} is spent"
        halves = ""
        if isinstance(limit, ApproximateDP):
            halves = " (half of total_delta is for charges' own delta, half for adding up)"
        raise BudgetError(
            f"account {account!r}: asked for {proposal.guarantee}, but {rest}{halves}; ask for"
            f" less with --epsilon, or raise [privacy] {_setting(after, limit)}"
        )


def at_most(limit: Guarantee, cap: Guarantee) -> bool:
    """Return whether a limit allows nothing that a cap forbids; a pure ε has δ = 0.

    Raises
    ------
    PrivacyError
        If they are about different neighbours.
    """
    limit.same_neighbours(cap)
    if type(limit) is type(cap):
        return limit.within(cap)
    pair = [
        (one.exact_epsilon, getattr(one, "exact_delta", 0))
        for one in (limit, cap)
        if isinstance(one, PureDP | ApproximateDP)
    ]
    return len(pair) == 2 and pair[0][0] <= pair[1][0] and pair[0][1] <= pair[1][1]


def remaining(limit: Guarantee, lost: Guarantee | None) -> Guarantee | None:
    """Return what a further charge with a pure ε, or (ε, δ), may spend; None for other limits.

    Concentrated charges may fit where their own (ε, δ) would not: they add up better.
    """
    if isinstance(limit, PureDP):
        if lost is None:
            return limit
        if isinstance(lost, PureDP):
            left = max(limit.exact_epsilon - lost.exact_epsilon, limit.exact_epsilon * 0)
            return PureDP(limit.adjacency, limit.unit, left)
    if isinstance(limit, ApproximateDP) and (lost is None or isinstance(lost, ApproximateDP)):
        epsilon, half = limit.exact_epsilon, limit.exact_delta / 2
        if lost is not None:
            epsilon -= lost.exact_epsilon
            half -= max(lost.exact_delta - half, half * 0)
        return ApproximateDP(
            limit.adjacency, limit.unit, max(epsilon, half * 0), max(half, half * 0)
        )
    return limit if lost is None else None


def seen_by_next(charges: Iterable[Spending], composition: Composition) -> list[Spending]:
    """Return the charges whose records a charge of a *new* epoch may meet again."""
    return [
        charge
        for charge in charges
        if composition == "additive" or charge.composition == "additive"
    ]


def _seen_by(charges: Iterable[Spending], proposal: Spending) -> list[Spending]:
    return [
        charge
        for charge in charges
        if "additive" in (proposal.composition, charge.composition)
        or charge.epoch == proposal.epoch
    ]


def _sum(history: Iterable[Guarantee], limit: Guarantee) -> Guarantee:
    if isinstance(limit, ApproximateDP):
        return adaptive_total(history, limit.exact_delta)
    return Filter(limit).restated(history)


def _larger(one: Guarantee, other: Guarantee) -> Guarantee:
    """Return a guarantee that covers either of two."""
    if isinstance(one, ApproximateDP) and isinstance(other, ApproximateDP):
        one.same_neighbours(other)
        return ApproximateDP(
            one.adjacency,
            one.unit,
            max(one.exact_epsilon, other.exact_epsilon),
            max(one.exact_delta, other.exact_delta),
        )
    if one.within(other):
        return other
    if other.within(one):
        return one
    return compose([one, other])


def _setting(after: Guarantee, limit: Guarantee) -> str:
    if isinstance(after, ApproximateDP) and isinstance(limit, ApproximateDP):
        over = []
        if after.exact_epsilon > limit.exact_epsilon:
            over.append("total_epsilon")
        if after.exact_delta > limit.exact_delta:
            over.append("total_delta")
        return " and ".join(over)
    return "total_epsilon"
