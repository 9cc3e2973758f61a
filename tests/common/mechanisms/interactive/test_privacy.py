"""Measured privacy of sessions and of the sparse vector, by their exact laws; broken twins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import BudgetError
from labelveil.common.guarantees import ApproximateDP, PureDP, to_approximate
from labelveil.common.mechanisms.interactive import (
    BestOfPriors,
    NotPrior,
    Session,
    SparseVector,
    Target,
    Terms,
)
from labelveil.common.mechanisms.interactive.targets import not_prior
from tests.common.mechanisms.enumerated import dwork_roth
from tests.common.mechanisms.interactive import laws
from tests.common.mechanisms.interactive.laws import Law
from tests.effort import one_in

Chances = Callable[[tuple[bool, ...]], float]
Maker = Callable[..., Session[Any]]


def session_laws(
    chances: Sequence[Chances], terms: Terms, length: int, make: Maker = Session
) -> list[Law]:
    """The exact laws of a session's transcript: every run of answers is played through it.

    ``chances`` are probabilities of answer True to the next test under several data sets, given all
    answers so far: tests may be chosen adaptively. The prior is False.
    """
    found: list[Law] = [{} for _ in chances]
    for script in product((False, True), repeat=length):
        session = make(None, terms, seeded_entropy(0))
        shown: tuple[bool, ...] = ()
        masses = [1.0] * len(chances)
        try:
            for answer in script:
                call = NotPrior(lambda data, source, a=answer: a, terms.target.epsilon, False)
                before, shown = shown, (*shown, session.run(call))
                masses = [
                    mass * (c(before) if answer else 1 - c(before))
                    for mass, c in zip(masses, chances, strict=True)
                ]
        except BudgetError:
            if any(script[len(shown) :]):
                continue  # the same transcript as with misses in the rest
        for law, mass in zip(found, masses, strict=True):
            law[shown] = mass
    return found


@cache
def session_pairs(
    epsilon: float, terms: Terms, length: int = 9, make: Maker = Session
) -> list[tuple[Law, Law]]:
    """The laws under the neighbours of :func:`responses`."""
    pairs = responses(epsilon)
    flat = [chance for pair in pairs for chance in pair]
    found = session_laws(flat, terms, length, make)
    return list(zip(found[::2], found[1::2], strict=True))


def responses(epsilon: float) -> list[tuple[Chances, Chances]]:
    """Tests by randomized response under two neighbours, and rarer tests of the same ratio."""
    truth = 1 / (1 + math.exp(-epsilon))
    rare = 0.02
    return [
        (lambda shown: truth, lambda shown: 1 - truth),
        (lambda shown: rare, lambda shown: rare * math.exp(epsilon)),
        # which neighbour is favoured depends on the last answer
        (
            lambda shown: truth if sum(shown) % 2 else 1 - truth,
            lambda shown: 1 - truth if sum(shown) % 2 else truth,
        ),
        (
            lambda shown: truth if len(shown) % 3 else 0.2,
            lambda shown: 1 - truth if len(shown) % 3 else 0.2,
        ),
    ]


@pytest.mark.parametrize("hits", one_in(3, [1, 2, 3], first=1))
@pytest.mark.parametrize("epsilon", one_in(2, [Fraction(1), Fraction(1, 2)]))
def test_sessions_of_randomized_responses_keep_what_is_stated(epsilon: Fraction, hits: int) -> None:
    terms = Terms(not_prior(epsilon), hits)
    pairs = session_pairs(float(epsilon), terms)
    assert laws.violation(pairs, terms.approximate) is None
    by_curve = lambda delta: to_approximate(terms.guarantee, Fraction(delta))  # noqa: E731
    assert laws.violation(pairs, by_curve) is None
    routes = {delta: terms.routes(delta) for delta in laws.DELTAS}
    for name in routes[0.01]:
        assert laws.violation(pairs, lambda delta, n=name: routes[delta][n]) is None  # type: ignore[misc]


def test_long_sessions_of_rare_tests_keep_what_is_stated() -> None:
    # hits are rare and misses many: the law of the first hit's place, in closed form
    epsilon, length, x = 0.5, 4000, 0.002
    terms = Terms(not_prior(Fraction(epsilon)), 1)

    def law(chance: float) -> Law:
        found: Law = {place: (1 - chance) ** place * chance for place in range(length)}
        found[length] = (1 - chance) ** length
        return found

    pairs = [(law(x), law(x * math.exp(epsilon)))]
    deltas = (0.1, 1e-3, 1e-5)
    assert laws.violation(pairs, terms.approximate, deltas) is None
    # one hit costs far more than ε: misses in a row tell, too
    assert laws.violation(pairs, lambda d: ApproximateDP.of(epsilon, d), deltas) is not None


class NeverHalts(Session[Any]):
    """Broken: forgets its hits."""

    @property
    def halted(self) -> bool:
        return False


def test_a_session_that_does_not_halt_is_caught() -> None:
    epsilon = Fraction(1, 2)
    terms = Terms(not_prior(epsilon), 1)
    deltas = (0.3, 0.2, 0.1, 0.05)
    assert laws.violation(session_pairs(0.5, terms, 9), terms.approximate, deltas) is None
    endless = session_pairs(0.5, terms, 9, NeverHalts)
    assert laws.violation(endless, terms.approximate, deltas) is not None


def test_an_overstated_q_is_caught() -> None:
    honest = Terms(not_prior(Fraction(1)), 2)
    pairs = session_pairs(1.0, honest)
    boastful = Terms(Target(Fraction(1), Fraction(9, 10)), 2)
    assert laws.violation(pairs, honest.approximate) is None
    assert laws.violation(pairs, boastful.approximate) is not None


def test_a_hit_costs_more_than_its_call() -> None:
    terms = Terms(not_prior(Fraction(1)), 2)
    pairs = session_pairs(1.0, terms)
    assert laws.violation(pairs, terms.approximate) is None
    assert laws.violation(pairs, lambda d: ApproximateDP.of(terms.target.epsilon * 2, d))


def test_sessions_of_two_families_keep_what_is_stated() -> None:
    epsilon, truth = Fraction(1), 1 / (1 + math.exp(-1))
    terms = Terms(not_prior(epsilon), 2, families=2)

    def law(chance: float) -> Law:
        found: Law = {}
        for script in product((False, True), repeat=9):
            session: Session[Any] = Session(None, terms, seeded_entropy(0))
            shown: list[bool] = []
            try:
                for answer in script:
                    call = BestOfPriors(lambda d, s, a=answer: a, epsilon, (False, True))
                    shown.append(session.run(call))
            except BudgetError:
                if any(script[len(shown) :]):
                    continue
            hits = sum(shown)
            found[tuple(shown)] = chance**hits * (1 - chance) ** (len(shown) - hits)
            assert session.family_hits == (hits, len(shown) - hits)
        return found

    pairs = [(law(truth), law(1 - truth))]
    assert laws.violation(pairs, terms.approximate) is None


# The sparse vector: exact laws on counts near the threshold, of neighbours that move by one.

REACH = 60
LENGTH, CUTOFF = 5, 2


def neighbouring_counts(monotone: bool) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for shift in product((0, 1), repeat=LENGTH):
        other = tuple(0 for _ in shift) if monotone else tuple(1 - s for s in shift)
        yield tuple(shift), other


def sparse_law(
    counts: tuple[int, ...],
    threshold_scale: float,
    count_scale: float | None,
    cutoff: int,
    refresh: bool = False,
) -> Law:
    """The law of above and below, by a sum over the threshold's noise; None: no noise on counts."""
    points, mass = laws.laplace(threshold_scale, REACH)

    def passes(i: int) -> np.ndarray:
        distance = points - counts[i]
        if count_scale is None:
            return (distance <= 0).astype(float)
        return np.asarray(laws.at_least(count_scale, distance))

    law: Law = {}
    for transcript in laws.transcripts(len(counts), cutoff):
        total, run = 1.0, mass.copy()
        for i, above in enumerate(transcript):
            run = run * (passes(i) if above else 1 - passes(i))
            if above and refresh:
                total, run = total * run.sum(), mass.copy()
        law[transcript] = float(total * run.sum())
    return law


def sparse_pairs(vector: SparseVector) -> list[tuple[Law, Law]]:
    scales = float(vector.threshold_scale), float(vector.count_scale)

    @cache
    def law(counts: tuple[int, ...]) -> Law:
        return sparse_law(counts, *scales, vector.cutoff, vector.refresh)

    return [(law(a), law(b)) for a, b in neighbouring_counts(vector.monotone)]


def worst_ratio(pairs: list[tuple[Law, Law]]) -> float:
    worst = 0.0
    for one, other in pairs:
        for z in {*one, *other}:
            p, q = one.get(z, 0.0), other.get(z, 0.0)
            if max(p, q) > 1e-13:
                worst = max(worst, abs(math.log(max(p, 1e-300) / max(q, 1e-300))))
    return worst


EPSILON = Fraction(3, 2)
VECTORS = {
    "dwork-roth": dwork_roth(CUTOFF, EPSILON),
    "best-split": SparseVector.best_split(CUTOFF, EPSILON),
    "best-split-monotone": SparseVector.best_split(CUTOFF, EPSILON, monotone=True),
    "one-hit": SparseVector.best_split(1, EPSILON),
    "refreshed": SparseVector.refreshed(CUTOFF, EPSILON, Fraction(1, 100)),
    "refreshed-monotone": SparseVector.refreshed(CUTOFF, EPSILON, Fraction(1, 100), monotone=True),
}


@pytest.mark.parametrize("name", sorted(VECTORS))
def test_the_sparse_vector_keeps_its_guarantee(name: str) -> None:
    vector = VECTORS[name]
    pairs = sparse_pairs(vector)
    pure = vector.guarantee
    assert isinstance(pure, PureDP)
    found = worst_ratio(pairs)
    assert found <= pure.epsilon * (1 + 1e-6)
    assert found > 0.35 * pure.epsilon  # the counts are a hard case, so the check has power
    assert laws.violation(pairs, vector.approximate, (0.1, 0.01, 1e-3)) is None
    halved = lambda delta: ApproximateDP.of(vector.approximate(delta).epsilon / 3, delta)  # noqa: E731
    assert laws.violation(pairs, halved, (0.01, 1e-3, 1e-5)) is not None


def test_guarantees_follow_from_the_scales() -> None:
    for name in ("dwork-roth", "best-split", "best-split-monotone", "one-hit"):
        pure = VECTORS[name].guarantee
        assert isinstance(pure, PureDP)
        assert float(EPSILON) * 0.999 <= pure.epsilon <= float(EPSILON)
    assert VECTORS["refreshed"].approximate(Fraction(1, 100)).epsilon <= EPSILON
    many = dwork_roth(200, Fraction(1, 2), Fraction(1, 10**6))
    assert many.approximate(1e-6).epsilon <= 0.5
    assert many.threshold_scale < dwork_roth(200, Fraction(1, 2)).threshold_scale
    least = SparseVector.refreshed(200, Fraction(1, 2), Fraction(1, 10**6))
    assert least.approximate(1e-6).epsilon <= 0.5
    assert least.threshold_scale < many.threshold_scale / 1.5  # the theorem is far from tight
    valued = SparseVector.best_split(5, EPSILON, values=Fraction(1, 4))
    assert valued.guarantee.within(PureDP.of(EPSILON, valued.adjacency, valued.unit))


HALF, QUARTER = float(EPSILON) / 2, float(EPSILON) / 4


def with_its_own_noise(counts: tuple[int, ...]) -> Law:
    """Algorithm 3: publishes the noisy count that was compared; four are below, then one is."""
    points, mass = laws.laplace(1 / HALF, 40)
    noise, chance = laws.laplace(CUTOFF / HALF, 40)
    below = np.prod(
        [1 - laws.at_least(CUTOFF / HALF, points - count) for count in counts[:4]], axis=0
    )
    law: Law = {}
    for z, p in zip(noise.tolist(), chance.tolist(), strict=True):
        shown = counts[4] + z
        law[shown] = float(p * (mass * below * (points <= shown)).sum())
    rest = 1 - sum(law.values())
    return {**law, "otherwise": max(rest, 0.0)}


BROKEN: dict[str, Callable[[tuple[int, ...]], Law]] = {
    "publishes the compared noise": with_its_own_noise,
    "noise ignores the cutoff": lambda c: sparse_law(c, 1 / QUARTER, 1 / (3 * QUARTER), 4),
    "no noise on counts": lambda c: sparse_law(c, 1 / HALF, None, LENGTH),
    "no cutoff": lambda c: sparse_law(c, 1 / HALF, 1 / HALF, LENGTH + 1),
}
"""Lyu, Su, Li (2017), Algorithms 3 to 6, each with the ε that its authors claimed for it."""


@pytest.mark.parametrize("name", BROKEN)
def test_the_broken_variants_are_caught(name: str) -> None:
    law = cache(BROKEN[name])
    pairs = [(law(a), law(b)) for a, b in neighbouring_counts(False)]
    assert worst_ratio(pairs) > float(EPSILON) * 1.05
    deltas = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
    assert laws.violation(pairs, lambda delta: ApproximateDP.of(EPSILON, delta), deltas)
