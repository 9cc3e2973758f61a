"""The same mechanism composed in every way known, side by side.

For m releases of one mechanism, ε at a fixed δ by

- *basic* composition: m ε₀, with δ shared equally among releases that have no pure ε;
- *advanced* composition (Dwork and Roth 2014, Theorem 3.20), likewise;
- *optimal* composition of the releases' (ε₀, δ₀) alone (Kairouz, Oh, Viswanath 2015);
- *RDP*, the moments accountant (Abadi et al. 2016; Mironov 2017), from the mechanism's own curve;
- *PLD*, from the mechanism's own loss distribution: the least that any accountant can say.

Every number is a valid bound; they differ in how much of the mechanism they know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from common.errors import ConfigError, PrivacyError
from common.exact.rounding import float_above
from common.guarantees.approximate import ApproximateDP
from common.guarantees.base import Adjacency, Guarantee
from common.guarantees.composition import advanced_composition, optimal_composition
from common.guarantees.conversion import epsilon_at, to_approximate, to_renyi
from common.guarantees.gaussian import gaussian_sigma, gaussian_zcdp
from common.guarantees.pld import PrivacyLoss, available
from common.guarantees.pure import PureDP
from common.guarantees.subsampling import subsampled_gaussian

METHODS = ("basic", "advanced", "optimal", "RDP", "PLD")
MECHANISMS = ("pure", "gaussian", "sampled-gaussian")

_RELEASE_SHARE = Fraction(1, 2)
"""Of δ, what goes to the releases' own δ₀ where they need one; the rest is left to composition."""


@dataclass(frozen=True)
class Mechanism:
    """One release in every form that an accountant can use.

    Attributes
    ----------
    name
        In words.
    own
        Its own guarantee: pure, or a curve.
    bounded
        From δ₀ > 0 to its (ε₀, δ₀); not asked of a pure mechanism.
    loss
        Builds its loss distribution.
    """

    name: str
    own: Guarantee
    bounded: Callable[[Fraction], ApproximateDP]
    loss: Callable[[], PrivacyLoss]


def mechanism(
    name: str, epsilon: float | None = None, noise: float | None = None, rate: float = 1.0
) -> Mechanism:
    """Build one release by name, with sensitivity 1.

    Parameters
    ----------
    name
        ``pure`` (randomized response, the worst ε-DP mechanism), ``gaussian``, or
        ``sampled-gaussian``, a step of DP-SGD.
    epsilon
        ε₀ of the first.
    noise
        σ of the others.
    rate
        Sampling rate of the last.
    """
    if name not in MECHANISMS:
        raise ConfigError(f"mechanism {name!r} must be one of {', '.join(MECHANISMS)}")
    if name == "pure":
        if epsilon is None or not 0 < epsilon <= 20:
            raise ConfigError(f"epsilon={epsilon} must lie in (0, 20] for {name}; pass --epsilon")
        pure = PureDP.of(epsilon, Adjacency.ADD_REMOVE)
        return Mechanism(
            f"ε-DP, ε = {epsilon:g}",
            pure,
            lambda delta: to_approximate(pure, delta),
            lambda: PrivacyLoss.of_pure(pure),
        )
    if noise is None or not 0.05 <= noise <= 1e4:
        raise ConfigError(f"noise={noise} must lie in 0.05 … 10000 for {name}; pass --noise")
    if not 0 < rate <= 1:
        raise ConfigError(f"rate={rate} must lie in (0, 1]")
    if name == "gaussian":
        curve = to_renyi(gaussian_zcdp(Fraction(noise) ** 2))
        return Mechanism(
            f"Gaussian, σ = {noise:g}",
            curve,
            lambda delta: _gaussian_bound(noise, delta),
            lambda: PrivacyLoss.of_gaussian(noise),
        )
    sampled = subsampled_gaussian(noise, rate)
    return Mechanism(
        f"Gaussian, σ = {noise:g}, on samples of rate {rate:g}",
        sampled,
        lambda delta: to_approximate(sampled, delta),
        lambda: PrivacyLoss.of_gaussian(noise, rate=rate),
    )


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
        Which; PLD is left out where dp-accounting is not installed.
    """
    if not 0 < delta < 1:
        raise PrivacyError(f"delta={delta} must lie in (0, 1)")
    if not times or min(times) < 1:
        raise PrivacyError(f"times={list(times)} must be numbers of at least 1")
    view: dict[str, list[float]] = {}
    for method in methods:
        if method != "PLD" or available():
            view[method] = [_composed(release, m, Fraction(delta), method) for m in times]
    return view


def _composed(release: Mechanism, m: int, delta: Fraction, method: str) -> float:
    if method == "RDP":
        return epsilon_at(to_renyi(release.own).repeat(m), delta)
    if method == "PLD":
        return release.loss().repeat(m).epsilon(float(delta))
    pure = release.own if isinstance(release.own, PureDP) else None
    if method == "basic":
        return float_above((pure or release.bounded(delta / m)).exact_epsilon * m)
    one = pure or release.bounded(delta * _RELEASE_SHARE / m)
    if method == "optimal":
        return optimal_composition([one] * m, delta).epsilon
    left = delta if pure else delta * (1 - _RELEASE_SHARE)
    return float_above(advanced_composition(one.exact_epsilon, m, left))


def _gaussian_bound(noise: float, delta: Fraction) -> ApproximateDP:
    """Least ε₀ at which one Gaussian release is (ε₀, δ₀)-DP, by bisection (Balle and Wang 2018)."""
    low, high = 0.0, 1.0
    while gaussian_sigma(high, float(delta)) > noise:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        if gaussian_sigma(middle, float(delta)) <= noise:
            high = middle
        else:
            low = middle
    return ApproximateDP.of(high, delta, Adjacency.ADD_REMOVE)
