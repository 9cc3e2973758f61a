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
from common.mechanisms.interactive.targets import Target, boundary, not_prior
from common.mechanisms.pate import GNMax
from common.mechanisms.selection import (
    Law,
    LimitedDomain,
    NoisyMax,
    Peeling,
    StableTopK,
    TopStable,
)


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
        k of top-k, c of SVT, τ of target charging, T of a tree, m of a noisy maximum.
    rho
        ρ of StableTopK.
    failure
        δ_t of its test; δ of what has one of its own.
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


def _approximate(given: Numbers) -> Mechanism:
    return Mechanism(
        f"(ε, δ)-DP, ε = {given.epsilon:g}, δ = {given.failure:g}",
        ApproximateDP.of(given.epsilon or 0, given.failure, Adjacency.ADD_REMOVE),
    )


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


def _limited_domain(given: Numbers) -> Mechanism:
    k, domain = given.count, 2 * given.count
    made = LimitedDomain(k, domain, Fraction(given.epsilon or 0), Fraction(given.failure))
    return Mechanism(
        f"limited domain, {k:,} of {domain:,} leaders, ε = {given.epsilon:g} a draw", made.guarantee
    )


def _top_stable(given: Numbers) -> Mechanism:
    made = TopStable(given.count, Fraction(given.epsilon or 0), Fraction(given.failure))
    return Mechanism(f"Top-Stable, k = {given.count:,}, ε = {given.epsilon:g}", made.guarantee)


def _noisy_max(given: Numbers) -> Mechanism:
    made = NoisyMax(Law.GAUSSIAN, variance=Fraction(given.noise or 0) ** 2)
    return Mechanism(
        f"largest of {given.count:,}, Gaussian noise σ = {given.noise:g}",
        made.guarantee(given.count),
    )


def _gnmax(given: Numbers) -> Mechanism:
    made = GNMax(Fraction(given.noise or 0) ** 2)
    return Mechanism(f"an answer of GNMax, σ = {given.noise:g}", made.guarantee(1))


def _svt(given: Numbers) -> Mechanism:
    made = SparseVector.best_split(given.count, Fraction(given.epsilon or 0))
    return Mechanism(
        f"sparse vector until {given.count:,} above, ε = {given.epsilon:g}", made.guarantee()
    )


def _target_charging(given: Numbers) -> Mechanism:
    return _session(not_prior(Fraction(given.epsilon or 0)), given, "outcomes but the expected")


def _boundary(given: Numbers) -> Mechanism:
    return _session(boundary(Fraction(given.epsilon or 0)), given, "answers at the boundary")


def _session(target: Target, given: Numbers, hits: str) -> Mechanism:
    terms = Terms(target, given.count)
    name = f"calls of ε = {given.epsilon:g} until {given.count:,} {hits}"
    return Mechanism(name, terms.renyi_guarantee, tighter=terms.guarantee)


def _tree(given: Numbers) -> Mechanism:
    made = TreeNoise(given.count, 1, Fraction(given.noise or 0) ** 2)
    return Mechanism(f"{given.count:,} running counts, σ = {given.noise:g} a node", made.guarantee)


MECHANISMS: dict[str, tuple[tuple[str, ...], Callable[[Numbers], Mechanism], str]] = {
    "pure": (("epsilon",), _pure, "randomized response, the worst ε-DP one"),
    "approximate": (("epsilon",), _approximate, "any (ε, δ)-DP one"),
    "laplace": (("noise",), _laplace, "discrete Laplace noise"),
    "gaussian": (("noise",), _gaussian, "Gaussian noise"),
    "sampled-gaussian": (("noise",), _sampled_gaussian, "a step of DP-SGD"),
    "fixed-size-gaussian": (("noise",), _fixed_size_gaussian, "the same, samples of one size"),
    "exponential": (("epsilon",), _exponential, "the exponential mechanism"),
    "top-k": (("epsilon",), _top_k, "the --count best of a list"),
    "stable-top-k": (("rho",), _stable_top_k, "top-k with an adaptive k"),
    "limited-domain": (("epsilon",), _limited_domain, "top-k of twice as many leaders, no list"),
    "top-stable": (("epsilon",), _top_stable, "top-k by the sparse vector"),
    "noisy-max": (("noise",), _noisy_max, "the largest of --count gaps plus Gaussian noise"),
    "gnmax": (("noise",), _gnmax, "an answer of PATE's GNMax"),
    "svt": (("epsilon",), _svt, "sparse vector until --count are above"),
    "target-charging": (("epsilon",), _target_charging, "calls until --count hits"),
    "boundary": (("epsilon",), _boundary, "the same in the boundary wrapper"),
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
