"""Training: noise-aware learning learns, runs repeat exactly, and killed ones go on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import numpy as np
import polars as pl
import pytest
import torch

from labelveil.common.csv_files import read_table
from labelveil.common.errors import ConfigError, DataError
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.evaluation.true_labels import match_true_labels
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.model.prediction import predict_file
from labelveil.feature_party.training.batches import BatchPlan
from labelveil.feature_party.training.fitting import EpochRecord
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.settings import resolve_settings
from tests.effort import one_in
from tests.feature_party.learn import prepare, train
from tests.feature_party.worlds import SECRET, World, build_world


def config(world: World, **training: object) -> FeaturePartyConfig:
    values = {"ensemble": 2, "epochs": 4, "hidden": [16, 8], **training}
    return FeaturePartyConfig.model_validate(
        {
            "data": {"key": "event", "features": world.features},
            "keys": {"secret_file": world.secret_file},
            "training": values,
        }
    )


ENDS = 0.0, 4.0
"""Of the label of a world."""


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Prepared, np.ndarray]:
    """4,000 events at ε = 1, joined, and the true labels of the matched events."""
    world = build_world(tmp_path_factory.mktemp("noisy"), rows=4000, epsilon=1.0, seed=2)
    prepared = prepare(world.directory, world.features, config(world))
    truth = match_true_labels(prepared.table["event"], world.truth, "amount", ENDS, 0.0)
    return world, prepared, truth


def held_out_error(model: Model, prepared: Prepared, truth: np.ndarray) -> float:
    table = prepared.table[prepared.holdout]
    predictions = model.predict(table)["prediction"].to_numpy()
    return float(np.mean((predictions - truth[prepared.holdout]) ** 2))


@pytest.mark.slow
def test_likelihood_beats_raw(tmp_path: Path) -> None:
    world = build_world(tmp_path, rows=4000, epsilon=2.0, seed=2, biased=True)
    prepared = prepare(world.directory, world.features, config(world))
    truth = match_true_labels(prepared.table["event"], world.truth, "amount", ENDS, 0.0)
    constant = float(np.var(truth[prepared.holdout]))
    errors = {}
    for objective in ("likelihood", "debiased", "raw"):
        settings = config(world, objective=objective, head="gaussian", epochs=8, ensemble=3)
        model = train(prepared, settings)
        errors[objective] = held_out_error(model, prepared, truth)
        assert model.has_distributions == (objective == "likelihood")
    # outputs are pulled to the middle of the grid, and a model of outputs with them
    assert errors["likelihood"] < 0.5 * constant
    assert errors["likelihood"] < 0.7 * errors["raw"]
    assert errors["debiased"] < errors["raw"]


@pytest.mark.slow
def test_true_labels_are_the_reference(noisy: tuple[World, Prepared, np.ndarray]) -> None:
    world, prepared, truth = noisy
    settings = config(world, objective="true", epochs=8)
    with pytest.raises(ConfigError, match="needs true labels"):
        train(prepared, settings)
    model = train(prepared, settings, true_labels=truth)
    assert held_out_error(model, prepared, truth) < 0.2


@pytest.mark.slow
def test_auto_mixes_heads_and_explains_itself(
    noisy: tuple[World, Prepared, np.ndarray], tmp_path: Path
) -> None:
    world, prepared, _ = noisy
    seen: list[tuple[str, EpochRecord]] = []
    model = train(
        prepared,
        config(world),
        on_epoch=lambda what, record: seen.append((what, record)),
    )
    heads = model.facts.heads
    assert len(heads) >= 3
    assert sum(entry.weight for entry in heads.values()) == pytest.approx(1)
    shared = "likelihood-gaussian+log-normal"
    assert {shared, "likelihood-trees-mean"} <= {what for what, _ in seen}
    assert model.facts.matched == 4000
    table = prepared.table
    model.save(tmp_path)
    again = Model.load(tmp_path)
    assert again.facts == model.facts
    assert again.predict(table, 0.8).equals(model.predict(table, 0.8))


@pytest.mark.slow
def test_auto_goes_part_of_the_way_to_the_released_prior(
    noisy: tuple[World, Prepared, np.ndarray], tmp_path: Path
) -> None:
    world, prepared, _ = noisy
    model = train(prepared, config(world))
    assert model.facts.adjusted
    assert model.adjustment is not None
    inputs = model.encoder.encode(prepared.table[prepared.training])

    def average(of: Model) -> np.ndarray:
        predicted = of.distributions(inputs).distributions
        assert predicted is not None
        return np.asarray(predicted.mean(axis=0))

    before = average(replace(model, adjustment=None, shrinkage=0.0))
    after = average(replace(model, shrinkage=0.0))
    prior = model.support.prior
    share = model.problem.informativeness * prepared.training.size / 1000
    left = np.abs(after - prior).sum() / np.abs(before - prior).sum()
    assert left == pytest.approx(share / (1 + share), abs=0.15)
    model.save(tmp_path)
    stored = json.loads((tmp_path / "model.json").read_text())
    stored["adjustment"].pop()
    (tmp_path / "model.json").write_text(json.dumps(stored))
    with pytest.raises(DataError, match="factors for"):
        Model.load(tmp_path)
    alone = train(prepared, config(world, objective="likelihood"))
    assert not alone.facts.adjusted
    assert alone.adjustment is None


@pytest.mark.slow
def test_intervals_cover(noisy: tuple[World, Prepared, np.ndarray]) -> None:
    world, prepared, truth = noisy
    model = train(prepared, config(world, head="gaussian", epochs=8))
    predicted = model.predict(prepared.table[prepared.holdout], 0.9)
    held = truth[prepared.holdout]
    inside = (predicted["lower"].to_numpy() <= held) & (held <= predicted["upper"].to_numpy())
    assert 0.8 <= inside.mean() <= 1.0
    order = predicted["lower"] <= predicted["upper"]
    assert order.all()


@pytest.mark.slow
def test_seeds_repeat_and_differ(noisy: tuple[World, Prepared, np.ndarray]) -> None:
    world, prepared, _ = noisy
    table = prepared.table.head(50)

    def predictions(seed: int) -> pl.DataFrame:
        settings = config(world, head="gaussian", epochs=1, seed=seed)
        return train(prepared, settings).predict(table)

    assert predictions(0).equals(predictions(0))
    assert not predictions(0).equals(predictions(1))


@pytest.mark.slow
@pytest.mark.parametrize("loss", one_in(2, ["absolute", "poisson"], first=1))
@pytest.mark.parametrize("objective", one_in(4, ["likelihood", "debiased", "raw", "true"]))
def test_other_losses_learn_too(
    noisy: tuple[World, Prepared, np.ndarray], loss: str, objective: str
) -> None:
    world, prepared, truth = noisy
    problem = replace(prepared.problem, loss=loss)
    settings = config(world, objective=objective, head="gaussian", epochs=6)
    model = train(replace(prepared, problem=problem), settings, true_labels=truth)
    table = prepared.table[prepared.holdout]
    points = model.predict(table)["prediction"].to_numpy()
    held = truth[prepared.holdout]
    assert np.isfinite(points).all()
    assert np.corrcoef(points, held)[0, 1] > 0.6
    if loss == "poisson":
        assert points.min() >= 0
    elif objective == "likelihood":
        # a median is one of the labels that the model can give weight to
        assert np.isin(points, model.support.values).all()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", one_in(2, ["adamw", "rmsprop"]))
def test_a_killed_run_ends_with_the_same_weights(
    noisy: tuple[World, Prepared, np.ndarray], tmp_path: Path, optimizer: str
) -> None:
    world, prepared, _ = noisy
    settings = config(world, head="gaussian", dropout=0.1, optimizer=optimizer)

    class Killed(Exception):
        pass

    def kill(what: str, record: EpochRecord) -> None:
        if record.epoch == 2:
            raise Killed

    whole = train(prepared, settings)
    with pytest.raises(Killed):
        train(prepared, settings, on_epoch=kill, folder=tmp_path)
    epochs: list[int] = []
    resumed = train(
        prepared,
        settings,
        on_epoch=lambda what, record: epochs.append(record.epoch),
        folder=tmp_path,
    )
    assert epochs == [3, 4]
    for name, value in whole.experts[0].learned.state_dict().items():
        assert torch.equal(value, resumed.experts[0].learned.state_dict()[name])
    assert whole.facts.history == resumed.facts.history


@pytest.mark.slow
def test_a_checkpoint_of_other_settings_is_not_taken_up(
    noisy: tuple[World, Prepared, np.ndarray], tmp_path: Path
) -> None:
    world, prepared, _ = noisy
    train(prepared, config(world, head="gaussian", epochs=2), folder=tmp_path)
    epochs: list[int] = []
    train(
        prepared,
        config(world, head="gaussian", epochs=2, learning_rate=1e-4),
        on_epoch=lambda what, record: epochs.append(record.epoch),
        folder=tmp_path,
    )
    assert epochs == [1, 2]


def test_prediction_streams_what_it_would_predict_at_once(world: World, tmp_path: Path) -> None:
    model = train(
        prepare(world.directory, world.features, config(world)),
        config(world, head="gaussian", epochs=1),
    )
    table = pl.read_parquet(world.features)
    table.write_csv(tmp_path / "features.csv")
    whole = model.predict(table, 0.9)
    for source in (world.features, tmp_path / "features.csv"):
        output = tmp_path / f"out{source.suffix}"
        rows = predict_file(model, source, output, key="event", batch_rows=64).rows
        streamed = read_table(output, "event")
        assert rows == table.height
        assert streamed["event"].to_list() == table["event"].to_list()
        np.testing.assert_allclose(streamed["prediction"], whole["prediction"], atol=1e-5)
        np.testing.assert_allclose(streamed["upper"], whole["upper"], atol=1e-5)
    ids = [UUID(int=2**127 + row) for row in range(table.height)]  # as bytes, by partition
    lake = table.with_columns(event=pl.Series([one.bytes for one in ids]))
    for day, rows in (("1", lake[:100]), ("2", lake[100:])):
        (tmp_path / "lake" / f"day={day}").mkdir(parents=True)
        rows.write_parquet(tmp_path / "lake" / f"day={day}" / "part-0.parquet")
    for output in (tmp_path / "lake.csv", tmp_path / "lake.parquet"):
        predict_file(model, tmp_path / "lake", output, key="event")
        streamed = read_table(output, "event")
        assert streamed["event"].to_list() == list(map(str, ids))
        np.testing.assert_allclose(streamed["prediction"], whole["prediction"], atol=1e-5)
    assert not list(tmp_path.glob(".*"))
    np.testing.assert_allclose(
        model.predict(table.to_pandas())["prediction"], whole["prediction"], atol=1e-6
    )
    said: list[str] = []
    many = pl.when(pl.int_range(pl.len()) % 3 == 0).then(pl.lit("new")).otherwise("shop")
    table.with_columns(shop=many).write_parquet(tmp_path / "new.parquet")
    predict_file(model, tmp_path / "new.parquet", tmp_path / "new-out.parquet", warn=said.append)
    predict_file(model, world.features, tmp_path / "known.parquet", warn=said.append)
    (warning,) = said
    assert "33% of the rows have a 'shop' that the model does not know" in warning
    table.drop("shop").write_parquet(tmp_path / "less.parquet")
    with pytest.raises(DataError, match="lack the column 'shop'"):
        predict_file(model, tmp_path / "less.parquet", tmp_path / "none.parquet")
    assert not (tmp_path / "none.parquet").exists()


@pytest.mark.parametrize(
    ("members", "share"),
    [(1, 0.1), (2, 0.5), (3, 0.75), (4, 0.5), (5, 1), (7, 1), (8, 1), (9, 0.75)],
)
def test_rows_that_some_member_leaves_out(world: World, members: int, share: float) -> None:
    settings = resolve_settings(config(world, ensemble=members).training, 1000)
    left_out = BatchPlan(settings, (1000,)).folds(0)[1].numpy()
    assert np.unique(left_out).size == pytest.approx(1000 * share, abs=10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_learns_the_same(world: World) -> None:
    settings = [config(world, head="gaussian", device=device) for device in ("cpu", "cuda")]
    cpu, gpu = (train(prepare(world.directory, world.features, s), s) for s in settings)
    table = pl.read_parquet(world.features)
    np.testing.assert_allclose(
        cpu.predict(table)["prediction"], gpu.predict(table)["prediction"], atol=0.05
    )


def test_secret_is_needed(world: World) -> None:
    settings = FeaturePartyConfig.model_validate({"data": {"key": "event"}})
    with pytest.raises(ConfigError, match="no key secret is configured"):
        prepare(world.directory, world.features, settings)
    assert prepare(world.directory, world.features, settings, SECRET).training.size == 1200
