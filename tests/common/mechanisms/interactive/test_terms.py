"""A session's guarantee: exact tails against Chernoff, the game against strategies and bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import binom

from benchmarks.published.interactive import published_calls
from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.guarantees import (
    Adjacency,
    Filter,
    PureDP,
    Unit,
    guarantee_from_json,
    optimal_composition,
    to_approximate,
    to_renyi,
)
from labelveil.common.mechanisms.interactive import optimal_curve as solver
from labelveil.common.mechanisms.interactive.call_count_tail import calls_until, least_hits, overrun
from labelveil.common.mechanisms.interactive.optimal_curve import Curve, optimal_curve, vertices
from labelveil.common.mechanisms.interactive.targets import Target, boundary, not_prior
from labelveil.common.mechanisms.interactive.terms import (
    Terms,
    hit_cost,
    largest_call_epsilon,
    most_hits,
)
from tests.effort import one_in

DELTA = 1e-6
chances = st.fractions(Fraction(1, 50), Fraction(1), max_denominator=100)


@given(st.integers(1, 2000), chances, st.floats(1e-12, 0.3))
@settings(max_examples=60, deadline=None)
def test_the_exact_tail_is_never_worse_than_the_published_one(
    hits: int, q: Fraction, failure: float
) -> None:
    calls = calls_until(hits, q, failure)
    assert calls <= published_calls(hits, q, failure)
    assert overrun(calls, hits, q) <= failure
    assert calls == hits or overrun(calls - 1, hits, q) > failure


def test_the_tail_in_rational_arithmetic() -> None:
    q = Fraction(2, 7)
    for calls, hits in ((5, 2), (12, 3), (40, 9)):
        exact = sum(
            (math.comb(calls, j) * q**j * (1 - q) ** (calls - j) for j in range(hits)), Fraction(0)
        )
        assert float(exact) <= overrun(calls, hits, q) <= float(exact) * (1 + 1e-8)


def test_the_table_of_the_module_is_what_it_computes() -> None:
    import labelveil.common.mechanisms.interactive.call_count_tail as module

    lines = [line.split() for line in (module.__doc__ or "").splitlines()]
    rows = {int(cells[0]): cells[1:] for cells in lines if cells and cells[0].isdigit()}
    assert sorted(rows) == [10, 30, 100, 1000]
    for hits, cells in rows.items():
        wanted = []
        for epsilon in (Fraction(1, 10), Fraction(1)):
            q = not_prior(epsilon).probability
            published, exact = published_calls(hits, q, DELTA), calls_until(hits, q, DELTA)
            wanted += [f"{published / hits:.2f}", f"{exact / hits:.2f}", f"{published / exact:.2f}"]
        assert cells == wanted, hits


def test_the_least_hits_of_an_overhead() -> None:
    """By rational tails around it; and the table of the docstring, with Chernoff's columns."""
    q, overhead, failure = Fraction(2, 7), Fraction(1), 1e-3
    hits = least_hits(q, overhead, failure)

    def missed(tau: int) -> Fraction:
        calls = math.floor((1 + overhead) * tau / q)
        terms = (math.comb(calls, j) * q**j * (1 - q) ** (calls - j) for j in range(tau))
        return sum(terms, Fraction(0))

    assert missed(hits) <= failure
    assert all(missed(tau) > failure for tau in range(1, hits))
    assert least_hits(Fraction(1), 0.5, 1e-6) == 1  # every call hits
    lines = [line.split() for line in (least_hits.__doc__ or "").splitlines()]
    rows = [cells for cells in lines if len(cells) == 5 and cells[0][0].isdigit()]
    assert [cells[0] for cells in rows] == ["0.1", "0.5", "1", "2"]
    for alpha, *cells in rows:
        a = float(alpha)
        log = math.log(1e6)
        chernoff = [2 * (1 + a) * log / a**2, log / (a - math.log1p(a))]
        exact = [
            least_hits(Fraction(chance), Fraction(alpha), 1e-6) for chance in ("0.475", "0.269")
        ]
        assert cells == [f"{math.ceil(value):,}" for value in [*chernoff, *exact]]
    for broken in (
        lambda: least_hits(q, 0.001, failure),
        lambda: least_hits(q, 1.0, 0.0),
        lambda: least_hits(Fraction(0), 1.0, failure),
    ):
        with pytest.raises(PrivacyError):
            broken()


@pytest.mark.parametrize("epsilon", one_in(2, [Fraction(1, 10), Fraction(1)], first=1))
@pytest.mark.parametrize("hits", [1, 4, 100])
def test_the_tightest_route_wins_and_the_game_is_never_looser(epsilon: Fraction, hits: int) -> None:
    for target in (not_prior(epsilon), boundary(epsilon)):
        routes = Terms(target, hits).routes(DELTA)
        least = min(found.epsilon for found in routes.values())
        assert Terms(target, hits).approximate(DELTA).epsilon == least
        assert routes["game"].epsilon == least
        assert routes["tail, optimal"].epsilon <= routes["tail, RDP"].epsilon
        assert routes["tail, optimal"].epsilon <= routes["tail, basic"].epsilon
        calls = optimal_composition(
            [PureDP.of(target.epsilon)] * int(hits / target.probability), DELTA
        )
        assert least >= calls.epsilon * (1 - 1e-9)  # no session can do with 1/q calls a hit


@pytest.mark.parametrize("careless", range(4))
def test_a_solution_that_is_short_of_the_best_answer_is_charged_for(
    careless: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever hit's it is: what a session may gain is never stated as less."""
    exact = optimal_curve.__wrapped__(0.5, 0.3, 4)
    assert exact is not None
    solve, done = solver._solve, itertools.count()

    def short(*arguments: Any) -> tuple[Floats, Any]:
        value, policy = solve(*arguments)
        return value - 1e-3 * (next(done) == careless), policy

    monkeypatch.setattr(solver, "_solve", short)
    found = optimal_curve.__wrapped__(0.5, 0.3, 4)
    assert found is not None
    assert (found.deltas >= exact.deltas).all()


@pytest.mark.parametrize(("epsilon", "hits"), [(0.3, 20), (1.0, 7), (0.05, 100)])
def test_with_q_one_the_game_is_the_optimal_composition(epsilon: float, hits: int) -> None:
    curve = optimal_curve(epsilon, 1.0, hits)
    assert curve is not None
    for delta in (1e-3, 1e-6, 1e-8):
        exact = optimal_composition([PureDP.of(epsilon)] * hits, delta).epsilon
        assert curve.epsilon(delta) == pytest.approx(exact, rel=1e-5)
        assert curve.epsilon(delta) >= exact * (1 - 1e-9)
    assert curve.epsilon(0.999) == 0
    assert curve.epsilon(1e-30) == math.inf


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("q", one_in(3, [0.01, 0.2, 0.3, 0.6, 1.0], first=1))
def test_vertices_are_those_of_all_calls_with_hits_that_likely(epsilon: float, q: float) -> None:
    """In every direction they reach as far as a linear program over the calls does."""
    u, corners = 1 / (math.exp(epsilon) + 1), np.array(vertices(epsilon, q))
    for angle in np.linspace(0.1, 6.3, 30):
        way = np.array([math.cos(angle), math.sin(angle)])
        hits = -np.array([[u, 1 - u], [1 - u, u]])
        furthest = linprog(way, A_ub=hits, b_ub=[-q, -q], bounds=[(0, 1)] * 2).fun
        assert (corners @ way).min() == pytest.approx(furthest, abs=1e-9)


def played(
    epsilon: float, q: float, hits: int, calls: int, choose: Callable[[int, int, int], int]
) -> dict[tuple[int, int], float]:
    """The law of (hits to go, loss) under D⁰ after a finite game, by a strategy of vertices."""
    corners = vertices(epsilon, q)
    u = 1 / (math.exp(epsilon) + 1)
    law = {(hits, 0): 1.0}
    for call in range(calls):
        after: dict[tuple[int, int], float] = {}
        for (left, loss), mass in law.items():
            if not left:
                after[left, loss] = after.get((left, loss), 0.0) + mass
                continue
            s, r = corners[choose(call, left, loss) % len(corners)]
            for step, share, hit in ((1, 1 - u, s), (-1, u, r)):
                for fewer, part in ((1, hit), (0, 1 - hit)):
                    key = left - fewer, loss + step
                    after[key] = after.get(key, 0.0) + mass * share * part
        law = after
    return law


def delta_of(law: dict[tuple[int, int], float], unit: float, epsilon: float) -> float:
    return sum(
        mass * max(0.0, -math.expm1(epsilon - unit * loss)) for (_, loss), mass in law.items()
    )


def at(curve: Curve, epsilon: float) -> float:
    return float(np.interp(math.exp(epsilon), np.exp(curve.epsilons), curve.deltas))


@pytest.mark.parametrize(
    ("epsilon", "q", "hits"), one_in(3, [(0.5, 0.3, 3), (1.0, 0.2689, 2), (0.2, 0.6, 4)])
)
def test_no_strategy_beats_the_game_and_a_simple_one_nearly_attains_it(
    epsilon: float, q: float, hits: int
) -> None:
    curve = optimal_curve(epsilon, q, hits)
    assert curve is not None
    words = seeded_entropy(3).words("strategies", 0, 1 << 16).astype(np.int64)

    def scattered(seed: int) -> Callable[[int, int, int], int]:
        return lambda call, left, loss: int(abs(words[hash((seed, call, left, loss)) % words.size]))

    corners = len(vertices(epsilon, q))
    strategies = [scattered(seed) for seed in range(12)]
    strategies += [lambda call, left, loss, v=v: v for v in range(corners)]  # type: ignore[misc]
    best: dict[float, float] = {}
    for strategy in strategies:
        law = played(epsilon, q, hits, 60, strategy)
        for claimed in (epsilon, 3 * epsilon, 6.5 * epsilon, 10 * epsilon):
            found = delta_of(law, epsilon, claimed)
            assert found <= at(curve, claimed) * (1 + 1e-9)
            best[claimed] = max(best.get(claimed, 0.0), found)
    assert any(found > 0.6 * at(curve, claimed) for claimed, found in best.items())


@pytest.mark.parametrize(("hits", "delta"), [(10_000, DELTA), (3, Fraction(1, 10**30))])
def test_what_a_route_cannot_solve_is_left_to_others(hits: int, delta: float | Fraction) -> None:
    routes = set(Terms(not_prior(Fraction(1, 10)), hits).routes(delta))
    others = {"tail, basic", "tail, advanced", "tail, RDP", "hit cost"}
    assert routes == (others if hits == 10_000 else others | {"tail, optimal"})


def test_more_hits_and_less_delta_cost_more() -> None:
    target = not_prior(Fraction(1, 4))
    by_hits = [Terms(target, hits).approximate(DELTA).epsilon for hits in (1, 2, 5, 20)]
    assert by_hits == sorted(by_hits)
    by_delta = [Terms(target, 5).approximate(delta).epsilon for delta in (1e-2, 1e-4, 1e-8, 1e-13)]
    assert by_delta == sorted(by_delta)
    weaker = Target(Fraction(1, 4), Fraction(1, 5))
    assert Terms(weaker, 5).approximate(DELTA).epsilon > Terms(target, 5).approximate(DELTA).epsilon


def stopped_moment(epsilon: float, q: float, hits: int, order: float, calls: int) -> float:
    """``ln E exp((α − 1) L)/(α − 1)`` of the worst of the simple strategies after many calls."""
    worst = 0.0
    for v in range(len(vertices(epsilon, q))):
        law = played(epsilon, q, hits, calls, lambda call, left, loss, v=v: v)  # type: ignore[misc]
        total = sum(m * math.exp((order - 1) * epsilon * loss) for (_, loss), m in law.items())
        worst = max(worst, math.log(total) / (order - 1))
    return worst


@pytest.mark.parametrize(("epsilon", "order"), one_in(3, [(0.2, 2), (0.2, 3.5), (0.5, 1.5)]))
def test_hit_costs_bound_the_divergence_of_a_session_and_are_attained(
    epsilon: float, order: float
) -> None:
    target = not_prior(Fraction(epsilon))
    guaranteed = float(Terms(target, 3).guarantee.at(Fraction(order)))
    found = stopped_moment(epsilon, float(target.probability), 3, order, 150)
    assert found <= guaranteed * (1 + 1e-9)
    assert found >= 0.99 * guaranteed


def test_a_hit_costs_the_calls_it_stands_for() -> None:
    target = not_prior(Fraction(1, 100))
    cost = float(hit_cost(target).at(2))
    assert cost == pytest.approx(2 * 1e-4 / 2 / float(target.probability), rel=0.05)


def test_hits_are_charged_to_a_budget_shared_with_other_releases() -> None:
    target = not_prior(Fraction(1, 10))
    cost = hit_cost(target, Adjacency.REPLACE_LABEL, Unit.RECORD)
    budget = Filter(cost.repeat(3).compose(Terms(target, 2).guarantee))
    for _ in range(5):
        budget.spend(cost)
    assert not budget.admits(cost)
    assert guarantee_from_json(cost.to_json()) == cost


@pytest.mark.parametrize("order", [1.5, 2, 3])
def test_families_add_their_logarithm_to_the_curve(order: float) -> None:
    one, five = (Terms(not_prior(Fraction(1, 4)), 3, families=k).guarantee for k in (1, 5))
    more = float(five.at(order) - one.at(order))
    assert more == pytest.approx(math.log(5) / (order - 1), rel=1e-9)


def test_families_and_calls_with_delta_cost_what_the_lemmas_say() -> None:
    target = not_prior(Fraction(1, 5))
    one = Terms(target, 10).approximate(1e-6 / 3).epsilon
    three = Terms(target, 10, families=3).approximate(1e-6).epsilon
    assert Terms(target, 10).approximate(1e-6).epsilon < three <= one * (1 + 1e-9)
    with_delta = Terms(target, 10, call_delta=Fraction(5, 10**7)).approximate(1e-6).epsilon
    assert with_delta == pytest.approx(Terms(target, 10).approximate(5e-7).epsilon, rel=1e-9)
    with pytest.raises(PrivacyError, match="must be above"):
        Terms(target, 10, call_delta=Fraction(1, 10**6)).approximate(Fraction(1, 10**6))


def test_calls_of_large_epsilon_still_have_a_guarantee() -> None:
    terms = Terms(not_prior(Fraction(5)), 2)
    with pytest.raises(PrivacyError, match="no cost in RDP"):
        _ = terms.guarantee
    assert terms.approximate(DELTA).epsilon > 10


@pytest.mark.slow
def test_the_largest_epsilon_of_a_call_fits_and_a_larger_one_does_not() -> None:
    call = largest_call_epsilon(4, DELTA, 4, grain=32)
    assert Terms(not_prior(call), 4).approximate(DELTA).epsilon <= 4
    assert Terms(not_prior(call + Fraction(1, 32)), 4).approximate(DELTA).epsilon > 4
    wrapped = largest_call_epsilon(4, DELTA, 4, boundary, 16)
    assert Terms(boundary(wrapped), 4).approximate(DELTA).epsilon <= 4
    with pytest.raises(PrivacyError, match="fewer hits"):
        largest_call_epsilon(0.01, DELTA, 100, grain=64)


def test_the_largest_number_of_hits_fits_and_one_more_does_not() -> None:
    target = not_prior(Fraction(1, 5))
    hits = most_hits(6, DELTA, target)
    assert Terms(target, hits).approximate(DELTA).epsilon <= 6
    assert Terms(target, hits + 1).approximate(DELTA).epsilon > 6
    assert most_hits(0.5, DELTA, target) == 0
    with pytest.raises(PrivacyError, match="more than 4 hits"):
        most_hits(8, DELTA, target, limit=4)


def test_terms_survive_json_and_nonsense_is_refused() -> None:
    terms = Terms(
        not_prior(Fraction(1, 3)), 7, Fraction(1, 10**9), 2, Adjacency.ADD_REMOVE, Unit.USER
    )
    assert Terms.from_json(terms.to_json()) == terms
    for key, value in (("hits", "7"), ("q", "1e9"), ("epsilon", None), ("unit", "person")):
        with pytest.raises(PrivacyError):
            Terms.from_json({**terms.to_json(), key: value})
    for broken in ({"hits": 0}, {"families": 0}, {"call_delta": Fraction(1)}):
        with pytest.raises(PrivacyError):
            Terms(**{"target": terms.target, "hits": 3, **broken})  # type: ignore[arg-type]


@pytest.mark.parametrize("families", [1, 4])
def test_a_tail_leaves_delta_what_every_family_may_overrun(families: int) -> None:
    """No ε is below the best of all numbers of calls, of which each family may need more."""
    epsilon, hits, delta = Fraction(1, 4), 5, Fraction(1, 10**5)
    terms = Terms(not_prior(epsilon), hits, families=families)
    q, call = terms.target.probability, PureDP.of(epsilon)
    best: dict[str, float] = {}
    for calls in range(hits, 90):
        rest = delta - families * Fraction(float(binom.cdf(hits - 1, calls, float(q))))
        if rest > 0:
            best["tail, basic"] = min(best.get("tail, basic", math.inf), float(epsilon) * calls)
            composed = to_approximate(to_renyi(call).repeat(calls), rest).epsilon
            best["tail, RDP"] = min(best.get("tail, RDP", math.inf), composed)
    routes = terms.routes(delta)
    for name, least in best.items():
        assert least * (1 - 1e-9) <= routes[name].epsilon <= 1.02 * least
