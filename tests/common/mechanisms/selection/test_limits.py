"""What a selector refuses, at the very limit, and what it charges, by its formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.arrays import Integers
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import DataError, PrivacyError
from labelveil.common.guarantees import (
    Adjacency,
    BoundedRange,
    PureDP,
    ZeroConcentratedDP,
    to_renyi,
)
from labelveil.common.mechanisms.selection import peeling, top_stable
from labelveil.common.mechanisms.selection.base import Ranking, ranked
from labelveil.common.mechanisms.selection.choose_k import ChooseRank, pull_towards
from labelveil.common.mechanisms.selection.leaders import Leaders, StableLeaders
from labelveil.common.mechanisms.selection.noisy_max import Law, NoisyMax
from labelveil.common.mechanisms.selection.peeling import LimitedDomain, Peeling
from labelveil.common.mechanisms.selection.stability import GaussianTest, LaplaceTest
from labelveil.common.mechanisms.selection.stable_top_k import (
    FixedStableTopK,
    StableTopK,
    choice_epsilon,
    variance_for,
)
from labelveil.common.mechanisms.selection.top_stable import TopStable
from tests.common.mechanisms.selection.laws import laplace_mass

F = Fraction
ONE, TINY = F(1), F(1, 10**6)


def chosen_near(strength: Fraction) -> int:
    chosen = ChooseRank(NoisyMax(Law.GUMBEL, ONE), regularizer=pull_towards(2, strength))
    return chosen.draw(ranked([9, 9, 8]), seeded_entropy(1).source("x"))


AT: list[tuple[Callable[[], object], Callable[[], object]]] = [
    # refused, and what is nearest to it and is not
    (lambda: NoisyMax(Law.GUMBEL, F(0)), lambda: NoisyMax(Law.GUMBEL, TINY)),
    (lambda: NoisyMax(Law.GAUSSIAN, variance=F(0)), lambda: NoisyMax(Law.GAUSSIAN, variance=TINY)),
    (lambda: NoisyMax(Law.GUMBEL, ONE, variance=ONE), lambda: NoisyMax(Law.GUMBEL, ONE)),
    (lambda: NoisyMax(Law.GUMBEL, ONE, step=3), lambda: NoisyMax(Law.GUMBEL, ONE, step=2)),
    (lambda: NoisyMax(Law.GUMBEL, ONE, step=0), lambda: NoisyMax(Law.GUMBEL, ONE, step=1)),
    (
        lambda: NoisyMax(Law.GUMBEL, ONE, monotone=True, step=2),
        lambda: NoisyMax(Law.GUMBEL, ONE, monotone=True),
    ),
    (
        lambda: ChooseRank(NoisyMax(Law.GUMBEL, ONE, monotone=True)),
        lambda: ChooseRank(NoisyMax(Law.GUMBEL, ONE)),
    ),
    (
        lambda: ChooseRank(NoisyMax(Law.GUMBEL, ONE), most=0),
        lambda: ChooseRank(NoisyMax(Law.GUMBEL, ONE), most=1),
    ),
    (
        lambda: ChooseRank(NoisyMax(Law.GUMBEL, ONE)).ranks(1),
        lambda: ChooseRank(NoisyMax(Law.GUMBEL, ONE)).ranks(2),
    ),
    (  # multiples of 1/2^20 and no finer
        lambda: chosen_near(F(1, (1 << 20) + 1)),
        lambda: chosen_near(F(1, 1 << 20)),
    ),
    (lambda: Peeling(0, ONE), lambda: Peeling(1, ONE)),
    (lambda: Peeling(1, F(0)), lambda: Peeling(1, TINY)),
    (lambda: LimitedDomain(0, 5, ONE, TINY), lambda: LimitedDomain(1, 5, ONE, TINY)),
    (lambda: LimitedDomain(5, 4, ONE, TINY), lambda: LimitedDomain(5, 5, ONE, TINY)),
    (lambda: LimitedDomain(5, 5, F(0), TINY), lambda: LimitedDomain(5, 5, TINY, TINY)),
    (lambda: LimitedDomain(5, 5, ONE, F(1, 12)), lambda: LimitedDomain(5, 5, ONE, F(1, 13))),
    (lambda: LimitedDomain(5, 5, ONE, F(0)), lambda: LimitedDomain(5, 5, ONE, TINY)),
    (lambda: GaussianTest(F(0), TINY), lambda: GaussianTest(TINY, TINY)),
    (lambda: GaussianTest(ONE, ONE), lambda: GaussianTest(ONE, F(999, 1000))),
    (lambda: GaussianTest(ONE, F(0)), lambda: GaussianTest(ONE, F(1, 10**200))),
    (lambda: GaussianTest(ONE, TINY, 3), lambda: GaussianTest(ONE, TINY, 2)),
    (lambda: LaplaceTest(ONE, TINY, 0), lambda: LaplaceTest(ONE, TINY, 1)),
    (lambda: LaplaceTest(F(0), TINY), lambda: LaplaceTest(TINY, TINY)),
    (
        lambda: GaussianTest(ONE, TINY).gap_needed(0.5),
        lambda: GaussianTest(ONE, TINY).gap_needed(0.49),
    ),
    (lambda: TopStable(0, ONE, TINY), lambda: TopStable(1, ONE, TINY)),
    (lambda: TopStable(1, F(0), TINY), lambda: TopStable(1, TINY, TINY)),
    (lambda: TopStable(1, ONE, F(0)), lambda: TopStable(1, ONE, F(1, 10**100))),
    (lambda: TopStable(1, ONE, ONE), lambda: TopStable(1, ONE, F(99, 100))),
    (lambda: choice_epsilon(F(1, 10**10)), lambda: choice_epsilon(F(1, 10**8))),
    (lambda: variance_for(F(0)), lambda: variance_for(TINY)),
    (
        lambda: StableTopK(ONE, TINY, choice_law=Law.GAUSSIAN),
        lambda: StableTopK(ONE, TINY, 5, choice_law=Law.GAUSSIAN),
    ),
    (
        lambda: StableTopK(ONE, TINY, test_law=Law.GUMBEL),
        lambda: StableTopK(ONE, TINY, test_law=Law.LAPLACE),
    ),
    (lambda: FixedStableTopK(0, ONE, TINY), lambda: FixedStableTopK(1, ONE, TINY)),
    (lambda: FixedStableTopK(1, F(0), TINY), lambda: FixedStableTopK(1, F(1, 100), TINY)),
    (
        lambda: FixedStableTopK(1, ONE, TINY, share=ONE),
        lambda: FixedStableTopK(1, ONE, TINY, share=F(99, 100)),
    ),
    (
        lambda: FixedStableTopK(1, ONE, TINY, share=F(0)),
        lambda: FixedStableTopK(1, ONE, TINY, share=TINY),
    ),
    (
        lambda: FixedStableTopK(3, ONE, TINY, domain=3, step=2),
        lambda: FixedStableTopK(3, ONE, TINY, domain=3),
    ),
    (
        lambda: FixedStableTopK(3, ONE, TINY, domain=2),
        lambda: FixedStableTopK(3, ONE, TINY, step=2),
    ),
    (
        lambda: FixedStableTopK(10**6, F(1, 10**5), TINY),
        lambda: FixedStableTopK(10, F(1, 10**5), TINY),
    ),
    (lambda: Leaders(F(0), 1), lambda: Leaders(TINY, 1)),
    (lambda: Leaders(ONE, 0), lambda: Leaders(ONE, 1)),
    (lambda: Leaders(ONE, None, 0), lambda: Leaders(ONE, None, 1)),
    (lambda: Leaders(ONE, 1, votes=0), lambda: Leaders(ONE, 1, votes=1)),
    (
        lambda: Leaders(ONE, 3).draw([1, 2], seeded_entropy(1)),
        lambda: Leaders(ONE, 2).draw([1, 2], seeded_entropy(1)),
    ),
    (
        lambda: Leaders(ONE).draw([1], seeded_entropy(1)),
        lambda: Leaders(ONE).draw([1, 2], seeded_entropy(1)),
    ),
    (lambda: StableLeaders(ONE, TINY, 0), lambda: StableLeaders(ONE, TINY, 1)),
    (lambda: StableLeaders(ONE, TINY, k=0), lambda: StableLeaders(ONE, TINY, k=1)),
    (lambda: StableLeaders(ONE, TINY, k=1, share=ONE), lambda: StableLeaders(ONE, TINY, k=1)),
    (lambda: StableLeaders(ONE, TINY, share=ONE), lambda: StableLeaders(ONE, TINY)),
    (lambda: StableLeaders(F(1, 10**6), TINY), lambda: StableLeaders(F(1, 10), TINY)),
    (
        lambda: StableLeaders(ONE, TINY).draw([1], seeded_entropy(1)),
        lambda: StableLeaders(ONE, TINY).draw([1, 2], seeded_entropy(1)),
    ),
    *(
        (lambda made=made: made.draw([1], seeded_entropy(1)), lambda: None)  # type: ignore[misc]
        for made in (Leaders(ONE, 1), StableLeaders(ONE, TINY, k=1))
    ),
    (
        lambda: StableLeaders(ONE, TINY, k=3).draw([1, 2], seeded_entropy(1)),
        lambda: StableLeaders(ONE, TINY, k=2).draw([1, 2], seeded_entropy(1)),
    ),
]


@pytest.mark.parametrize("number", range(len(AT)))
def test_limits_are_where_they_are_said_to_be(number: int) -> None:
    refused, taken = AT[number]
    with pytest.raises(PrivacyError):
        refused()
    taken()


@pytest.mark.parametrize(
    "counts", [[], [[1, 2]], [0.5], [-1], [(1 << 40) + 1], np.zeros((0,), dtype=np.int64)]
)
def test_counts_are_whole_numbers_of_users(counts: object) -> None:
    with pytest.raises(DataError):
        Ranking(counts)  # type: ignore[arg-type]
    assert Ranking([0, 1 << 40]).sorted.tolist() == [1 << 40, 0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "monotone", "reach"), [(1, False, 2), (2, False, 4), (1, True, 1)]
)
def test_two_utilities_move_apart_by_the_reach(step: int, monotone: bool, reach: int) -> None:
    adjacency = Adjacency.ADD_REMOVE if step == 1 else Adjacency.REPLACE_RECORD
    for law, kind in ((Law.GUMBEL, BoundedRange), (Law.LAPLACE, PureDP), (Law.EXPONENTIAL, PureDP)):
        noise = NoisyMax(law, F(1, 2), monotone=monotone, step=step)
        assert noise.reach == reach
        guarantee = noise.guarantee(5)
        assert type(guarantee) is kind
        assert guarantee.adjacency == adjacency
        assert getattr(guarantee, "exact_epsilon") == F(1, 2)  # noqa: B009
    gauss = NoisyMax(Law.GAUSSIAN, variance=F(8), monotone=monotone, step=step).guarantee(5)
    for order in (F(2), F(10)):
        exact = float(order) * reach**2 / 16 + math.log(5) / (float(order) - 1)
        assert exact <= float(gauss.at(order)) <= exact * (1 + 1e-9)  # type: ignore[attr-defined]
    alone = NoisyMax(Law.GAUSSIAN, variance=F(8), monotone=monotone, step=step).guarantee(1)
    assert alone.at(F(2)) == F(reach**2, 8)  # type: ignore[attr-defined]


def test_tests_and_choices_cost_their_formulas() -> None:
    stable = TopStable(2, F(3), TINY)  # 37% of ε is the threshold's, and 2/scale a query's
    assert stable.guarantee.epsilon == pytest.approx(3, rel=1e-3)
    assert stable.guarantee.exact_epsilon <= 3
    for step in (1, 2):
        gauss, laplace = GaussianTest(F(9), TINY, step), LaplaceTest(F(1, 2), TINY, step)
        assert gauss.guarantee.exact_rho == F(step * step, 18)
        assert gauss.guarantee.exact_delta == gauss.failure <= TINY
        assert variance_for(F(1, 18), step) == 9 * step * step
        # P[noise > T] <= δ first at T, by summing the law
        weights = {z: math.exp(-z * z / 18) for z in range(-60, 61)}
        whole = sum(weights.values())
        least = next(
            t for t in range(60) if sum(w for z, w in weights.items() if z > t) / whole <= 1e-6
        )
        assert gauss.threshold == least
        half = next(
            t for t in range(60) if sum(w for z, w in weights.items() if z > t) / whole <= 0.05
        )
        assert gauss.gap_needed(0.05) == step + least + 1 + half
        # discrete Laplace of scale step/ε: P[Z > t] = e^(-(t + 1)/s) / (1 + e^(-1/s))
        scale = step / 0.5
        tail = next(
            t for t in range(500) if math.exp(-(t + 1) / scale) / (1 + math.exp(-1 / scale)) <= 1e-6
        )
        assert laplace.threshold == tail
    assert choice_epsilon(F(1, 8)) == 1
    assert choice_epsilon(F(1, 2), 2) == 1
    assert choice_epsilon(F(1, 8) - F(1, 10**9)) == F(4095, 4096)
    assert variance_for(F(1, 3)) == F(math.ceil(F(3, 2) * 4096), 4096)
    stable = StableTopK(F(1, 4), TINY, share=F(1, 3))
    assert stable.rank_choice.noise.epsilon == choice_epsilon(F(1, 12))
    assert stable.test == GaussianTest(variance_for(F(1, 6)), TINY)
    whole_of = stable.guarantee
    assert isinstance(whole_of, ZeroConcentratedDP)
    assert F(1, 4) - F(1, 1000) < whole_of.exact_rho <= F(1, 4)
    fixed = FixedStableTopK(5, F(1, 4), TINY, share=F(1, 5)).guarantee
    assert isinstance(fixed, ZeroConcentratedDP)
    assert F(1, 4) - F(1, 500) < fixed.exact_rho <= F(1, 4)
    assert 0 < fixed.exact_delta <= TINY
    assert Peeling(4, F(1, 2)).guarantee.ranges == ((F(1, 2), 4),)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("share", [F(1, 10), F(1, 2), F(4, 5)])
def test_a_stable_set_spends_rho_and_hardly_less(share: Fraction, step: int) -> None:
    """Whatever noise chooses; Gaussian noise pays ln(most)/(α - 1) for its choice besides."""
    rho, most = F(1, 2), 7
    for law in Law:
        made = StableTopK(rho, TINY, most, share=share, step=step, choice_law=law)
        curve = to_renyi(made.guarantee)
        assert curve.adjacency == (Adjacency.ADD_REMOVE, Adjacency.REPLACE_RECORD)[step - 1]
        for order, value in zip(curve.orders, curve.values, strict=True):
            whole = order * rho
            if law == Law.GAUSSIAN:
                whole += F(math.log(most)) / (order - 1)
            assert value <= whole * (1 + F(1, 10**9))
            if law in (Law.GUMBEL, Law.GAUSSIAN):
                assert value >= F(97, 100) * whole
    fixed = FixedStableTopK(3, rho, TINY, share=share, step=step).guarantee
    assert isinstance(fixed, ZeroConcentratedDP)
    assert F(97, 100) * rho < fixed.exact_rho <= rho


@pytest.mark.parametrize(("k", "epsilon"), [(1, F(1)), (5, F(1)), (5, F(4))])
def test_a_noisy_bar_fails_as_often_as_it_says(k: int, epsilon: Fraction) -> None:
    """The sum over both noises, for each of k ranks; and a gap of 1 is as none."""
    made, delta = TopStable(k, epsilon, F(1, 10**4)), 1e-4
    (y, bars), (x, queries) = (laplace_mass(float(scale), 2000) for scale in made.scales)

    def alarm(threshold: int) -> float:
        beyond = np.append(np.cumsum(queries[::-1])[::-1], 0.0)  # P[X >= x], from -2000 on
        return float(bars @ beyond[np.clip(y + threshold + 1 - x[0], 0, x.size)])

    assert k * alarm(made.threshold) <= delta < k * alarm(made.threshold - 1)
    failure = made.guarantee.exact_delta
    assert k * alarm(made.threshold) <= float(failure) <= k * alarm(made.threshold) * (1 + 1e-6)
    first, second = made.scales
    assert made.guarantee.exact_epsilon == 1 / first + 2 / second


def test_a_gap_is_one_less_before_it_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def still(scale: Fraction, size: int, source: object) -> Integers:
        return np.zeros(size, dtype=np.int64)

    monkeypatch.setattr(top_stable, "discrete_laplace", still)
    made = TopStable(2, F(1), F(1, 10**4))
    for gap, chosen in ((made.threshold + 1, None), (made.threshold + 2, [1])):
        found = made.draw([5, 5 + gap, 4], seeded_entropy(1)).chosen
        assert (None if found is None else found.tolist()) == chosen


def test_a_rank_is_pulled_to_where_it_is_said() -> None:
    """Far beyond the noise, whatever the gaps are."""
    chosen = ChooseRank(NoisyMax(Law.GUMBEL, ONE), regularizer=pull_towards(3, F(1000)))
    sources = [seeded_entropy(n).source("x") for n in range(10)]
    assert {chosen.draw(ranked([9, 9, 8, 8, 4, 4]), source) for source in sources} == {3}


def test_no_rank_beyond_the_most_is_considered() -> None:
    counts = [90_000, 89_000, 88_000, 20, 10]
    for most, size in ((20, 3), (2, 2)):
        found = Leaders(F(8), most=most).draw(counts, seeded_entropy(1))
        assert found.chosen.size <= size
        stable = StableLeaders(F(8), TINY, most).draw(counts, seeded_entropy(1))
        assert stable is not None
        assert stable.size == size if most == 20 else stable.size <= size
        assert Peeling(most, F(8)).draw(counts, seeded_entropy(1)).k == min(most, 5)


@pytest.mark.parametrize("kind", [GaussianTest, LaplaceTest])
@pytest.mark.parametrize("step", [1, 2])
def test_a_gap_below_a_step_passes_as_one_of_a_step(
    kind: Callable[..., GaussianTest | LaplaceTest], step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kind(F(2), TINY, step)
    for gap in range(step + 3):
        for noise in (made.threshold - 2, made.threshold, made.threshold + 1):
            monkeypatch.setattr(kind, "_noise", lambda self, source, n=noise: np.array([n]))
            passes = noise > made.threshold if gap <= step else noise + gap > step + made.threshold
            assert made.draw(gap, seeded_entropy(1).source("x")) == passes


def test_nothing_takes_part_in_a_limited_domain_with_its_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a candidate of one user more than the next has, as likely as k̄/δ of them."""
    asked: list[tuple[list[int], Fraction, list[Fraction]]] = []

    def chosen(scores: Integers, rate: Fraction, source: object, weights: list[Fraction]) -> int:
        asked.append((scores.tolist(), rate, [*weights]))
        return 1

    monkeypatch.setattr(peeling, "exponential_choice", chosen)
    found = LimitedDomain(2, 3, F(1, 2), F(1, 100)).draw([4, 9, 7, 5], seeded_entropy(1))
    assert asked == [
        ([9, 7, 5, 5], F(1, 2), [1, 1, 1, 300]),
        ([9, 5, 5], F(1, 2), [1, 1, 300]),
    ]
    assert found.chosen is not None
    assert found.chosen.tolist() == [2, 3]


def test_a_limited_domain_charges_its_theorem() -> None:
    domain = LimitedDomain(3, 10, F(1, 2), F(1, 100))
    found = domain.guarantee
    assert found.exact_delta == F(1, 100)
    plain = to_renyi(Peeling(3, F(1, 2)).guarantee)
    for order in (F(2), F(5), F(40)):
        extra = float(order) / (float(order) - 1) * -math.log(0.99) - math.log(1 - 4 * 0.01)
        exact = float(plain.at(order)) + extra
        assert exact <= float(found.at(order)) <= exact * (1 + 1e-9)


def test_leaders_divide_their_budget() -> None:
    for votes, sensitivity in ((None, 4), (1, 2), (2, 4), (9, 4)):
        choice, rate, scale = Leaders(F(2), 4, votes=votes).split(4)
        assert (choice, rate, scale) == (0, F(1, 8), F(sensitivity))
    choice, rate, scale = Leaders(F(2)).split(4)
    half = (2 - choice) / 2
    assert 0 < choice < 2
    assert (rate, scale) == (half / 8, 4 / half)
    assert Leaders(F(2)).guarantee == PureDP.of(2, Adjacency.REPLACE_LABEL)


def test_a_pull_is_nothing_at_k_and_the_same_on_both_sides() -> None:
    pull = pull_towards(4, F(3, 2))
    assert pull(4) == 0
    assert [pull(k) for k in (2, 3, 5, 6)] == [F(-3), F(-3, 2), F(-3, 2), F(-3)]
