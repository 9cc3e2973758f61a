"""Every row is predicted by a part of the model that has not seen its code, whatever learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import DataError
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.evaluation.decoded_labels import Scored
from labelveil.feature_party.evaluation.losses import SQUARED
from labelveil.feature_party.evaluation.unseen import Unseen, unseen
from labelveil.feature_party.model.model import Predictions
from tests.effort import one_in
from tests.feature_party.learn import prepare, train
from tests.feature_party.worlds import build_world


@pytest.mark.slow
@pytest.mark.parametrize("learner", one_in(3, ["networks", "trees", "linear"]))
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
    ((whole, part), *folds) = found.folds
    assert part == slice(None)
    assert [one for _, one in folds] == [slice(at, at + 2) for at in (0, 2, 4, 6)]
    alone = [model.distributions(model.encoder.encode(found.table), one).points for _, one in folds]
    for (rows, _), own in zip(folds, alone, strict=True):
        assert points[rows] == pytest.approx(own[rows], abs=1e-5)
    means = np.mean(alone, axis=0)[whole]
    assert points[whole] == pytest.approx(means, abs=1e-3)  # distributions are averaged

    table, column = pl.read_parquet(world.features), model.encoder.numeric[0].name
    table.with_columns(pl.lit("many").alias(column)).write_parquet(world.features)
    training = config.training.model_copy(update={"shards": str(tmp_path / "shards")})
    join = config.join.model_copy(update={"directory": tmp_path / "joined"})
    streamed = config.model_copy(update={"training": training, "join": join})
    for settings, cells in ((config, 800), (streamed, events.holdout.size)):
        with pytest.raises(
            DataError, match=rf"^column '{column}' holds no number in any of {cells} c"
        ):
            unseen(model, prepare(world.directory, world.features, settings))


def test_rows_that_are_chosen_keep_what_is_theirs() -> None:
    scored = Scored(Predictions(np.arange(6.0), None), np.arange(6) < 3)
    folds = [(np.array(rows), networks) for rows, networks in (
        ([0, 1, 2], slice(None)), ([3, 5], slice(2)), ([4], slice(2, 4)),
    )]  # fmt: skip
    alone = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])  # of those that are held out
    table, matched = pl.DataFrame({"key": [*"abcdef"]}), np.arange(60, 66)
    whole = Unseen(table, np.array([7, 8, 9, 7, 8, 9]), matched, scored, folds, alone)
    found = whole.select(np.array([True, False, True, False, True, True]))
    assert found.table["key"].to_list() == [*"acef"]
    assert found.codes.tolist() == [7, 9, 8, 9]
    assert found.matched.tolist() == [60, 62, 64, 65]
    assert found.scored.predicted.points.tolist() == [0.0, 2.0, 4.0, 5.0]
    assert found.scored.held_out.tolist() == [True, True, False, False]
    assert [(rows.tolist(), networks) for rows, networks in found.folds] == [
        ([0, 1], slice(None)), ([3], slice(2)), ([2], slice(2, 4)),
    ]  # fmt: skip
    assert found.alone.tolist() == [[1.0, 3.0], [4.0, 6.0]]
    none = replace(whole, alone=np.array([]))
    assert none.select(np.ones(6, np.bool_)).alone.size == 0


def test_one_event_is_too_few() -> None:
    with pytest.raises(DataError, match="1 held-out events cannot be scored; raise"):
        unseen(None, SimpleNamespace(holdout=np.array([5])))


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize(("signal", "doubled"), [(0.0, True), (3.0, False)])
def test_the_noise_that_folds_share_is_in_the_variance(signal: float, doubled: bool) -> None:
    """Least squares without a fold, on labels that are noise but for one column."""
    rows, draws, folds = 240, 1500, np.arange(240) % 4
    rng = np.random.default_rng(5)
    features, noise = rng.normal(size=(rows, 6)), rng.normal(size=(draws, rows))
    truth = signal * features[:, 0]
    fits = [features @ np.linalg.pinv(features * (folds != fold)[:, None]) for fold in range(4)]
    squares, variances, alone_variances = np.empty((3, draws))
    for draw in range(draws):
        labels = truth + noise[draw]
        alone = np.stack([fit @ labels for fit in fits])
        points = alone[folds, np.arange(rows)]
        scored = Scored(Predictions(points, None), np.zeros(rows, np.bool_))
        everywhere = Scored(Predictions(alone.mean(axis=0), None), scored.held_out)
        found = Unseen(pl.DataFrame(), folds, folds, everywhere, [], alone).judged_by(SQUARED)
        terms = points * noise[draw]
        squares[draw] = terms.mean() ** 2
        alone_variances[draw] = terms.var() / rows
        echo = Scored(scored.predicted, scored.held_out, echo=found.echo)
        variances[draw] = echo.dependence(0.0) * alone_variances[draw]
    assert 0.8 < squares.mean() / variances.mean() < 1.2  # ± 5 standard errors
    assert (squares.mean() / alone_variances.mean() > 1.5) == doubled
