"""Summing guarantees of different kinds, and stopping before a budget is passed.

Where charges are made by people who have seen earlier releases, as in a ledger, the cheapest way of
adding up may not be picked afterwards as :func:`total` does. In :func:`adaptive_total` the ways of
adding up are fixed beforehand, and choosing among them is paid for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce

from labelveil.common.errors import BudgetError, PrivacyError
from labelveil.common.exact.rational import rational
from labelveil.common.exact.rounding import above, float_above
from labelveil.common.guarantees.additive import ApproximateDP, PureDP, ZeroConcentratedDP
from labelveil.common.guarantees.base import Guarantee, about_the_same, compose
from labelveil.common.guarantees.composition import optimal_composition
from labelveil.common.guarantees.conversion import (
    least_epsilon,
    to_approximate,
    to_pure,
    to_renyi,
    to_zcdp,
    unconverted,
)
from labelveil.common.guarantees.limits import within
from labelveil.common.guarantees.renyi import DEFAULT_ORDERS, RenyiDP
from labelveil.common.noncopyable import NonCopyable

ORDERS: tuple[Fraction, ...] = tuple(Fraction(1 + 2**j) for j in range(11))
"""The Rényi orders at which mixed guarantees are added up: 2, 3, 5, …, 1025."""


def total(guarantees: Iterable[Guarantee], delta: float | Fraction) -> ApproximateDP:
    """Return the least (ε, δ) known for releasing everything: one or more guarantees, of any kinds.

    Every route that the kinds allow is taken, and the least ε wins: basic composition, optimal
    composition of pure and (ε, δ) guarantees, zCDP, RDP. The guarantees' parameters must not have
    been chosen after seeing outputs; use :class:`Filter` where they are.

    Raises
    ------
    PrivacyError
        If the guarantees are about different neighbours, or no route has a finite ε at that δ.
    """
    items = about_the_same(guarantees)
    exact = rational(delta)
    orders = next((item.orders for item in items if isinstance(item, RenyiDP)), DEFAULT_ORDERS)
    routes: tuple[Callable[[], ApproximateDP], ...] = (
        lambda: to_approximate(
            items[0] if len(items) == 1 else compose(map(unconverted, items)), exact
        ),
        lambda: optimal_composition(map(unconverted, items), exact),
        lambda: to_approximate(compose(map(to_zcdp, items)), exact),
        lambda: to_approximate(
            compose(
                item if isinstance(item, RenyiDP) else to_renyi(item, orders) for item in items
            ),
            exact,
        ),
    )
    results, refusals = [], []
    for route in routes:
        try:
            results.append(route())
        except PrivacyError as error:
            refusals.append(error)
    if not results:
        raise refusals[-1]
    return min(results, key=lambda result: result.exact_epsilon)


def adaptive_total(guarantees: Iterable[Guarantee], delta: Fraction) -> ApproximateDP:
    """Return an (ε, δ) of everything released, one or more, by routes that were fixed in advance.

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
    route: the other half of δ*, which lies in 0 … 1.

    ε is exact if every guarantee is pure; and δ is 0 then, otherwise ``δ*/2 + Σ δ_i``, which is
    above δ* if the guarantees' failure probabilities pass their half.

    Raises
    ------
    PrivacyError
        If the guarantees are about different neighbours, or δ* is 0 and one has no pure ε.
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
    return least_epsilon(replace(curves[0], values=(value,), exact_delta=Fraction(0)), delta)


class Filter(NonCopyable):
    """Admits guarantees until the next one would pass a fixed limit; safe under full adaptivity.

    Each guarantee may be chosen after seeing all earlier outputs. What was admitted is then
    together at least as private as the limit: basic composition for pure and (ε, δ) limits, Feldman
    and Zrnic (*Individual Privacy Accounting via a Rényi Filter*, NeurIPS 2021, Theorem 3.1) for
    RDP at every order of the limit, Whitehouse et al. (*Fully-Adaptive Composition in Differential
    Privacy*, ICML 2023, Theorem 1) for (approximate) zCDP. For an (ε, δ) target with many small
    releases, use the limit ``ZeroConcentratedDP.of(largest_rho(ε, δ, failure), failure)``: the
    limit is fixed in advance, and choosing the best order afterwards would not be sound. Guarantees
    are restated in the limit's kind.
    """

    def __init__(self, limit: Guarantee) -> None:
        super().__init__()
        self.limit = limit
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
            If a guarantee cannot be restated, or is about other neighbours.
        """
        return reduce(self._and, guarantees, self.limit.repeat(0))

    def admits(self, guarantee: Guarantee) -> bool:
        """Whether one more such release stays within the limit."""
        return self._and(self._spent, guarantee).within(self.limit)

    def spend(self, guarantee: Guarantee) -> None:
        """Charge a release *before* it is made.

        Raises
        ------
        BudgetError
            If the release would pass the limit; nothing is charged then.
        """
        with self._lock:
            after = self._and(self._spent, guarantee)
            if not after.within(self.limit):
                raise BudgetError(
                    f"this release ({guarantee}) would bring the total to {after}, above the budget"
                    f" {self.limit}; ask for less or raise the budget"
                )
            self._spent = after

    def _and(self, spent: Guarantee, guarantee: Guarantee) -> Guarantee:
        self.limit.same_neighbours(guarantee)
        return spent.compose(_restated(guarantee, self.limit))


def _restated(item: Guarantee, limit: Guarantee) -> Guarantee:
    match limit:
        case RenyiDP():
            return to_renyi(item, limit.orders)
        case ApproximateDP():
            return unconverted(item)
        case ZeroConcentratedDP():
            return to_zcdp(item)
        case PureDP():
            return to_pure(item)
    if item.kind != limit.kind:
        raise PrivacyError(f"a {item.kind} guarantee cannot be charged to a {limit.kind} limit")
    return item


class Odometer(NonCopyable):
    """Says at any moment, even one chosen from the outputs, how much has been spent.

    Concentrated guarantees are counted against a ladder of zCDP filters ``ρ₀ 2^f``, f = 0, 1, …;
    rung f claims its privacy-loss bound ``ρ + 2√(ρ ln(1/δ_f))`` with ``δ_f = δ / ((f+1)(f+2))``,
    which sum to δ, so that all claims hold together with probability 1 − δ. The price of asking at
    any time is at most a factor of two in ρ and a slightly larger logarithm.

    Source: Rogers, Roth, Ullman, Vadhan, *Privacy Odometers and Filters*, NeurIPS 2016 (definition
    2.3); the ladder of filters: Feldman and Zrnic 2021, Section 5, and Lécuyer, *Practical Privacy
    Filters and Odometers with Rényi Differential Privacy*, 2021, Proposition 4.

    Failure probabilities of approximate guarantees come on top of δ, and are part of each reading.
    """

    FIRST_RUNG = Fraction(1, 1000)
    """ρ₀, the smallest total that is distinguished from 0."""

    def __init__(self, delta: float | Fraction) -> None:
        super().__init__()
        self._delta = rational(delta)
        within("(0, 1)", delta=self._delta)
        self._spent: ZeroConcentratedDP | None = None

    def record(self, guarantee: Guarantee) -> None:
        """Add a release's guarantee, restated as zCDP."""
        item = to_zcdp(guarantee)
        with self._lock:
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
        rung, rho = 0, self.FIRST_RUNG
        while rho < self._spent.exact_rho:
            rung, rho = rung + 1, 2 * rho
        share = self._delta / ((rung + 1) * (rung + 2))
        ceiling = float_above(rho)
        epsilon = ceiling + 2 * math.sqrt(ceiling * -math.log(share))
        delta = min(Fraction(1), self._delta + self._spent.exact_delta)
        return ApproximateDP(*self._spent.neighbours, Fraction(above(epsilon)), delta)
