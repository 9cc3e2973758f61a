"""What is asked is always a question, of any events, predictions and lattice."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest

from labelveil.common.arrays import Floats
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice, group_sums
from labelveil.feature_party.groups.asking import (
    Expected,
    first_question,
    gain_of_rounds,
    gain_of_sums,
    worth_of_code,
    worth_of_sum,
)


@pytest.mark.parametrize("steps", [1, 2, 10, 255, 511, 8191])
@pytest.mark.parametrize("rows", [1, 2, 19, 20, 300])
def test_any_expectation_makes_a_question(steps: int, rows: int) -> None:
    rng = np.random.default_rng(0)
    inputs, lattice = rng.normal(size=(rows, 4)), Lattice(-1.0, 1.0, steps)
    doubts = rng.normal(size=(rows, 2))
    for miss in (0.0, 1e-9, 0.02, 0.3, 9.0):
        for predictions in (rng.uniform(-1.5, 1.5, rows), np.zeros(rows)):
            question = Expected(inputs, doubts, predictions, miss).question(lattice, 0.7, rng)
            assert question.sizes.min() >= 1
            assert question.sizes.sum() == rows
            assert GroupQuestion.decode(question.encode(), rows).digest == question.digest
    first = first_question(inputs, lattice, 0.7, rng)
    assert first.sizes.sum() == rows
    assert (2 * first.half_widths >= steps).all()


def test_a_tenth_asks_how_far_labels_lie_from_predictions() -> None:
    rng = np.random.default_rng(1)
    inputs, predictions = rng.normal(size=(1000, 3)), rng.uniform(30, 70, 1000)
    lattice = Lattice(0.0, 100.0, 500)
    alike = np.ones((1000, 1))
    question = Expected(inputs, alike, predictions, 5.0).question(lattice, 1.0, rng)
    assert question.sizes[-2:].tolist() == [50, 50]
    assert question.half_widths[-2:].tolist() == [1, 1]
    assert set(question.half_widths[:-2].tolist()) == {round(1.5 * 5 / lattice.step)}
    assert question.levels is not None
    away = lattice.points(question.offsets[question.levels]) - predictions
    sides = [away[question.groups == question.half_widths.size - side] for side in (2, 1)]
    # an offset is within half a quarter of the deviation, here 6 steps of 0.2
    assert np.abs(sides[0] - 5).max() < 1.2
    assert np.abs(sides[1] + 5).max() < 1.2
    assert np.abs(away[question.groups < question.half_widths.size - 2]).max() < 0.7


def test_less_of_a_label_is_clipped_where_its_prediction_may_be_wild() -> None:
    rng = np.random.default_rng(2)
    lattice, wild = Lattice(0.0, 100.0, 500), np.arange(1000) < 40
    doubts = np.where(wild, 30.0, 1.0)[:, None]
    predictions = np.where(wild, 80.0, 3.0)
    question = Expected(doubts, doubts, predictions, 2.0).question(lattice, 1.0, rng)
    within = question.groups < question.half_widths.size - 2
    widths = lattice.step * question.half_widths[question.groups.astype(int)]
    # 1.5 deviations: of 2 on average, in which doubts of 0.04 * 30² + 0.96 * 1² are
    assert np.abs(widths[within & wild] - 1.5 * (4 + 900 - 36.96) ** 0.5).max() < lattice.step
    assert set(widths[within & ~wild].tolist()) == {3.0}


def test_groups_are_of_events_on_which_predictions_err_together() -> None:
    """What is known already, and columns that tell nothing new, part no events."""
    rng = np.random.default_rng(2)
    rows, lattice = 2000, Lattice(0.0, 100.0, 500)
    doubts, inputs = rng.normal(size=(rows, 2)), 0.1 * rng.normal(size=(rows, 3))
    predictions = rng.uniform(30, 70, rows)
    question = Expected(inputs, doubts, predictions, 5.0).question(lattice, 0.5, rng)
    within = question.groups < question.half_widths.size - 2
    groups = question.groups[within].astype(int)
    assert 100 < groups.max() < 200

    def left(columns: Floats) -> float:
        """Share of the variance that is within groups."""
        columns = columns[within]
        means = np.stack([np.bincount(groups, c) / np.bincount(groups) for c in columns.T], 1)
        return float(
            np.sum((columns - means[groups]) ** 2) / np.sum((columns - columns.mean(0)) ** 2)
        )

    assert left(doubts) < 0.15
    assert left(predictions[:, None]) > 0.8
    assert left(inputs) > left(doubts)


def information(epsilon: float, parts: int, unknown: float) -> float:
    """Fisher information of a code about a normal label's mean, relative to the label's own, by
    differences of its probabilities; on average over means that are drawn."""
    normal, step, places = NormalDist(), 1e-4, 2000
    width, odds, found = math.sqrt(1 + unknown**2), math.exp(epsilon), 0.0
    edges = [width * normal.inv_cdf(part / parts) for part in range(1, parts)]
    for mean in (unknown * normal.inv_cdf((at + 0.5) / places) for at in range(places)):
        sent = []
        for moved in (mean - step, mean + step):
            below = [0.0, *(normal.cdf(edge - moved) for edge in edges), 1.0]
            shares = [high - low for low, high in pairwise(below)]
            sent.append([((odds - 1) * share + 1) / (odds + parts - 1) for share in shares])
        slopes = ((after - before) / (2 * step) for before, after in zip(*sent, strict=True))
        found += sum(slope**2 / share for slope, share in zip(slopes, sent[0], strict=True))
    return found / places


@pytest.mark.parametrize(
    ("epsilon", "unknown", "parts"),
    [(0.1, 0, 2), (0.7, 0, 2), (4, 0, 5), (0.7, 1, 2), (1, 0.5, 2), (4, 1, 5)],
)
def test_a_code_is_worth_what_it_tells_of_a_mean(
    epsilon: float, unknown: float, parts: int
) -> None:
    told = information(epsilon, parts, unknown)
    # nine means stand for all that are drawn
    assert worth_of_code(epsilon, unknown) == pytest.approx(told, rel=0.05 if unknown else 1e-3)


@pytest.mark.parametrize("epsilon", [0.5, 1, 3])
def test_a_sum_is_worth_what_it_tells_of_a_mean(epsilon: float) -> None:
    """Against sums as they are answered: how they vary from group to group, and how they move with
    their labels."""
    groups, size, step = 8000, max(1, round(6.928 / epsilon)), 0.01
    rng, lattice = np.random.default_rng(3), Lattice(-8.0, 8.0, 1600)
    labels = rng.normal(size=groups * size)
    question = GroupQuestion(
        lattice, np.repeat(np.arange(groups), size), np.full(groups, 150), np.array([800])
    )
    answered = group_sums(labels, question, epsilon=epsilon).values
    moved = np.clip(labels + step, -1.5, 1.5) - np.clip(labels - step, -1.5, 1.5)
    slope = size * moved.mean() / (2 * step)
    # a variance of 8,000 numbers, some of them Laplace's, is off by 2.5 % on average
    told = slope**2 / answered.var() / size
    assert worth_of_sum(epsilon) == pytest.approx(0.9 * told, rel=0.16)


def test_asking_around_a_prediction_gains_less_where_codes_tell_nearly_all() -> None:
    # of noise alone: a threshold at a normal label's mean tells φ(0)², at one that is off by a
    # standard normal deviation E φ(m)² = φ(0)²/√3
    assert gain_of_rounds(1e-3) == pytest.approx(np.sqrt(3), rel=0.02)
    gains = [gain_of_rounds(epsilon) for epsilon in (0.01, 0.5, 1, 2, 4, 8)]
    assert gains == sorted(gains, reverse=True)
    assert 1 < gains[-1] < 1.05


def test_sums_gain_most_where_noise_is_most() -> None:
    gains = [gain_of_sums(epsilon, in_rounds=True) for epsilon in (0.05, 0.2, 0.5, 1, 2, 8)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 30
    assert gains[-2] < 1
    for epsilon in (0.05, 1, 40):
        one, several = (gain_of_sums(epsilon, in_rounds=rounds) for rounds in (False, True))
        assert several < one < 2 * several
