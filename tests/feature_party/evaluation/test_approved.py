"""Scores of made-up models, as they were when the slow tests beside this one had passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.arrays import Floats
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.evaluation.scores import labels_json, score
from labelveil.feature_party.learning.calibration import Slope
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.encoding import Encoded, Encoder
from labelveil.feature_party.model.facts import FitSettings
from labelveil.feature_party.model.model import Predictions
from tests.approved import approved
from tests.feature_party.evaluation.simulated import gaussian
from tests.feature_party.evaluation.test_fitting import binary, counts
from tests.feature_party.learn import prepare
from tests.feature_party.worlds import World, build_world, model_facts

KEPT = Path(__file__).with_name("approved.json")


class MadeUp:
    """A model that knows the curve of the made-up world; each network has an error of its own."""

    def __init__(self, events: Any, members: int, width: float | None, cells: int) -> None:
        self.problem, self.support = events.problem, Support.from_problem(events.problem, cells)
        self.encoder = Encoder.fit(events.table.drop("event"))
        settings = FitSettings(members, 1, 64, 1e-3, "adamw", 0.0, (1,), 0.0, 0.25, 1, 0)
        self.facts = model_facts().model_copy(
            update={
                "settings": settings,
                "training_rows": events.training_rows,
                "slope": Slope(1.2, 0.05),
                "warnings": [Slope(1.2, 0.05).sentence, "Few events"],
            }
        )
        self.members, self.width = members, width
        self.has_distributions = width is not None

    def distributions(self, inputs: Encoded, members: slice = slice(None)) -> Predictions:
        x = inputs.numeric[:, 0].astype(np.float64)
        shop = inputs.categories[:, 0].astype(np.float64)
        errors = np.sin(np.arange(self.members)[members, None] * 2.0 + 3 * x)
        points = 2 + np.tanh(1.5 * x) + 0.1 * (shop - 2.5) + 0.2 * errors.mean(axis=0)
        points = np.clip(points, 0.1, 3.9)
        law = None if self.width is None else gaussian(points, self.width, self.support)
        return Predictions(points if law is None else law @ self.support.values, law)


def scored(
    world: World,
    members: int,
    width: float | None,
    truth: Floats | None = None,
    cells: int = 64,
    **more: Any,
) -> dict[str, Any]:
    config = FeaturePartyConfig.model_validate(
        {
            "data": {"features": world.features, "key": "event"},
            "keys": {"secret_file": world.secret_file},
            "training": {"holdout": 0.3},
        }
    )
    events: Any = prepare(world.directory, world.features, config)
    model: Any = MadeUp(events, members, width, cells)
    labels = None
    if truth is not None:
        order = events.keys().str.slice(1).cast(pl.Int64).to_numpy()
        labels = {"": truth[order]}
    found = score(model, events, [world.release.manifest], labels, **more)
    return {**labels_json({"": found}), "said": found.summary}


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> World:
    return build_world(tmp_path_factory.mktemp("merged"), rows=900, epsilon=1.5, biased=True)


def test_a_model_of_distributions_in_folds(world: World) -> None:
    truth = pl.read_parquet(world.truth)["amount"].to_numpy()
    approved(KEPT, "thresholds", scored(world, 8, 0.4, truth, by=["shop", "x"]))


def test_a_model_of_points_alone(world: World) -> None:
    approved(KEPT, "points", scored(world, 1, None))


def test_randomized_response(merged: World) -> None:
    approved(KEPT, "response", scored(merged, 4, 0.6))
    approved(KEPT, "in cells", scored(merged, 4, 0.6, cells=6))


@pytest.mark.parametrize("kind", ["binary", "counts"])
def test_what_fits_a_label(kind: str) -> None:
    made = binary(-2, 3) if kind == "binary" else counts()
    points = made.means + 0.1 * np.sin(np.arange(made.means.size))
    fitting, problem = made.estimate(points, 3)
    assert problem.values.size == (2 if kind == "binary" else 13)
    approved(KEPT, kind, {**fitting.to_json(), "said": fitting.sentence})
