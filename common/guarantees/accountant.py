"""Summing guarantees of different kinds, and stopping before a budget is passed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import reduce

from common.errors import BudgetError, PrivacyError
from common.exact.rounding import above, float_above
from common.guarantees.approximate import ApproximateDP
from common.guarantees.base import Guarantee
from common.guarantees.bounded_range import BoundedRange
from common.guarantees.composition import optimal_composition
from common.guarantees.concentrated import ZeroConcentratedDP
from common.guarantees.conversion import to_approximate, to_pure, to_renyi, to_zcdp
from common.guarantees.pure import PureDP
from common.guarantees.renyi import DEFAULT_ORDERS, RenyiDP


def total(guarantees: Iterable[Guarantee], delta: float | Fraction) -> ApproximateDP:
    """Return the least (ε, δ) known for releasing everything.

    Every route that the kinds allow is taken, and the least ε wins: basic composition, optimal
    composition of pure and (ε, δ) guarantees, zCDP, RDP. The guarantees' parameters must not have
    been chosen after seeing outputs; use :class:`Filter` where they are.

    Parameters
    ----------
    guarantees
        One or more guarantees about the same neighbours, of any kinds.
    delta
        δ of the result.

    Raises
    ------
    PrivacyError
        If they are about different neighbours or no route has a finite ε at that δ.
    """
    items = list(guarantees)
    if not items:
        raise PrivacyError("nothing to add up; pass at least one guarantee")
    for item in items[1:]:
        items[0].same_neighbours(item)
    results, refusals = [], []
    for route in (_basic, _optimal, _concentrated, _renyi):
        try:
            results.append(route(items, Fraction(delta)))
        except PrivacyError as error:
            refusals.append(error)
    if not results:
        raise refusals[-1]
    return min(results, key=lambda result: result.exact_epsilon)


def _bounded(item: Guarantee) -> PureDP | ApproximateDP:
    return item if isinstance(item, ApproximateDP) else to_pure(item)


def _basic(items: Sequence[Guarantee], delta: Fraction) -> ApproximateDP:
    if len(items) == 1:
        return to_approximate(items[0], delta)
    parts = [
        item
        if isinstance(item, ApproximateDP)
        else ApproximateDP(item.adjacency, item.unit, to_pure(item).exact_epsilon, Fraction(0))
        for item in items
    ]
    return to_approximate(reduce(lambda left, right: left.compose(right), parts), delta)


def _optimal(items: Sequence[Guarantee], delta: Fraction) -> ApproximateDP:
    return optimal_composition([_bounded(item) for item in items], delta)


def _concentrated(items: Sequence[Guarantee], delta: Fraction) -> ApproximateDP:
    parts = [to_zcdp(item) for item in items]
    return to_approximate(reduce(lambda left, right: left.compose(right), parts), delta)


def _renyi(items: Sequence[Guarantee], delta: Fraction) -> ApproximateDP:
    curves = [item for item in items if isinstance(item, RenyiDP)]
    orders = curves[0].orders if curves else DEFAULT_ORDERS
    parts = [item if isinstance(item, RenyiDP) else to_renyi(item, orders) for item in items]
    return to_approximate(reduce(lambda left, right: left.compose(right), parts), delta)


class Filter:
    """Admits guarantees until the next one would pass a fixed limit; safe under full adaptivity.

    Each guarantee may be chosen after seeing all earlier outputs. What was admitted is then
    together at least as private as the limit: basic composition for pure and (ε, δ) limits, Feldman
    and Zrnic (*Individual Privacy Accounting via a Rényi Filter*, NeurIPS 2021, Theorem 3.1) for
    RDP at every order of the limit, Whitehouse et al. (*Fully-Adaptive Composition in Differential
    Privacy*, ICML 2023, Theorem 1) for (approximate) zCDP. For an (ε, δ) target with many small
    releases, use the limit ``ZeroConcentratedDP.of(largest_rho(ε, δ, failure), failure)``: the
    limit is fixed in advance, and choosing the best order afterwards would not be sound.

    Parameters
    ----------
    limit
        The budget. Guarantees are restated in its kind.
    """

    def __init__(self, limit: Guarantee) -> None:
        self.limit = limit
        self._restate = _restater(limit)
        self._spent: Guarantee = limit.repeat(0)

    @property
    def spent(self) -> Guarantee:
        """What has been admitted, in the limit's kind."""
        return self._spent

    def restated(self, guarantees: Iterable[Guarantee]) -> Guarantee:
        """Return what guarantees spend together, in the limit's kind, whether or not it fits.

        Raises
        ------
        PrivacyError
            If one of them cannot be restated, or is about other neighbours.
        """
        fresh = Filter(self.limit)
        for guarantee in guarantees:
            fresh._spent = fresh._after(guarantee)
        return fresh.spent

    def admits(self, guarantee: Guarantee) -> bool:
        """Whether one more such release stays within the limit."""
        return self._after(guarantee).within(self.limit)

    def spend(self, guarantee: Guarantee) -> None:
        """Charge a release *before* it is made.

        Raises
        ------
        BudgetError
            If it would pass the limit; nothing is charged then.
        """
        after = self._after(guarantee)
        if not after.within(self.limit):
            raise BudgetError(
                f"this release ({guarantee}) would bring the total to {after}, above the budget"
                f" {self.limit}; ask for less or raise the budget"
            )
        self._spent = after

    def _after(self, guarantee: Guarantee) -> Guarantee:
        self.limit.same_neighbours(guarantee)
        return self._spent.compose(self._restate(guarantee))


def _restater(limit: Guarantee) -> Callable[[Guarantee], Guarantee]:
    if isinstance(limit, RenyiDP):
        orders = limit.orders
        return lambda item: to_renyi(item, orders)
    if isinstance(limit, ApproximateDP):
        return lambda item: (
            item if isinstance(item, ApproximateDP) else to_approximate(to_pure(item), 0)
        )
    if isinstance(limit, ZeroConcentratedDP):
        return to_zcdp
    if isinstance(limit, PureDP | BoundedRange):
        return to_pure if isinstance(limit, PureDP) else _same_kind(limit)
    return _same_kind(limit)


def _same_kind(limit: Guarantee) -> Callable[[Guarantee], Guarantee]:
    def restate(item: Guarantee) -> Guarantee:
        if item.kind != limit.kind:
            raise PrivacyError(f"a {item.kind} guarantee cannot be charged to a {limit.kind} limit")
        return item

    return restate


class Odometer:
    """Says at any moment, even one chosen from the outputs, how much has been spent.

    Concentrated guarantees are counted against a ladder of zCDP filters ``ρ₀ 2^f``, f = 0, 1, …;
    rung f claims its privacy-loss bound ``ρ + 2√(ρ ln(1/δ_f))`` with ``δ_f = δ / ((f+1)(f+2))``,
    which sum to δ, so that all claims hold together with probability 1 − δ. The price of asking at
    any time is at most a factor of two in ρ and a slightly larger logarithm.

    Source: Rogers, Roth, Ullman, Vadhan, *Privacy Odometers and Filters*, NeurIPS 2016 (definition
    2.3); the ladder of filters: Feldman and Zrnic 2021, Section 5, and Lécuyer, *Practical Privacy
    Filters and Odometers with Rényi Differential Privacy*, 2021, Proposition 4.

    Parameters
    ----------
    delta
        Probability with which some reading may fail; failure probabilities of approximate
        guarantees come on top and are part of each reading.
    first_rung
        ρ₀, the smallest total that is distinguished from 0.
    """

    def __init__(self, delta: float | Fraction, first_rung: Fraction = Fraction(1, 1000)) -> None:
        self._delta = Fraction(delta)
        if not 0 < self._delta < 1 or first_rung <= 0:
            raise PrivacyError(
                f"delta={float(self._delta)} must lie in (0, 1) and first_rung={first_rung} be > 0"
            )
        self._first = first_rung
        self._spent: ZeroConcentratedDP | None = None

    def record(self, guarantee: Guarantee) -> None:
        """Add a release's guarantee, restated as zCDP."""
        item = to_zcdp(guarantee)
        self._spent = item if self._spent is None else self._spent.compose(item)

    def reading(self) -> ApproximateDP:
        """(ε, δ) of everything recorded so far.

        Raises
        ------
        PrivacyError
            If nothing has been recorded.
        """
        if self._spent is None:
            raise PrivacyError("nothing has been recorded yet")
        rung, rho = 0, self._first
        while rho < self._spent.exact_rho:
            rung, rho = rung + 1, 2 * rho
        share = self._delta / ((rung + 1) * (rung + 2))
        ceiling = float_above(rho)
        epsilon = ceiling + 2 * math.sqrt(ceiling * -math.log(share))
        delta = min(Fraction(1), self._delta + self._spent.exact_delta)
        return ApproximateDP(
            self._spent.adjacency, self._spent.unit, Fraction(above(epsilon)), delta
        )
