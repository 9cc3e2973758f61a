"""Every row is predicted by a part of the model that has not seen its code, whatever learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feature_party.config import FeaturePartyConfig
from feature_party.evaluation.losses import SQUARED
from feature_party.evaluation.unseen import unseen
from tests.feature_party.learn import prepare, train
from tests.feature_party.worlds import build_world


@pytest.mark.parametrize("learner", ["networks", "trees", "linear"])
def test_each_fold_is_predicted_by_those_who_left_it_out(learner: str, tmp_path: Path) -> None:
    world = build_world(tmp_path, rows=800)
    training = {"learner": learner, "head": "gaussian", "epochs": 2, "hidden": [4]}
    config = FeaturePartyConfig.model_validate(
        {
            "data": {"features": str(world.features), "key": "event"},
            "keys": {"secret_file": str(world.secret_file)},
            "training": {**training, "objective": "likelihood", "ensemble": 8},
            "output": {"model": str(tmp_path / "model")},
        }
    )
    events = prepare(world.directory, world.features, config)
    model = train(events, config)
    found = unseen(model, events)
    points = found.scored.predicted.points
    assert np.isfinite(points).all()
    assert np.array_equal(np.sort(found.matched), np.arange(800))
    assert found.judged_by(SQUARED).averaging > 0
    ((whole, part), *folds) = found.parts
    assert part == slice(None)
    assert [one for _, one in folds] == [slice(at, at + 2) for at in (0, 2, 4, 6)]
    alone = [model.distributions(model.encoder.encode(found.table), one).points for _, one in folds]
    for (rows, _), own in zip(folds, alone, strict=True):
        assert points[rows] == pytest.approx(own[rows], abs=1e-5)
    means = np.mean(alone, axis=0)[whole]
    assert points[whole] == pytest.approx(means, abs=1e-3)  # distributions are averaged
