"""The reference of equal information: as noisy as it says, and learned from by plain trees."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from feature_party.model.encoding import Encoder
from labelveil.comparison.equal_information import equally_noisy, tree_predictions
from labelveil.comparison.worker import serve


def made_up(rows: int) -> tuple[pl.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=rows)
    shop = rng.integers(8, size=rows)
    table = pl.DataFrame({"event": np.arange(rows), "x": x, "shop": shop.astype(str)})
    return table, np.clip(5 + 2 * np.sign(x) + (shop % 3) + 0.3 * rng.normal(size=rows), 0, 10)


def test_noisy_labels_keep_a_share_of_what_labels_tell() -> None:
    _, labels = made_up(200_000)
    noisy = equally_noisy(labels, 0.1, 3)
    assert np.corrcoef(labels, noisy)[0, 1] ** 2 == pytest.approx(0.1, abs=0.01)
    assert np.array_equal(noisy, equally_noisy(labels, 0.1, 3))
    assert np.array_equal(equally_noisy(labels, 1.0, 3), labels)


def test_trees_learn_numbers_and_categories() -> None:
    table, labels = made_up(2000)
    encoded = Encoder.fit(table, ignore=["event"]).encode(table)
    predicted = tree_predictions(encoded, labels, encoded, 0)
    assert np.mean((predicted - labels) ** 2) < 0.1 * np.var(labels)


def test_a_comparison_runs_it(tmp_path: Path) -> None:
    table, labels = made_up(1500)
    table.write_parquet(tmp_path / "features.parquet")
    pl.DataFrame({"label": labels}).write_parquet(tmp_path / "truth.parquet")
    training = {"ensemble": 2, "epochs": 2, "hidden": [8]}
    label = {"column": "label", "lower": 0, "upper": 10}
    spec = {"key": "event", "columns": [label], "loss": "squared", "holdout": 0.2}
    files = {name: str(tmp_path / f"{name}.parquet") for name in ("features", "truth")}
    job = {"epsilon": 2.0, "run": 0, "randomizer": "equal-information"}
    job |= {"objective": "auto", "head": "auto"}
    lines = [json.dumps({**spec, **files, "training": training}), json.dumps(job)]
    answers = io.StringIO()
    serve(lines, answers)
    found = json.loads(answers.getvalue().splitlines()[1])
    assert found["chosen"] in ("networks", "trees")
    assert found["test_mse"] < 0.6 * found["constant_mse"]
    assert found["label_mse"] is None
