"""Sessions: what is counted, when they halt, what is refused, and how they survive a restart."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import BudgetError, DataError, PrivacyError
from labelveil.common.mechanisms.interactive import (
    AnySession,
    BestOfPriors,
    BetweenThresholds,
    ChangeStream,
    HeldOutcome,
    MixedSession,
    NotPrior,
    Outcome,
    Position,
    RunTwice,
    Session,
    Terms,
    ThresholdTests,
    mixed_budget,
    one_shot_top_k,
)
from labelveil.common.mechanisms.interactive.targets import not_prior

EPSILON = Fraction(1, 2)
TERMS = Terms(not_prior(EPSILON), 3)


def session(terms: Terms = TERMS, data: Any = None, **options: Any) -> Session[Any]:
    return Session(data, terms, seeded_entropy(1), **options)


def says(value: Any, prior: Any = 0, **options: Any) -> NotPrior[Any]:
    return NotPrior(lambda data, source: value, EPSILON, prior, **options)


def test_hits_are_counted_and_the_last_one_halts() -> None:
    s = session()
    for value in (0, 5, 0, 0, 7):
        assert s.run(says(value)) == value
    assert (s.hits, s.calls, s.halted) == (2, 5, False)
    assert s.guarantee == TERMS.guarantee
    assert s.run(says(1)) == 1
    assert s.halted
    with pytest.raises(BudgetError, match="halted after 3 hits"):
        s.run(says(0))
    assert s.calls == 6


def test_what_the_terms_do_not_admit_is_refused_and_not_drawn() -> None:
    drawn = []
    s = session()

    def watched(data: Any, source: Any) -> int:
        drawn.append(1)
        return 1

    with pytest.raises(PrivacyError, match="outside the session's terms"):
        s.run(NotPrior(watched, Fraction(3, 5), 0))
    with pytest.raises(PrivacyError, match="outside the session's terms"):
        s.run(RunTwice(watched, EPSILON))
    with pytest.raises(BudgetError, match="delta"):
        s.run(NotPrior(watched, EPSILON, 0, Fraction(1, 10**6)))
    assert not drawn
    assert s.calls == s.hits == 0
    s.run(NotPrior(watched, Fraction(1, 5), 0))  # less epsilon is welcome
    assert s.hits == 1


def test_calls_with_delta_use_up_their_part() -> None:
    terms = Terms(not_prior(EPSILON), 3, call_delta=Fraction(3, 10**6))
    s = session(terms)
    for _ in range(3):
        s.run(says(0, delta=Fraction(1, 10**6)))
    with pytest.raises(BudgetError, match="delta"):
        s.run(says(0, delta=Fraction(1, 10**6)))
    s.run(says(0))
    assert s.approximate(1e-4).delta >= 1e-4


def test_a_journal_hears_of_a_charge_before_anyone_sees_the_outcome() -> None:
    heard: list[dict[str, Any]] = []
    s = session(journal=heard.append)
    s.run(says(0))
    assert not heard
    s.run(says(1))
    assert [state["hits"] for state in heard] == [[1]]

    def broken(state: dict[str, Any]) -> None:
        raise OSError("disk full")

    s = session(journal=broken)
    with pytest.raises(OSError, match="disk full"):
        s.run(says(1))
    assert s.hits == 1  # charged, though nobody saw it


def test_a_session_goes_on_after_a_restart() -> None:
    first = session(Terms(not_prior(EPSILON), 3, Fraction(1, 10**6)))
    for value in (0, 1, 0, 1):
        first.run(says(value, delta=Fraction(1, 10**7)))
    state = json.loads(json.dumps(first.to_json()))
    heard: list[dict[str, Any]] = []
    again = Session.resume(state, None, seeded_entropy(1), heard.append)
    assert (again.hits, again.calls, again.terms) == (2, 4, first.terms)
    assert again.approximate(1e-5) == first.approximate(1e-5)
    assert again.so_far(1e-5) == first.so_far(1e-5)
    assert heard[-1]["runs"] == 1
    again.run(says(1))
    assert again.halted
    third = Session.resume(heard[-1], None, seeded_entropy(1))
    with pytest.raises(BudgetError):
        third.run(says(0))


def test_noise_does_not_repeat_after_a_restart_with_the_same_key() -> None:
    tests = ThresholdTests(lambda data: data, 10**6, EPSILON)
    noise = lambda data, source: source.take(4).tolist()  # noqa: E731
    call = NotPrior(noise, EPSILON, None)
    roomy = Terms(not_prior(EPSILON), 100)
    s = session(roomy, np.zeros(10, dtype=np.int64))
    s.run_batch(tests)
    seen = [s.run(call)]
    for _ in range(3):
        s = Session.resume(s.to_json(), s._data, seeded_entropy(1))
        seen.append(s.run(call))
    assert len({tuple(words) for words in seen}) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"hits": [-1]},
        {"hits": [1, 1]},
        {"hits": [True]},
        {"calls": 1.5},
        {"call_delta": "1"},
        {"call_delta": "-1"},
        {"terms": {}},
        {"runs": None},
    ],
)
def test_a_damaged_state_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PrivacyError):
        Session.resume({**session().to_json(), **change}, None, seeded_entropy(1))


def test_what_was_spent_so_far_grows_towards_the_whole() -> None:
    s = session(Terms(not_prior(Fraction(1, 10)), 20))
    readings = [s.so_far(1e-6).epsilon]
    for _ in range(5):
        for _ in range(4):
            s.run(NotPrior(lambda d, r: 1, Fraction(1, 10), 0))
        readings.append(s.so_far(1e-6).epsilon)
    assert readings == sorted(readings)
    whole = s.approximate(1e-6).epsilon
    assert readings[0] < 0.6 * whole
    assert whole <= readings[-1] < 1.25 * whole


def test_a_reading_is_of_the_rung_above_with_its_share_of_delta() -> None:
    """At h hits that of 2^f >= h + 1, which has δ'/((f + 1)(f + 2)): over all f they sum to δ'."""
    one, delta, call_delta = Fraction(1, 10), Fraction(1, 10**6), Fraction(1, 10**8)
    s = session(Terms(not_prior(one), 3, call_delta))
    for hits, (rung, reached) in enumerate([(0, 1), (1, 2), (2, 3)]):
        share = (delta - call_delta) / ((rung + 1) * (rung + 2))
        alone = Terms(not_prior(one), reached, call_delta).approximate(share + call_delta)
        assert (s.hits, s.so_far(delta).exact_delta) == (hits, delta)
        assert s.so_far(delta).exact_epsilon == alone.exact_epsilon
        s.run(NotPrior(lambda d, r: 1, one, 0))


def test_a_batch_is_answered_as_its_tests_would_be_alone() -> None:
    counts = np.where(np.arange(2000) % 100 == 99, 10**6, -(10**6))
    tests = ThresholdTests(lambda data: data, 0, EPSILON, values=True)
    s = session(Terms(not_prior(EPSILON), 7), counts)
    answers = s.run_batch(tests)
    assert answers.above.size == s.calls == 700
    assert s.halted
    assert np.flatnonzero(answers.above).tolist() == list(range(99, 700, 100))
    assert answers.values is not None
    assert np.all((answers.values > 9 * 10**5) == answers.above)
    assert np.all(answers.values[~answers.above] == 0)
    with pytest.raises(BudgetError):
        s.run_batch(tests)
    for hits, asked in ((30, 2000), (20, 1951), (21, 2000)):  # after the last hit nothing is said
        whole = session(Terms(not_prior(EPSILON), hits), np.roll(counts, -49))
        assert whole.run_batch(tests).above.size == asked
        assert (whole.hits, whole.halted) == (20, hits == 20)
    assert whole.run_batch(ThresholdTests(lambda data: data, 0, EPSILON)).values is None


def test_batches_of_what_cannot_be_counted_are_refused() -> None:
    for counts in (np.zeros(3), np.zeros((2, 2), dtype=np.int64), np.array([1 << 62])):
        with pytest.raises(DataError, match="counts"):
            session(data=counts).run_batch(ThresholdTests(lambda data: data, 0, EPSILON))
    with pytest.raises(PrivacyError, match="sensitivity"):
        session(data=np.zeros(3, dtype=int)).run_batch(
            ThresholdTests(lambda data: data, 0, EPSILON, sensitivity=0)
        )
    with pytest.raises(PrivacyError, match="round it"):
        session(data=np.zeros(3, dtype=int)).run_batch(
            ThresholdTests(lambda data: data, 0, Fraction(0.1))
        )
    two = session(Terms(not_prior(EPSILON), 3, families=2), np.zeros(3, dtype=int))
    with pytest.raises(PrivacyError, match="one target family"):
        two.run_batch(ThresholdTests(lambda data: data, 0, EPSILON))

    class Failing(ThresholdTests):
        target = not_prior(EPSILON, Fraction(1, 10**9))

    some = session(Terms(not_prior(EPSILON), 3, Fraction(1, 10**6)), np.zeros(3, dtype=int))
    with pytest.raises(PrivacyError, match="calls of delta 0"):
        some.run_batch(Failing(lambda data: data, 0, EPSILON))


def test_three_positions() -> None:
    wide = BetweenThresholds(lambda data: data, -50, 50, EPSILON)
    for count, expected in ((-9999, Position.BELOW), (0, Position.BETWEEN), (9999, Position.ABOVE)):
        s = session(Terms(wide.target, 2), count)
        assert s.run(wide) == expected
        assert s.hits == (expected == Position.BETWEEN)


def test_families_stop_with_the_best_guesser() -> None:
    heard: list[dict[str, Any]] = []
    s = session(Terms(not_prior(EPSILON), 2, families=2), journal=heard.append)
    for answer in (1, 1, 1, 2):
        s.run(BestOfPriors(lambda d, r, a=answer: a, EPSILON, (1, 2)))
        assert not s.halted
        assert heard[-1]["hits"] == list(s.family_hits)
    assert s.family_hits == (1, 3)
    with pytest.raises(PrivacyError, match="one-shot selection needs a session of one"):
        one_shot_top_k(s, [lambda d, r: (1, 1)], EPSILON / 2, 1)
    s.run(BestOfPriors(lambda d, r: 3, EPSILON, (1, 2)))
    assert s.halted
    with pytest.raises(PrivacyError, match="1 target families"):
        session(Terms(not_prior(EPSILON), 2, families=2)).run(says(0))


def test_an_outcome_is_held_until_it_is_of_the_kind_asked_for() -> None:
    runs = []

    def algorithm(data: Any, source: Any) -> int:
        runs.append(1)
        return 5

    s = session(Terms(not_prior(2 * EPSILON), 3))
    held = HeldOutcome(s, algorithm, EPSILON)
    assert held.ask(lambda value: value > 9) is None
    assert held.ask(lambda value: value > 7) is None
    assert (s.hits, s.calls) == (0, 2)
    assert held.ask(lambda value: value > 3) == 5
    assert (s.hits, len(runs)) == (1, 1)
    with pytest.raises(PrivacyError, match="published"):
        held.ask(lambda value: True)
    assert s.hits == 1


def test_asking_again_needs_terms_of_twice_epsilon() -> None:
    s = session()
    held = HeldOutcome(s, lambda data, source: 5, EPSILON)
    assert held.ask(lambda value: False) is None
    with pytest.raises(PrivacyError, match="outside the session's terms"):
        held.ask(lambda value: True)
    assert s.hits == 0


def test_the_best_of_many_candidates_cost_what_is_shown() -> None:
    scores = [3, 10, 50, 49, 50, 2]
    candidates = [lambda d, r, s=score: (s, f"value {s}") for score in scores]
    wide = Terms(not_prior(2 * EPSILON), 4)
    s = session(wide)
    shown = one_shot_top_k(s, candidates, EPSILON, 2)
    assert [(c.index, c.score, c.value) for c in shown] == [
        (2, 50, "value 50"),
        (4, 50, "value 50"),
    ]
    assert s.hits == 2
    assert [c.index for c in one_shot_top_k(s, candidates, EPSILON, 5)] == [2, 4]  # halts
    assert s.halted
    by_gap = session(wide)
    assert [c.index for c in one_shot_top_k(by_gap, candidates, EPSILON, 9, gap=20)] == [2, 4, 3]
    assert by_gap.hits == 3
    by_rule = session(wide)
    ends = one_shot_top_k(
        by_rule, candidates, EPSILON, 9, stop=lambda prefix: prefix[-1].score < 50
    )
    assert [c.index for c in ends] == [2, 4, 3]
    with pytest.raises(PrivacyError, match="outside the session's terms"):
        one_shot_top_k(session(), candidates, EPSILON, 1)


@pytest.mark.parametrize("more", [0, 1])
def test_no_more_outcomes_are_published_than_hits_are_left(more: int) -> None:
    s = session(Terms(not_prior(EPSILON), 4))
    s.run(says(5))
    found = lambda data, source, room: list(range(room + more))  # noqa: E731
    if more:
        with pytest.raises(PrivacyError, match="4 outcomes are more than the 3 hits left"):
            s.reveal(s.terms.target, found)
        assert s.hits == 2
    else:
        assert s.reveal(s.terms.target, found) == [0, 1, 2]
        assert (s.halted, s.calls) == (True, 2)


def test_a_stream_pays_for_change_alone() -> None:
    s = session(Terms(not_prior(EPSILON), 3))
    stream = ChangeStream(s, EPSILON, 100, same=lambda last, new: abs(last - new) <= 5)
    shown = [stream.step(lambda d, r, v=value: v) for value in (101, 97, 104, 120, 118, 90, 91)]
    assert shown == [False, False, False, True, False, True, False]
    assert (stream.last, s.hits, s.calls) == (90, 2, 7)
    stream.step(lambda d, r: 0)
    with pytest.raises(BudgetError):
        stream.step(lambda d, r: 0)
    assert stream.last == 0


def test_two_runs_hit_when_they_differ() -> None:
    twice = RunTwice(lambda data, source: next(data), Fraction(1, 5))
    s = session(Terms(twice.target, 5), iter([1, 1, 2, 3]))
    assert s.run(twice) == (1, 1)
    assert s.hits == 0
    assert s.run(twice) == (2, 3)
    assert s.hits == 1


WIDE = Terms(not_prior(2 * EPSILON), 20, call_delta=Fraction(1, 100))


class Seen(Exception):
    """What a callback raises that has looked at an outcome."""


def test_what_a_stop_has_seen_is_paid_for_and_in_the_journal() -> None:
    heard: list[dict[str, Any]] = []
    s = session(WIDE, journal=heard.append)
    candidates = [lambda d, r, s=score: (s, s) for score in (5, 9, 7)]
    seen: list[tuple[int, ...]] = []
    at_that_time: list[tuple[int, list[int]]] = []

    def stop(shown: Any) -> bool:
        seen.append(tuple(one.score for one in shown))
        at_that_time.append((s.hits, heard[-1]["hits"]))
        if len(shown) == 2:
            raise Seen
        return False

    with pytest.raises(Seen):
        one_shot_top_k(s, candidates, EPSILON, 3, stop=stop, delta=Fraction(1, 10**6))
    assert seen == [(9,), (9, 7)]
    assert at_that_time == [(1, [1]), (2, [2])]
    assert heard[-1]["call_delta"] == str(Fraction(3, 10**6))
    assert s.hits == 2
    for _ in range(9):  # five looks cost nothing once
        with pytest.raises(Seen):
            one_shot_top_k(s, candidates, EPSILON, 3, stop=stop)
    assert s.halted
    with pytest.raises(BudgetError):
        one_shot_top_k(s, candidates, EPSILON, 3, stop=stop)


def raising(*_: Any) -> Any:
    raise Seen


class Touchy:
    """An outcome that cannot be compared."""

    __eq__ = __ne__ = raising  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


DELTA = Fraction(1, 10**6)

RAISING = {
    "an algorithm": lambda s: s.run(NotPrior(raising, EPSILON, 0, DELTA)),
    "a comparison": lambda s: s.run(NotPrior(lambda d, r: Touchy(), EPSILON, 0, DELTA)),
    "an accept": lambda s: HeldOutcome(s, lambda d, r: 5, EPSILON, DELTA).ask(raising),
    "a held run": lambda s: HeldOutcome(s, raising, EPSILON, DELTA).ask(lambda v: True),
    "a candidate": lambda s: one_shot_top_k(s, [raising, raising], EPSILON, 1, delta=DELTA / 2),
    "a score": lambda s: one_shot_top_k(s, [lambda d, r: Touchy()], EPSILON, 1, delta=DELTA),
}


@pytest.mark.parametrize("name", RAISING)
def test_an_exception_is_a_hit_and_pays_its_delta(name: str) -> None:
    heard: list[dict[str, Any]] = []
    s = session(WIDE, journal=heard.append)
    for times in range(1, 4):
        with pytest.raises((Seen, TypeError)):
            RAISING[name](s)
        assert s.hits == times
        assert heard[-1]["hits"] == [times]
        assert heard[-1]["call_delta"] == str(times * DELTA)


def test_an_exception_is_a_hit_in_every_kind_of_session_and_family() -> None:
    s = session(Terms(not_prior(EPSILON), 3, families=2))
    with pytest.raises(Seen):
        s.run(BestOfPriors(raising, EPSILON, (1, 2)))
    assert s.family_hits == (1, 1)
    with pytest.raises(PrivacyError, match="1 target families"):
        s.run(says(0))
    assert s.family_hits == (2, 2)  # that there was one family was found in an outcome
    budget = mixed_budget(20, 1e-2, {not_prior(EPSILON): 2})
    mixed = MixedSession(None, budget, seeded_entropy(0))
    left = mixed.hits_left(not_prior(EPSILON))
    with pytest.raises(Seen):
        mixed.run(NotPrior(raising, EPSILON, 0))
    assert mixed.hits_left(not_prior(EPSILON)) == left - 1


def test_an_exception_of_a_batch_uses_up_what_its_answers_could() -> None:
    """It may depend on any of them."""
    s = session(Terms(not_prior(EPSILON), 5), np.arange(3))
    with pytest.raises(Seen):
        s.run_batch(ThresholdTests(raising, 0, EPSILON))
    assert (s.hits, s.halted) == (5, True)


def test_public_parameters_are_refused_before_a_session_hears_of_them() -> None:
    half = 1 << 47  # of the largest term of noise's scale
    for epsilon in (Fraction(half, 3), Fraction(3, half)):
        ThresholdTests(lambda data: data, 0, epsilon, sensitivity=2)
    for options in (
        {"sensitivity": 0},
        {"epsilon": Fraction(0.1)},
        {"epsilon": Fraction(half, 3), "sensitivity": 3},
        {"epsilon": Fraction(3, half), "sensitivity": 3},
    ):
        with pytest.raises(PrivacyError):
            ThresholdTests(lambda data: data, 0, **{"epsilon": EPSILON, **options})  # type: ignore[arg-type]
        with pytest.raises(PrivacyError):
            BetweenThresholds(lambda data: data, 0, 9, **{"epsilon": EPSILON, **options})  # type: ignore[arg-type]


def test_an_outcome_that_accept_raised_on_is_not_asked_about_again() -> None:
    s = session(WIDE)
    held = HeldOutcome(s, lambda d, r: 5, EPSILON)
    with pytest.raises(Seen):
        held.ask(raising)
    with pytest.raises(PrivacyError, match="published"):
        held.ask(lambda value: False)
    assert s.hits == 1


def test_where_the_journal_fails_the_exception_does_not_leave() -> None:
    """Neither does what hangs on it: an exception carries the one that was handled."""

    def broken(state: dict[str, Any]) -> None:
        raise OSError("disk full")

    s = session(journal=broken)
    with pytest.raises(OSError, match="disk full") as caught:
        s.run(NotPrior(raising, EPSILON, 0))
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    assert s.hits == 1


def test_a_call_does_not_take_hits_back() -> None:
    class Refund:
        target = not_prior(EPSILON)

        def draw(self, data: Any, source: Any) -> Outcome[int]:
            return Outcome(1, (-5,))  # type: ignore[arg-type]

    s = session()
    s.run(Refund())
    assert s.hits == 1


def test_every_outcome_leaves_by_one_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nothing reaches a caller, whichever way it was asked."""

    class Shut(Exception):
        pass

    def shut(self: Any, value: Any, *_: Any) -> Any:
        raise Shut

    monkeypatch.setattr(AnySession, "_publish", shut)
    seen: list[Any] = []
    look = lambda shown: bool(seen.append(shown))  # noqa: E731
    s = session(WIDE, np.arange(3))
    for ask in (
        lambda: s.run(says(5)),
        lambda: s.run(NotPrior(raising, EPSILON, 0)),
        lambda: s.run_batch(ThresholdTests(lambda data: data, 0, EPSILON)),
        lambda: one_shot_top_k(s, [lambda d, r: (1, 1)], EPSILON, 1, stop=look),
        lambda: HeldOutcome(s, lambda d, r: 5, EPSILON).ask(lambda value: True),
        lambda: ChangeStream(s, EPSILON, 0).step(lambda d, r: 1),
    ):
        with pytest.raises(Shut):
            ask()
    assert seen == []
