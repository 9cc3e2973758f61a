"""The reference of equal information: as noisy as it says, and learned from by plain trees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.equal_information import (
    REFERENCE,
    equally_noisy,
    reference,
    tree_predictions,
)
from labelveil.comparison import Job
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.schema import Stated
from tests.labelveil.comparison.runs import made_up, specified


def test_noisy_labels_keep_a_share_of_what_labels_tell() -> None:
    _, labels = made_up(200_000)
    noisy = equally_noisy(labels, 0.1, 3)
    assert np.corrcoef(labels, noisy)[0, 1] ** 2 == pytest.approx(0.1, abs=0.01)
    assert np.array_equal(noisy, equally_noisy(labels, 0.1, 3))
    assert np.array_equal(equally_noisy(labels, 1.0, 3), labels)


@pytest.mark.slow
def test_trees_learn_numbers_and_categories() -> None:
    table, labels = made_up(2000)
    encoded = Encoder.fit(table, stated=Stated(ignored=("event",))).encode(table)
    predicted = tree_predictions(encoded, labels, encoded, 0)
    assert np.mean((predicted - labels) ** 2) < 0.1 * np.var(labels)


@pytest.mark.slow
def test_the_benchmark_runs_it(tmp_path: Path) -> None:
    spec = specified(tmp_path, 1500, {"ensemble": 2, "epochs": 2, "hidden": [8]})
    record = reference(spec, Job(2.0, 0, REFERENCE), tmp_path)
    assert reference(spec, Job(2.0, 0, REFERENCE), tmp_path) == record  # as it was kept
    assert record["chosen"] in ("networks", "trees")
    assert record["test_mse"] < 0.6 * record["constant_mse"]
