"""From one kind of guarantee to another, wherever a theorem allows; every result rounds outwards.

    bounded range                      →  pure        to_pure
    pure, (ε, δ), bounded range        →  zCDP        to_zcdp
    pure, (ε, δ), bounded range, zCDP  →  RDP         to_renyi
    every kind                         →  (ε, δ)      to_approximate

A new kind registers its own conversions with ``@to_renyi.register`` and so on (``to_approximate``:
``@least_epsilon.register``); nothing here needs to know about it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import singledispatch

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rational import rational
from labelveil.common.exact.rounding import above, float_below
from labelveil.common.guarantees.additive import ApproximateDP, PureDP, ZeroConcentratedDP
from labelveil.common.guarantees.base import Adjacency, Guarantee, GuaranteeT
from labelveil.common.guarantees.bounded_range import BoundedRange
from labelveil.common.guarantees.limits import within
from labelveil.common.guarantees.renyi import DEFAULT_ORDERS, RenyiDP

_LEAST_DELTA = Fraction(1, 10**300)


@singledispatch
def to_pure(guarantee: Guarantee) -> PureDP:
    """Restate a guarantee as pure ε-DP; ε-bounded range implies it with the same ε.

    Raises
    ------
    PrivacyError
        If the guarantee has no finite pure ε.
    """
    raise PrivacyError(
        f"a {guarantee.kind} guarantee has no pure form; restate it with to_approximate instead"
    )


@to_pure.register
def _(guarantee: PureDP) -> PureDP:
    return guarantee


@to_pure.register
def _(guarantee: BoundedRange) -> PureDP:
    return PureDP(*guarantee.neighbours, guarantee.exact_epsilon)


@singledispatch
def to_zcdp(guarantee: Guarantee) -> ZeroConcentratedDP:
    """Restate a guarantee as (approximate) zCDP.

    ε-DP is ε²/2-zCDP (Bun and Steinke 2016, Proposition 1.4); ε-bounded range is ε²/8-zCDP (Cesar
    and Rogers 2021, Lemma 3.4); (ε, δ)-DP is δ-approximate ε²/2-zCDP, because its worst case is
    randomized response but for an event of probability δ (Kairouz, Oh, Viswanath 2015).

    Raises
    ------
    PrivacyError
        If no theorem gives a finite ρ, as for an RDP curve, which ends at some order.
    """
    raise PrivacyError(
        f"a {guarantee.kind} guarantee has no zCDP form; restate both sides with to_renyi instead"
    )


@to_zcdp.register
def _(guarantee: ZeroConcentratedDP) -> ZeroConcentratedDP:
    return guarantee


@to_zcdp.register
def _(guarantee: PureDP | ApproximateDP) -> ZeroConcentratedDP:
    rho = guarantee.exact_epsilon**2 / 2
    return ZeroConcentratedDP(*guarantee.neighbours, rho, guarantee.exact_delta)


@to_zcdp.register
def _(guarantee: BoundedRange) -> ZeroConcentratedDP:
    rho = sum((count * epsilon**2 / 8 for epsilon, count in guarantee.ranges), Fraction(0))
    return ZeroConcentratedDP(*guarantee.neighbours, rho, Fraction(0))


@singledispatch
def to_renyi(guarantee: Guarantee, orders: Sequence[Fraction] = DEFAULT_ORDERS) -> RenyiDP:
    """Restate a guarantee as an (approximate) RDP curve at the given orders.

    For ε-DP this is the curve of binary randomized response, the worst ε-DP mechanism (Mironov
    2017, Proposition 6 with Kairouz, Oh, Viswanath 2015); for bounded range the smaller of that and
    ``αε²/8``; for zCDP ``αρ``.

    Raises
    ------
    PrivacyError
        If the kind has no RDP curve, or an order is not above 1.
    """
    raise PrivacyError(f"a {guarantee.kind} guarantee has no RDP form")


@to_renyi.register
def _(guarantee: RenyiDP, orders: Sequence[Fraction] = DEFAULT_ORDERS) -> RenyiDP:
    kept = tuple(order for order in orders if order <= guarantee.orders[-1])
    if not kept:
        raise PrivacyError(
            f"no requested order lies below {float(guarantee.orders[-1])}, the curve's last"
        )
    values = tuple(guarantee.at(order) for order in kept)
    return RenyiDP(*guarantee.neighbours, kept, values, guarantee.exact_delta)


@to_renyi.register
def _(guarantee: ZeroConcentratedDP, orders: Sequence[Fraction] = DEFAULT_ORDERS) -> RenyiDP:
    values = tuple(guarantee.exact_rho * order for order in orders)
    return RenyiDP(*guarantee.neighbours, tuple(orders), values, guarantee.exact_delta)


@to_renyi.register
def _(guarantee: PureDP | ApproximateDP, orders: Sequence[Fraction] = DEFAULT_ORDERS) -> RenyiDP:
    values = _response_curve(guarantee.exact_epsilon, orders)
    return RenyiDP(*guarantee.neighbours, tuple(orders), values, guarantee.exact_delta)


@to_renyi.register
def _(guarantee: BoundedRange, orders: Sequence[Fraction] = DEFAULT_ORDERS) -> RenyiDP:
    values = [Fraction(0)] * len(orders)
    for epsilon, count in guarantee.ranges:
        response = _response_curve(epsilon, orders)
        for i, order in enumerate(orders):
            values[i] += count * min(order * epsilon**2 / 8, response[i])
    return RenyiDP(*guarantee.neighbours, tuple(orders), tuple(values), Fraction(0))


def to_approximate(guarantee: Guarantee, delta: float | Fraction) -> ApproximateDP:
    """Restate a guarantee as (ε, δ)-DP at a chosen δ, with the least ε that is known.

    - ε-DP and (ε, δ₀)-DP: trading δ − δ₀ for a smaller ε along randomized response's own curve,
      ``ε' = ln(e^ε − δ(1 + e^ε))`` (Kairouz, Oh, Viswanath 2015, Theorem 3.1).
    - RDP and zCDP: ``ε(α) + ln(1 − 1/α) − ln(δ α)/(α − 1)``, the least over α (Canonne, Kamath,
      Steinke 2020, Proposition 12; Balle et al. 2020, Theorem 21). It is below Mironov's
      ``ε(α) + ln(1/δ)/(α − 1)`` at every α. For a curve it is the least over *every* real α up to
      its last order, chords included, so a curve that is nowhere below another, and reaches no
      farther, never converts to less.
    - With a failure probability δ₀, δ − δ₀ is left for the conversion (Bun and Steinke 2016,
      Lemma 8.8; Zhu and Wang 2022, Lemma 17).

    Raises
    ------
    PrivacyError
        If δ is not above the guarantee's own failure probability, or no finite ε exists: at δ = 0
        only pure and bounded-range guarantees have one.
    """
    exact = rational(delta)
    within("[0, 1]", delta=exact)
    return ApproximateDP(*guarantee.neighbours, least_epsilon(guarantee, exact), exact)


@singledispatch
def least_epsilon(guarantee: Guarantee, delta: Fraction) -> Fraction:
    """Return the ε of :func:`to_approximate`, which dispatches here."""
    raise PrivacyError(f"a {guarantee.kind} guarantee has no (epsilon, delta) form")


@least_epsilon.register
def _(guarantee: PureDP | ApproximateDP, delta: Fraction) -> Fraction:
    failure = guarantee.exact_delta
    if delta < failure:
        raise PrivacyError(
            f"delta={float(delta)} is below the guarantee's own {float(failure)}; ask for more"
        )
    return _response_epsilon(guarantee.exact_epsilon, delta - failure)


@least_epsilon.register
def _(guarantee: BoundedRange, delta: Fraction) -> Fraction:
    epsilon = _response_epsilon(guarantee.exact_epsilon, delta)
    return min(epsilon, least_epsilon(to_zcdp(guarantee), delta)) if delta > 0 else epsilon


@least_epsilon.register
def _(guarantee: ZeroConcentratedDP, delta: Fraction) -> Fraction:
    remaining = _remaining(delta, guarantee.exact_delta)
    if guarantee.exact_rho == 0:
        return Fraction(0)
    rho = guarantee.rho
    start = math.log1p(math.sqrt(-_log_below(remaining) / rho))
    # any α gives a valid ε, so a grid around the classical optimum is enough
    orders = 1 + np.expm1(start + np.linspace(-2.5, 1.0, 2001)).clip(1e-6)
    return _least_over(orders, rho * orders, remaining)


@least_epsilon.register
def _(guarantee: RenyiDP, delta: Fraction) -> Fraction:
    remaining = _remaining(delta, guarantee.exact_delta)
    if min(guarantee.values) == 0:  # a divergence of 0 at any order: the two laws are equal
        return Fraction(0)
    between = _best_between(guarantee, remaining)
    orders = np.array([float(order) for order in (*guarantee.orders, *between)])
    values = np.array([float(v) for v in (*guarantee.values, *map(guarantee.at, between))])
    return _least_over(orders, values, remaining)


def unconverted(guarantee: Guarantee) -> ApproximateDP:
    """Restate a guarantee as (ε, δ)-DP by its own ε and failure probability; δ pays for nothing.

    ``PrivacyError`` if it has no ε of its own, as concentrated guarantees.
    """
    if isinstance(guarantee, ApproximateDP):
        return guarantee
    return ApproximateDP(*guarantee.neighbours, to_pure(guarantee).exact_epsilon, Fraction(0))


def epsilon_at(guarantee: Guarantee, delta: float | Fraction) -> float:
    """ε of :func:`to_approximate`, as a float that is rounded up."""
    return to_approximate(guarantee, delta).epsilon


def for_replacement(guarantee: GuaranteeT) -> GuaranteeT:
    """Restate an add-or-remove guarantee for replacing one unit's data: one step after another.

    A replacement removes one unit and adds another, so it is a group of two. For sums this is the
    doubled sensitivity, which quadruples ρ.

    Raises
    ------
    PrivacyError
        If the guarantee is not for adding or removing.
    """
    if guarantee.adjacency != Adjacency.ADD_REMOVE:
        raise PrivacyError(
            f"a guarantee for {guarantee.adjacency} cannot be restated as replace-record;"
            " only one for add-remove can"
        )
    return replace(guarantee.scale(2), adjacency=Adjacency.REPLACE_RECORD)


def _remaining(delta: Fraction, failure: Fraction) -> Fraction:
    """What of δ the conversion may use."""
    if delta <= failure:
        raise PrivacyError(
            f"delta={float(delta)} must be above the failure probability {float(failure)}: a"
            " concentrated guarantee has no finite epsilon below it"
        )
    return delta - failure


def _response_curve(epsilon: Fraction, orders: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """RDP of randomized response, ``ln(p^α q^{1-α} + q^α p^{1-α}) / (α - 1)``, p = e^ε q."""
    e = float(epsilon)
    log_p, log_q = -math.log1p(math.exp(-e)), -e - math.log1p(math.exp(-e))
    alphas = np.array([float(order) for order in orders])
    moments = np.logaddexp(
        alphas * log_p + (1 - alphas) * log_q, alphas * log_q + (1 - alphas) * log_p
    )
    # the logarithm of a number near 1 has an absolute error, which the division by α - 1 magnifies
    error = 1e-15 * (1 + np.abs(alphas * log_q))
    bounds, half = (np.maximum(moments, 0) + error) / (alphas - 1), epsilon * epsilon / 2
    return tuple(
        min(Fraction(above(bound)), epsilon, order * half)
        for bound, order in zip(bounds.tolist(), orders, strict=True)
    )


def _response_epsilon(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Least ε' at which randomized response with ε is (ε', δ)-DP."""
    if delta == 0 or epsilon == 0:
        return epsilon
    e, d = float(epsilon), float_below(delta)
    # ln(e^ε - δ (1 + e^ε)) = ε + ln(1 - δ (1 + e^-ε))
    rest = -d * (1 + math.exp(-e))
    if rest <= math.expm1(-e):
        return Fraction(0)
    bound = e + math.log1p(rest)
    # computed from ε rounded to the nearest float; one unit of it is far below the slack
    return min(epsilon, Fraction(above(bound) + above(e * 1e-15)))


def _best_between(curve: RenyiDP, delta: Fraction) -> list[Fraction]:
    """Return the orders between the curve's own at which the conversion has a local minimum.

    On a chord ``λ ε(1+λ) = m + sλ``, with λ = α − 1, the converted ε has the derivative
    ``(ln(1+λ) + ln δ − m)/λ²``: it falls up to ``α = e^m / δ`` and rises from there.
    """
    lam = np.array([0.0, *(float(order - 1) for order in curve.orders)])
    moments = lam * [0.0, *map(float, curve.values)]
    intercepts = moments[1:] - lam[1:] * np.diff(moments) / np.diff(lam)
    log_delta = _log_below(delta)
    best = np.exp(np.minimum(intercepts - log_delta, 700.0))
    inside = (lam[:-1] + 1 < best) & (best < lam[1:] + 1)
    return [order for order in map(Fraction, best[inside].tolist()) if order < curve.orders[-1]]


def _log_below(delta: Fraction) -> float:
    if delta < _LEAST_DELTA:
        raise PrivacyError(f"delta={float(delta)} must leave at least 1e-300 for this conversion")
    return math.log(float_below(delta))


def _least_over(orders: Floats, values: Floats, delta: Fraction) -> Fraction:
    if delta >= 1:
        return Fraction(0)
    log_delta = _log_below(delta)
    gain = np.log1p(-1 / orders) - (log_delta + np.log(orders)) / (orders - 1)
    bounds = values + gain
    error = 1e-15 * (np.abs(values) + np.abs(gain) + np.abs(log_delta) / (orders - 1)) * 4
    best = float(np.min(bounds + error))
    return Fraction(above(best)) if best > 0 else Fraction(0)
