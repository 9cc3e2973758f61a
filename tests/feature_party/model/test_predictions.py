"""Predictions are of the law that they come with, and those of several labels of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import DataError
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.model.several_labels import LabelModels
from tests.feature_party.learn import prepare, train
from tests.feature_party.worlds import build_world


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, pl.DataFrame]:
    world = build_world(tmp_path_factory.mktemp("world"), rows=200)
    settings: dict[str, Any] = {
        "data": {"features": world.features, "key": "event"},
        "keys": {"secret_file": world.secret_file},
        "training": {
            "ensemble": 2, "epochs": 1, "hidden": [4], "objective": "likelihood",
            "learner": "networks",
        },
    }  # fmt: skip
    config = FeaturePartyConfig.model_validate(settings)
    prepared = prepare(world.directory, world.features, config)
    return train(prepared, config), prepared.table


@pytest.mark.parametrize("loss", ["squared", "absolute", "poisson"])
def test_a_point_is_that_of_least_loss_under_the_law(
    trained: tuple[Model, pl.DataFrame], loss: str
) -> None:
    """The mean, or the median, whatever the factors and the share of the released prior are."""
    model, table = trained
    factors = np.linspace(0.5, 2, model.support.size)
    for adjustment, shrinkage in ((None, 0.0), (factors, 0.0), (factors, 0.3)):
        changed = replace(
            model, problem=replace(model.problem, loss=loss),
            adjustment=adjustment, shrinkage=shrinkage,
        )  # fmt: skip
        found = changed.distributions(changed.encoder.encode(table))
        laws = found.distributions
        assert laws is not None
        np.testing.assert_allclose(laws.sum(axis=1), 1, rtol=1e-6)
        if loss == "absolute":
            middle = (laws.cumsum(axis=1) < 0.5 - 1e-9).sum(axis=1)
            np.testing.assert_array_equal(found.points, model.support.values[middle])
            assert np.abs(found.points - laws @ model.support.values).max() > 1e-3
        else:
            np.testing.assert_allclose(found.points, laws @ model.support.values, rtol=1e-6)


@dataclass(frozen=True)
class Reaching:
    """A model of labels up to a value, which says what it was asked."""

    most: float
    has_distributions: bool = True

    def reaches(self, value: float) -> bool:
        return value <= self.most

    def predict(
        self, features: pl.DataFrame, interval: Any, quantiles: Any, above: Sequence[float]
    ) -> pl.DataFrame:
        return features.select(
            pl.col("x").alias("prediction"), *(pl.lit(0.5).alias(f"above_{v}") for v in above)
        )


def test_each_of_several_labels_is_asked_what_it_reaches_and_an_only_one_everything() -> None:
    rows = pl.DataFrame({"x": [1.0]})

    def columns(above: list[int], **models: Reaching) -> list[str]:
        return LabelModels(models).predict(rows, above=above).columns  # type: ignore[arg-type]

    low, high = Reaching(3), Reaching(9)
    assert columns([2, 5], a=low, b=high) == ["a", "a_above_2", "b", "b_above_2", "b_above_5"]
    assert columns([5], a=low) == ["prediction", "above_5"]  # which refuses it itself
    with pytest.raises(DataError, match="above=10 must be some label's value"):
        columns([10], a=low, b=high)
    points = Reaching(3, has_distributions=False)
    assert [
        LabelModels(models).has_distributions  # type: ignore[arg-type]
        for models in ({"a": low, "b": high}, {"a": low, "b": points}, {"a": points, "b": low})
    ] == [True, False, False]


def test_rows_are_encoded_alike_however_many_come_at_once(
    trained: tuple[Model, pl.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, table = trained
    whole = model.encoder.encode(table)
    monkeypatch.setattr("labelveil.feature_party.model.encoding._BLOCK", 7)
    for rows in (table, table.head(6), table.head(15)):
        found = model.encoder.encode(rows)
        np.testing.assert_array_equal(found.numeric, whole.numeric[: rows.height])
        np.testing.assert_array_equal(found.categories, whole.categories[: rows.height])
