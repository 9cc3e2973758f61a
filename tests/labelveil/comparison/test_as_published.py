"""The published protocol through the worker of a comparison, and its network by itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from labelveil.comparison import as_published
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


class Optimizer:
    """Takes no step, and keeps how it was told to."""

    made: ClassVar[list[Optimizer]] = []

    def __init__(self, name: str, groups: list[tuple[list[Any], float]], rate: float) -> None:
        self.told = name, [decay for _, decay in groups], rate
        self.rates: list[float] = []
        self.made.append(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "learning_rate":
            self.rates.append(value)
        else:
            super().__setattr__(name, value)

    def zero_grad(self) -> None: ...

    def step(self) -> None: ...


@pytest.mark.parametrize(("rows", "settings", "told", "steps"), [
    (12, {}, ("rmsprop", [0.0], 1e-3), 50),
    (8192, {"epochs": 1}, ("rmsprop", [0.0], 1e-3), 1),
    (8193, {"epochs": 1}, ("rmsprop", [0.0], 1e-3), 2),
    (120, {"epochs": 3, "batch_size": 50, "optimizer": "adamw", "learning_rate": 0.5,
           "weight_decay": 0.1}, ("adamw", [0.1], 0.5), 9),
])  # fmt: skip
def test_what_is_not_set_is_as_it_was_published(
    rows: int,
    settings: dict[str, Any],
    told: tuple[str, list[float], float],
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """50 epochs in batches of 8,192 by RMSprop, from a rate of 0.001 along a cosine."""
    monkeypatch.setattr(as_published, "Optimizer", Optimizer)
    table, labels = made_up(rows)
    published_predictions(
        table,
        labels,
        table,
        key="event",
        training=TrainingSection(hidden=[4], **settings),
        loss="squared",
        bounds=(0, UPPER),
    )
    made = Optimizer.made[-1]
    assert made.told == told
    rates = [told[2] * (1 + math.cos(math.pi * at / steps)) / 2 for at in range(1, steps + 1)]
    assert made.rates == pytest.approx(rates)


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
