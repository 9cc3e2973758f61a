"""Known labels are learned from beside privatized ones, by the same likelihood."""

from __future__ import annotations

import numpy as np
import pytest

import labelveil as lv
from labelveil.common.errors import DataError
from labelveil.feature_party.notebook.sources import problem_of
from tests.effort import one_in

ROWS, KNOWN = 1200, 300


def events(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    return x, np.clip(50 + 15 * x[:, 0] + 3 * rng.normal(size=rows), 0, 100)


def test_rounding_is_a_part_of_the_channel_and_unbiased() -> None:
    private = lv.randomize_labels(events(4000, 0)[1], lower=0, upper=100, epsilon=4)
    labels = np.repeat([0.0, 33.3, 77.77, 100.0, 140.0], 4000)
    known = lv.clear_labels(labels, private)
    problem = problem_of(known)
    assert problem.outputs.size <= 256
    sent = problem.outputs[known.codes]
    gap = float(np.diff(problem.outputs).max())
    for label in np.unique(labels):
        mine = sent[labels == label]
        assert np.ptp(mine) <= gap * 1.001
        assert mine.mean() == pytest.approx(min(label, 100), abs=0.05 * gap)
    # the channel's rows are the probabilities of that very rounding
    assert problem.channel @ problem.outputs == pytest.approx(problem.grid, abs=1e-9 * 100)
    assert problem.informativeness > 0.99


@pytest.mark.slow
def test_a_model_learns_from_both(repeatable: None) -> None:
    (x, y), (x_known, y_known), (x_new, y_new) = (
        events(rows, seed) for rows, seed in ((ROWS, 1), (KNOWN, 2), (2000, 3))
    )
    private = lv.randomize_labels(y, lower=0, upper=100, epsilon=0.5)
    known = lv.clear_labels(y_known, private)
    both = np.concatenate([x, x_known]), [private, known]
    errors = []
    for features, labels in ((x, private), both):
        model = lv.LabelDPRegressor(learner="linear").fit(features, labels)
        errors.append(float(np.mean((model.predict(x_new) - y_new) ** 2)))
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 0.25 * y_new.var()
    # the parameter ``channel`` is about codes, and known labels have none
    model = lv.LabelDPRegressor(private, learner="linear").fit(*both)
    assert float(np.mean((model.predict(x_new) - y_new) ** 2)) == pytest.approx(errors[1])


def test_two_values_stay_two() -> None:
    private = lv.randomize_labels(np.tile([0, 1, 1], 200), lower=0, upper=1, epsilon=1)
    known = lv.clear_labels([1, 0, 1, 1], private)
    assert known.codes.tolist() == [1, 0, 1, 1]
    assert known.problem.discrete


@pytest.mark.slow
@pytest.mark.parametrize(
    "labels",
    one_in(2, [[1.0, np.nan], ["a"], [[1.0, 2.0]], [np.inf], np.ma.array([1.0, 2.0], mask=[0, 1])]),
)
def test_what_is_no_label_is_refused(labels: list[object]) -> None:
    private = lv.randomize_labels([0.0, 1.0, 2.0], lower=0, upper=3, epsilon=1)
    with pytest.raises(DataError, match=r"clear labels.* (must be|are missing or infinite)"):
        lv.clear_labels(labels, private)
