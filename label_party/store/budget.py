"""The arithmetic of an account's budget: what one record may have lost, and what is left.

The limit's kind decides how charges add up. A pure limit admits charges with a pure ε, which add
exactly. An (ε, δ) limit admits every kind, by :func:`labelveil.common.guarantees.adaptive_total`;
half of its δ is for the charges' own failure probabilities, the other half for adding up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from functools import reduce

from labelveil.common.errors import BudgetError, PrivacyError
from labelveil.common.guarantees import (
    ApproximateDP,
    Filter,
    Guarantee,
    PureDP,
    adaptive_total,
    compose,
)
from labelveil.label_party.store.entries import Composition, Purchase

_LEAST_DELTA = Fraction(1, 10**9)
"""Proposed where a limit has no δ, and one is needed."""
_DIGITS = 6


def spent(charges: Iterable[Purchase], limit: Guarantee) -> Guarantee | None:
    """Return what one record may have lost at most, as the limit counts; None if nothing.

    Every record may be in all additive charges. Charges over disjoint records are distinguished by
    their epoch: a record is in one epoch at most, so it loses the additive charges and those of its
    own epoch together, and the epoch that costs most counts (parallel composition, McSherry 2009,
    Theorem 4).

    ``PrivacyError`` if charges are about different neighbours, or a kind does not add up under this
    limit.
    """
    additive: list[Guarantee] = []
    charges = list(charges)
    for charge in charges:
        check_unit(charge.account, charge.guarantee, limit)
    epochs: dict[str, list[Guarantee]] = defaultdict(list)
    for charge in charges:
        if charge.composition == "additive":
            additive.append(charge.guarantee)
        else:
            epochs[charge.epoch].append(charge.guarantee)
    histories = {tuple(additive + own) for own in epochs.values()} or {tuple(additive)}
    sums = [_sum(history, limit) for history in histories if history]
    return reduce(_larger, sums) if sums else None


def check_unit(account: str, charge: Guarantee, limit: Guarantee) -> None:
    """Raise ``PrivacyError``, with what to set, if a charge is per another unit than a limit."""
    if charge.unit != limit.unit:
        raise PrivacyError(
            f"account {account!r}: {charge} and a limit per {limit.unit} do not compose; set"
            " [privacy] unit as it was for earlier purchases; for other events name another"
            " account"
        )


def check_fits(
    charges: Iterable[Purchase], proposal: Purchase, limit: Guarantee, cap: Guarantee | None
) -> None:
    """Refuse a charge that would bring any record above the limit.

    ``charges`` are all of its account, and ``cap`` what that is capped at; None before the first.
    ``BudgetError``, one line with what was asked, what is left, the limit, and what to type;
    ``PrivacyError`` if the charge is about other neighbours than the limit or earlier charges.
    """
    existing = list(charges)
    for charge in (proposal, *existing):
        check_unit(charge.account, charge.guarantee, limit)
        limit.same_neighbours(charge.guarantee)
    try:
        after = spent([*existing, proposal], limit)
    except PrivacyError as error:
        asked = f"account {proposal.account!r}: {proposal.guarantee} and earlier charges"
        if isinstance(limit, ApproximateDP):
            raise BudgetError(f"{asked} do not add up under {limit}: {error}") from error
        try:
            remedy = _remedy([*existing, proposal], limit, cap)
        except PrivacyError as reason:
            raise BudgetError(f"{asked} do not add up under any limit: {reason}") from reason
        raise BudgetError(
            f"{asked} do not fit a budget without a delta ({limit}); {remedy}"
        ) from error
    if after is not None and not after.within(limit):
        # what is left to the records that this charge meets; others' epochs leave them as they are
        before = spent(seen_by(existing, proposal.composition, proposal.epoch), limit)
        left = remaining(limit, before)
        rest = f"{left} is left of {limit}" if left is not None else f"{before} of {limit} is spent"
        halves = smaller = ""
        if isinstance(limit, ApproximateDP):
            halves = " (half of total_delta is for charges' own delta, half for adding up)"
        if isinstance(proposal.guarantee, PureDP) and isinstance(left, PureDP | ApproximateDP):
            most = _decimal(left.exact_epsilon, up=False)
            less = "[evaluation] epsilon =" if proposal.answers else "--epsilon"
            smaller = "" if float(most) <= 0 else f"ask for less with {less} {most}, or "
        raise BudgetError(
            f"account {proposal.account!r}: asked for {proposal.guarantee}, but {rest}{halves};"
            f" {smaller}{_remedy([*existing, proposal], limit, cap)}"
        )


def raising(cap: Guarantee, to: Guarantee) -> str:
    """Return the options of ``label-party budget raise`` by which a cap allows a limit, too."""
    epsilon, delta = (max(pair) for pair in zip(_pair(cap), _pair(to), strict=True))
    return f"--to {_decimal(epsilon)}{f' --delta {_decimal(delta)}' if delta else ''}"


def _remedy(charges: list[Purchase], limit: Guarantee, cap: Guarantee | None) -> str:
    """Say how a limit is raised so that charges fit: what is named has been tried here."""
    enough = _sufficient(charges, limit)
    epsilon, delta = _pair(enough)
    settings = f"set [privacy] total_epsilon = {_decimal(epsilon)}"
    if delta:
        settings += f" and total_delta = {_decimal(delta)}"
    if cap is None or at_most(enough, cap):
        return settings
    return f"run: label-party budget raise {raising(cap, enough)} --reason TEXT, and {settings}"


def _sufficient(charges: list[Purchase], limit: Guarantee) -> Guarantee:
    """Return a limit under which charges fit, in decimals that can be typed.

    ``PrivacyError`` if they add up under none.
    """
    epsilon, delta = _pair(limit)
    while True:
        wider = ApproximateDP(limit.adjacency, limit.unit, epsilon, delta)
        enough = wider if delta else PureDP(limit.adjacency, limit.unit, epsilon)
        try:
            after = spent(charges, enough)
        except PrivacyError:
            if delta:
                raise
            after = None
        if after is not None and after.within(enough):
            return enough
        if after is None or _pair(after)[1] > delta:
            delta = max(_LEAST_DELTA, 10 * delta)
        else:
            epsilon = Fraction(_decimal(_pair(after)[0]))


def _pair(limit: Guarantee) -> tuple[Fraction, Fraction]:
    """(ε, δ) of a limit, which configurations state as one of these two kinds."""
    if isinstance(limit, PureDP | ApproximateDP):
        return limit.exact_epsilon, limit.exact_delta
    return Fraction(0), Fraction(0)


def _decimal(value: Fraction, *, up: bool = True) -> str:
    """Six digits, rounded so that a limit allows as much, or a charge takes no more."""
    with localcontext() as context:
        context.prec = _DIGITS
        context.rounding = ROUND_CEILING if up else ROUND_FLOOR
        return f"{Decimal(value.numerator) / Decimal(value.denominator):g}"


def at_most(limit: Guarantee, cap: Guarantee) -> bool:
    """Return whether a limit allows nothing that a cap forbids; a pure ε has δ = 0.

    ``PrivacyError`` if they are about different neighbours.
    """
    limit.same_neighbours(cap)
    if type(limit) is type(cap):
        return limit.within(cap)
    if not all(isinstance(of, PureDP | ApproximateDP) for of in (limit, cap)):
        return False
    return all(one <= other for one, other in zip(_pair(limit), _pair(cap), strict=True))


def remaining(limit: Guarantee, lost: Guarantee | None) -> Guarantee | None:
    """Return what a further charge with a pure ε, or (ε, δ), may spend; None for other limits.

    Concentrated charges may fit where their own (ε, δ) would not: they add up better.
    """
    zero = Fraction(0)
    if isinstance(limit, PureDP):
        if lost is None:
            return limit
        if isinstance(lost, PureDP):
            left = max(limit.exact_epsilon - lost.exact_epsilon, zero)
            return PureDP(limit.adjacency, limit.unit, left)
    if isinstance(limit, ApproximateDP) and (lost is None or isinstance(lost, ApproximateDP)):
        epsilon, half = limit.exact_epsilon, limit.exact_delta / 2
        if lost is not None:
            epsilon -= lost.exact_epsilon
            half -= max(lost.exact_delta - half, zero)
        return ApproximateDP(limit.adjacency, limit.unit, max(epsilon, zero), max(half, zero))
    return limit if lost is None else None


def short(guarantee: Guarantee | None, nothing: str = "not one number") -> str:
    """Return it without adjacency and unit, which the limit states for the whole account."""
    return nothing if guarantee is None else str(guarantee).partition(" (")[0]


def seen_by(
    charges: Iterable[Purchase], composition: Composition, epoch: str | None = None
) -> list[Purchase]:
    """Return the charges whose records a charge of an epoch may meet again; None: of a new one."""
    return [
        charge
        for charge in charges
        if "additive" in (composition, charge.composition) or charge.epoch == epoch
    ]


def _sum(history: Iterable[Guarantee], limit: Guarantee) -> Guarantee:
    if isinstance(limit, ApproximateDP):
        return adaptive_total(history, limit.exact_delta)
    return Filter(limit).restated(history)


def _larger(one: Guarantee, other: Guarantee) -> Guarantee:
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
