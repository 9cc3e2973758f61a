"""Rényi differential privacy as an exact curve, with an optional failure probability."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rational import rational
from labelveil.common.exact.rounding import above, float_above
from labelveil.common.guarantees.base import Adjacency, Guarantee, Unit, check_group
from labelveil.common.guarantees.limits import at_least, within

DEFAULT_ORDERS: tuple[Fraction, ...] = tuple(
    sorted(
        {Fraction(100 + 2 * i, 100) for i in range(1, 50)}
        | {Fraction(20 + i, 10) for i in range(80)}
        | {Fraction(i) for i in range(10, 64)}
        | {Fraction(round(64 * 1.09**i)) for i in range(80)}
    )
)
"""Orders from 1.02 to about 58,000, dense where the usual budgets have their optimum."""

_GROUP_EXPONENTS = tuple(
    Fraction(n, d) for n, d in ((9, 8), (5, 4), (3, 2), (2, 1), (3, 1), (5, 1))
)


@dataclass(frozen=True)
class RenyiDP(Guarantee, kind="renyi"):
    """δ-approximate (α, ε(α))-RDP at finitely many orders α, and by convexity between them.

    But for events of probability δ, ``D_α(M(D) ‖ M(D')) <= ε(α)``. The function
    ``λ -> λ D_{1+λ}`` is convex with value 0 at λ = 0, so between two orders the chord is a bound;
    beyond the last one nothing is guaranteed. Curves are therefore piecewise linear in that scale,
    and adding two of them is exact.

    Source: Mironov, *Rényi Differential Privacy*, CSF 2017 (composition: Proposition 1; group
    privacy: the weak triangle inequality, Proposition 11); the approximate form is Definition 15
    and Lemmas 16, 17 of Zhu and Wang, AISTATS 2022; convexity: van Erven and Harremoës 2014,
    Corollary 2.
    """

    orders: tuple[Fraction, ...]
    """Ascending orders α > 1."""
    values: tuple[Fraction, ...]
    """ε(α) >= 0 at those orders."""
    exact_delta: Fraction
    """The failure probability, in 0 … 1; 0 for plain RDP."""

    def __post_init__(self) -> None:
        if not self.orders or len(self.orders) != len(self.values):
            raise PrivacyError(
                f"{len(self.orders)} orders with {len(self.values)} values are not a curve; give"
                " at least one order, and one value each"
            )
        if self.orders[0] <= 1 or any(
            a >= b for a, b in zip(self.orders, self.orders[1:], strict=False)
        ):
            raise PrivacyError("the orders of an RDP curve must be above 1 and strictly ascending")
        if min(self.values) < 0:
            raise PrivacyError(f"an RDP value of {float(min(self.values))} must be >= 0")
        within("[0, 1]", delta=self.exact_delta)

    @classmethod
    def of(
        cls,
        curve: Callable[[Fraction], Fraction | float] | ArrayLike,
        delta: float | Fraction = 0,
        adjacency: Adjacency = Adjacency.REPLACE_LABEL,
        unit: Unit = Unit.RECORD,
        orders: Sequence[Fraction] = DEFAULT_ORDERS,
    ) -> Self:
        """Build the guarantee from a function of α or from one value an order.

        Floats are results of formulas and are rounded up; a ``Fraction`` is taken as it is.
        Infinite values drop their orders.
        """
        raw = map(curve, orders) if callable(curve) else np.asarray(curve).tolist()
        pairs = [
            (order, value if isinstance(value, Fraction) else Fraction(above(value)))
            for order, value in zip(orders, raw, strict=True)
            if isinstance(value, Fraction) or np.isfinite(value)
        ]
        kept, values = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
        return cls(adjacency, unit, kept, values, rational(delta))

    def at(self, order: Fraction | float) -> Fraction:
        """ε(α) at any order 1 < α <= the last one.

        Raises
        ------
        PrivacyError
            If the order is outside that range.
        """
        alpha = rational(order)
        if not 1 < alpha <= self.orders[-1]:
            raise PrivacyError(
                f"order {float(alpha)} is outside 1 … {float(self.orders[-1])}, where this RDP"
                " curve is known"
            )
        right = bisect_left(self.orders, alpha)
        if self.orders[right] == alpha:
            return self.values[right]
        # the chord of (α - 1) ε(α) from the order below, or from 0 at α = 1
        low, first = (self.orders[right - 1], self.values[right - 1]) if right else (1, 0)
        high, start = self.orders[right], (low - 1) * first
        rise = (high - 1) * self.values[right] - start
        return (start + rise * (alpha - low) / (high - low)) / (alpha - 1)

    @property
    def delta(self) -> float:
        """The failure probability as a float, rounded up."""
        return float_above(self.exact_delta)

    def compose(self, other: Self) -> Self:
        self.same_neighbours(other)
        delta = min(self.exact_delta + other.exact_delta, Fraction(1))
        if self.orders == other.orders:
            values = tuple(a + b for a, b in zip(self.values, other.values, strict=True))
            return type(self)(*self.neighbours, self.orders, values, delta)
        last = min(self.orders[-1], other.orders[-1])
        orders = tuple(sorted(a for a in {*self.orders, *other.orders} if a <= last))
        values = tuple(self.at(a) + other.at(a) for a in orders)
        return type(self)(*self.neighbours, orders, values, delta)

    def repeat(self, times: int) -> Self:
        at_least(0, times=times)
        values = tuple(value * times for value in self.values)
        delta = min(self.exact_delta * times, Fraction(1))
        return type(self)(*self.neighbours, self.orders, values, delta)

    def scale(self, group: int) -> Self:
        """Group privacy by the weak triangle inequality, for the orders that it reaches.

        For 1/p + 1/q = 1 and three data sets in a row,
        ``D_α(P ‖ R) <= (α - 1/p)/(α - 1) D_{pα}(P ‖ Q) + D_{q(α - 1/p)}(Q ‖ R)``; the best of a
        few p is taken. Halving the group doubles the reach of each step.

        Raises
        ------
        PrivacyError
            If the curve has no order that reaches a group of that size.
        """
        check_group(group, "RDP", self.exact_delta)
        if group == 1:
            return self
        first, second = self.scale(group - group // 2), self.scale(group // 2)
        bounds = {
            alpha: [
                (alpha - 1 / p) / (alpha - 1) * first.at(p * alpha) + second.at(far)
                for p in _GROUP_EXPONENTS
                if p * alpha <= first.orders[-1]
                and (far := (alpha - 1 / p) * p / (p - 1)) <= second.orders[-1]
            ]
            for alpha in self.orders
        }
        curve = {alpha: min(values) for alpha, values in bounds.items() if values}
        if not curve:
            raise PrivacyError(
                f"a group of {group} needs RDP orders above {float(self.orders[-1])}; give the"
                " curve more orders"
            )
        return type(self)(*self.neighbours, tuple(curve), tuple(curve.values()), Fraction(0))

    def within(self, limit: Self) -> bool:
        """Whether every order of ``limit`` is kept."""
        self.same_neighbours(limit)
        if limit.exact_delta == 1:
            return True
        return (
            self.exact_delta <= limit.exact_delta
            and limit.orders[-1] <= self.orders[-1]
            and all(self.at(a) <= e for a, e in zip(limit.orders, limit.values, strict=True))
        )

    def __str__(self) -> str:
        failure = f", failure probability {self.delta:.3g}" if self.exact_delta else ""
        return (
            f"RDP at {len(self.orders)} orders up to {float(self.orders[-1]):g}{failure}"
            f" ({self.adjacency}, per {self.unit})"
        )
