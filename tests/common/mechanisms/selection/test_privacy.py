"""What selectors draw follows exact laws on small domains; that these are private, its code shows
in ``test_exact_guarantees``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from labelveil.common.entropy import Entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.guarantees import (
    DEFAULT_ORDERS,
    to_renyi,
)
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
    indifferent,
    pull_towards,
)
from tests.common.mechanisms.selection import laws
from tests.effort import one_in
from tests.statistics import outcomes_fit

Counts = tuple[int, ...]
EPSILON = Fraction(3, 2)
DELTA = Fraction(1, 50)


def noise_law(noise: NoisyMax, utilities: list[int], denominator: int = 1) -> list[float]:
    if noise.law == Law.GAUSSIAN:
        values = laws.gaussian_mass(float(noise.variance or 0), 30)
        return laws.noisy_argmax(utilities, laws.in_parts(values, denominator))
    if noise.law == Law.LAPLACE:
        values = laws.laplace_mass(float(noise.reach / (noise.epsilon or 0)), 60)
        return laws.noisy_argmax(utilities, laws.in_parts(values, denominator))
    rate = float((noise.epsilon or 0) / noise.reach) / denominator
    scores = [rate * u for u in utilities]
    if noise.law == Law.GUMBEL:
        return laws.softmax(scores).tolist()
    return laws.permute_and_flip(scores)


def rank_law(choice: ChooseRank, counts: Counts) -> list[float]:
    ranks = choice.ranks(len(counts))
    gaps = laws.gaps_of(counts, ranks)
    if choice.regularizer is indifferent:
        return noise_law(choice.noise, gaps)
    shifted = [g * 6 + int(6 * choice.regularizer(j + 1)) for j, g in enumerate(gaps)]
    return noise_law(choice.noise, shifted, 6)


def test_law(test: GaussianTest | LaplaceTest, counts: Counts, k: int) -> laws.Law:
    if isinstance(test, GaussianTest):
        noise = laws.gaussian_mass(float(test.variance), 200)
    else:
        noise = laws.laplace_mass(test.step / float(test.epsilon), 200)
    gap = laws.gaps_of(counts, k)[-1]
    passed = laws.tail(noise, test.step + test.threshold - max(test.step, gap))
    return {laws.top_of(counts, k): passed, laws.BOTTOM: 1 - passed}


test_law.__test__ = False  # type: ignore[attr-defined]


def stable_law(selector: StableTopK, counts: Counts) -> laws.Law:
    """Over the pair (k, set or ⊥): an observer may as well see the chosen k."""
    law: laws.Law = {}
    for k, mass in enumerate(rank_law(selector.rank_choice, counts), start=1):
        for outcome, share in test_law(selector.test, counts, k).items():
            law[k, outcome] = mass * share
    return law


def peel_law(scores: list[float], draws: int) -> laws.Law:
    law: laws.Law = {}
    for path in permutations(range(len(scores)), draws):
        mass, left = 1.0, list(range(len(scores)))
        for i in path:
            mass *= laws.softmax([scores[j] for j in left])[left.index(i)]
            left.remove(i)
        law[path] = mass
    return law


def fixed_law(selector: FixedStableTopK, counts: Counts) -> laws.Law:
    law: laws.Law = {}
    m = len(counts)
    peeling = float(selector.rho * (1 - selector.share))
    for chosen, mass in enumerate(rank_law(selector.rank_choice, counts), start=1):
        for outcome, share in test_law(selector.test, counts, chosen).items():
            top = list(outcome or ())
            draws = abs(selector.k - len(top))
            if selector.domain is not None and len(top) < selector.k:
                rest = [i for i in range(m) if i not in top]
                limited = selector._limited(draws, selector.domain)
                for path, part in limited_law(limited, tuple(counts[i] for i in rest)).items():
                    final = (*top, *(laws.BOTTOM if i is laws.BOTTOM else rest[i] for i in path))
                    key = chosen, outcome, final
                    law[key] = law.get(key, 0.0) + mass * share * part
                continue
            pool = [i for i in range(m) if i not in top] if len(top) < selector.k else top
            if not draws:
                law[chosen, outcome, tuple(top)] = mass * share
                continue
            # ε of each draw: kε²/8 is the peeling's ρ; rounded down to 1/4096
            rate = math.floor(math.sqrt(8 * peeling / draws) * 4096) / 4096 / selector.step
            sign = 1 if len(top) < selector.k else -1
            scores = [sign * rate * counts[i] for i in pool]
            for path, part in peel_law(scores, draws).items():
                moved = [pool[i] for i in path]
                final = tuple(sorted([*top, *moved] if sign > 0 else set(top) - set(moved)))
                key = chosen, outcome, final
                law[key] = law.get(key, 0.0) + mass * share * part
    return law


def limited_law(selector: LimitedDomain, counts: Counts) -> laws.Law:
    order = laws.order_of(counts)[: selector.domain]
    padded = sorted(counts, reverse=True) + [0] * (selector.domain + 1)
    extra = math.log(selector.domain / float(selector.delta))
    scores = [float(selector.epsilon) * counts[i] for i in order]
    bottom = float(selector.epsilon) * (padded[selector.domain] + 1) + extra
    law: laws.Law = {}

    def go(path: Counts, left: list[int], mass: float) -> None:
        if len(path) == min(selector.k, len(order)):
            law[path] = law.get(path, 0.0) + mass
            return
        shares = laws.softmax([*(scores[i] for i in left), bottom])
        for position, i in enumerate(left):
            go((*path, order[i]), [j for j in left if j != i], mass * shares[position])
        law[(*path, laws.BOTTOM)] = mass * shares[-1]

    go((), list(range(len(order))), 1.0)
    return law


def top_stable_law(selector: TopStable, counts: Counts) -> laws.Law:
    queries = [max(g - 1, 0) for g in laws.gaps_of(counts, selector.k)]
    first, second = (float(scale) for scale in selector.scales)
    law: laws.Law = {laws.BOTTOM: 0.0}
    for y, mass in zip(*laws.laplace_mass(first, 80), strict=True):
        for k in range(selector.k, 0, -1):
            bar = selector.threshold + int(y) - queries[k - 1]
            ratio = math.exp(-1 / second)
            upper = (
                ratio ** (bar + 1) / (1 + ratio) if bar >= 0 else 1 - ratio ** (-bar) / (1 + ratio)
            )
            key = laws.top_of(counts, k)
            law[key] = law.get(key, 0.0) + mass * upper
            mass *= 1 - upper
        law[laws.BOTTOM] += mass
    return law


@dataclass(frozen=True)
class Case:
    """A selector, its law, and how many candidates it has."""

    law: Callable[[Counts], laws.Law]
    draw: Callable[[Counts, Entropy], Any]
    candidates: int = 3


def _max_case(noise: NoisyMax) -> Case:
    return Case(
        lambda c: dict(enumerate(noise_law(noise, list(c)))),
        lambda c, e: noise.draw(np.array(c), e.source("test")),
    )


def _rank_case(noise: NoisyMax, **options: Any) -> Case:
    choice = ChooseRank(noise, **options)
    return Case(
        lambda c: dict(enumerate(rank_law(choice, c), start=1)),
        lambda c, e: choice.draw(Ranking(c), e.source("test")),
        candidates=4,
    )


def _test_case(test: GaussianTest | LaplaceTest) -> Case:
    def draw(counts: Counts, entropy: Entropy) -> Any:
        passed = test.draw(laws.gaps_of(counts, 1)[0], entropy.source("test"))
        return laws.top_of(counts, 1) if passed else laws.BOTTOM

    return Case(lambda c: test_law(test, c, 1), draw)


def _set(selector: Any, counts: Counts, entropy: Entropy) -> Any:
    chosen = selector.draw(counts, entropy).chosen
    return laws.BOTTOM if chosen is None else tuple(chosen.tolist())


STABLE = StableTopK(Fraction(1), DELTA, most=3)
GAUSSIAN = StableTopK(Fraction(1), DELTA, 3, choice_law=Law.GAUSSIAN, test_law=Law.LAPLACE)
PULLED = replace(STABLE, regularizer=pull_towards(2, Fraction(1, 2)), share=Fraction(1, 3))
FIXED = FixedStableTopK(2, Fraction(2), DELTA)
HALVED = replace(FIXED, share=Fraction(1, 2))
UNLISTED = FixedStableTopK(2, Fraction(2), DELTA, domain=2)
REPLACED = FixedStableTopK(1, Fraction(4), DELTA, share=Fraction(1, 2), step=2)
LIMITED = LimitedDomain(2, 2, EPSILON, Fraction(1, 20))
TOP = TopStable(2, Fraction(3), DELTA)
PEEL = Peeling(2, EPSILON)

CASES: dict[str, Case] = {
    **{
        f"max-{law}-{'monotone' if monotone else 'free'}": _max_case(
            NoisyMax(law, variance=Fraction(5), monotone=monotone)
            if law == Law.GAUSSIAN
            else NoisyMax(law, EPSILON, monotone=monotone)
        )
        for law in Law
        for monotone in (True,)
    },
    "rank": _rank_case(NoisyMax(Law.GUMBEL, EPSILON)),
    **{
        f"rank-pulled-{law}": _rank_case(
            NoisyMax(law, variance=Fraction(5)) if law == Law.GAUSSIAN else NoisyMax(law, EPSILON),
            most=2,
            regularizer=pull_towards(2, Fraction(2, 3)),
        )
        for law in (Law.GUMBEL, Law.EXPONENTIAL, Law.GAUSSIAN, Law.LAPLACE)
    },
    "test-gaussian": _test_case(GaussianTest(Fraction(3), DELTA)),
    "test-laplace": _test_case(LaplaceTest(Fraction(4, 5), DELTA)),
    "peeling": Case(
        lambda c: peel_law([float(EPSILON) * n for n in c], 2), lambda c, e: _set(PEEL, c, e)
    ),
    "top-stable": Case(lambda c: top_stable_law(TOP, c), lambda c, e: _set(TOP, c, e)),
}


@pytest.mark.statistical
@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_law(name: str) -> None:
    case = CASES[name]
    counts = (2, 6, 3, 1)[: case.candidates]
    law, seen = case.law(counts), laws.drawn(lambda e: case.draw(counts, e))
    assert outcomes_fit(seen, law)
    assert not outcomes_fit(seen, laws.broken_twin(law))


@pytest.mark.statistical
@pytest.mark.parametrize(
    "name",
    one_in(
        4, ["stable", "gaussian", "pulled", "fixed", "replaced", "halved", "limited", "unlisted"]
    ),
)
def test_whole_selectors_follow_their_laws(name: str) -> None:
    counts = (1, 9, 2, 0) if name == "limited" else (1, 9, 2)
    selector, law = {
        "stable": (STABLE, stable_law(STABLE, counts)),
        "gaussian": (GAUSSIAN, stable_law(GAUSSIAN, counts)),
        "pulled": (PULLED, stable_law(PULLED, counts)),
        "fixed": (FIXED, fixed_law(FIXED, counts)),
        "halved": (HALVED, fixed_law(HALVED, counts)),
        "replaced": (REPLACED, fixed_law(REPLACED, counts)),
        "unlisted": (UNLISTED, fixed_law(UNLISTED, counts)),
        "limited": (LIMITED, limited_law(LIMITED, counts)),
    }[name]
    shown: laws.Law = {}
    for outcome, mass in law.items():
        key = outcome
        if name == "limited":
            key = tuple(i for i in outcome if i is not laws.BOTTOM) or laws.BOTTOM
        elif name == "unlisted":
            found = sorted(i for i in outcome[-1] if i is not laws.BOTTOM)
            key = tuple(found) or laws.BOTTOM
        else:
            key = outcome[-1]
        shown[key] = shown.get(key, 0.0) + mass
    seen = laws.drawn(lambda e: _set(selector, counts, e))
    assert outcomes_fit(seen, shown)
    assert not outcomes_fit(seen, laws.broken_twin(shown))


@pytest.mark.slow
def test_exactly_k_of_replaced_votes() -> None:
    """Counts move up and down at once; what is private for users who come or go is not enough."""
    known = cache(lambda counts: fixed_law(REPLACED, counts))
    twin = replace(REPLACED, step=1)
    alone = cache(lambda counts: fixed_law(twin, counts))
    broken = 0
    for counts in product(range(1, 4), repeat=3):
        for move in product((-1, 0, 1), repeat=3):
            other = tuple(a + b for a, b in zip(counts, move, strict=True))
            assert laws.broken(REPLACED.guarantee, known(counts), known(other)) is None
            claimed = replace(REPLACED.guarantee, exact_rho=twin.guarantee.exact_rho)  # type: ignore[union-attr, call-arg]
            broken += laws.broken(claimed, alone(counts), alone(other)) is not None
    assert broken


def test_a_share_is_inside_the_budget_and_so_is_the_rest() -> None:
    whole = FixedStableTopK(3, Fraction(1), DELTA)
    assert whole == FixedStableTopK(3, Fraction(1), DELTA, share=Fraction(1, 10))
    for share in (Fraction(1, 100), Fraction(1, 2), Fraction(99, 100)):
        made = replace(whole, share=share)
        assert Fraction(98, 100) < made.guarantee.exact_rho <= 1  # type: ignore[union-attr]
        assert made.test.guarantee.exact_rho <= share / 2
    for share in (Fraction(0), Fraction(1), Fraction(3, 2)):
        with pytest.raises(PrivacyError, match="share"):
            replace(whole, share=share)
    with pytest.raises(PrivacyError, match="too small"):  # now, not when the data need the rest
        replace(whole, share=1 - Fraction(1, 10**9))
    with pytest.raises(PrivacyError, match="domain"):
        replace(whole, step=2, domain=5)


@pytest.mark.parametrize(
    "test", [GaussianTest(Fraction(3), DELTA), LaplaceTest(Fraction(1), DELTA)]
)
@pytest.mark.parametrize("step", [1, 2])
def test_the_gap_that_passes(test: GaussianTest | LaplaceTest, step: int) -> None:
    """By the exact law: enough at the gap that is stated, too little at one user less."""
    test = replace(test, step=step)
    for miss in (0.4, 0.05, 1e-6):
        gap = test.gap_needed(miss)
        chance = [1 - test_law(test, (g, 0), 1)[0,] for g in (gap, gap - 1)]
        assert chance[0] <= miss < chance[1]
    with pytest.raises(PrivacyError, match="miss"):
        test.gap_needed(0.5)


def test_the_gap_beside_the_published_one() -> None:
    """Theorem 20 at ρ = .05, δ = β = 1e-6: 1 + 2σ√(2 ln(1/δ)) = 34.2, 1 + 2 ln(1/δ)/ε = 88.4."""
    rho, delta = Fraction(1, 20), Fraction(1, 10**6)
    gaussian = GaussianTest(1 / (2 * rho), delta)
    laplace = LaplaceTest(Fraction(316, 1000), delta)  # ε²/2 = .05
    printed = [1 + 2 * math.sqrt(10 * 2 * math.log(10**6)), 1 + 2 * math.log(10**6) / 0.316]
    assert [round(value, 1) for value in printed] == [34.2, 88.4]
    found = [gaussian.gap_needed(1e-6), laplace.gap_needed(1e-6)]
    assert found == [32, 84]
    assert all(ours < theirs for ours, theirs in zip(found, printed, strict=True))


def laplace_theorem(noise: NoisyMax, candidates: int) -> list[float]:
    """Theorem 8 of Zhu and Wang with discrete Laplace noise: its own RDP plus ``ln(m)/(α − 1)``."""
    ratio, shift = math.exp(-float((noise.epsilon or 0) / noise.reach)), noise.reach
    values = []
    for order in map(float, DEFAULT_ORDERS):
        power = [order * abs(z) + (1 - order) * abs(z - shift) for z in range(-400, 401)]
        logs = np.array(power) * math.log(ratio) + math.log((1 - ratio) / (1 + ratio))
        values.append((np.logaddexp.reduce(logs) + math.log(candidates)) / (order - 1))
    return values


@pytest.mark.parametrize("epsilon", [Fraction(1, 4), Fraction(4)])
def test_the_curve_of_noisy_max_with_laplace_noise_against_the_worst_neighbours(
    epsilon: Fraction,
) -> None:
    """Between what neighbours attain and what is published: three gaps, all that can move."""
    noise = NoisyMax(Law.LAPLACE, epsilon)
    curve = to_renyi(noise.guarantee(3))
    published = laplace_theorem(noise, 3)
    assert all(float(a) <= b for a, b in zip(curve.values, published, strict=True))
    gaps = [c for c in product(range(5), repeat=3) if min(c) == 0]
    found = {
        gap: dict(enumerate(noise_law(noise, list(gap)))) for gap in product(range(-1, 6), repeat=3)
    }
    orders = curve.orders[30::25]
    worst = dict.fromkeys(orders, 0.0)
    for gap in gaps:
        for step in product((-1, 0, 1), repeat=3):
            other = found[tuple(a + b for a, b in zip(gap, step, strict=True))]  # type: ignore[index]
            for order in orders:
                worst[order] = max(worst[order], laws.renyi(found[gap], other, float(order)))
    for order in orders:
        assert worst[order] <= float(curve.at(order)) * (1 + 1e-9)
    # half the claimed curve is broken somewhere
    assert any(worst[order] > float(curve.at(order)) / 2 for order in orders)
