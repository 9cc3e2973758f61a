"""A comparison of several labels: every way to share ε is randomized, learned and scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelveil.comparison.settings import DIVISIONS
from labelveil.comparison.worker import Experiment
from tests.feature_party.two_labels import NAMES, made_up_orders
from tests.labelveil.comparison.runs import served


@pytest.fixture
def spec(tmp_path: Path) -> dict[str, object]:
    table, labels = made_up_orders(1500, 0)
    table.write_parquet(tmp_path / "features.parquet")
    truth = dict(zip(NAMES, labels.T, strict=True))
    table.select("event").with_columns(**truth).write_parquet(tmp_path / "truth.parquet")
    bounds = zip(NAMES, (1, 90), strict=True)
    return {
        **{name: str(tmp_path / f"{name}.parquet") for name in ("features", "truth")},
        "key": "event",
        "columns": [
            {"column": name, "lower": 0, "upper": upper, "whole": upper == 1}
            for name, upper in bounds
        ],
        "loss": "squared",
        "holdout": 0.2,
        "training": {"learner": "linear"},
    }


@pytest.mark.slow
def test_every_division_is_learned_from(spec: dict[str, object]) -> None:
    job = {"epsilon": 6.0, "run": 0, "objective": "auto", "head": "auto"}
    jobs = [
        {**job, "randomizer": name} for name in DIVISIONS if name != "auto"
    ]  # one of the others
    records = served(spec, *jobs)
    for record in records:
        assert [one["name"] for one in record["labels"]] == [*NAMES]
        assert all(one["test_mse"] < 0.95 * one["constant_mse"] for one in record["labels"])
    chosen = {
        job["randomizer"]: [one["chosen"].split(",")[0] for one in record["labels"]]
        for job, record in zip(jobs, records, strict=True)
    }
    assert chosen["joint"] == ["joint-design"] * 2
    assert chosen["split"] == chosen["separate"] == ["randomized-response", "optimal-design"]


@pytest.mark.slow
def test_all_ways_spend_the_same(spec: dict[str, object]) -> None:
    experiment = Experiment(spec)
    for name in ("joint", "split", "separate"):
        released = experiment._release(name, (), 2.0, 0)
        messages = {id(label.events): label.events.guarantee.epsilon for label in released}
        assert len(messages) == (2 if name == "separate" else 1)
        assert sum(messages.values()) == pytest.approx(2.0, rel=1e-6)
