"""Measured privacy of held outcomes, one-shot selection, streams and the wrapper, by exact laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import BudgetError, DataError, PrivacyError
from labelveil.common.guarantees import (
    ApproximateDP,
    PureDP,
    RenyiDP,
    epsilon_at,
    to_approximate,
    to_renyi,
)
from labelveil.common.mechanisms.interactive import (
    ChangeStream,
    DistinctCountTest,
    HeldOutcome,
    IndividualSparseVector,
    MixedSession,
    NotPrior,
    Outcome,
    Session,
    Terms,
    ThresholdTests,
    hit_cost,
    mixed_budget,
    one_shot_top_k,
    thresholds,
)
from labelveil.common.mechanisms.interactive.optimal_curve import vertices
from labelveil.common.mechanisms.interactive.targets import Target, boundary, not_prior, run_twice
from tests.common.mechanisms.interactive import laws
from tests.common.mechanisms.interactive.laws import Law
from tests.common.mechanisms.selection.laws import drawn
from tests.statistics import outcomes_fit

EPSILON = Fraction(4, 5)
GROW = math.exp(float(EPSILON))


def ternary() -> list[tuple[np.ndarray, np.ndarray]]:
    """Neighbouring laws of three outcomes with all losses ±ε, and one with a rare outcome."""
    return [pair for seed in (3, 4) for pair in laws.neighbours(float(EPSILON), 3, 4, seed)]


CALL_DELTA = Fraction(1, 20)


def leaking() -> list[tuple[np.ndarray, np.ndarray]]:
    """As :func:`ternary`, but with probability δ an outcome that says which neighbour it is."""
    rest, leak = 1 - float(CALL_DELTA), float(CALL_DELTA)
    return [
        (np.append(one * rest, [leak, 0.0]), np.append(other * rest, [0.0, leak]))
        for one, other in ternary()[::3]
    ]


def measured(
    draws: int,
    play: Callable[[tuple[int, ...]], Any],
    stated: Callable[[float], ApproximateDP],
    neighbours: list[tuple[np.ndarray, np.ndarray]] | None = None,
    deltas: Sequence[float] = laws.DELTAS,
) -> str | None:
    """The violation by what ``play`` shows of independent secret outcomes, under neighbours."""
    chances = [law for pair in neighbours or ternary() for law in pair]
    found: list[Law] = [{} for _ in chances]
    for secret in product(range(chances[0].size), repeat=draws):
        shown = play(secret)
        for law, chance in zip(found, chances, strict=True):
            law[shown] = law.get(shown, 0.0) + math.prod(chance[list(secret)].tolist())
    return laws.violation(list(zip(found[::2], found[1::2], strict=True)), stated, deltas)


def test_held_outcomes_keep_what_is_stated() -> None:
    terms = Terms(not_prior(2 * EPSILON), 2)

    def play(secret: tuple[int, ...]) -> Any:
        session: Session[Any] = Session(None, terms, seeded_entropy(0))
        shown = []
        try:
            for value in secret:
                held = HeldOutcome(session, lambda d, r, v=value: v, EPSILON)
                for kinds in ({2}, {0}, {1}):
                    answer = held.ask(lambda v, kinds=kinds: v in kinds)
                    shown.append(answer)
                    if answer is not None:
                        break
        except BudgetError:
            pass
        return tuple(shown)

    assert measured(4, play, terms.approximate) is None
    free = lambda delta: ApproximateDP.of(EPSILON, delta)  # noqa: E731
    assert measured(4, play, free) is not None


class _Unpaid(Session[Any]):
    """Broken: no call pays its δ."""

    def _admit(self, target: Target) -> int:
        return super()._admit(replace(target, delta=Fraction(0)))

    def _count(self, target: Target, hits: Any) -> None:
        super()._count(replace(target, delta=Fraction(0)), hits)


def held_with_delta(secret: tuple[int, ...], make: type[Session[Any]], terms: Terms) -> Any:
    session = make(None, terms, seeded_entropy(0))
    shown = []
    try:
        for value in secret:
            held = HeldOutcome(session, lambda d, r, v=value: v, EPSILON, CALL_DELTA)
            for kinds in ({2, 3}, {0, 4}, {1}):
                shown.append(held.ask(lambda v, kinds=kinds: v in kinds))
                if shown[-1] is not None:
                    break
    except BudgetError:
        pass
    return tuple(shown)


def test_candidates_with_a_delta_are_held_and_pay_it_once() -> None:
    terms = Terms(not_prior(2 * EPSILON), 2, call_delta=3 * CALL_DELTA)
    paid = lambda secret: held_with_delta(secret, Session, terms)  # noqa: E731
    assert measured(3, paid, terms.approximate, leaking(), (0.3, 0.2, 0.16)) is None
    assert paid((1, 1, 1)) == (None, None, 1, None, None, 1)
    assert measured(4, paid, terms.approximate, leaking()[:1], (0.3, 0.2, 0.16)) is None
    assert paid((1, 9, 9, 1)) == (None, None, 1, *[None] * 6)  # the fourth is not admitted
    unpaid = Terms(not_prior(2 * EPSILON), 2)
    free = lambda secret: held_with_delta(secret, _Unpaid, unpaid)  # noqa: E731
    assert measured(3, free, unpaid.approximate, leaking()[:1]) is not None


def test_one_shot_candidates_with_a_delta_all_pay() -> None:
    terms = Terms(not_prior(2 * EPSILON), 2, call_delta=3 * CALL_DELTA)

    def play(secret: tuple[int, ...]) -> Any:
        session: Session[Any] = Session(None, terms, seeded_entropy(0))
        runs = [lambda d, r, v=value: (v, None) for value in secret]
        shown = one_shot_top_k(session, runs, EPSILON, 2, delta=CALL_DELTA)
        assert session.to_json()["call_delta"] == str(len(secret) * CALL_DELTA)
        return tuple((c.index, c.score) for c in shown)

    assert measured(3, play, terms.approximate, leaking(), (0.3, 0.2, 0.16)) is None
    with pytest.raises(BudgetError, match="delta"):
        play((0, 0, 0, 0))


@pytest.mark.parametrize("gap", [None, 0])
def test_one_shot_selection_keeps_what_is_stated(gap: int | None) -> None:
    terms = Terms(not_prior(2 * EPSILON), 2)

    def play(secret: tuple[int, ...]) -> Any:
        session: Session[Any] = Session(None, terms, seeded_entropy(0))
        runs = [lambda d, r, v=value: (v, None) for value in secret]
        return tuple((c.index, c.score) for c in one_shot_top_k(session, runs, EPSILON, 2, gap))

    assert measured(4, play, terms.approximate) is None
    assert measured(4, play, lambda delta: ApproximateDP.of(EPSILON / 2, delta)) is not None


def test_streams_keep_what_is_stated() -> None:
    terms = Terms(not_prior(EPSILON), 2)

    def play(secret: tuple[int, ...]) -> Any:
        stream = ChangeStream(Session(None, terms, seeded_entropy(0)), EPSILON, 0)
        shown = []
        try:
            for value in secret:
                stream.step(lambda d, r, v=value: v)
                shown.append(stream.last)
        except BudgetError:
            pass
        return tuple(shown)

    assert measured(6, play, terms.approximate) is None


@pytest.mark.parametrize("hits", [1, 2])
@pytest.mark.parametrize("kind", ["boundary", "twice"])
def test_sessions_of_wrapped_calls_keep_what_is_stated(kind: str, hits: int) -> None:
    target = boundary(EPSILON) if kind == "boundary" else run_twice(EPSILON)
    wrap = laws.wrapped if kind == "boundary" else laws.twice
    hit = [0] if kind == "boundary" else [i for i in range(9) if i // 3 != i % 3]
    terms = Terms(target, hits)

    def law(chance: np.ndarray) -> Law:
        """Misses are distinguished, hits are too; the session ends with its last hit."""
        row = wrap(chance)
        found: Law = {}
        states: dict[tuple[int, ...], tuple[float, int]] = {(): (1.0, 0)}
        for _ in range(5 if kind == "boundary" else 3):
            after: dict[tuple[int, ...], tuple[float, int]] = {}
            for shown, (mass, seen) in states.items():
                for outcome, p in enumerate(row.tolist()):
                    more = seen + (outcome in hit)
                    (found if more == hits else after)[*shown, outcome] = (  # type: ignore[index]
                        mass * p if more == hits else (mass * p, more)
                    )
            states = after
        return {**found, **{shown: mass for shown, (mass, _) in states.items()}}

    pairs = [(law(one), law(other)) for one, other in ternary()]
    assert laws.violation(pairs, terms.approximate) is None
    assert laws.violation(pairs, lambda d: ApproximateDP.of(EPSILON / 2, d)) is not None


CHEAP, DEAR = not_prior(Fraction(1, 5)), not_prior(Fraction(2, 5))


class _OnePrice(MixedSession[Any]):
    """Broken: every hit costs what the cheap one costs."""

    def _cost(self, target: Target) -> RenyiDP:
        return super()._cost(CHEAP)


def mixed_divergence(make: type[MixedSession[Any]], budget: RenyiDP, calls: int = 36) -> float:
    """Of order 2, after calls of two kinds in turn: the worst of the extreme laws of ε-DP calls.

    Hits and losses are all that a call adds to; the session itself says what it admits.
    """

    kinds = (CHEAP, DEAR)

    @cache
    def admitted(hits: tuple[int, int], turn: int) -> int | None:
        session = make(None, budget, seeded_entropy(0))
        for target, count in zip(kinds, hits, strict=True):
            for _ in range(count):
                session.run(NotPrior(lambda d, s: True, target.epsilon, False))
        return next((k for k in (turn, 1 - turn) if session.hits_left(kinds[k])), None)

    corners = [vertices(float(kind.epsilon), float(kind.probability)) for kind in kinds]
    worst = 0.0
    for v in range(len(corners[0])):
        law = {((0, 0), 0): 1.0}
        for call in range(calls):
            following: dict[tuple[tuple[int, int], int], float] = {}
            for (hits, loss), mass in law.items():
                kind = admitted(hits, call % 2)
                moves: list[tuple[tuple[int, int], int, float]] = [(hits, 0, 1.0)]
                if kind is not None:
                    s, r = corners[kind][v]
                    u = 1 / (math.exp(float(kinds[kind].epsilon)) + 1)
                    more = (hits[0] + (kind == 0), hits[1] + (kind == 1))
                    up, down = kind + 1, -kind - 1
                    moves = [(more, up, (1 - u) * s), (hits, up, (1 - u) * (1 - s))]
                    moves += [(more, down, u * r), (hits, down, u * (1 - r))]
                for found, step, part in moves:
                    key = found, loss + step
                    following[key] = following.get(key, 0.0) + mass * part
            law = following
        moment = sum(mass * math.exp(0.2 * loss) for (_, loss), mass in law.items())
        worst = max(worst, math.log(moment))
    return worst


@pytest.mark.slow
def test_sessions_that_mix_epsilons_keep_their_budget_and_may_spend_it() -> None:
    cheap, dear = (to_renyi(hit_cost(target), (Fraction(2),)) for target in (CHEAP, DEAR))
    budget = cheap.repeat(2).compose(dear.repeat(2))
    limit = float(budget.values[0])
    assert 0.85 * limit < mixed_divergence(MixedSession, budget) <= limit
    assert mixed_divergence(_OnePrice, budget, 24) > limit


def test_a_mixed_session_counts_each_hit_at_its_own_price() -> None:
    cheap, dear = not_prior(Fraction(1, 20)), not_prior(Fraction(1, 5))
    budget = mixed_budget(9, 1e-6, {cheap: 8, dear: 1}, Fraction(1, 10**7))
    assert to_approximate(budget, 1e-6).epsilon <= 9
    counts = np.where(np.arange(900) % 3 == 2, 10**6, -(10**6))
    heard: list[dict[str, Any]] = []
    session = MixedSession(counts, budget, seeded_entropy(1), heard.append)
    assert epsilon_at(session.guarantee, 1e-6) <= 9
    room, few = session.hits_left(cheap), session.hits_left(dear)
    assert room > 10 * few > 0
    says = lambda value, target, delta=0: NotPrior(  # noqa: E731
        lambda d, s: value, target.epsilon, 0, Fraction(delta)
    )
    session.run(says(0, dear))
    assert not heard
    assert session.spent == budget.repeat(0)
    session.run(says(1, dear))
    assert room - 16 >= session.hits_left(cheap) >= room - 48  # up to three times sixteenfold
    session.run(says(0, cheap, Fraction(1, 10**7)))
    with pytest.raises(BudgetError, match="no longer fits"):
        session.run(says(0, cheap, Fraction(1, 10**7)))
    assert len(heard) == 2
    again = MixedSession.resume(heard[-1], counts, seeded_entropy(1))
    left = again.hits_left(cheap)
    answers = again.run_batch(ThresholdTests(lambda data: data, 0, cheap.epsilon))
    assert answers.above.sum() == min(left, 300)
    one_shot_top_k(again, [lambda d, r: (1, None)] * 9, cheap.epsilon / 2, 9)
    while again.hits_left(cheap):
        again.run(says(1, cheap))
    assert again.spent.within(budget)
    for call in (says(0, cheap), says(0, dear)):
        with pytest.raises(BudgetError):
            again.run(call)
    pure = PureDP(budget.adjacency, budget.unit, Fraction(1)).to_json()
    for change in (
        {"version": 2},
        {"calls": -1},
        {"spent": budget.repeat(2).to_json()},
        {"spent": pure},
        {"budget": pure},
    ):
        with pytest.raises(PrivacyError, match="not a session's state"):
            MixedSession.resume({**again.to_json(), **change}, counts, seeded_entropy(1))
    with pytest.raises(PrivacyError, match="conversion alone"):
        mixed_budget(0.001, 1e-9, {dear: 1})
    with pytest.raises(PrivacyError, match="known cost up to order"):
        again.run(says(0, not_prior(Fraction(2))))
    strong = not_prior(Fraction(2))
    alone = MixedSession(counts, hit_cost(strong).repeat(2), seeded_entropy(1))
    assert alone.hits_left(strong) == 2  # of a cost that is known as far as the budget, and no more


GRAIN = 3


def weighted_laws(present: bool, values: Sequence[int], scale: float, hits: int) -> Law:
    """Published or not, of questions to which others add 1/g and the record in question ``value``.

    Above the bar the value is cut into "a little" and "much", which is post-processing.
    """
    law: Law = {}

    @cache
    def passes(distance: int) -> float:
        return float(laws.at_least(scale, distance))

    def go(left: tuple[int, ...], charges: int, shown: tuple[int, ...], mass: float) -> None:
        if not left:
            law[shown] = law.get(shown, 0.0) + mass
            return
        added = left[0] if present and charges < hits else 0
        low, high = (passes(bar - 1 - added) for bar in (3, 6))
        for outcome, chance in ((0, 1 - low), (1, low - high), (2, high)):
            paid = charges + (outcome > 0 and left[0] > 0)
            go(left[1:], paid, (*shown, outcome), mass * chance)

    go(tuple(values), 0, (), 1.0)
    return law


def test_sums_of_bounded_values_keep_what_is_stated() -> None:
    questions = [(3, 1, 2, 3, 3, 1), (3,) * 6, (0, 3, 0, 3, 3, 3)]
    for hits in (1, 2):
        vector = IndividualSparseVector(2, EPSILON, hits, seeded_entropy(0), grain=GRAIN)
        scale = float(vector._scale)
        pairs = [
            tuple(weighted_laws(there, q, scale, hits) for there in (False, True))
            for q in questions
        ]
        assert laws.violation(pairs, vector.approximate) is None  # type: ignore[arg-type]
        # noise for values of 1/g at most
        fine = [
            tuple(weighted_laws(there, q, scale / GRAIN, hits) for there in (False, True))
            for q in questions
        ]
        assert laws.violation(fine, vector.approximate) is not None  # type: ignore[arg-type]


def test_values_are_added_in_units_of_the_grain_and_checked() -> None:
    vector = IndividualSparseVector(500, Fraction(4), 1, seeded_entropy(2), grain=10)
    everyone = np.arange(500)
    (answer,) = vector.ask([(everyone, np.full(500, 3))], 1000)
    assert answer is not None
    assert abs(answer - 1500) < 60
    assert vector.charges.tolist() == [1] * 500
    assert vector.ask([everyone], 1000) == [None]  # all have paid
    for values in (np.full(500, 11), np.zeros(500, dtype=int), np.full(3, 1), np.full(500, 0.5)):
        with pytest.raises(DataError, match="values"):
            vector.ask([(everyone, values)], 1000)
    with pytest.raises(PrivacyError, match="grain"):
        IndividualSparseVector(5, EPSILON, 1, seeded_entropy(2), grain=0)


def flag_law(test: DistinctCountTest, users: int, phantoms: int) -> Law:
    """The exact law of a sketch of two registers."""
    down = float(test.stays_down)
    law: Law = {}
    for first in range(users + 1):
        share = math.comb(users, first) / 2**users
        chances = [down ** (phantoms + n) for n in (first, users - first)]
        for flags in product((False, True), repeat=2):
            mass = math.prod(1 - c if flag else c for c, flag in zip(chances, flags, strict=True))
            law[flags] = law.get(flags, 0.0) + share * mass
    return law


@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1, 2), Fraction(2)])
def test_a_distinct_count_sketch_is_private_without_noise(epsilon: Fraction) -> None:
    test = DistinctCountTest(lambda data: data, 2, 1, epsilon)

    def worst(phantoms: int) -> float:
        found = [flag_law(test, users, phantoms) for users in range(7)]
        pairs = list(pairwise(found))
        with np.errstate(divide="ignore"):
            return max(
                abs(float(np.log(np.float64(one[z]) / other[z])))
                for one, other in pairs
                for z in one
                if one[z] or other[z]
            )

    assert 0.5 * float(epsilon) < worst(test.phantoms) <= float(epsilon) + 1e-12
    assert worst(test.phantoms - 1) > float(epsilon)
    assert test.target == not_prior(epsilon)


def test_a_flag_stays_down_with_the_stated_share(monkeypatch: pytest.MonkeyPatch) -> None:
    test = DistinctCountTest(lambda data: data, 2, 1, Fraction(1, 2))
    first = int(test.stays_down * 2**32)
    for drawn_, up in ((first - 1, False), (first, True)):
        monkeypatch.setattr(
            thresholds, "uniform_below", lambda bound, size, _, n=drawn_: np.full(size, n % bound)
        )
        assert test.sketch(np.arange(3), seeded_entropy(1).source("x")).tolist() == [up, up]


@pytest.mark.statistical
def test_distinct_sketches_follow_their_law_and_count_users_once() -> None:
    test = DistinctCountTest(lambda data: data, 2, 1, Fraction(1, 2))
    users = np.array([7, 7, 7, 9, 7])
    seen = drawn(lambda e: tuple(test.sketch(users, e.source("test")).tolist()))
    assert outcomes_fit(seen, flag_law(test, 2, test.phantoms))
    assert not outcomes_fit(seen, flag_law(test, 5, test.phantoms))
    crowd = np.repeat(np.arange(5000), 3)
    large = DistinctCountTest(lambda data: data, 4096, 0, Fraction(1, 5))  # with 3 phantoms each
    flags = int(large.sketch(crowd, seeded_entropy(3).source("test")).sum())
    assert abs(flags - large.expected_flags(5000)) < 6 * 32
    assert large.expected_flags(0) < flags - 6 * 32
    for least in (flags, flags + 1):  # the same sketch
        again = replace(large, least_flags=least).draw(crowd, seeded_entropy(3).source("test"))
        assert again == Outcome(least == flags, (least == flags,))
    bar = round(large.expected_flags(2500))
    for count, expected in ((5000, True), (500, False)):
        asked = replace(large, least_flags=bar)
        session: Session[Any] = Session(np.arange(count), Terms(asked.target, 2), seeded_entropy(4))
        assert session.run(asked) is expected
        assert session.hits == expected
    with pytest.raises(PrivacyError, match="registers"):
        DistinctCountTest(lambda data: data, 0, 1, Fraction(1))
