"""Thresholdout: its exact privacy loss on a tiny holdout, its tolerance, and why one wants it."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from benchmarks.published import generalization as experiment
from labelveil.common.entropy import Entropy, seeded_entropy
from labelveil.common.errors import BudgetError, DataError, PrivacyError
from labelveil.common.guarantees import Adjacency, Unit
from labelveil.common.mechanisms import thresholdout as generalization
from labelveil.common.mechanisms.thresholdout import Answer, ReusableHoldout, Thresholdout, rounded
from tests.statistics import binomial_range, fits, laplace_mass

UNIT = 2
"""The resolution of the tiny holdouts: values are 0, ½ and 1."""
REACH = 400


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generalization, "RESOLUTION", UNIT)


def confirmed(
    scale: float, gaps: tuple[int, ...], bar: int, threshold: float = 2, query: float = 4
) -> np.ndarray:
    """(REACH·2 + 1, questions) P[threshold noise] and P[confirmed | threshold noise], exactly."""
    noise = np.arange(-REACH, REACH + 1)
    weight = laplace_mass(Fraction(scale * threshold))(noise)
    ratio = np.exp(-1 / (scale * query))
    columns = [weight]
    for gap in gaps:
        reach = bar + noise - gap  # P[Lap_Z <= reach]
        low = ratio ** (-reach.clip(max=-1).astype(float)) / (1 + ratio)
        high = 1 - ratio ** (reach.clip(min=0) + 1.0) / (1 + ratio)
        columns.append(np.where(reach < 0, low, high))
    return np.stack(columns, axis=1)


def transcripts(
    scale: float, totals: tuple[int, int], own: int, bar: int, **noise: float
) -> dict[tuple[str, int], float]:
    """The law of two questions to a holdout that has one answer to give."""
    gaps = tuple(abs(total - own) for total in totals)
    law = confirmed(scale, gaps, bar, **noise)
    weight, first, second = law.T
    both = float(np.sum(weight * first * second))
    found = {("both confirmed", 0): both}
    values = np.arange(-60, 61)
    answers = [laplace_mass(Fraction(scale))(values - total) for total in totals]
    for value, one, two in zip(values.tolist(), *answers, strict=True):
        found["first", value] = float(np.sum(weight * (1 - first))) * one
        found["second", value] = float(np.sum(weight * first * (1 - second))) * two
    return found


def worst_loss(epsilon: Fraction, **noise: float) -> float:
    """Largest log ratio between neighbours: both totals move by at most UNIT."""
    mechanism = Thresholdout(epsilon, most=1, threshold=Fraction(0))
    scale = float(mechanism.scale)
    worst = 0.0
    for totals in product((0, 2, 4, 6), repeat=2):
        law = transcripts(scale, totals, own=3, bar=2, **noise)
        for steps in product((-UNIT, UNIT), repeat=2):
            other = (totals[0] + steps[0], totals[1] + steps[1])
            moved = transcripts(scale, other, own=3, bar=2, **noise)
            worst = max(worst, *(abs(np.log(law[key] / moved[key])) for key in law))
    return worst


@pytest.mark.usefixtures("coarse")
def test_the_loss_is_within_epsilon_and_broken_noise_is_not() -> None:
    epsilon = Fraction(2)
    assert 1.0 < worst_loss(epsilon) <= 2.0
    assert worst_loss(epsilon, query=0.5) > 2.0
    assert worst_loss(epsilon, threshold=0.2, query=0.5) > 3.0


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
def test_answers_follow_that_law() -> None:
    mechanism = Thresholdout(Fraction(2), most=1, threshold=Fraction(0))
    values = np.array([2, 2, 2, 2, 2])  # total 10 of 10; the estimate 0 is off by 10
    scale = float(mechanism.scale)
    assert scale == 2 * UNIT / 2
    weight, chance = confirmed(scale, (10,), 0).T
    expected = float(np.sum(weight * chance))
    draws = [
        mechanism.draw(values, 0.0, used=0, question="q", entropy=seeded_entropy(seed))
        for seed in range(800)
    ]
    hits = [answer.value for answer in draws if answer.from_holdout]
    low, high = binomial_range(len(draws), 1 - expected)
    assert low <= len(hits) <= high
    blind = float(np.sum(weight * confirmed(scale, (10,), 0, query=1).T[1]))
    assert not low <= len(draws) * (1 - blind) <= high
    assert {answer.value for answer in draws if not answer.from_holdout} == {0.0}
    noise = np.rint(np.array(hits) * 10).astype(int) - 10
    assert fits(noise, laplace_mass(Fraction(2)))
    assert not fits(noise, laplace_mass(Fraction(1)))


def test_threshold_question_and_answer_have_the_noise_of_that_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mechanism = Thresholdout(Fraction(2), most=3, threshold=Fraction(1, 10))
    drawn: dict[str, Fraction] = {}

    def no_noise(scale: Fraction, _: Entropy, stream: str) -> int:
        drawn[stream] = scale
        return 0

    monkeypatch.setattr(generalization, "_laplace", no_noise)
    mechanism.draw(rounded([1.0] * 9), 0.0, used=1, question="q", entropy=seeded_entropy(1))
    sigma = 2 * 3 * generalization.RESOLUTION / Fraction(2)
    assert drawn == {
        "thresholdout threshold 1": 2 * sigma,
        "question 1 q": 4 * sigma,
        "answer q": sigma,
    }


@pytest.mark.parametrize(("ones", "far"), [(6, False), (7, True)])
def test_an_estimate_is_far_that_is_off_by_more_than_the_threshold(
    monkeypatch: pytest.MonkeyPatch, ones: int, far: bool
) -> None:
    monkeypatch.setattr(generalization, "_laplace", lambda *_: 0)
    mechanism = Thresholdout(Fraction(2), most=3, threshold=Fraction(1, 8))
    values = rounded([1.0] * ones + [0.0] * (16 - ones))
    answer = mechanism.draw(values, 1 / 4, used=0, question="q", entropy=seeded_entropy(1))
    assert (answer.value, answer.from_holdout) == ((7 / 16, True) if far else (1 / 4, False))


@pytest.mark.usefixtures("coarse")
def test_no_record_moves_a_total_by_more_than_the_sensitivity() -> None:
    mechanism = Thresholdout(Fraction(1), most=3, threshold=Fraction(0), group=2, unit=Unit.USER)
    values = rounded([-5.0, 0.2, 0.3, 1.0, 99.0])
    assert values.tolist() == [0, 0, 1, 2, 2]
    moved = rounded([np.inf, -np.inf, 0.3, 1.0, 99.0])
    assert abs(int(moved.sum() - values.sum())) <= mechanism.sensitivity == 2 * UNIT
    with pytest.raises(DataError, match="NaN"):
        rounded([0.1, float("nan")])
    mechanism = Thresholdout(Fraction(1), most=1, threshold=Fraction(1, 10))
    with pytest.raises(DataError, match="the estimate is not a number"):
        ReusableHoldout(mechanism, seeded_entropy(1)).ask([0.1], float("nan"))


def test_the_guarantee_covers_all_answers() -> None:
    mechanism = Thresholdout(
        Fraction(3), most=5, threshold=Fraction(1, 20), adjacency=Adjacency.REPLACE_LABEL
    )
    assert mechanism.guarantee == mechanism.once.repeat(5)
    assert mechanism.guarantee.adjacency == Adjacency.REPLACE_LABEL
    assert mechanism.approximate(1e-6).epsilon <= 3.0
    many = Thresholdout(Fraction(3), most=500, threshold=Fraction(1, 20))
    assert many.approximate(1e-6).epsilon < 1.0


def test_the_same_question_has_the_same_answer_and_others_do_not_share_noise() -> None:
    mechanism = Thresholdout(Fraction(1), most=9, threshold=Fraction(0))
    values, entropy = rounded(np.full(500, 0.5)), seeded_entropy(3)

    def ask(question: str) -> float:
        return mechanism.draw(values, 0.0, used=0, question=question, entropy=entropy).value

    assert ask("a") == ask("a")
    assert len({ask(name) for name in "abcdef"} - {0.0}) > 1


def test_a_used_up_holdout_says_so() -> None:
    holdout = ReusableHoldout(
        Thresholdout(Fraction(50), most=2, threshold=Fraction(1, 10)), seeded_entropy(1)
    )
    good, bad = np.full(2000, 0.5), np.full(2000, 0.9)
    assert not holdout.ask(good, 0.5).from_holdout
    assert holdout.left == 2
    for _ in range(2):
        answer = holdout.ask(bad, 0.5)
        assert answer.from_holdout
        assert answer.value == pytest.approx(0.9, abs=0.02)
    assert holdout.left == 0
    for estimate in (0.9, 0.0):  # even a question that would be confirmed
        with pytest.raises(BudgetError, match="its 2 answers"):
            holdout.ask(bad, estimate)


@pytest.mark.parametrize(("estimate", "mean"), [(7.0, 1.0), (-7.0, 0.0)])
def test_an_estimate_is_clipped_as_values_are(estimate: float, mean: float) -> None:
    mechanism = Thresholdout(Fraction(50), most=2, threshold=Fraction(1, 10))
    answer = ReusableHoldout(mechanism, seeded_entropy(1)).ask(np.full(2000, estimate), estimate)
    assert answer == Answer(mean, from_holdout=False)
    with pytest.raises(DataError, match="at least one record"):
        ReusableHoldout(mechanism, seeded_entropy(1)).ask([], estimate)


@pytest.mark.slow
def test_answers_stay_within_the_stated_tolerance() -> None:
    beta, questions, runs = 0.1, 40, 25
    mechanism = Thresholdout(Fraction(8), most=20, threshold=Fraction(1, 20))
    broken = 0
    for seed in range(runs):
        holdout = ReusableHoldout(mechanism, seeded_entropy(seed))
        bad = False
        for i in range(questions):
            truth = (i % 10) / 10
            try:
                answer = holdout.ask(np.full(2000, truth), 0.4)
            except BudgetError:
                break
            stated = mechanism.tolerance(2000, questions, beta, from_holdout=answer.from_holdout)
            bad |= abs(answer.value - rounded([truth])[0] / generalization.RESOLUTION) > stated
        broken += bad
    assert broken <= binomial_range(runs, beta)[1]
    assert mechanism.tolerance(2000, questions, beta) == max(
        mechanism.tolerance(2000, questions, beta, from_holdout=kind) for kind in (True, False)
    )


@pytest.mark.slow
def test_the_plain_holdout_overfits_and_the_private_one_does_not() -> None:
    """A thousand features that say nothing: the published shape."""
    records = experiment.RECORDS
    plain, private = experiment.experiment(records, experiment.FEATURES, 0, seed=1)
    chance = experiment.sampling_error(records, len(plain.sizes))
    assert all(abs(value - 0.5) <= chance for value in (*plain.fresh, *private.fresh))
    assert plain.reported[-1] - plain.fresh[-1] > 0.05  # ten standard errors
    assert plain.reported[-1] - plain.fresh[-1] > 2 * chance
    mechanism, questions = experiment.MECHANISM, experiment.FEATURES + len(private.sizes)
    for reported, fresh, source in zip(
        private.reported, private.fresh, private.from_holdout, strict=True
    ):
        stated = mechanism.tolerance(records, questions, experiment.BETA, from_holdout=source)
        assert abs(reported - fresh) <= stated + 2 * chance
    assert private.from_holdout[-1]
    assert abs(private.reported[-1] - private.fresh[-1]) < 0.035
    assert private.training[-1] > 0.59  # the analyst's own estimate is as wrong as ever
    assert 0 < private.used < mechanism.most


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon": Fraction(0)}, "epsilon=0"),
        ({"most": 0}, "most=0"),
        ({"threshold": Fraction(2)}, "threshold=2"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], words: str) -> None:
    good: dict[str, object] = {"epsilon": Fraction(1), "most": 1, "threshold": Fraction(0)}
    with pytest.raises(PrivacyError, match=words):
        Thresholdout(**(good | settings))  # type: ignore[arg-type]


def test_the_tolerance_is_its_formula() -> None:
    """σ = 2BΔ/ε = 12 with B = 3 and ε = 1/2, in values of 0 … 1 of 600 records: 12/600."""
    one = Thresholdout(Fraction(1, 2), 3, Fraction(1, 10))
    sigma = 12 / 600
    own = sigma * math.log(6 * 3 / 0.05)
    repeated = 0.1 + sigma * (2 * math.log(3 * 3 / 0.05) + 4 * math.log(3 * 40 / 0.05))
    assert one.tolerance(600, 40, 0.05, from_holdout=True) == pytest.approx(own, rel=1e-9)
    assert one.tolerance(600, 40, 0.05, from_holdout=False) == pytest.approx(repeated, rel=1e-9)
    assert one.tolerance(600, 40, 0.05) == pytest.approx(repeated, rel=1e-9)
    assert (one.sensitivity, one.scale) == (1 << 16, 12 << 16)
    assert (one.once.exact_epsilon, one.guarantee.exact_epsilon) == (Fraction(1, 6), Fraction(1, 2))
    user = Thresholdout(Fraction(1, 2), 3, Fraction(0), group=4)
    assert (user.sensitivity, user.scale) == (4 << 16, 48 << 16)
