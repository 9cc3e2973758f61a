"""What is asked is always a question, of any events, predictions and lattice."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.common.arrays import Floats
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice
from labelveil.feature_party.groups.asking import Expected, first_question


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
    question = Expected(inputs, inputs[:, :1], predictions, 5.0).question(lattice, 1.0, rng)
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
