"""With a wide enough gap the true set comes out, as the theorems say; and the bounds of inputs."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import DataError, PrivacyError
from labelveil.common.guarantees import epsilon_at
from labelveil.common.mechanisms.selection import (
    ChooseRank,
    FixedStableTopK,
    GaussianTest,
    LaplaceTest,
    Law,
    LimitedDomain,
    NoisyMax,
    Peeling,
    Ranking,
    StableTopK,
    TopStable,
    pull_towards,
)

DELTA = Fraction(1, 10**6)


def cliff(k: int, gap: int, m: int) -> np.ndarray:
    """k candidates far above the rest, in a public but arbitrary order."""
    counts = np.full(m, 7)
    counts[::-3][:k] += gap
    return counts


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize("rho", [Fraction(1, 10), Fraction(1)])
def test_stable_top_k_utility(k: int, rho: Fraction) -> None:
    """Gap >= 2(ln m + t)/ε and >= T + 2 + s: true set but for e^{−t} + e^{−s²/2σ²}, here 2e-9."""
    m = 300
    selector = StableTopK(rho, DELTA)
    t = math.log(1e9)
    spread = math.sqrt(2 * t * float(selector.test.variance))
    epsilon = float(selector.rank_choice.noise.epsilon or 0)
    gap = math.ceil(max(2 * (math.log(m) + t) / epsilon, selector.test.threshold + 2 + spread))
    counts = cliff(k, gap, m)
    truth = Ranking(counts).top(k)
    for trial in range(60):
        chosen = selector.draw(counts, seeded_entropy(trial)).chosen
        assert chosen is not None
        assert np.array_equal(chosen, truth)
    # a fifth of that gap is not enough: the check can fail
    weak = cliff(k, max(1, gap // 5), m)
    outcomes = [selector.draw(weak, seeded_entropy(trial)).chosen for trial in range(60)]
    assert any(c is None or not np.array_equal(c, truth) for c in outcomes)


@pytest.mark.parametrize("k", [2, 5])
def test_every_selector_finds_a_wide_cliff(k: int) -> None:
    counts = cliff(k, 2000, 60)
    truth = set(Ranking(counts).top(k).tolist())
    for selector in (
        StableTopK(Fraction(1, 4), DELTA, regularizer=pull_towards(k)),
        FixedStableTopK(k, Fraction(1, 4), DELTA),
        Peeling(k, Fraction(1, 4)),
        LimitedDomain(k, 2 * k, Fraction(1, 4), DELTA),
        TopStable(k, Fraction(1), DELTA),
    ):
        result = selector.draw(counts, seeded_entropy(1))
        assert result.chosen is not None
        assert set(result.chosen.tolist()) == truth, selector
        assert result.k == k
        assert 0 < epsilon_at(result.guarantee, Fraction(1, 10**5)) < 10


def test_a_flat_table_shows_nothing() -> None:
    counts = np.full(50, 20)
    for seed in range(20):
        for selector in (StableTopK(Fraction(1), DELTA), TopStable(5, Fraction(1), DELTA)):
            assert selector.draw(counts, seeded_entropy(seed)).chosen is None
        limited = LimitedDomain(3, 5, Fraction(1), DELTA).draw(counts, seeded_entropy(seed))
        assert limited.chosen is None


@pytest.mark.parametrize("k", [1, 4, 9])
def test_a_fixed_k_is_always_k(k: int) -> None:
    rng = seeded_entropy(0).words("counts", 0, 40)
    counts = (rng >> np.uint64(58)).astype(np.int64)
    for seed in range(15):
        chosen = FixedStableTopK(k, Fraction(1), DELTA).draw(counts, seeded_entropy(seed)).chosen
        assert chosen is not None
        assert len(set(chosen.tolist())) == k
    assert FixedStableTopK(50, Fraction(1), DELTA).draw(counts, seeded_entropy(0)).k == 40


def test_candidates_without_users_cannot_be_counted_by_an_observer() -> None:
    """With ``most``, adding candidates that nobody chose changes nothing but the indices."""
    counts = np.array([90, 80, 5])
    selector = StableTopK(Fraction(1), DELTA, most=6)
    longer = np.concatenate([counts, np.zeros(20, dtype=np.int64)])
    for seed in range(10):
        one = selector.draw(counts, seeded_entropy(seed)).chosen
        two = selector.draw(longer, seeded_entropy(seed)).chosen
        assert (one is None) == (two is None)
        assert one is None or np.array_equal(one, two)


def test_guarantees_come_from_the_noise() -> None:
    selector = StableTopK(Fraction(1, 3), DELTA)
    guarantee = selector.guarantee
    assert guarantee.exact_rho <= Fraction(1, 3)
    assert guarantee.exact_rho >= Fraction(1, 3) * Fraction(99, 100)
    assert 0 < guarantee.exact_delta <= DELTA
    for test in (GaussianTest(Fraction(9), DELTA), LaplaceTest(Fraction(1, 2), DELTA)):
        assert test.threshold > 0
        assert test.failure <= DELTA
    sigma = 3.0  # the exact quantile is below the tail bound of the paper
    assert GaussianTest(Fraction(9), DELTA).threshold < sigma * math.sqrt(2 * math.log(1e6))


@pytest.mark.parametrize(
    "build",
    [
        lambda: NoisyMax(Law.GUMBEL),
        lambda: NoisyMax(Law.GAUSSIAN, epsilon=Fraction(1)),
        lambda: NoisyMax(Law.LAPLACE, epsilon=Fraction(-1)),
        lambda: ChooseRank(NoisyMax(Law.GUMBEL, Fraction(1), monotone=True)),
        lambda: ChooseRank(NoisyMax(Law.GUMBEL, Fraction(1)), most=0),
        lambda: ChooseRank(NoisyMax(Law.GUMBEL, Fraction(1))).ranks(1),
        lambda: GaussianTest(Fraction(0), DELTA),
        lambda: LaplaceTest(Fraction(1), Fraction(2)),
        lambda: Peeling(0, Fraction(1)),
        lambda: LimitedDomain(5, 4, Fraction(1), DELTA),
        lambda: LimitedDomain(5, 9, Fraction(1), Fraction(1, 2)),
        lambda: TopStable(3, Fraction(0), DELTA),
        lambda: FixedStableTopK(0, Fraction(1), DELTA),
    ],
)
def test_impossible_parameters_are_refused(build: object) -> None:
    with pytest.raises(PrivacyError):
        build()  # type: ignore[operator]


@pytest.mark.parametrize("counts", [[], [[1]], [0.5], [-1], [2**41]])
def test_counts_that_are_none_are_refused(counts: list[object]) -> None:
    with pytest.raises(DataError):
        Ranking(counts)  # type: ignore[arg-type]


def test_exactly_k_of_candidates_that_nobody_listed() -> None:
    counts = np.array([900, 5, 880, 870, 3, 410, 400, 1])
    selector = FixedStableTopK(5, Fraction(1), Fraction(1, 10**7), domain=10)
    for seed in range(10):
        assert selector.draw(counts, seeded_entropy(seed)).chosen.tolist() == [0, 2, 3, 5, 6]
    # ⊥ keeps out what only a few users know, where a public list would fill up with it
    lonely = selector.draw(np.array([900, 880, 1, 1, 1, 1]), seeded_entropy(1)).chosen
    assert lonely.tolist() == [0, 1]
    listed = FixedStableTopK(5, Fraction(1), Fraction(1, 10**7))
    assert listed.draw(np.array([900, 880, 1, 1, 1, 1]), seeded_entropy(1)).k == 5
    assert selector.draw(np.array([7]), seeded_entropy(1)).k == 0
    assert selector.draw(np.array([9000]), seeded_entropy(1)).k == 1
    with pytest.raises(PrivacyError, match="domain=3"):
        FixedStableTopK(5, Fraction(1), Fraction(1, 10**7), domain=3)
