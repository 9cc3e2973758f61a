"""The published protocol through the worker of a comparison, and its network by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelveil.comparison.as_published import published_predictions
from labelveil.feature_party.config.sections import TrainingSection
from tests.labelveil.comparison.runs import UPPER, answers, made_up

ROWS = 4000


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_the_network_learns_numbers_and_categories(loss: str) -> None:
    table, labels = made_up(ROWS)
    seen, asked = table[:3000], table[3000:]
    training = TrainingSection(epochs=30, batch_size=256)
    found = [
        published_predictions(
            seen,
            labels[:3000],
            asked,
            key="event",
            training=training,
            loss=loss,
            bounds=(0, UPPER),
        )
        for _ in range(2)
    ]
    assert np.array_equal(*found)  # the seed chooses weights and order
    assert np.mean((found[0] - labels[3000:]) ** 2) < 0.35 * np.var(labels)


def test_adam_and_a_pull_of_the_weights_are_taken_where_they_are_set() -> None:
    table, labels = made_up(400)
    found = [
        published_predictions(
            table,
            labels,
            table,
            key="event",
            # a layer of fewer than there are categories
            training=TrainingSection(epochs=1, batch_size=64, hidden=[4], **settings),
            loss="squared",
            bounds=(0, UPPER),
        )
        for settings in ({}, {"optimizer": "adamw"}, {"weight_decay": 0.1})
    ]
    assert not np.allclose(found[0], found[1])
    assert not np.allclose(found[0], found[2])


@pytest.mark.slow
def test_a_comparison_runs_it(tmp_path: Path) -> None:
    def job(randomizer: str, epsilon: float | None, **options: Any) -> dict[str, Any]:
        own = {"epsilon": epsilon, "randomizer": randomizer, "options": options}
        return {**own, "objective": "as-published"}

    truth, bins, floats, lattice, small = answers(
        tmp_path,
        ROWS,
        {"epochs": 30, "batch_size": 256},
        job("true-labels", None),
        job("rr-on-bins", 3.0),
        job("laplace", 3.0, clip=True, continuous=True),
        job("laplace", 3.0, clip=True),
        job("rr-on-bins", 0.1),
    )
    assert truth["test_mse"] < 0.5 * truth["constant_mse"]
    assert truth["label_mse"] == 0  # nothing is rounded where no bins are to be found
    assert truth["test_mse"] < bins["test_mse"] < bins["constant_mse"]
    assert bins["test_loss"] == bins["test_mse"]
    assert bins["outputs"] <= 11
    assert floats["outputs"] is None
    assert floats["label_mse"] == pytest.approx(lattice["label_mse"], rel=0.15)
    assert "leaves nothing of epsilon=0.1" in small["error"]
