"""What a session guarantees, fixed before its first call; the guarantee takes the tightest route.

A session runs any number of private calls, each with a target, and stops at the τ-th hit. Routes to
its (ε, δ):

* *tail*: with failure probability δ* at most m calls learned something
  (:mod:`labelveil.common.mechanisms.interactive.call_count_tail`), and m calls of ε-DP compose:
  basic, advanced, RDP, optimal;
* *hit cost*: every hit costs an RDP curve and misses are free (:func:`hit_cost`), with no δ*;
* *game*: the optimum over everything that calls could do
  (:mod:`labelveil.common.mechanisms.interactive.optimal_curve`).

Only the hit cost can be charged hit by hit, to a budget that other releases share: it is a
``RenyiDP``, so ``labelveil.common.guarantees.Filter`` admits it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Self

import numpy as np

from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rational import parse_rational, rational
from labelveil.common.exact.rounding import above
from labelveil.common.exact.search import least_integer
from labelveil.common.guarantees import (
    DEFAULT_ORDERS,
    Adjacency,
    ApproximateDP,
    PureDP,
    RenyiDP,
    Unit,
    advanced_composition,
    optimal_composition,
    to_approximate,
    to_renyi,
)
from labelveil.common.guarantees.limits import at_least, within
from labelveil.common.mechanisms.interactive.call_count_tail import calls_until, overrun
from labelveil.common.mechanisms.interactive.optimal_curve import optimal_curve, vertices
from labelveil.common.mechanisms.interactive.targets import Target, not_prior

_SHARES = (0.02, 0.06, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99)
"""Shares of δ tried for the chance that more calls learned something than are composed."""

_OPTIMAL_CALLS = 20_000


@lru_cache(maxsize=64)
def hit_cost(
    target: Target, adjacency: Adjacency = Adjacency.REPLACE_LABEL, unit: Unit = Unit.RECORD
) -> RenyiDP:
    """RDP that one hit costs if misses are free: ``ε(α) = ln(a_T/(1 − a_N)) / (α − 1)``.

    Here ``a_T = Σ_{y∈T} B⁰(y)^α B¹(y)^{1−α}``, a_N is the same sum over the misses, and the largest
    value over all ε-close B⁰, B¹ with q-target T counts. For small ε it is about ``αε²/(2q)``: that
    of 1/q calls. Orders at which misses alone would add up (a_N >= 1) are left out.

    Proof. Let L be the privacy loss so far and R the sum of ``(α − 1) ε(α)`` over the hits. Then
    ``E exp((α − 1)L − R)``, taken under D⁰, falls with every call: a call that learns something
    multiplies it by ``a_T (1 − a_N)/a_T + a_N = 1`` at most, common parts leave it as it is or add
    a hit, and a mixture is no worse than its parts, because ``x^α y^{1−α}`` is jointly convex. So a
    session whose hits cost at most R* has divergence at most ``R*/(α − 1)``, also if calls differ
    in ε and q, and are chosen after seeing all outcomes. The largest a_T/(1 − a_N): outcomes split
    until their losses are ±ε, ``a_T + a_N = A`` is then fixed, so the ratio
    ``1 + (A − 1)/(1 − a_N)`` grows with a_N, which is linear in the shares of
    :mod:`labelveil.common.mechanisms.interactive.optimal_curve` and hence largest at a vertex.

    ``PrivacyError`` if no order is left: ε is above about 3.9.
    """
    alphas = np.array([float(order) for order in DEFAULT_ORDERS])
    e, q = float(target.epsilon), float(target.probability)
    u = 1 / (math.exp(e) + 1)
    with np.errstate(over="ignore", invalid="ignore"):
        up, down = u * np.exp(alphas * e), (1 - u) * np.exp(-alphas * e)
        # each with its float error on the side that makes a hit dearer
        excess = np.maximum(up + down - 1, 0.0) + 4e-15
        misses = np.max([up * (1 - s) + down * (1 - r) for s, r in vertices(e, q)], axis=0)
        room = np.where(misses < 1 - 1e-9, 1 - misses - 4e-15, np.nan)
        values = np.log1p(excess / room) / (alphas - 1)
    if not np.isfinite(values).any():
        raise PrivacyError(f"calls of epsilon={e:g} with q={q:g} have no cost in RDP")
    return RenyiDP.of(values, adjacency=adjacency, unit=unit)


@dataclass(frozen=True)
class Terms:
    """The terms of a session: which calls it admits, and at which hit it stops."""

    target: Target
    """The weakest call admitted: ε at most, q at least this; its δ is not used."""
    hits: int
    """τ >= 1: the session stops at this hit."""
    call_delta: Fraction = Fraction(0)
    """What the δ of all calls together may reach."""
    families: int = 1
    """k >= 1 target families. A call hits any number of them, and the session stops when even the
    family with the fewest hits has τ (Lemma 2.7): its failure probabilities count k times."""
    adjacency: Adjacency = Adjacency.REPLACE_LABEL
    """Of the calls' guarantees, as the unit is."""
    unit: Unit = Unit.RECORD

    def __post_init__(self) -> None:
        at_least(1, hits=self.hits, families=self.families)
        within("[0, 1)", call_delta=self.call_delta)

    @property
    def guarantee(self) -> RenyiDP:
        """The whole session as one RDP curve: τ hit costs, ``ln k/(α − 1)`` for k families.

        The last term: the divergence at the stop is at most that of the k stops, one a family,
        added up.

        Raises
        ------
        PrivacyError
            For calls of ε above about 3.9, which have no such curve.
        """
        cost = hit_cost(self.target, self.adjacency, self.unit).repeat(self.hits)
        choice = Fraction(above(math.log(self.families))) if self.families > 1 else Fraction(0)
        values = tuple(
            value + choice / (order - 1)
            for order, value in zip(cost.orders, cost.values, strict=True)
        )
        return replace(cost, values=values, exact_delta=self.call_delta)

    def delta_beside_calls(self, delta: Fraction) -> Fraction:
        """What the calls' own δ leave of a δ.

        Raises
        ------
        PrivacyError
            If nothing is left.
        """
        if delta <= self.call_delta:
            raise PrivacyError(
                f"delta={float(delta):g} must be above {float(self.call_delta):g}, which the calls"
                " may spend"
            )
        return delta - self.call_delta

    def routes(self, delta: float | Fraction) -> dict[str, ApproximateDP]:
        """Every route's (ε, δ) of the whole session, at the same δ."""
        exact, own = rational(delta), self.delta_beside_calls(rational(delta))
        routes = {
            name: ApproximateDP(self.adjacency, self.unit, epsilon, exact)
            for name, epsilon in _by_tail(self, own).items()
        }
        with suppress(PrivacyError):  # calls of large ε have no hit cost
            routes["hit cost"] = to_approximate(self.guarantee, exact)
        curve = optimal_curve(float(self.target.epsilon), float(self.target.probability), self.hits)
        least = math.inf if curve is None else curve.epsilon(float(own) / self.families)
        if math.isfinite(least):
            routes["game"] = ApproximateDP(self.adjacency, self.unit, Fraction(least), exact)
        return routes

    def approximate(self, delta: float | Fraction) -> ApproximateDP:
        """The least (ε, δ) known for the whole session, whatever is asked and answered."""
        return min(self.routes(delta).values(), key=lambda route: route.exact_epsilon)

    def to_json(self) -> dict[str, Any]:
        """Exact JSON values."""
        return {
            "epsilon": str(self.target.epsilon),
            "q": str(self.target.probability),
            "hits": self.hits,
            "call_delta": str(self.call_delta),
            "families": self.families,
            "adjacency": str(self.adjacency),
            "unit": str(self.unit),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read :meth:`to_json`.

        Raises
        ------
        PrivacyError
            If the data are no terms.
        """
        try:
            hits, families = whole_numbers([data["hits"], data["families"]])
            return cls(
                Target(parse_rational(data["epsilon"]), parse_rational(data["q"])),
                hits,
                parse_rational(data["call_delta"]),
                families,
                Adjacency(data["adjacency"]),
                Unit(data["unit"]),
            )
        except (KeyError, ValueError, TypeError, ArithmeticError) as error:
            raise PrivacyError(
                f"{data!r:.200} are not a session's terms: {error!r:.200}"
            ) from error


def whole_numbers(values: list[Any]) -> list[int]:
    """Return values read from JSON; raises ``ValueError`` unless all are integers >= 0."""
    if any(type(value) is not int or value < 0 for value in values):
        raise ValueError(f"{values} must be whole numbers")
    return values


def most_hits(epsilon: float, delta: float | Fraction, target: Target, limit: int = 1 << 14) -> int:
    """The largest τ whose session is (ε, δ)-DP; 0 if not even one hit is.

    Raises
    ------
    PrivacyError
        If ``limit`` hits are within the budget.
    """

    def too_many(hits: int) -> bool:
        return Terms(target, hits).approximate(delta).exact_epsilon > rational(epsilon)

    least = least_integer(too_many, 1, most=limit)
    if least is None:
        raise PrivacyError(f"more than {limit} hits fit epsilon={epsilon:g}; set hits yourself")
    return least - 1


def largest_call_epsilon(
    epsilon: float,
    delta: float | Fraction,
    hits: int,
    make: Callable[[Fraction], Target] = not_prior,
    grain: int = 1 << 10,
) -> Fraction:
    """The largest ε of a call, a multiple of 1/grain, with which τ hits are (ε, δ)-DP.

    ``make`` leads from the ε of a call to its target.

    Raises
    ------
    PrivacyError
        If not even 1/grain fits.
    """

    def too_large(steps: int) -> bool:
        terms = Terms(make(Fraction(steps, grain)), hits)
        return terms.approximate(delta).exact_epsilon > rational(epsilon)

    end = max(1, min(int(epsilon * grain), 40 * grain))
    steps = bisect_left(range(end), True, lo=1, key=too_large) - 1
    if steps == 0 and too_large(1):
        raise PrivacyError(
            f"{hits} hits of calls of epsilon >= 1/{grain} are not ({epsilon:g}, {float(delta):g})-"
            "DP; ask for fewer hits or raise the budget"
        )
    return Fraction(max(steps, 1), grain)


def _by_tail(terms: Terms, delta: Fraction) -> dict[str, Fraction]:
    """The least ε of each way to compose as many calls as learn something before the last hit."""
    target, least = terms.target, dict[str, Fraction]()
    call = PureDP(terms.adjacency, terms.unit, target.epsilon)
    curve = to_renyi(call)
    counts = {
        calls_until(terms.hits, target.probability, share * float(delta) / terms.families)
        for share in _SHARES
    }
    for calls in sorted(counts):
        failure = Fraction(overrun(calls, terms.hits, target.probability)) * terms.families
        rest = delta - failure
        if rest <= 0:
            continue
        composed = {
            "tail, basic": call.exact_epsilon * calls,
            "tail, advanced": advanced_composition(call.exact_epsilon, calls, rest),
            "tail, RDP": to_approximate(curve.repeat(calls), rest).exact_epsilon,
        }
        if calls <= _OPTIMAL_CALLS:
            composed["tail, optimal"] = optimal_composition([call] * calls, rest).exact_epsilon
        for name, epsilon in composed.items():
            least[name] = min(epsilon, least.get(name, epsilon))
    return least
