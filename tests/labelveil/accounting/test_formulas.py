"""What each number of a mechanism or a stage does, by the theorems' own formulas."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from labelveil.accounting.allocation import Stage, allocate
from labelveil.accounting.mechanisms import MECHANISMS, Mechanism, Numbers, mechanism
from labelveil.accounting.views import composition_view
from labelveil.common.config import checked
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    BoundedRange,
    Guarantee,
    PureDP,
    RenyiDP,
    Unit,
    ZeroConcentratedDP,
    largest_rho,
)
from labelveil.common.guarantees.gaussian import gaussian_delta

WORDS = {
    "pure": "ε-DP, ε = 0.25",
    "approximate": "(ε, δ)-DP, ε = 0.25, δ = 1e-08",
    "laplace": "discrete Laplace noise of scale 20 on a count",
    "gaussian": "Gaussian, σ = 20",
    "sampled-gaussian": "Gaussian, σ = 20, on Poisson samples of rate 0.125",
    "fixed-size-gaussian": "Gaussian, σ = 20, on samples of a fixed share of 0.125, replacing",
    "exponential": "exponential mechanism, ε = 0.25",
    "top-k": "top 5 by peeling, ε = 0.25 a draw",
    "stable-top-k": "StableTopK, ρ = 0.005, δ_t = 1e-08",
    "limited-domain": "limited domain, 5 of 10 leaders, ε = 0.25 a draw",
    "top-stable": "Top-Stable, k = 5, ε = 0.25",
    "noisy-max": "largest of 5, Gaussian noise σ = 20",
    "gnmax": "an answer of GNMax, σ = 20",
    "svt": "sparse vector until 5 above, ε = 0.25",
    "target-charging": "calls of ε = 0.25 until 5 outcomes but the expected",
    "boundary": "calls of ε = 0.25 until 5 answers at the boundary",
    "tree": "5 running counts, σ = 20 a node",
}
NUMBERS = Numbers(epsilon=0.25, noise=20.0, rate=0.125, count=5, rho=0.005, failure=1e-8)


def made(name: str) -> Mechanism:
    return mechanism(name, NUMBERS)


def test_a_release_says_all_numbers_that_it_is_made_of() -> None:
    assert {name: made(name).name for name in MECHANISMS} == WORDS


def zcdp(rho: Fraction, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Guarantee:
    return ZeroConcentratedDP(adjacency, Unit.RECORD, rho, Fraction(0))


def test_guarantees_follow_from_their_numbers() -> None:
    quarter, sides = Fraction(1, 4), (Adjacency.ADD_REMOVE, Unit.RECORD)
    known: dict[str, Guarantee] = {
        "pure": PureDP(*sides, quarter),
        "approximate": ApproximateDP(*sides, quarter, Fraction(1e-8)),
        "laplace": PureDP(*sides, Fraction(1, 20)),
        "gaussian": zcdp(Fraction(1, 800)),
        "exponential": BoundedRange(*sides, ((quarter, 1),)),
        "top-k": BoundedRange(Adjacency.ADD_REMOVE, Unit.USER, ((quarter, 5),)),
        # one vote replaces another: the difference of two counts, so twice the squared distance
        "gnmax": zcdp(Fraction(1, 400), Adjacency.REPLACE_RECORD),
        # a number is in one node of each of the 3 levels of a tree of 5
        "tree": zcdp(Fraction(3, 800)),
    }
    for name, guarantee in known.items():
        assert made(name).guarantee == guarantee, name


def moment(order: int, sigma: float, rate: float) -> float:
    """Rényi divergence of a Poisson-sampled Gaussian at a whole order.

    Source: Mironov, Talwar, Zhang, *Rényi Differential Privacy of the Sampled Gaussian Mechanism*,
    2019, Section 3.3.
    """
    terms = (
        math.comb(order, k)
        * (1 - rate) ** (order - k)
        * rate**k
        * math.exp(k * (k - 1) / (2 * sigma**2))
        for k in range(order + 1)
    )
    return math.log(math.fsum(terms)) / (order - 1)


@pytest.mark.parametrize("order", [2, 3, 8, 32])
def test_sampled_noise_has_the_published_moments(order: int) -> None:
    sampled, fixed = (made(name).guarantee for name in ("sampled-gaussian", "fixed-size-gaussian"))
    assert isinstance(sampled, RenyiDP)
    assert isinstance(fixed, RenyiDP)
    assert float(sampled.at(order)) == pytest.approx(moment(order, 20.0, 0.125), rel=1e-6)
    # replacing costs more than adding, and no more than all of it: two Gaussians 1 apart
    assert sampled.at(order) < fixed.at(order) < 4 * order / (2 * 20.0**2)
    whole = mechanism("sampled-gaussian", Numbers(noise=20.0)).guarantee  # every event, by default
    assert float(to_renyi(whole, order)) == pytest.approx(order / 800)


def to_renyi(guarantee: Guarantee, order: int) -> float:
    if isinstance(guarantee, ZeroConcentratedDP):
        return order * guarantee.rho
    assert isinstance(guarantee, RenyiDP)
    return float(guarantee.at(order))


def test_what_hits_cost_grows_with_their_number_and_failures_are_counted() -> None:
    def epsilon(name: str, **other: float) -> float:
        numbers = NUMBERS.model_copy(update=other)
        return mechanism(name, numbers).approximate(Fraction(1, 10**6)).epsilon

    for name in ("limited-domain", "target-charging", "boundary", "top-k", "noisy-max", "tree"):
        assert epsilon(name, count=3) < epsilon(name), name
    for name in ("svt", "top-stable"):  # a budget that so many share
        assert epsilon(name) == pytest.approx(0.25, rel=1e-4)
    failing = {"stable-top-k": 1, "top-stable": 5, "limited-domain": 1, "approximate": 1}
    for name, tests in failing.items():
        delta = made(name).guarantee.to_json()["delta"]
        assert 0 < float(Fraction(delta)) <= tests * 4.1e-8, name
        more = mechanism(name, NUMBERS.model_copy(update={"failure": 1e-7})).guarantee.to_json()
        assert Fraction(more["delta"]) > 5 * Fraction(delta), name
    assert Numbers().failure == 1e-12


@pytest.mark.parametrize(
    ("name", "losses"),
    [("pure", 0.25), ("laplace", 1 / 20), ("approximate", None), ("top-k", None), ("tree", None)],
)
def test_losses_are_those_of_the_mechanism(name: str, losses: float | None) -> None:
    """Where a loss distribution is known, δ = 0 has the pure ε, and others have none."""
    release = made(name)
    if losses is None:
        assert release.loss is None
    else:
        assert release.loss is not None
        pytest.importorskip("dp_accounting")
        assert release.loss().epsilon(1e-12) == pytest.approx(losses, abs=2e-4)


def test_sampled_losses_are_below_those_of_every_event() -> None:
    pytest.importorskip("dp_accounting")
    for noise, rate in ((20.0, 0.125), (2.0, 0.5)):
        loss = mechanism("sampled-gaussian", Numbers(noise=noise, rate=rate)).loss
        assert loss is not None
        epsilon = loss().epsilon(1e-6)
        # a sample of rate q: δ of (ln(1 + q (e^ε - 1))) is q δ(ε), when somebody is removed
        whole = math.log1p(math.expm1(epsilon) / rate)
        assert rate * gaussian_delta(noise, whole) == pytest.approx(1e-6, rel=0.05)


def test_numbers_are_taken_up_to_the_ends_of_their_ranges() -> None:
    ends = {"epsilon": (1e-6, 20.0, "pure"), "noise": (0.05, 1e4, "laplace")}
    ends["rho"] = (1e-7, 100.0, "stable-top-k")
    for field, (low, high, name) in ends.items():
        for value in (low, high):
            mechanism(name, Numbers(**{field: value}))  # type: ignore[arg-type]
        for value in (low / 1.01, high * 1.01):
            with pytest.raises(ConfigError, match=f"^{field}={value} must lie in .*--{field}$"):
                mechanism(name, Numbers(**{field: value}))  # type: ignore[arg-type]
    for limit in (1, 1_000_000):
        mechanism("tree", Numbers(noise=1.0, count=limit))
    with pytest.raises(ConfigError, match="count=1000001"):
        checked(Numbers, {"count": 1_000_001})
    with pytest.raises(ConfigError, match=r"rate=1\.01"):
        checked(Numbers, {"rate": 1.01})
    with pytest.raises(ConfigError, match="failure=1"):
        checked(Numbers, {"failure": 1.0})


def test_a_gaussian_is_stated_at_the_least_epsilon() -> None:
    for sigma, delta in ((0.5, 1e-5), (20.0, 1e-9)):
        found = mechanism("gaussian", Numbers(noise=sigma)).approximate(Fraction(delta))
        assert found.exact_delta == Fraction(delta)
        assert gaussian_delta(sigma, found.epsilon) <= delta
        assert gaussian_delta(sigma, found.epsilon - 1e-9) > delta
    assert composition_view(mechanism("gaussian", Numbers(noise=1e4)), [1], 0.5, ("basic",)) == {
        "basic": [0.0]
    }


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5, -0.1, math.nan])
def test_totals_need_a_delta_between_the_ends(delta: float) -> None:
    with pytest.raises(PrivacyError, match=rf"^delta={delta} must lie in \(0, 1\)"):
        composition_view(made("pure"), [1], delta)
    with pytest.raises(PrivacyError, match=r"times=\[\]"):
        composition_view(made("pure"), [], 0.5)
    assert composition_view(made("pure"), [3, 1], 0.5, ["basic"]) == {"basic": [0.75, 0.25]}


def test_filters_and_odometers_follow_their_theorems() -> None:
    """A limit admits what adds up to it: of pure ε, of ρ, or of ε²/8 for one of bounded range.

    Sources: Whitehouse et al., *Fully-Adaptive Composition in Differential Privacy*, ICML 2023, for
    filters; ρ + 2√(ρ ln 1/δ) bounds from above what zCDP says at δ (Bun and Steinke 2016).
    """
    delta, m = 1e-6, 40
    view = {name: composition_view(made(name), [m], delta) for name in ("pure", "exponential")}
    for name, rho in (("pure", 0.25**2 / 2), ("exponential", 0.25**2 / 8)):
        total = m * rho
        simple = total + 2 * math.sqrt(total * math.log(1 / delta))
        (filtered,), (odometer,) = view[name]["filter"], view[name]["odometer"]
        assert 0.8 * simple < filtered < min(simple, m * 0.25), name
        assert simple < odometer < 2.5 * simple, name
    failing = composition_view(made("stable-top-k"), [10, 1000], delta)
    # 1,000 tests that fail with 1e-8 each take all of δ
    assert failing["odometer"][0] < math.inf
    assert failing["odometer"][1] == failing["filter"][1] == failing["RDP"][1] == math.inf


def test_an_allotment_says_scales_and_costs() -> None:
    stages = [Stage("prior", 2.0, 2.0, 3), Stage("labels")]
    pure = [share.to_json() for share in allocate(stages, 1.5)]
    # (2 · 2²)^⅓ = 2, three times, and 1: sevenths of ε
    budgets = [2 * 1.5 / 7, 1.5 / 7]
    assert [share["budget"] for share in pure] == pytest.approx(budgets)
    assert [share["scale"] for share in pure] == pytest.approx([2 / budgets[0], 1 / budgets[1]])
    variances = [2 * (2 / budgets[0]) ** 2, 2 / budgets[1] ** 2]
    assert [share["cost"] for share in pure] == pytest.approx([2 * variances[0], variances[1]])
    assert {name: pure[0][name] for name in ("name", "weight", "sensitivity", "times")} == {
        "name": "prior", "weight": 2.0, "sensitivity": 2.0, "times": 3,
    }  # fmt: skip
    gaussian = [share.to_json() for share in allocate(stages, 1.5, 1e-5)]
    rho = float(largest_rho(1.5, 1e-5))
    root = math.sqrt(8)
    rhos = [rho * root / (3 * root + 1), rho / (3 * root + 1)]
    assert [share["budget"] for share in gaussian] == pytest.approx(rhos)
    deviations = [2 / math.sqrt(2 * rhos[0]), 1 / math.sqrt(2 * rhos[1])]
    assert [share["scale"] for share in gaussian] == pytest.approx(deviations)
    costs = [2 * deviations[0] ** 2, deviations[1] ** 2]
    assert [share["cost"] for share in gaussian] == pytest.approx(costs)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(-1.0, 0.0), (math.inf, 0.0), (1.0, 1.0), (1.0, 1.5), (1.0, -0.1), (math.nan, 0.0)],
)
def test_no_budget_is_divided_that_cannot_be(epsilon: float, delta: float) -> None:
    with pytest.raises(PrivacyError, match=f"epsilon={epsilon} must be > 0 and delta={delta}"):
        allocate([Stage("a")], epsilon, delta)
    for field in ("weight", "sensitivity"):
        with pytest.raises(ConfigError, match=f"stage 'a': {field}=inf"):
            Stage("a", **{field: math.inf})  # type: ignore[arg-type]


def test_no_share_has_noise_beyond_all_numbers() -> None:
    with pytest.raises(PrivacyError, match="stage 'b' has so small a share"):
        allocate([Stage("a"), Stage("b", 1e-300)], 1e-100)
