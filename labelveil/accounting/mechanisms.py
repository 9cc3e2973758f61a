"""Mechanisms by name, each in every form that an accountant can use; sensitivities are 1."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from labelveil.common.config import Section, setting
from labelveil.common.errors import ConfigError
from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    BoundedRange,
    Guarantee,
    PureDP,
    fixed_size_gaussian,
    subsampled_gaussian,
    to_approximate,
)
from labelveil.common.guarantees.gaussian import gaussian_delta, gaussian_zcdp
from labelveil.common.guarantees.pld import PrivacyLoss
from labelveil.common.mechanisms.continual import TreeNoise
from labelveil.common.mechanisms.interactive import SparseVector, Terms
from labelveil.common.mechanisms.interactive.targets import boundary, not_prior
from labelveil.common.mechanisms.pate import GNMax
from labelveil.common.mechanisms.selection import (
    Law,
    LimitedDomain,
    NoisyMax,
    Peeling,
    StableTopK,
    TopStable,
)


@dataclass(frozen=True)
class Mechanism:
    """One release in every form that an accountant can use."""

    name: str  # in words
    guarantee: Guarantee
    loss: Callable[[], PrivacyLoss] | None = (
        None  # builds its loss distribution; None if none is known
    )
    # from δ₀ > 0 to an (ε₀, δ₀) that says more than ``guarantee``
    tighter: Callable[[Fraction], ApproximateDP] | None = None

    def approximate(self, delta: Fraction) -> ApproximateDP:
        """Its (ε₀, δ₀) at δ₀ > 0."""
        return self.tighter(delta) if self.tighter else to_approximate(self.guarantee, delta)


class Numbers(Section):
    """What mechanisms are made from; each needs some of it."""

    epsilon: float | None = setting(
        None, "ε: of one release, draw of top-k, call of target-charging."
    )
    noise: float | None = setting(None, "σ of Gaussian noise, scale of Laplace noise.")
    rate: float = setting(1.0, "Sampling rate, if sampled.", gt=0, le=1)
    count: int = setting(
        1, "k; counts above of svt; hits; numbers of tree and noisy-max.", ge=1, le=1_000_000
    )
    rho: float | None = setting(None, "ρ of stable-top-k.")
    failure: float = setting(
        1e-12, "δ of stable-top-k's test and of others that have one.", gt=0, lt=1
    )


_NEIGHBOURS = Adjacency.ADD_REMOVE
_STEPS = 1 << 40
_RANGES = {"epsilon": (1e-6, 20.0), "noise": (0.05, 1e4), "rho": (1e-7, 100.0)}


@dataclass(frozen=True)
class Kind:
    """How a named mechanism is built from the one size that it needs, and the other numbers."""

    size: str  # epsilon, noise or rho
    meaning: str
    name: str  # in words, with the numbers in their places
    build: Callable[[Fraction, Numbers], Guarantee | Terms]
    loss: Callable[[Fraction, Numbers], PrivacyLoss] | None = None
    tighter: Callable[[Fraction, Fraction], ApproximateDP] | None = None  # of the size and δ₀


def mechanism(name: str, numbers: Numbers) -> Mechanism:
    """Build one release by name.

    ``ConfigError`` for a name that is not in :data:`MECHANISMS`, or a number that is missing or out
    of range.
    """
    if name not in MECHANISMS:
        raise ConfigError(f"mechanism {name!r} must be one of {', '.join(MECHANISMS)}")
    kind = MECHANISMS[name]
    value, (low, high) = getattr(numbers, kind.size), _RANGES[kind.size]
    if value is None or not low <= value <= high:
        raise ConfigError(
            f"{kind.size}={value} must lie in {low:g} … {high:g} for {name}; pass --{kind.size}"
        )
    size, words = Fraction(value), kind.name.format(**numbers.model_dump(), twice=2 * numbers.count)
    built = kind.build(size, numbers)
    if isinstance(built, Terms):
        return Mechanism(words, built.guarantee, tighter=built.approximate)
    return Mechanism(
        words,
        built,
        kind.loss and partial(kind.loss, size, numbers),
        kind.tighter and partial(kind.tighter, size),
    )


def _gaussian_bound(sigma: Fraction, delta: Fraction) -> ApproximateDP:
    """The least ε₀, a multiple of 2⁻⁴⁰, at which one Gaussian release is (ε₀, δ₀)-DP."""
    reaches = lambda step: gaussian_delta(float(sigma), step / _STEPS) <= delta  # noqa: E731
    epsilon = Fraction(bisect_left(range(_STEPS << 12), True, key=reaches), _STEPS)
    return ApproximateDP.of(epsilon, delta, _NEIGHBOURS)


MECHANISMS: dict[str, Kind] = {
    "pure": Kind(
        "epsilon",
        "randomized response, the worst ε-DP one",
        "ε-DP, ε = {epsilon:g}",
        lambda epsilon, _: PureDP.of(epsilon, _NEIGHBOURS),
        lambda epsilon, _: PrivacyLoss.of_pure(PureDP.of(epsilon, _NEIGHBOURS)),
    ),
    "approximate": Kind(
        "epsilon",
        "any (ε, δ)-DP one",
        "(ε, δ)-DP, ε = {epsilon:g}, δ = {failure:g}",
        lambda epsilon, n: ApproximateDP.of(epsilon, n.failure, _NEIGHBOURS),
    ),
    "laplace": Kind(
        "noise",
        "discrete Laplace noise",
        "discrete Laplace noise of scale {noise:g} on a count",
        lambda scale, _: PureDP.of(1 / scale, _NEIGHBOURS),
        lambda scale, _: PrivacyLoss.of_discrete_laplace(scale),
    ),
    "gaussian": Kind(
        "noise",
        "Gaussian noise",
        "Gaussian, σ = {noise:g}",
        lambda sigma, _: gaussian_zcdp(sigma**2),
        lambda sigma, _: PrivacyLoss.of_gaussian(float(sigma)),
        _gaussian_bound,
    ),
    "sampled-gaussian": Kind(
        "noise",
        "a step of DP-SGD",
        "Gaussian, σ = {noise:g}, on Poisson samples of rate {rate:g}",
        lambda sigma, n: subsampled_gaussian(sigma, n.rate),
        lambda sigma, n: PrivacyLoss.of_gaussian(float(sigma), rate=n.rate),
    ),
    "fixed-size-gaussian": Kind(
        "noise",
        "the same, samples of one size",
        "Gaussian, σ = {noise:g}, on samples of a fixed share of {rate:g}, replacing",
        lambda sigma, n: fixed_size_gaussian(sigma, n.rate),
    ),
    "exponential": Kind(
        "epsilon",
        "the exponential mechanism",
        "exponential mechanism, ε = {epsilon:g}",
        lambda epsilon, _: BoundedRange.of(epsilon, _NEIGHBOURS),
    ),
    "top-k": Kind(
        "epsilon",
        "the --count best of a list",
        "top {count:,} by peeling, ε = {epsilon:g} a draw",
        lambda epsilon, n: Peeling(n.count, epsilon).guarantee,
    ),
    "stable-top-k": Kind(
        "rho",
        "top-k with an adaptive k",
        "StableTopK, ρ = {rho:g}, δ_t = {failure:g}",
        lambda rho, n: StableTopK(rho, Fraction(n.failure)).guarantee,
    ),
    "limited-domain": Kind(
        "epsilon",
        "top-k of twice as many leaders, no list",
        "limited domain, {count:,} of {twice:,} leaders, ε = {epsilon:g} a draw",
        lambda e, n: LimitedDomain(n.count, 2 * n.count, e, Fraction(n.failure)).guarantee,
    ),
    "top-stable": Kind(
        "epsilon",
        "top-k by the sparse vector",
        "Top-Stable, k = {count:,}, ε = {epsilon:g}",
        lambda epsilon, n: TopStable(n.count, epsilon, Fraction(n.failure)).guarantee,
    ),
    "noisy-max": Kind(
        "noise",
        "the largest of --count gaps plus Gaussian noise",
        "largest of {count:,}, Gaussian noise σ = {noise:g}",
        lambda sigma, n: NoisyMax(Law.GAUSSIAN, variance=sigma**2).guarantee(n.count),
    ),
    "gnmax": Kind(
        "noise",
        "an answer of PATE's GNMax",
        "an answer of GNMax, σ = {noise:g}",
        lambda sigma, _: GNMax(sigma**2).guarantee(1),
    ),
    "svt": Kind(
        "epsilon",
        "sparse vector until --count are above",
        "sparse vector until {count:,} above, ε = {epsilon:g}",
        lambda epsilon, n: SparseVector.best_split(n.count, epsilon).guarantee,
    ),
    "target-charging": Kind(
        "epsilon",
        "calls until --count hits",
        "calls of ε = {epsilon:g} until {count:,} outcomes but the expected",
        lambda epsilon, n: Terms(not_prior(epsilon), n.count),
    ),
    "boundary": Kind(
        "epsilon",
        "the same in the boundary wrapper",
        "calls of ε = {epsilon:g} until {count:,} answers at the boundary",
        lambda epsilon, n: Terms(boundary(epsilon), n.count),
    ),
    "tree": Kind(
        "noise",
        "running counts of a stream of --count numbers",
        "{count:,} running counts, σ = {noise:g} a node",
        lambda sigma, n: TreeNoise(n.count, 1, sigma**2).guarantee,
    ),
}
