"""Votes in, answers and guarantees out: exact privacy on small votes, accuracy on agreed ones."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.exact.noise import discrete_gaussian
from labelveil.common.guarantees import Adjacency, epsilon_at
from labelveil.common.mechanisms.interactive import Boundary, ExponentialMechanism, Session
from labelveil.common.mechanisms.pate import (
    NO_ANSWER,
    BinaryVote,
    BoundaryVote,
    ClippedVote,
    ConfidentGNMax,
    FullVote,
    GNMax,
    Norm,
    PriorVote,
    StableMajority,
    StableVote,
    data_dependent,
    incurred_epsilon,
)
from labelveil.common.mechanisms.pate.data_dependent import (
    ORDERS,
    data_dependent_curve,
    difference_tails,
    error_probability,
    per_query,
)
from labelveil.common.mechanisms.pate.single_label import threshold_error
from tests.common.mechanisms.interactive.laws import violation
from tests.common.mechanisms.selection import laws
from tests.common.mechanisms.selection.test_privacy import rank_law

DELTA = 1e-5
quick = settings(max_examples=40, deadline=None)


def agreeing(teachers: int, queries: int, labels: int, per_query_labels: int) -> np.ndarray:
    """All teachers but two vote for the same few labels of each query."""
    votes = np.zeros((teachers, queries, labels), dtype=np.bool_)
    for i in range(queries):
        for j in range(per_query_labels):
            votes[:, i, (i + j) % labels] = True
    votes[:2] = False
    return votes


def compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(total,)]
    return [
        (first, *rest)
        for first in range(total + 1)
        for rest in compositions(total - first, parts - 1)
    ]


def gnmax_law(votes: tuple[int, ...], variance: int) -> laws.Law:
    return dict(enumerate(laws.noisy_argmax(list(votes), laws.gaussian_mass(variance, 25))))


@pytest.mark.parametrize("variance", [1, 4])
def test_gnmax_keeps_its_guarantee_and_its_data_dependent_cost(variance: int) -> None:
    """Every vote vector of 6 teachers on 3 classes against every single changed vote."""
    guarantee = GNMax(Fraction(variance)).guarantee(1)
    assert guarantee.adjacency == Adjacency.REPLACE_RECORD
    cache = {votes: gnmax_law(votes, variance) for votes in compositions(6, 3)}
    curves = {
        votes: data_dependent_curve(
            error_probability([votes], Fraction(variance)), 1 / variance, ORDERS
        )
        for votes in cache
    }
    pairs = 0
    for votes, law in cache.items():
        for source, target in product(range(3), repeat=2):
            if source == target or not votes[source]:
                continue
            other = list(votes)
            other[source] -= 1
            other[target] += 1
            changed = cache[tuple(other)]
            assert laws.broken(guarantee, law, changed) is None
            for order, bound in list(zip(ORDERS, curves[votes], strict=True))[::6]:
                assert laws.renyi(law, changed, float(order)) <= bound + 1e-9
            pairs += 1
    assert pairs > 80


def test_the_data_dependent_check_has_power() -> None:
    law, other = gnmax_law((4, 2, 0), 1), gnmax_law((3, 3, 0), 1)
    error = error_probability([(4, 2, 0)], Fraction(1))
    lied = data_dependent_curve(error**4, 1.0, ORDERS)
    assert any(
        laws.renyi(law, other, float(order)) > bound
        for order, bound in zip(ORDERS, lied, strict=True)
    )


@quick
@given(
    errors=st.lists(st.floats(0, 1), min_size=1, max_size=30), rate=st.sampled_from([1e-4, 0.01, 1])
)
def test_data_dependent_cost_is_never_above_the_guarantee(errors: list[float], rate: float) -> None:
    curve = data_dependent_curve(errors, rate)
    assert np.all(curve <= len(errors) * ORDERS * rate * (1 + 1e-9))
    assert np.all(curve >= 0)
    one = sum(per_query(np.array([q]), rate)[0] for q in errors)
    assert np.allclose(curve, one)


@pytest.mark.parametrize("variance", [Fraction(1, 2), Fraction(9), Fraction(400)])
def test_error_bounds_are_above_the_exact_law(variance: Fraction) -> None:
    points, mass = laws.gaussian_mass(float(variance), 16 * math.isqrt(int(variance) + 1) + 10)
    both = np.convolve(mass, mass)
    tails = difference_tails(variance, 60)
    for d in (0, 1, 5, 30, 60):
        exact = both[len(both) // 2 + d :].sum() if len(both) // 2 + d < len(both) else 0.0
        assert exact * (1 - 1e-12) <= tails[d] <= exact * (1 + 1e-6) + 1e-28
        single = mass[points >= d].sum()
        assert not d or single <= threshold_error(np.array([-d]), variance)[0] * (1 + 1e-12)


def test_confident_gnmax_answers_the_sure_and_stops_in_time() -> None:
    votes = np.array([[95, 3, 2], [40, 35, 25], [2, 96, 2], [1, 1, 98]] * 10)
    aggregator = ConfidentGNMax(80, Fraction(16), Fraction(16), most_answers=20)
    answers = aggregator.draw(votes, seeded_entropy(1))
    sure = votes.max(axis=1) > 90
    assert int((answers.labels >= 0).sum()) == 20
    assert not np.any(answers.labels[~sure] >= 0)
    given = answers.labels >= 0
    assert np.array_equal(answers.labels[given], votes.argmax(axis=1)[given])
    assert answers.guarantee.exact_rho == Fraction(40, 32) + Fraction(20, 16)
    guaranteed = epsilon_at(answers.guarantee, DELTA)
    assert incurred_epsilon(answers.incurred, DELTA) < guaranteed


def test_votes_that_turn_cost_more_than_votes_that_vanish() -> None:
    """The guarantee for voters who come or go does not stand where a record turns a vote."""
    vanishing = StableVote(Fraction(1, 10), Fraction(1, 10**6), replacing=False)
    turning = StableVote(Fraction(1, 10), Fraction(1, 10**6))
    assert turning.replacing

    def law(vote: StableVote, counts: tuple[int, ...]) -> laws.Law:
        return dict(enumerate(rank_law(vote.selector.rank_choice, (40, *counts, 0))))

    moved = (24, 18), (23, 19)  # one record, one vote
    for vote, broken in ((vanishing, True), (turning, False)):
        pair = [law(vote, counts) for counts in moved]
        reason = laws.broken(vote.selector.rank_choice.guarantee(4), *pair)
        assert (reason is not None) == broken


@pytest.mark.parametrize(
    ("vote", "grain"),
    [
        (FullVote(variance=Fraction(9, 4)), 1),
        (BinaryVote(variance=Fraction(9, 4)), 1),
        (ClippedVote(variance=Fraction(9, 4), tau=Fraction(1), norm=Norm.L0), 1),
        (ClippedVote(variance=Fraction(9, 4), tau=Fraction(1), norm=Norm.L1), 64),
    ],
)
def test_a_label_needs_more_than_half_of_the_teachers_votes(vote: FullVote, grain: int) -> None:
    """Noise included: half of them are not enough, and each count has noise of its own."""
    votes = np.zeros((6, 900, 2), dtype=np.bool_)
    for query in range(900):  # at most one vote of a teacher: no clipping changes it
        votes[: 2 + query % 3, query, query % 2] = True
    found = vote.draw(votes, seeded_entropy(3))
    assert found.answered.all()
    noise = discrete_gaussian(
        Fraction(9, 4) * grain**2, 1800, seeded_entropy(3).source("label-noise")
    )
    lead = 2 * (grain * votes.sum(axis=0) + noise.reshape(900, 2)) - 6 * grain
    assert (lead == 0).any()
    assert np.array_equal(found.labels, lead > 0)


def test_stable_vote_knows_none_and_all() -> None:
    teachers = 100
    votes = np.zeros((teachers, 3, 4), dtype=np.bool_)
    votes[:, 1] = True
    votes[:, 2, [1, 3]] = True
    answers = StableVote(Fraction(1, 4), Fraction(1, 10**7)).draw(votes, seeded_entropy(3))
    assert answers.answered.all()
    assert answers.labels.tolist() == [[False] * 4, [True] * 4, [False, True, False, True]]


@pytest.mark.parametrize("tau", [Fraction(2), Fraction(5, 2), Fraction(11, 4)])
@pytest.mark.parametrize("norm", list(Norm))
@pytest.mark.parametrize("replacing", [False, True])
def test_clipping_bounds_what_one_teacher_moves(norm: Norm, replacing: bool, tau: Fraction) -> None:
    vote = ClippedVote(Fraction(1), tau, norm, replacing=replacing)
    base = np.zeros((1, 64, 8), dtype=np.bool_)
    every = np.array(list(product((False, True), repeat=8)))[None]
    grain = 1 if norm == Norm.L0 else 64
    clipped = (vote._kept(every, seeded_entropy(4)) if grain == 1 else vote._shrunk(every)).astype(
        np.int64
    )[0] / grain
    pairs = ((clipped[:, None] - clipped[None]) ** 2).sum(axis=2)
    moved = pairs.max() if replacing else (clipped**2).sum(axis=1).max()
    # the bound holds, and is reached: by all votes of one teacher, or by two that share no label
    exact = {Norm.L0: 2, Norm.L1: max(2, tau**2 / 3), Norm.L2: tau**2}[norm] * (1 + replacing)
    assert vote.squared_sensitivity == exact
    assert moved <= float(exact)
    if norm != Norm.L2 or tau == 2:  # otherwise eight labels are too few
        assert moved > float(exact) - 0.3
    size = {Norm.L0: np.count_nonzero(clipped, axis=1), Norm.L1: clipped.sum(axis=1)}.get(
        norm, (clipped**2).sum(axis=1) ** 0.5
    )
    assert size.max() <= tau
    assert np.all(clipped[every[0].sum(axis=1) <= 2] == every[0][every[0].sum(axis=1) <= 2])
    assert vote.draw(base, seeded_entropy(1)).guarantee.exact_rho > 0
    with pytest.raises(PrivacyError, match="tau"):
        ClippedVote(Fraction(1), Fraction(1, 2), Norm.L0)


def test_votes_for_more_than_tau_labels_are_averaged_to_tau() -> None:
    """Four of four labels at τ = 2 count half a vote each: 60 of 100 teachers, 30 votes a label."""
    votes = np.zeros((100, 1, 4), dtype=np.bool_)
    votes[:60] = True
    vote = ClippedVote(Fraction(1, 4096), Fraction(2), Norm.L1)
    assert vote._shrunk(votes).sum(axis=0).tolist() == [[30 * 64] * 4]
    assert not vote.draw(votes, seeded_entropy(2)).labels.any()  # below half of the teachers
    votes[:, :, 2:] = False
    assert vote.draw(votes, seeded_entropy(2)).labels.tolist() == [[True, True, False, False]]


@pytest.mark.slow
@pytest.mark.parametrize("replacing", [False, True])
def test_stable_votes_are_cheapest_where_teachers_agree_on_many_labels(replacing: bool) -> None:
    """Same labels from every aggregator; the ε of each at about the noise it needs for them."""
    votes = agreeing(200, 40, 40, 9)
    truth = votes[5]
    costs = {}
    rho = Fraction(1, 150) if replacing else Fraction(1, 600)
    for name, aggregator in {
        "stable": StableVote(rho, Fraction(1, 10**8), replacing=replacing),
        "majority": StableMajority(Fraction(1, 300), Fraction(1, 10**8), replacing=replacing),
        "full": FullVote(Fraction(1400), replacing=replacing),
        "l2": ClippedVote(Fraction(1400), Fraction(3), Norm.L2, replacing=replacing),
        "l1": ClippedVote(Fraction(1400), Fraction(9), Norm.L1, replacing=replacing),
        "l0": ClippedVote(Fraction(1400), Fraction(9), Norm.L0, replacing=replacing),
        "binary": BinaryVote(Fraction(1400), replacing=replacing),
    }.items():
        answers = aggregator.draw(votes, seeded_entropy(9))
        given = answers.answered
        assert given.mean() > 0.9, name
        assert np.mean(answers.labels[given] == truth[given]) > 0.99, name
        costs[name] = epsilon_at(answers.guarantee, DELTA)
    best = min(costs["stable"], costs["majority"])
    assert best < 0.75 * min(costs["l2"], costs["l1"], costs["l0"])
    assert (costs["majority"] < costs["stable"]) == replacing
    assert costs["binary"] == costs["full"] > best


def test_costs_that_depend_on_votes_are_not_released() -> None:
    """Noise on them hid nothing: the lattice that it lies on told the votes apart."""
    for name, function in inspect.getmembers(data_dependent, inspect.isfunction):
        assert "entropy" not in inspect.signature(function).parameters, name


def prior_law(vote: PriorVote, counts: tuple[int, ...], rate: float, length: int) -> laws.Law:
    """The law of the answers to the same question again and again; the last answer is expected."""
    shares = laws.softmax([rate * count for count in (*counts, vote.agreement or 0)]).tolist()
    law: laws.Law = {}
    for script in product(range(len(shares)), repeat=length):
        answers = [NO_ANSWER if a == len(counts) else a for a in script]
        expected = [0, *answers[:-1]]
        hits = np.cumsum([a != e for a, e in zip(answers, expected, strict=True)])
        stop = int(np.searchsorted(hits, vote.hits)) + 1
        if not any(script[stop:]):
            mass = math.prod(shares[a] for a in script[:stop])
            law[tuple(answers[:stop])] = law.get(tuple(answers[:stop]), 0.0) + mass
    return law


def test_answers_that_were_expected_are_free_and_private() -> None:
    vote = PriorVote(Fraction(1), 2, agreement=2)
    moved = [((2, 1), (1, 2)), ((3, 0), (2, 1)), ((1, 1), (0, 2)), ((0, 3), (1, 2))]

    def worst(mechanism: ExponentialMechanism) -> float:
        """The largest log ratio of one answer's law under a replaced vote."""
        losses = []
        for pair in moved:
            scores = [np.asarray(mechanism.scores(np.array([votes]))) for votes in pair]
            one, other = (laws.softmax((float(mechanism._rate) * s).tolist()) for s in scores)
            losses.append(float(np.abs(np.log(one / other)).max()))
        return max(losses)

    assert 0.5 < worst(vote._mechanism(0)) <= 1
    assert worst(replace(vote._mechanism(0), spread=1)) > 1  # too little noise
    pairs = [(prior_law(vote, one, 0.5, 6), prior_law(vote, other, 0.5, 6)) for one, other in moved]
    assert violation(pairs, vote.terms.approximate) is None
    loud = replace(vote, hits=6)  # never halts, and is four times as loud
    pairs = [(prior_law(loud, a, 2, 6), prior_law(loud, b, 2, 6)) for a, b in [((2, 2), (1, 3))]]
    assert violation(pairs, vote.terms.approximate) is not None
    assert vote.terms.adjacency == Adjacency.REPLACE_RECORD


def test_a_prior_vote_is_charged_for_surprises_alone() -> None:
    votes = np.tile(np.array([5, 190, 5]), (400, 1))
    votes[300:] = [70, 65, 65]
    vote = PriorVote(Fraction(1, 4), 3, agreement=120)
    asked = []

    def expect(query: int, answers: np.ndarray) -> int:
        asked.append(query)
        assert answers.size == query
        return int(answers[-1]) if query else 1

    answers = vote.draw(votes, expect, seeded_entropy(5))
    assert answers.labels[:300].tolist() == [1] * 300  # as expected: free
    assert answers.labels[300:].tolist() == [NO_ANSWER] * 100
    assert len(asked) == 400  # the change to low agreement was one hit of three
    assert answers.guarantee == vote.terms.guarantee
    stops = PriorVote(Fraction(1, 4), 3).draw(votes, lambda q, a: 0, seeded_entropy(5))
    assert stops.labels.tolist() == [1, 1, 1] + [NO_ANSWER] * 397
    with pytest.raises(PrivacyError, match="prior"):
        vote.draw(votes, lambda q, a: 3, seeded_entropy(5))


def test_plain_low_agreement_is_free_at_the_boundary() -> None:
    votes = np.tile(np.array([40, 35, 25]), (60, 1))
    contested = BoundaryVote(Fraction(1, 4), 10).draw(votes, seeded_entropy(6))
    hits = []
    low = BoundaryVote(Fraction(1, 4), 10, agreement=120)
    for one in (BoundaryVote(Fraction(1, 4), 10), low):
        session: Session[Any] = Session(votes, one.terms, seeded_entropy(6))
        for i in range(60):
            if not session.halted:
                session.run(Boundary(one._mechanism(i)))
        hits.append(session.hits)
    assert hits == [10, 0]
    assert np.all(low.draw(votes, seeded_entropy(6)).labels == NO_ANSWER)
    assert np.any(contested.labels >= 0)
    assert low.terms == BoundaryVote(Fraction(1, 4), 10).terms


def test_a_threshold_errs_by_the_tail_of_what_would_cross_it() -> None:
    """Of a count that reaches it, noise must be one below; of another as much as it lacks."""
    found = threshold_error(np.array([0, 2, -1, -3]), Fraction(9))
    assert found == pytest.approx(np.exp(-np.array([1, 9, 1, 9]) / 18))
