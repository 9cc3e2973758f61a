"""What an interactive mechanism refuses, at the very limit, and numbers of its formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import BudgetError, PrivacyError
from labelveil.common.guarantees import Adjacency, Unit
from labelveil.common.mechanisms.interactive import Session, Terms
from labelveil.common.mechanisms.interactive.call_count_tail import (
    calls_until,
    least_hits,
    overrun,
)
from labelveil.common.mechanisms.interactive.drift import DriftTest, affordable_epsilon
from labelveil.common.mechanisms.interactive.sparse_vector import SparseVector
from labelveil.common.mechanisms.interactive.targets import (
    Target,
    between_thresholds,
    boundary,
    boundary_closeness,
    hit_probability,
    not_prior,
    run_twice,
)
from labelveil.common.mechanisms.interactive.terms import largest_call_epsilon, most_hits
from labelveil.common.randomizers import NoisyPrior

F = Fraction
ONE, TINY = F(1), F(1, 10**6)


def prior(rows: int = 1000) -> NoisyPrior:
    return NoisyPrior(np.array([600, 300, 100]), ONE, rows, 1)


AT: list[tuple[Callable[[], object], Callable[[], object]]] = [
    (lambda: Target(F(0), ONE), lambda: Target(TINY, ONE)),
    (lambda: Target(F(401, 10), ONE), lambda: Target(F(40), ONE)),
    (lambda: Target(ONE, F(0)), lambda: Target(ONE, TINY)),
    (lambda: Target(ONE, F(11, 10)), lambda: Target(ONE, ONE)),
    (lambda: Target(ONE, ONE, ONE), lambda: Target(ONE, ONE, F(99, 100))),
    (lambda: Target(ONE, ONE, -TINY), lambda: Target(ONE, ONE, F(0))),
    (lambda: between_thresholds(ONE, 0), lambda: between_thresholds(ONE, 1)),
    (lambda: between_thresholds(ONE, 1, 0), lambda: between_thresholds(ONE, 1, 1)),
    (lambda: hit_probability([0.9, 0.1], [0.1, 0.9], [1], 2.0),
     lambda: hit_probability([0.9, 0.1], [0.1, 0.9], [1], 2.2)),
    (lambda: Terms(not_prior(ONE), 0), lambda: Terms(not_prior(ONE), 1)),
    (lambda: Terms(not_prior(ONE), 1, families=0), lambda: Terms(not_prior(ONE), 1, families=1)),
    (lambda: Terms(not_prior(ONE), 1, ONE), lambda: Terms(not_prior(ONE), 1, F(99, 100))),
    (lambda: calls_until(0, F(1, 2), 0.1), lambda: calls_until(1, F(1, 2), 0.1)),
    (lambda: calls_until(1, F(1, 2), 0.0), lambda: calls_until(1, F(1, 2), 1e-9)),
    (lambda: calls_until(1, F(1, 2), 1.0), lambda: calls_until(1, F(1, 2), 0.99)),
    (lambda: least_hits(F(1, 2), 0.009, 0.1), lambda: least_hits(F(1, 2), 1, 0.1)),
    (lambda: least_hits(F(0), 1, 0.1), lambda: least_hits(ONE, 1, 0.1)),
    (lambda: least_hits(F(1, 2), 1, 1.0), lambda: least_hits(F(1, 2), 1, 0.9)),
    (lambda: DriftTest(prior(), 0, ONE), lambda: DriftTest(prior(), 1, ONE)),
    (lambda: DriftTest(prior(), 1, ONE, 0), lambda: DriftTest(prior(), 1, ONE, 1)),
    (lambda: DriftTest(prior(), 1, ONE, 1, 1.0), lambda: DriftTest(prior(), 1, ONE, 1, 0.0)),
    (lambda: DriftTest(prior(), 1, ONE, 1, 0.1, 0.0),
     lambda: DriftTest(prior(), 1, ONE, 1, 0.1, 0.99)),
    (lambda: DriftTest(prior(), 1, ONE, 1, 0.1, 1.0),
     lambda: DriftTest(prior(), 1, ONE, 1, 0.99, 0.01)),
    (lambda: SparseVector(0, ONE, ONE), lambda: SparseVector(1, ONE, ONE)),
    (lambda: SparseVector(1, ONE, ONE, sensitivity=0), lambda: SparseVector(1, ONE, ONE)),
    (lambda: SparseVector(1, F(0), ONE), lambda: SparseVector(1, TINY, ONE)),
    (lambda: SparseVector(1, ONE, F(0)), lambda: SparseVector(1, ONE, TINY)),
    (lambda: SparseVector(1, ONE, ONE, F(0)), lambda: SparseVector(1, ONE, ONE, TINY)),
    (lambda: SparseVector.refreshed(1, F(0), TINY), lambda: SparseVector.refreshed(1, ONE, F(0))),
    (lambda: SparseVector.refreshed(1, ONE, ONE), lambda: SparseVector.refreshed(1, ONE, TINY)),
    (lambda: SparseVector.best_split(1, F(0)), lambda: SparseVector.best_split(1, ONE)),
    (lambda: SparseVector.best_split(1, ONE, ONE),
     lambda: SparseVector.best_split(1, ONE, F(1, 2))),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(AT)))
def test_limits_are_where_they_are_said_to_be(number: int) -> None:
    refused, taken = AT[number]
    with pytest.raises(PrivacyError):
        refused()
    taken()


def test_a_hit_has_the_chance_of_its_lemma() -> None:
    for epsilon in (F(1, 10), F(1), F(3)):
        e = float(epsilon)

        def near(target: Target, q: float) -> bool:
            return q * (1 - 1e-9) <= float(target.probability) <= q

        assert near(not_prior(epsilon), 1 / (math.exp(e) + 1))
        wide = (1 - math.exp(-e * 3 / 2)) / (math.exp(e) + 1)
        assert near(between_thresholds(epsilon, 3, 2), wide)
        t = min(4 / 3 * e, e + math.log(3 / (2 + math.exp(-e))))
        assert t <= float(boundary_closeness(epsilon)) <= t * (1 + 1e-9)
        q = math.expm1(t) / (math.expm1(t) + math.expm1(e) * (2 * math.exp(t) + 1))
        assert float(boundary(epsilon).probability) == pytest.approx(q, rel=1e-8)
        assert boundary(epsilon, F(1, 4)).epsilon == boundary_closeness(epsilon) + F(1, 4)
        first = 2 * math.exp(e) / (math.exp(e) + 1) ** 2
        second = (math.exp(2 * e) - 1) / (math.exp(3 * e) - 1)
        assert near(run_twice(epsilon), min(first, second))
        assert run_twice(epsilon).epsilon == 2 * epsilon
    share = Fraction(1 / (Decimal(40).exp() + 1))  # to 28 digits
    assert share * (1 - F(1, 10**11)) < not_prior(F(40)).probability < share
    assert not_prior(ONE, TINY).delta == TINY
    one, other = Target(ONE, F(1, 4)), Target(F(2), F(1, 8))
    assert one.within(other)
    assert not other.within(one)
    assert not Target(ONE, F(1, 9)).within(other)
    assert not Target(F(3), F(1, 2)).within(other)
    assert one.within(one)
    assert hit_probability([0.5, 0.5], [0.5, 0.5], [0], 1.0) == 1
    assert hit_probability([1, 0], [1, 0], [1], 1.0) == 1  # nobody ever sees a difference
    assert boundary_closeness(F(1, 10**9)) == F(4, 3 * 10**9)


def test_calls_are_counted_by_the_binomial_law() -> None:
    """n calls have fewer than τ hits with the chance of the binomial law."""
    for calls, hits, q in ((10, 3, F(1, 4)), (40, 5, F(1, 3)), (3, 1, F(1, 2))):
        p = float(q)
        exact = sum(math.comb(calls, j) * p**j * (1 - p) ** (calls - j) for j in range(hits))
        assert exact <= overrun(calls, hits, q) <= exact * (1 + 1e-6)
    assert overrun(3, 3, F(1, 10**4)) == 1
    for epsilon in (18, 30, 40):  # few calls hit: the law is Poisson's, of a mean of 20
        q = not_prior(F(epsilon)).probability
        exact = sum(math.exp(-20) * 20**j / math.factorial(j) for j in range(3))
        assert overrun(math.floor(20 / q), 3, q) == pytest.approx(exact, rel=1e-5)
        assert calls_until(3, q, exact) == pytest.approx(20 / float(q), rel=1e-5)
    for hits, q, failure in ((1, F(1, 2), 0.1), (5, F(1, 3), 1e-3)):
        least = calls_until(hits, q, failure)
        assert overrun(least, hits, q) <= failure < overrun(least - 1, hits, q)


def test_a_drift_is_as_far_as_its_formula_says() -> None:
    test = DriftTest(prior(), 5000, F(1, 20), 2, 0.05, 0.01)
    assert test.scale == 40
    deviation = prior().deviation
    chance = math.sqrt(
        math.log(2 / 0.005) / 2 * (1 / 5000 + 1 / 1000 + 3 * (deviation / 1000) ** 2)
    )
    tail = 40 * math.log(1 / (2 * 0.005))
    assert test.threshold == math.ceil(5000 * (0.05 + chance) + tail)
    missed = math.sqrt(math.log(2 / 0.05) / 2 * (1 / 5000 + 1 / 1000 + 3 * (deviation / 1000) ** 2))
    noticed = (test.threshold + 40 * math.log(1 / (2 * 0.05))) / 5000 + missed
    assert test.noticed(0.1) == pytest.approx(noticed)
    nothing, one = (DriftTest(prior(rows), 5000, F(1, 20)).threshold for rows in (0, 1))
    assert nothing == one  # a prior of no rows knows as little
    shares = np.cumsum(prior().probabilities)
    expected = [round(5000 * share) for share in shares.tolist()]
    assert test.expected.tolist() == expected
    counts = [3000 - 7, 1500, 500 + 7]
    distance = max(abs(a - b) for a, b in zip(np.cumsum(counts).tolist(), expected, strict=True))
    assert test.statistic(counts) == distance
    assert test.target == not_prior(F(1, 20))
    # noise of half the tolerance: 2 m ln(1/β) / (t n), at most a quarter of the prior's
    wanted = 2 * 3 * math.log(100) / (0.05 * 100_000)
    found = float(affordable_epsilon(F(1, 8), 100_000, 0.05, 0.01, 3))
    assert wanted * (1 - 1e-3) <= found <= wanted
    assert affordable_epsilon(F(1, 8), 10, 0.05, 0.01) <= F(1, 32)
    assert float(affordable_epsilon(F(1, 8), 10, 0.05, 0.01)) == pytest.approx(1 / 32, rel=1e-3)
    assert affordable_epsilon(F(1, 8), 10**9, 0.0, 0.01) == affordable_epsilon(F(1, 8), 1, 0.1, 0.1)


def test_a_sparse_vector_costs_its_runs_and_values() -> None:
    one = SparseVector(3, F(4), F(8), sensitivity=2)
    assert one.guarantee.exact_epsilon == F(2, 4) + 3 * F(4, 8)
    assert one.guarantee.adjacency == Adjacency.ADD_REMOVE
    assert one.guarantee.unit == Unit.USER
    monotone = SparseVector(3, F(4), F(8), sensitivity=2, monotone=True)
    assert monotone.guarantee.exact_epsilon == F(2, 4) + 3 * F(2, 8)
    anew = SparseVector(3, F(4), F(8), refresh=True)
    assert anew.guarantee.exact_epsilon == 3 * (F(1, 4) + F(2, 8))
    valued = SparseVector(3, F(4), F(8), F(16))
    assert valued.guarantee.exact_epsilon == F(1, 4) + 3 * F(2, 8) + 3 * F(1, 16)
    for monotone_ in (False, True):
        split = SparseVector.best_split(4, ONE, F(1, 5), 2, monotone_)
        reach = 4 if monotone_ else 8
        tests = 0.8
        first = tests / (1 + reach ** (2 / 3))
        assert float(split.threshold_scale) == pytest.approx(2 / first, abs=1e-3)
        assert float(split.count_scale) == pytest.approx(reach * 2 / (tests - first), abs=1e-3)
        assert split.value_scale == 4 * 2 * 5
        assert F(99, 100) < split.guarantee.exact_epsilon <= 1
    assert SparseVector.best_split(4, ONE).value_scale is None
    refreshed = SparseVector.refreshed(4, ONE, F(1, 10**6), values=True)
    assert refreshed.refresh
    plain = SparseVector.refreshed(4, ONE, F(1, 10**6))
    assert (plain.value_scale, plain.sensitivity, plain.monotone) == (None, 1, False)
    assert refreshed.value_scale == refreshed.threshold_scale
    assert 0.99 < refreshed.approximate(F(1, 10**6)).epsilon <= 1
    quiet = SparseVector(2, F(1, 200), F(1, 200), F(1, 200))
    answers = quiet.draw([0, 50, 0, 90, 70], 40, seeded_entropy(3))
    assert answers.above.tolist() == [False, True, False, True]
    assert answers.values is not None
    assert answers.values.tolist() == [0, 50, 0, 90]
    rising = quiet.draw([0, 50, 0], [-5, 60, -5], seeded_entropy(3))
    assert rising.above.tolist() == [True, False, True]


@pytest.mark.slow
def test_terms_fit_the_budget_and_one_hit_more_does_not() -> None:
    target = not_prior(F(1, 10))
    hits = most_hits(2.0, F(1, 10**6), target)
    assert Terms(target, hits).approximate(F(1, 10**6)).epsilon <= 2
    assert Terms(target, hits + 1).approximate(F(1, 10**6)).epsilon > 2
    exactly = Terms(target, 5).approximate(F(1, 10**6)).epsilon
    assert most_hits(exactly, F(1, 10**6), target) == 5
    assert largest_call_epsilon(exactly, F(1, 10**6), 5, grain=10) == F(1, 10)
    assert largest_call_epsilon(1.5 / 1024, F(1, 2), 1) == F(1, 1024)
    # calls of ε above 40, of which there are none, are not tried
    assert largest_call_epsilon(99, F(1, 2), 1, lambda each: Target(each, ONE), 2) == F(79, 2)
    with pytest.raises(PrivacyError, match="more than 3 hits fit"):
        most_hits(9.0, F(1, 10**6), target, 3)
    largest = largest_call_epsilon(2.0, F(1, 10**6), 5)
    assert Terms(not_prior(largest), 5).approximate(F(1, 10**6)).epsilon <= 2
    over = largest + F(1, 1024)
    assert Terms(not_prior(over), 5).approximate(F(1, 10**6)).epsilon > 2


def test_terms_are_read_back_or_refused() -> None:
    terms = Terms(not_prior(F(1, 10)), 7, F(1, 100), 2, Adjacency.REPLACE_RECORD, Unit.USER)
    stated: Any = terms.to_json()
    assert Terms.from_json(stated) == terms
    for name in stated:
        with pytest.raises(PrivacyError):
            Terms.from_json({key: value for key, value in stated.items() if key != name})
    for change in ({"hits": "7"}, {"hits": 0}, {"adjacency": "x"}, {"unit": 3}):
        with pytest.raises(PrivacyError):
            Terms.from_json(stated | change)


def test_a_session_ends_with_its_last_hit_and_not_before() -> None:
    session = Session([0], Terms(not_prior(F(10)), 2), seeded_entropy(1))
    test = DriftTest(prior(), 1000, F(10))
    hits = []
    for counts in ([600, 300, 100], [0, 0, 1000], [600, 300, 100], [0, 0, 1000]):
        assert not session.halted
        session = Session.resume(session.to_json(), np.array(counts), seeded_entropy(len(hits)))
        hits.append(session.run(test))
    assert hits == [False, True, False, True]
    assert session.halted
    assert session.to_json()["hits"] == [2]
    assert session.to_json()["calls"] == 4
    with pytest.raises(BudgetError):
        session.run(test)
