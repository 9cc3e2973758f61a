"""The published protocol through the worker of a comparison, and its network by itself."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from feature_party.config import DataSection, TrainingSection
from labelveil.comparison.as_published import published_predictions
from labelveil.comparison.worker import serve

ROWS = 4000
LABEL = {"column": "label", "lower": 0, "upper": 10.5}


def events() -> tuple[pl.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    x, shop = rng.normal(size=ROWS), rng.integers(6, size=ROWS)
    table = pl.DataFrame({"event": np.arange(ROWS), "x": x, "shop": shop.astype(str)})
    return table, np.clip(4 + 2 * np.sign(x) + shop % 3 + rng.normal(size=ROWS), 0, 10.5)


@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_the_network_learns_numbers_and_categories(loss: str) -> None:
    table, labels = events()
    seen, asked = table[:3000], table[3000:]
    training = TrainingSection(epochs=30, batch_size=256)
    found = [
        published_predictions(
            seen,
            labels[:3000],
            asked,
            data=DataSection(key="event"),
            training=training,
            loss=loss,
            bounds=(0, 10.5),
        )
        for _ in range(2)
    ]
    assert np.array_equal(*found)  # the seed chooses weights and order
    assert np.mean((found[0] - labels[3000:]) ** 2) < 0.35 * np.var(labels)


@pytest.mark.slow
def test_a_comparison_runs_it(tmp_path: Path) -> None:
    table, labels = events()
    table.write_parquet(tmp_path / "features.parquet")
    pl.DataFrame({"label": labels}).write_parquet(tmp_path / "truth.parquet")
    spec = {"key": "event", "columns": [LABEL], "loss": "squared", "holdout": 0.2}
    files = {name: str(tmp_path / f"{name}.parquet") for name in ("features", "truth")}
    training = {"epochs": 30, "batch_size": 256}

    def job(randomizer: str, epsilon: float | None, **options: Any) -> dict[str, Any]:
        one = {"epsilon": epsilon, "run": 0, "randomizer": randomizer, "options": options}
        return {**one, "objective": "as-published", "head": "auto"}

    jobs = [
        job("true-labels", None),
        job("rr-on-bins", 3.0),
        job("laplace", 3.0, clip=True, continuous=True),
        job("laplace", 3.0, clip=True),
        job("rr-on-bins", 0.1),
    ]
    lines = [json.dumps({**spec, **files, "training": training}), *map(json.dumps, jobs)]
    answers = io.StringIO()
    serve(lines, answers)
    truth, bins, floats, lattice, small = map(json.loads, answers.getvalue().splitlines()[1:])
    assert truth["test_mse"] < 0.5 * truth["constant_mse"]
    # rounded down: half a unit off on average, and no further than one
    assert 0.2 < truth["label_mse"] < 0.6
    assert truth["test_mse"] < bins["test_mse"] < bins["constant_mse"]
    assert bins["test_loss"] == bins["test_mse"]
    assert bins["outputs"] <= 11
    assert floats["outputs"] is None
    assert floats["label_mse"] == pytest.approx(lattice["label_mse"], rel=0.15)
    assert "leaves nothing of epsilon=0.1" in small["error"]
