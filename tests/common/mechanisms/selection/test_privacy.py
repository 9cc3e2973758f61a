"""Every selector keeps its guarantee: all neighbours on small domains, by exact output laws."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from common.entropy import Entropy
from common.guarantees import (
    ApproximateDP,
    BoundedRange,
    Guarantee,
    PureDP,
    RenyiDP,
    ZeroConcentratedDP,
)
from common.mechanisms.selection import (
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
from common.mechanisms.selection.base import ADJACENCY, UNIT
from tests.common.mechanisms.selection import laws
from tests.statistics import outcomes_fit

Counts = tuple[int, ...]
EPSILON = Fraction(3, 2)
DELTA = Fraction(1, 50)


def noise_law(noise: NoisyMax, utilities: list[int], denominator: int = 1) -> list[float]:
    if noise.law == Law.GAUSSIAN:
        points, mass = laws.gaussian_mass(float(noise.variance or 0), 30)
        return laws.noisy_argmax(utilities, (points, mass))
    rate = float((noise.epsilon or 0) / noise.reach) / denominator
    scores = [rate * u for u in utilities]
    if noise.law == Law.GUMBEL:
        return laws.softmax(scores).tolist()
    if noise.law == Law.EXPONENTIAL:
        return laws.permute_and_flip(scores)
    return laws.noisy_argmax(utilities, laws.laplace_mass(1 / rate, 40))


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
        noise = laws.laplace_mass(1 / float(test.epsilon), 200)
    gap = laws.gaps_of(counts, k)[-1]
    passed = laws.tail(noise, 1 + test.threshold - max(1, gap))
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
    from common.mechanisms.selection.stable_top_k import choice_epsilon

    law: laws.Law = {}
    m = len(counts)
    for chosen, mass in enumerate(rank_law(selector.rank_choice, counts), start=1):
        for outcome, share in test_law(selector.test, counts, chosen).items():
            top = list(outcome or ())
            draws = abs(selector.k - len(top))
            pool = [i for i in range(m) if i not in top] if len(top) < selector.k else top
            if not draws:
                law[chosen, outcome, tuple(top)] = mass * share
                continue
            rate = float(choice_epsilon(selector.rho * selector.peel_share / draws))
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
    """A selector, its law, its guarantee, and the domain to enumerate."""

    law: Callable[[Counts], laws.Law]
    guarantee: Guarantee
    draw: Callable[[Counts, Entropy], Any]
    candidates: int = 3
    most: int = 4


def _max_case(noise: NoisyMax) -> Case:
    return Case(
        lambda c: dict(enumerate(noise_law(noise, list(c)))),
        noise.guarantee(3),
        lambda c, e: noise.choose(np.array(c), e.source("test")),
        most=3,
    )


def _rank_case(noise: NoisyMax, **options: Any) -> Case:
    choice = ChooseRank(noise, **options)
    return Case(
        lambda c: dict(enumerate(rank_law(choice, c), start=1)),
        choice.guarantee(4),
        lambda c, e: choice.choose(Ranking(c), e.source("test")),
        candidates=4,
        most=2,
    )


def _test_case(test: GaussianTest | LaplaceTest) -> Case:
    def draw(counts: Counts, entropy: Entropy) -> Any:
        passed = test.passes(laws.gaps_of(counts, 1)[0], entropy.source("test"))
        return laws.top_of(counts, 1) if passed else laws.BOTTOM

    return Case(lambda c: test_law(test, c, 1), test.guarantee, draw, candidates=3, most=7)


def _set(selector: Any, counts: Counts, entropy: Entropy) -> Any:
    chosen = selector.select(counts, entropy).chosen
    return laws.BOTTOM if chosen is None else tuple(chosen.tolist())


STABLE = StableTopK(Fraction(1), DELTA, most=3)
PULLED = replace(STABLE, regularizer=pull_towards(2, Fraction(1, 2)), share=Fraction(1, 3))
FIXED = FixedStableTopK(2, Fraction(2), DELTA, most=3)
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
    **{
        f"rank-{law}": _rank_case(
            NoisyMax(law, variance=Fraction(5)) if law == Law.GAUSSIAN else NoisyMax(law, EPSILON)
        )
        for law in Law
    },
    "rank-pulled": _rank_case(
        NoisyMax(Law.GUMBEL, EPSILON), most=2, regularizer=pull_towards(2, Fraction(2, 3))
    ),
    "test-gaussian": _test_case(GaussianTest(Fraction(3), DELTA)),
    "test-laplace": _test_case(LaplaceTest(Fraction(4, 5), DELTA)),
    "stable": Case(lambda c: stable_law(STABLE, c), STABLE.guarantee, lambda c, e: None),
    "stable-pulled": Case(lambda c: stable_law(PULLED, c), PULLED.guarantee, lambda c, e: None),
    "fixed": Case(lambda c: fixed_law(FIXED, c), FIXED.guarantee, lambda c, e: None),
    "peeling": Case(
        lambda c: peel_law([float(EPSILON) * n for n in c], 2),
        PEEL.guarantee,
        lambda c, e: _set(PEEL, c, e),
        most=3,
    ),
    "limited-domain": Case(
        lambda c: limited_law(LIMITED, c),
        LIMITED.guarantee,
        lambda c, e: None,
        candidates=4,
        most=2,
    ),
    "top-stable": Case(
        lambda c: top_stable_law(TOP, c), TOP.guarantee, lambda c, e: _set(TOP, c, e), most=4
    ),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_all_neighbours_keep_the_guarantee(name: str) -> None:
    case = CASES[name]
    assert laws.worst(case.guarantee, case.law, case.candidates, case.most) is None


def _weaker(guarantee: Guarantee) -> Guarantee:
    """A guarantee that the mechanism does not keep: far less budget and no failures."""
    if isinstance(guarantee, ZeroConcentratedDP):
        return replace(guarantee, exact_rho=guarantee.exact_rho / 100, exact_delta=Fraction(0))
    if isinstance(guarantee, BoundedRange):
        return BoundedRange.of(guarantee.parts[0][0] / 2, ADJACENCY, UNIT)
    if isinstance(guarantee, PureDP):
        return PureDP.of(guarantee.exact_epsilon / 2, ADJACENCY, UNIT)
    if isinstance(guarantee, RenyiDP):
        values = tuple(value / 50 for value in guarantee.values)
        return replace(guarantee, values=values, exact_delta=Fraction(0))
    assert isinstance(guarantee, ApproximateDP)
    return ApproximateDP.of(guarantee.exact_epsilon / 4, 0, ADJACENCY, UNIT)


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_check_has_power(name: str) -> None:
    case = CASES[name]
    assert laws.worst(_weaker(case.guarantee), case.law, case.candidates, case.most) is not None


def _drawn() -> list[Any]:
    simple = [(name, CASES[name], (2, 6, 3, 1)[: CASES[name].candidates]) for name in CASES]
    return [
        pytest.param(case, counts, id=name)
        for name, case, counts in simple
        if name not in ("stable", "stable-pulled", "fixed", "limited-domain")
    ]


@pytest.mark.statistical
@pytest.mark.parametrize(("case", "counts"), _drawn())
def test_draws_follow_the_law(case: Case, counts: Counts) -> None:
    law, seen = case.law(counts), laws.drawn(lambda e: case.draw(counts, e))
    assert outcomes_fit(seen, law)
    assert not outcomes_fit(seen, laws.broken_twin(law))


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["stable", "pulled", "fixed", "limited"])
def test_whole_selectors_follow_their_laws(name: str) -> None:
    counts = (1, 9, 2, 0) if name == "limited" else (1, 9, 2)
    selector, law = {
        "stable": (STABLE, stable_law(STABLE, counts)),
        "pulled": (PULLED, stable_law(PULLED, counts)),
        "fixed": (FIXED, fixed_law(FIXED, counts)),
        "limited": (LIMITED, limited_law(LIMITED, counts)),
    }[name]
    shown: laws.Law = {}
    for outcome, mass in law.items():
        key = outcome
        if name == "limited":
            key = tuple(i for i in outcome if i is not laws.BOTTOM) or laws.BOTTOM
        else:
            key = outcome[-1]
        shown[key] = shown.get(key, 0.0) + mass
    seen = laws.drawn(lambda e: _set(selector, counts, e))
    assert outcomes_fit(seen, shown)
    assert not outcomes_fit(seen, laws.broken_twin(shown))
