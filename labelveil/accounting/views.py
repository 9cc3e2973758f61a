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

from common.errors import PrivacyError
from common.exact.rounding import float_above
from common.guarantees import (
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
from common.guarantees.pld import available
from labelveil.accounting.mechanisms import Mechanism

METHODS = ("basic", "advanced", "optimal", "RDP", "PLD", "filter", "odometer")

_RELEASE_SHARE = Fraction(1, 2)
"""Of δ, what goes to the releases' own δ₀ where they need one; the rest is left to composition."""


def composition_view(
    release: Mechanism, times: Sequence[int], delta: float, methods: Sequence[str] = METHODS
) -> dict[str, list[float]]:
    """ε of m releases by every method.

    Parameters
    ----------
    release
        One release.
    times
        Numbers m >= 1 of releases.
    delta
        δ of the result, in (0, 1).
    methods
        Which; PLD is left out where the mechanism has no loss distribution, or dp-accounting is not
        installed.
    """
    if not 0 < delta < 1:
        raise PrivacyError(f"delta={delta} must lie in (0, 1)")
    if not times or min(times) < 1:
        raise PrivacyError(f"times={list(times)} must be numbers of at least 1")
    view: dict[str, list[float]] = {}
    for method in methods:
        if method != "PLD" or (release.loss is not None and available()):
            view[method] = [_composed(release, m, Fraction(delta), method) for m in times]
    return view


def _composed(release: Mechanism, m: int, delta: Fraction, method: str) -> float:
    try:
        if method == "RDP":
            own = release.own if isinstance(release.own, RenyiDP) else to_renyi(release.own)
            return epsilon_at(own.repeat(m), delta)
        if method == "PLD" and release.loss is not None:
            return release.loss().repeat(m).epsilon(float(delta))
        if method == "filter":
            return _filtered(release.own, m, delta)
        if method == "odometer":
            return _read(release.own, m, delta)
        return _from_bounds(release, m, delta, method)
    except PrivacyError:
        return math.inf


def _from_bounds(release: Mechanism, m: int, delta: Fraction, method: str) -> float:
    pure = next(_restated(release.own, to_pure), None)
    if method == "basic":
        if isinstance(pure, PureDP):
            return float_above(pure.exact_epsilon * m)
        return float_above(release.bounded(delta / m).exact_epsilon * m)
    one = pure if isinstance(pure, PureDP) else release.bounded(delta * _RELEASE_SHARE / m)
    if method == "optimal":
        return optimal_composition([one] * m, delta).epsilon
    left = delta if one is pure else delta * (1 - _RELEASE_SHARE)
    return float_above(advanced_composition(one.exact_epsilon, m, left))


def _restated(own: Guarantee, *kinds: Callable[[Guarantee], Guarantee]) -> Iterator[Guarantee]:
    for kind in kinds:
        with suppress(PrivacyError):
            yield kind(own)


def _filtered(own: Guarantee, m: int, delta: Fraction) -> float:
    """ε of the best limit, of any kind, whose :class:`~common.guarantees.Filter` admits them."""
    forms = _restated(own, to_pure, to_zcdp, lambda same: same)
    return min(epsilon_at(limit, delta) for limit in (form.repeat(m) for form in forms))


def _read(own: Guarantee, m: int, delta: Fraction) -> float:
    """What an odometer says after m such releases; their failure probabilities are part of δ."""
    spent = to_zcdp(own).repeat(m)
    odometer = Odometer(delta - spent.exact_delta)
    odometer.record(spent)
    return odometer.reading().epsilon
