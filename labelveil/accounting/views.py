"""The same mechanism composed in every way known, side by side.

For m releases of one mechanism, ε at a fixed δ by

- *basic* composition: m ε₀, with δ shared equally among releases that have no pure ε;
- *advanced* composition (Dwork and Roth 2014, Theorem 3.20), likewise;
- *optimal* composition of the releases' (ε₀, δ₀) alone (Kairouz, Oh, Viswanath 2015);
- *RDP*, the moments accountant (Abadi et al. 2016; Mironov 2017), from the mechanism's own curve;
- *PLD*, from the mechanism's own loss distribution: the least that any accountant can say;
- *filter*: a limit that admits m of them, each chosen after seeing all outputs before it;
- *odometer*: what may be said after the m-th, at a moment that outputs chose too.

Every number is a valid bound; they differ in how much of the mechanism they know, and in what may
be chosen on the way. ∞ stands where a method has no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction

from labelveil.accounting.mechanisms import Mechanism
from labelveil.common.errors import PrivacyError, not_none
from labelveil.common.exact.rational import rational
from labelveil.common.exact.rounding import float_above
from labelveil.common.guarantees import (
    Guarantee,
    Odometer,
    PureDP,
    RenyiDP,
    advanced_composition,
    epsilon_at,
    optimal_composition,
    to_pure,
    to_renyi,
    to_zcdp,
)
from labelveil.common.guarantees.pld import available

METHODS = ("basic", "advanced", "optimal", "RDP", "PLD", "filter", "odometer")

_RELEASE_SHARE = Fraction(1, 2)
"""Of δ, what goes to the releases' own δ₀ where they need one; the rest is left to composition."""


def composition_view(
    release: Mechanism, times: Sequence[int], delta: float, methods: Sequence[str] = METHODS
) -> dict[str, list[float]]:
    """ε at δ in (0, 1) of m releases, for each m >= 1 of ``times``, by every method.

    PLD is left out where the mechanism has no loss distribution, or dp-accounting is not installed.
    """
    if not 0 < delta < 1:
        raise PrivacyError(f"delta={delta} must lie in (0, 1)")
    if not times or min(times) < 1:
        raise PrivacyError(f"times={list(times)} must be numbers of at least 1")
    view: dict[str, list[float]] = {}
    for method in methods:
        if method != "PLD" or (release.loss is not None and available()):
            view[method] = [_composed(release, m, rational(delta), method) for m in times]
    return view


def _composed(release: Mechanism, m: int, delta: Fraction, method: str) -> float:
    own = release.guarantee
    try:
        if method == "RDP":
            curve = own if isinstance(own, RenyiDP) else to_renyi(own)
            return epsilon_at(curve.repeat(m), delta)
        if method == "PLD":
            return not_none(release.loss)().repeat(m).epsilon(float(delta))
        if method == "filter":  # the best limit, of any kind, that admits this many
            limits = (
                form.repeat(m) for form in _restated(own, to_pure, to_zcdp, lambda same: same)
            )
            return min(epsilon_at(limit, delta) for limit in limits)
        if method == "odometer":  # failure probabilities of the releases are part of δ
            spent = to_zcdp(own).repeat(m)
            odometer = Odometer(delta - spent.exact_delta)
            odometer.record(spent)
            return odometer.reading().epsilon
        return _from_bounds(release, m, delta, method)
    except PrivacyError:
        return math.inf


def _from_bounds(release: Mechanism, m: int, delta: Fraction, method: str) -> float:
    """From each release's pure ε, or else from its (ε₀, δ₀) at its part of δ."""
    pure = next(_restated(release.guarantee, to_pure), None)
    if method == "basic":
        bound = pure if isinstance(pure, PureDP) else release.approximate(delta / m)
        return float_above(bound.exact_epsilon * m)
    bound = pure if isinstance(pure, PureDP) else release.approximate(delta * _RELEASE_SHARE / m)
    if method == "optimal":
        return optimal_composition([bound] * m, delta).epsilon
    slack = delta if bound is pure else delta * (1 - _RELEASE_SHARE)
    return float_above(advanced_composition(bound.exact_epsilon, m, slack))


def _restated(own: Guarantee, *kinds: Callable[[Guarantee], Guarantee]) -> Iterator[Guarantee]:
    for kind in kinds:
        with suppress(PrivacyError):
            yield kind(own)
