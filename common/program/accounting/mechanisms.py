"""Mechanisms by name, each in every form that an accountant can use; sensitivities are 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from common.errors import ConfigError
from common.guarantees import (
    Adjacency,
    ApproximateDP,
    BoundedRange,
    Guarantee,
    PureDP,
    fixed_size_gaussian,
    subsampled_gaussian,
    to_approximate,
)
from common.guarantees.gaussian import gaussian_sigma, gaussian_zcdp
from common.guarantees.pld import PrivacyLoss
from common.mechanisms.continual.tree import TreeNoise
from common.mechanisms.interactive import SparseVector, Terms
from common.mechanisms.interactive.targets import not_prior
from common.mechanisms.selection import Peeling, StableTopK


@dataclass(frozen=True)
class Mechanism:
    """One release in every form that an accountant can use.

    Attributes
    ----------
    name
        In words.
    own
        Its own guarantee.
    loss
        Builds its loss distribution; None if none is known.
    tighter
        From δ₀ > 0 to its (ε₀, δ₀), where that is more than ``own`` says.
    """

    name: str
    own: Guarantee
    loss: Callable[[], PrivacyLoss] | None = None
    tighter: Callable[[Fraction], ApproximateDP] | None = None

    def bounded(self, delta: Fraction) -> ApproximateDP:
        """Its (ε₀, δ₀) at δ₀ > 0."""
        return (self.tighter or (lambda d: to_approximate(self.own, d)))(delta)


@dataclass(frozen=True)
class Numbers:
    """What mechanisms are made from; each needs some of it.

    Attributes
    ----------
    epsilon
        ε₀ of one release, draw or call.
    noise
        Scale of Laplace noise, σ of Gaussian noise.
    rate
        Of samples.
    count
        k of top-k, c of SVT, τ of target charging, T of a tree.
    rho
        ρ of StableTopK.
    failure
        δ_t of its test.
    """

    epsilon: float | None = None
    noise: float | None = None
    rate: float = 1.0
    count: int = 1
    rho: float | None = None
    failure: float = 1e-12


_RANGES = {"epsilon": (1e-6, 20.0), "noise": (0.05, 1e4), "rho": (1e-9, 100.0)}


def mechanism(name: str, numbers: Numbers) -> Mechanism:
    """Build one release by name.

    Raises
    ------
    ConfigError
        For a name that is not in :data:`MECHANISMS`, or a number that is missing or out of range.
    """
    if name not in MECHANISMS:
        raise ConfigError(f"mechanism {name!r} must be one of {', '.join(MECHANISMS)}")
    needed, build, _ = MECHANISMS[name]
    for option in needed:
        value, (low, high) = getattr(numbers, option), _RANGES[option]
        if value is None or not low <= value <= high:
            raise ConfigError(
                f"{option}={value} must lie in {low:g} … {high:g} for {name}; pass --{option}"
            )
    if not 0 < numbers.rate <= 1:
        raise ConfigError(f"rate={numbers.rate} must lie in (0, 1]")
    if not 1 <= numbers.count <= 1_000_000:
        raise ConfigError(f"count={numbers.count} must lie in 1 … 1,000,000")
    if not 0 < numbers.failure < 1:
        raise ConfigError(f"failure={numbers.failure} must lie in (0, 1)")
    return build(numbers)


def _pure(given: Numbers) -> Mechanism:
    pure = PureDP.of(given.epsilon or 0, Adjacency.ADD_REMOVE)
    return Mechanism(f"ε-DP, ε = {given.epsilon:g}", pure, lambda: PrivacyLoss.of_pure(pure))


def _laplace(given: Numbers) -> Mechanism:
    scale = Fraction(given.noise or 0)
    return Mechanism(
        f"discrete Laplace noise of scale {given.noise:g} on a count",
        PureDP.of(1 / scale, Adjacency.ADD_REMOVE),
        lambda: PrivacyLoss.of_discrete_laplace(scale),
    )


def _gaussian(given: Numbers) -> Mechanism:
    sigma = given.noise or 0.0
    return Mechanism(
        f"Gaussian, σ = {sigma:g}",
        gaussian_zcdp(Fraction(sigma) ** 2),
        lambda: PrivacyLoss.of_gaussian(sigma),
        lambda delta: _gaussian_bound(sigma, delta),
    )


def _sampled_gaussian(given: Numbers) -> Mechanism:
    sigma = given.noise or 0.0
    return Mechanism(
        f"Gaussian, σ = {sigma:g}, on Poisson samples of rate {given.rate:g}",
        subsampled_gaussian(sigma, given.rate),
        lambda: PrivacyLoss.of_gaussian(sigma, rate=given.rate),
    )


def _fixed_size_gaussian(given: Numbers) -> Mechanism:
    return Mechanism(
        f"Gaussian, σ = {given.noise:g}, on samples of a fixed share of {given.rate:g}, replacing",
        fixed_size_gaussian(given.noise or 0.0, given.rate),
    )


def _exponential(given: Numbers) -> Mechanism:
    return Mechanism(
        f"exponential mechanism, ε = {given.epsilon:g}",
        BoundedRange.of(given.epsilon or 0, Adjacency.ADD_REMOVE),
    )


def _top_k(given: Numbers) -> Mechanism:
    return Mechanism(
        f"top {given.count:,} by peeling, ε = {given.epsilon:g} a draw",
        Peeling(given.count, Fraction(given.epsilon or 0)).guarantee,
    )


def _stable_top_k(given: Numbers) -> Mechanism:
    made = StableTopK(Fraction(given.rho or 0), Fraction(given.failure))
    return Mechanism(f"StableTopK, ρ = {given.rho:g}, δ_t = {given.failure:g}", made.guarantee)


def _svt(given: Numbers) -> Mechanism:
    made = SparseVector.best_split(given.count, Fraction(given.epsilon or 0))
    return Mechanism(
        f"sparse vector until {given.count:,} above, ε = {given.epsilon:g}", made.guarantee()
    )


def _target_charging(given: Numbers) -> Mechanism:
    terms = Terms(not_prior(Fraction(given.epsilon or 0)), given.count)
    return Mechanism(
        f"calls of ε = {given.epsilon:g} until {given.count:,} outcomes but the expected",
        terms.renyi_guarantee,
        tighter=terms.guarantee,
    )


def _tree(given: Numbers) -> Mechanism:
    made = TreeNoise(given.count, 1, Fraction(given.noise or 0) ** 2)
    return Mechanism(f"{given.count:,} running counts, σ = {given.noise:g} a node", made.guarantee)


MECHANISMS: dict[str, tuple[tuple[str, ...], Callable[[Numbers], Mechanism], str]] = {
    "pure": (("epsilon",), _pure, "randomized response, the worst ε-DP mechanism"),
    "laplace": (("noise",), _laplace, "discrete Laplace noise"),
    "gaussian": (("noise",), _gaussian, "Gaussian noise"),
    "sampled-gaussian": (("noise",), _sampled_gaussian, "a step of DP-SGD"),
    "fixed-size-gaussian": (("noise",), _fixed_size_gaussian, "the same, samples of one size"),
    "exponential": (("epsilon",), _exponential, "the exponential mechanism"),
    "top-k": (("epsilon",), _top_k, "the --count best of a list"),
    "stable-top-k": (("rho",), _stable_top_k, "top-k with an adaptive k"),
    "svt": (("epsilon",), _svt, "sparse vector until --count are above"),
    "target-charging": (("epsilon",), _target_charging, "calls until --count hits"),
    "tree": (("noise",), _tree, "running counts of a stream of --count numbers"),
}
"""By name: the numbers that it needs, how it is built, and what it is."""


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
