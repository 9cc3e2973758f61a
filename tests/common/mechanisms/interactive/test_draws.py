"""Draws follow their laws: tests, positions, the boundary wrapper, its oracles, sparse vector."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from labelveil.common.entropy import Entropy, seeded_entropy
from labelveil.common.errors import DataError, PrivacyError
from labelveil.common.mechanisms.interactive import (
    BetweenThresholds,
    Boundary,
    ExponentialMechanism,
    IndividualSparseVector,
    LaplaceTest,
    NoisyMaxLaplace,
    SparseVector,
    ThresholdTests,
)
from labelveil.common.mechanisms.interactive.boundary import Oracle
from tests.common.mechanisms.enumeration import law, replace_samplers
from tests.common.mechanisms.interactive import laws
from tests.common.mechanisms.interactive.test_privacy import sparse_law
from tests.common.mechanisms.selection.laws import (
    broken_twin,
    drawn,
    laplace_mass,
    noisy_argmax,
    softmax,
)
from tests.effort import one_in
from tests.statistics import outcomes_fit

EPSILON = Fraction(4, 5)
SCORES = np.array([3, 5, 4, 5])


def oracle_law(oracle: Oracle, data: Any) -> np.ndarray:
    """The mechanism's law, written down independently of its code."""
    e = float(EPSILON)
    if isinstance(oracle, ExponentialMechanism):
        return softmax([e / oracle.spread * int(score) for score in data])
    if isinstance(oracle, NoisyMaxLaplace):
        noise = laplace_mass(oracle.spread / e, 300)
        return np.array(noisy_argmax([int(score) for score in data], noise))
    assert isinstance(oracle, LaplaceTest)
    above = float(laws.at_least(oracle.sensitivity / e, oracle.threshold - data))
    return np.array([1 - above, above])


ORACLES: dict[str, tuple[Oracle, Any]] = {
    "exponential": (ExponentialMechanism(lambda data: data, EPSILON), SCORES),
    "exponential-sure": (ExponentialMechanism(lambda data: data, EPSILON, 1), np.array([9, 5, 4])),
    "noisy-max": (NoisyMaxLaplace(lambda data: data, EPSILON), np.array([3, 3, 5, 4, 4, 5])),
    "noisy-max-sure": (NoisyMaxLaplace(lambda data: data, EPSILON, 1), np.array([2, 8, 2])),
    "noisy-max-far": (NoisyMaxLaplace(lambda data: data, EPSILON, 9), np.array([99, 40, 95, 70])),
    "test-below": (LaplaceTest(lambda data: data, 7, EPSILON), 5),
    "test-above": (LaplaceTest(lambda data: data, 7, EPSILON, 2), 7),
}


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_oracles_know_their_likeliest_outcome(name: str) -> None:
    oracle, data = ORACLES[name]
    law = oracle_law(oracle, data)
    likeliest, probability = oracle.likeliest(data)
    assert law[likeliest] == pytest.approx(law.max(), abs=1e-12)
    assert probability == pytest.approx(law.max(), abs=1e-9)


def boundary_law(name: str) -> dict[Any, float]:
    wrapped = laws.wrapped(oracle_law(*ORACLES[name]))
    return {None: float(wrapped[0]), **dict(enumerate(wrapped[1:].tolist()))}


@pytest.mark.statistical
@pytest.mark.parametrize("name", one_in(3, sorted(ORACLES)))
def test_the_wrapper_follows_its_law(name: str) -> None:
    oracle, data = ORACLES[name]
    call = Boundary(oracle)

    def draw(entropy: Entropy) -> Any:
        outcome = call.draw(data, entropy.source("test"))
        assert outcome.hits == (outcome.value is None,)
        return outcome.value

    wanted, seen = boundary_law(name), drawn(draw)
    assert outcomes_fit(seen, wanted)
    assert not outcomes_fit(seen, broken_twin(wanted))


@pytest.mark.parametrize("name", ["exponential", "exponential-sure"])
def test_the_wrappers_law_is_the_published_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, from its own code: a boundary that is likelier by a tenth is seen."""
    oracle, data = ORACLES[name]
    replace_samplers(monkeypatch)
    found = law(lambda entropy: Boundary(oracle).draw(data, entropy.source("x")).value)
    for outcome, mass in boundary_law(name).items():
        assert found.masses[outcome] <= mass + 1e-9
        assert found.masses[outcome] >= mass - found.lost
    assert found.lost < 0.1 * found.masses[None]


def test_a_certain_answer_is_free() -> None:
    call = Boundary(ExponentialMechanism(lambda data: data, EPSILON))
    source = seeded_entropy(3).source("sure")
    votes = np.array([0, 1000, 3])
    assert {call.draw(votes, source).value for _ in range(300)} == {1}


def test_the_wrapper_refuses_what_its_proof_does_not_cover() -> None:
    with pytest.raises(PrivacyError, match="1e-4"):
        Boundary(ExponentialMechanism(lambda data: data, Fraction(1, 10**5)))
    for scores, named in (np.array([0.5]), "integers"), (np.zeros(0, dtype=int), "no scores"):
        with pytest.raises(DataError, match=named):
            Boundary(ExponentialMechanism(lambda data: data, EPSILON)).draw(
                scores, seeded_entropy(0).source("x")
            )


def _threshold(entropy: Entropy) -> Any:
    tests = ThresholdTests(lambda data: data, [2, 3], EPSILON, 2, values=True)
    answers = tests.draw(np.array([1, 4]), entropy.source("test"))
    assert answers.values is not None
    return min(int(answers.values[0]), 6), bool(answers.above[1])


def threshold_law() -> dict[Any, float]:
    scale = 2 / float(EPSILON)
    points, mass = laws.laplace(scale, 90)
    second = float(laws.at_least(scale, -1))
    law: dict[Any, float] = {}
    for z, p in zip(points.tolist(), mass.tolist(), strict=True):
        value = min(1 + z, 6) if 1 + z >= 2 else 0
        for flag, chance in ((True, second), (False, 1 - second)):
            law[value, flag] = law.get((value, flag), 0.0) + p * chance
    return law


def _position(entropy: Entropy) -> Any:
    test = BetweenThresholds(lambda data: data, 3, 6, EPSILON)
    return int(test.draw(2, entropy.source("test")).value)


def position_law() -> dict[Any, float]:
    scale = 1 / float(EPSILON)
    above, at_low = float(laws.at_least(scale, 4)), float(laws.at_least(scale, 1))
    return {-1: 1 - at_low, 0: at_low - above, 1: above}


SPARSE = SparseVector.best_split(2, Fraction(3))
COUNTS = (0, 2, -1, 3, 1)


def _sparse(vector: SparseVector) -> Callable[[Entropy], Any]:
    def draw(entropy: Entropy) -> Any:
        return tuple(vector.draw(np.array(COUNTS), 1, entropy).above.tolist())

    return draw


def sparse_draw_law(vector: SparseVector) -> dict[Any, float]:
    shifted = tuple(count - 1 for count in COUNTS)
    scales = float(vector.threshold_scale), float(vector.count_scale)
    return dict(sparse_law(shifted, *scales, vector.cutoff, vector.refresh))


REFRESHED = SparseVector(2, Fraction(8), Fraction(1, 2), refresh=True)

DRAWS: dict[str, tuple[Callable[[Entropy], Any], dict[Any, float]]] = {
    "threshold": (_threshold, threshold_law()),
    "position": (_position, position_law()),
    "sparse": (_sparse(SPARSE), sparse_draw_law(SPARSE)),
    "sparse-refreshed": (_sparse(REFRESHED), sparse_draw_law(REFRESHED)),
}


@pytest.mark.statistical
@pytest.mark.parametrize(
    "name", ["position", "threshold", *one_in(2, ["sparse-refreshed", "sparse"])]
)
def test_draws_follow_their_laws(name: str) -> None:
    draw, law = DRAWS[name]
    seen = drawn(draw)
    assert outcomes_fit(seen, law)
    assert not outcomes_fit(seen, broken_twin(law))


def test_sparse_values_are_shown_where_counts_are_above() -> None:
    vector = SparseVector.best_split(3, Fraction(50), values=Fraction(1, 2))
    counts = np.array([0, 900, 0, 0, 800, 0, 700, 900])
    answers = vector.draw(counts, 400, seeded_entropy(5))
    assert np.flatnonzero(answers.above).tolist() == [1, 4, 6]
    assert answers.values is not None
    assert answers.above.size == 7
    assert np.all(np.abs(answers.values - counts[:7]) < 30)
    assert SPARSE.draw(counts, 400, seeded_entropy(5)).values is None


def test_records_pay_for_what_they_match_and_then_retire() -> None:
    vector = IndividualSparseVector(1000, Fraction(2), 2, seeded_entropy(2))
    everyone, most, few = np.arange(1000), np.arange(600), np.arange(900, 905)
    assert vector.ask([few], 400) == [None]
    assert vector.charges.sum() == 0
    first, second = vector.ask([most, everyone], 300)
    assert first is not None
    assert second is not None
    assert abs(first - 600) < 30
    assert abs(second - 1000) < 30
    assert vector.charges.tolist() == [2] * 600 + [1] * 400
    third, last = vector.ask([everyone, everyone], 300)
    assert third is not None
    assert abs(third - 400) < 30  # six hundred are no longer counted
    assert last is None
    assert vector.charges.max() == 2
    for wrong, named in (([1, 1], "twice"), ([1000], "outside"), ([0.5], "indices")):
        with pytest.raises(DataError, match=named):
            vector.ask([few, np.array(wrong)], 3)
    assert vector.approximate(1e-6) == vector.terms.approximate(1e-6)
    assert vector.guarantee == vector.terms.guarantee


def test_individual_charging_with_one_record_is_a_session() -> None:
    # all that a neighbour can see of a record: the answers to the questions it matches
    misses, hits = 0, 0
    for seed in range(200):
        vector = IndividualSparseVector(1, Fraction(1), 1, seeded_entropy(seed))
        shown = [a is not None for a in vector.ask([np.array([0])] * 4, 1)]
        hits += shown[0]
        misses += not any(shown)
        assert vector.charges[0] == any(shown)
    assert hits > 100 > misses


def test_counts_beyond_int64_are_refused_rather_than_turned_into_floats() -> None:
    vector = SparseVector(1, Fraction(1), Fraction(1))
    assert vector.draw(np.array([3], dtype=np.uint64), -50, seeded_entropy(0)).above.all()
    with pytest.raises(DataError, match="61"):
        vector.draw(np.array([2**63], dtype=np.uint64), 0, seeded_entropy(0))


def test_a_value_is_published_with_noise_of_its_own() -> None:
    """Hardly any here, where what decided had much."""
    made = SparseVector(2, Fraction(1000), Fraction(1000), Fraction(1, 100))
    answers = made.draw([10**6, -(10**6), 10**6 + 1], [0, 0, 5], seeded_entropy(3))
    assert answers.values is not None
    assert answers.values.tolist() == [10**6, 0, 10**6 + 1]


@pytest.mark.parametrize(
    "question",
    [
        *(np.array(records) for records in ([1, 1], [4], [-1], [0.5])),
        *((np.array([1]), np.array([value])) for value in (0, 4, 1.5, -1)),
        (np.array([0, 1]), np.array([1])),
    ],
    ids=str,
)
def test_a_question_that_counts_no_record_once_is_refused_and_charges_nobody(question: Any) -> None:
    vector = IndividualSparseVector(4, Fraction(2), 1, seeded_entropy(1), grain=3)
    with pytest.raises(DataError):
        vector.ask([np.array([0]), question], -100)
    assert not vector.charges.any()
    assert vector.ask([(np.array([0, 3]), np.array([1, 3]))], -100) != [None]
    assert vector.charges.tolist() == [1, 0, 0, 1]
