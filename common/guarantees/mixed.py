"""One (ε, δ) total of guarantees of every kind, sound where each is chosen after seeing the last.

A ledger's charges are made by people who have seen earlier releases, so the cheapest way of adding
up may not be picked afterwards as :func:`common.guarantees.total` does. Here the ways of adding up
are fixed beforehand, and choosing among them is paid for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from common.errors import PrivacyError
from common.guarantees.approximate import ApproximateDP
from common.guarantees.base import Guarantee, about_the_same
from common.guarantees.conversion import least_epsilon, to_renyi, unconverted
from common.guarantees.renyi import RenyiDP

ORDERS: tuple[Fraction, ...] = tuple(Fraction(1 + 2**j) for j in range(11))
"""The Rényi orders at which mixed guarantees are added up: 2, 3, 5, …, 1025."""


def adaptive_total(guarantees: Iterable[Guarantee], delta: Fraction) -> ApproximateDP:
    """Return an (ε, δ) of everything released, by routes that were fixed in advance.

    Used as a filter: a process that never lets the total pass (ε*, δ*) is (ε*, δ*)-DP, even if each
    guarantee was chosen after seeing all earlier outputs.

    *Routes.* Pure, bounded-range and (ε, δ) guarantees add by basic composition. All kinds add as
    Rényi divergences at each order α of :data:`ORDERS`, converted with δ_c = δ*/(2 · 11) by
    Canonne, Kamath and Steinke (2020), Proposition 12. The least ε counts.

    *Why that is sound.* Sums never fall, so an outcome at whose end route r is within the limit was
    within it all along, and there the process agrees with the one that route r's filter stops. Each
    of these is (ε*, δ_r)-DP: basic composition under full adaptivity (Rogers, Roth, Ullman, Vadhan,
    NeurIPS 2016, Theorem 3.1) with δ_r = 0, and the Rényi filter of one order (Feldman and Zrnic,
    NeurIPS 2021, Theorem 3.1) with δ_r = δ_c. Splitting any event by the first such route adds up
    the δ_r, to δ*/2. The events on which guarantees fail have probability Σ δ_i at most, on every
    route: the other half of δ*.

    Parameters
    ----------
    guarantees
        One or more guarantees about the same neighbours.
    delta
        δ*, in 0 … 1. Half of it is for the guarantees' own failure probabilities, half for
        converting; at 0 only kinds with a pure ε add up.

    Returns
    -------
    ε, exact if every guarantee is pure; and δ, which is 0 then and otherwise ``δ*/2 + Σ δ_i``. It
    is above δ* if the guarantees' failure probabilities pass their half.

    Raises
    ------
    PrivacyError
        If they are about different neighbours, or δ* is 0 and one has no pure ε.
    """
    items = about_the_same(guarantees)
    failures = sum((getattr(item, "exact_delta", Fraction(0)) for item in items), Fraction(0))
    basic = _basic_epsilon(items)
    if basic is not None and failures == 0:
        return ApproximateDP(*items[0].neighbours, basic, Fraction(0))
    if delta == 0:
        kinds = ", ".join(sorted({item.kind for item in items}))
        raise PrivacyError(f"guarantees of kind {kinds} have no total at delta=0; allow a delta")
    routes = [_renyi_epsilon(items, order, delta / (2 * len(ORDERS))) for order in ORDERS]
    finite = [epsilon for epsilon in (basic, *routes) if epsilon is not None]
    if not finite:
        raise PrivacyError(
            f"an RDP curve that ends below order {ORDERS[0]} cannot be added up; extend it"
        )
    spent = min(failures + delta / 2, Fraction(1))
    return ApproximateDP(*items[0].neighbours, min(finite), spent)


def _basic_epsilon(items: Sequence[Guarantee]) -> Fraction | None:
    """Return Σ ε_i, failures aside, or None where some guarantee has no finite ε."""
    try:
        return sum((unconverted(item).exact_epsilon for item in items), Fraction(0))
    except PrivacyError:
        return None


def _renyi_epsilon(items: Sequence[Guarantee], order: Fraction, delta: Fraction) -> Fraction | None:
    """Return the total at one order, or None if a curve ends below it and guarantees nothing."""
    if any(isinstance(item, RenyiDP) and order > item.orders[-1] for item in items):
        return None
    curves = [to_renyi(item, (order,)) for item in items]
    value = sum((curve.values[0] for curve in curves), Fraction(0))
    total = replace(curves[0], values=(value,), exact_delta=Fraction(0))
    return least_epsilon(total, delta)
