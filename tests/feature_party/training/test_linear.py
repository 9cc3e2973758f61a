"""Linear models: what they serve, and what they take apart once."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from threadpoolctl import ThreadpoolController, threadpool_limits

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers import build_randomizer
from labelveil.feature_party.learning.objectives import LikelihoodObjective
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.model.network import EMBEDDING
from labelveil.feature_party.model.prediction import predict_file
from labelveil.feature_party.training import linear, quick, trees
from labelveil.feature_party.training.in_memory import Prepared
from tests.feature_party.training.learners import ROWS, events, fitted, interaction, unexplained


def test_many_rows_bear_more_than_a_linear_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "ROUNDS", 2)
    x = np.linspace(-1, 1, 300)
    data = events(pl.DataFrame({"x": x}), 15 + 3 * x)
    for most, tried in ((240, True), (239, False)):
        monkeypatch.setattr(quick, "MOST_LINEAR", most)
        heads = fitted(data, ensemble=2, epochs=1).facts.heads
        assert any(name.startswith("linear") for name in heads) == tried
    assert fitted(data, learner="linear", ensemble=2).facts.head.startswith("linear")  # it is asked


@pytest.mark.parametrize("values", [EMBEDDING, EMBEDDING + 1])
@pytest.mark.parametrize("shops", [True, False])
def test_a_linear_model_keeps_no_more_values_than_an_embedding_has(
    values: int, shops: bool
) -> None:
    labels = np.arange(240) % values
    built = build_randomizer(
        "randomized-response", labels=np.arange(values), prior=np.ones(values), epsilon=3.0
    )
    codes = built.randomize(labels.astype(float), seeded_entropy(1))
    problem = LabelProblem.from_channel(built.channel, np.ones(values))
    table = pl.DataFrame({"x": labels / values, "shop": labels.astype(str)})
    data = Prepared.of_table(table if shops else table.drop("shop"), codes, problem)
    if shops and values > EMBEDDING:
        with pytest.raises(ConfigError, match=f"linear' serves at most {EMBEDDING} values where"):
            fitted(data, learner="linear")
    else:
        assert fitted(data, learner="linear").facts.head == "linear-softmax"


def test_some_rows_stand_for_all_where_these_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """In what a step is divided by, of which they have their share."""
    rng = np.random.default_rng(1)
    x = rng.choice([-1.0, 1.0], size=(1000, 1))
    labels = np.clip(np.rint(1 + x[:, 0] + rng.normal(size=1000)), 0, 2).astype(int)
    built = build_randomizer(
        "randomized-response", labels=np.arange(3), prior=np.ones(3), epsilon=3.0
    )
    codes = built.randomize(labels.astype(float), seeded_entropy(1))
    problem = LabelProblem.from_channel(built.channel, np.bincount(labels))
    data = Prepared.of_table(pl.DataFrame(x), codes, problem)
    points = []
    for weighed in (10**9, 125):  # every fourth
        monkeypatch.setattr(linear, "_WEIGHED", weighed)
        model = fitted(data, learner="linear", ensemble=2)
        points.append(model.predict(data.table)["prediction"].to_numpy())
    assert np.abs(points[0] - points[1]).max() < 0.2
    assert not np.array_equal(*points)


def test_a_linear_model_serves_few_events_with_many_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 60))
    means = 15 + x[:, :10] @ np.linspace(1, 2, 10)
    data = events(pl.DataFrame({f"x{i}": x[:, i] for i in range(60)}), means)
    model = fitted(data, learner="linear", head="gaussian")
    assert model.facts.head == "linear-gaussian"
    assert unexplained(model, data, means) < 0.5  # 1,200 labels that say as much as 150
    model.save(tmp_path)
    table = data.table.head(50)
    assert Model.load(tmp_path).predict(table).equals(model.predict(table))


@pytest.mark.parametrize("words", [0, 2])
def test_products_are_those_of_the_centred_inputs_of_each_fold(words: int) -> None:
    rng = np.random.default_rng(2)
    numbers, encodings = rng.normal(1, 1, (9, 3)), rng.normal(2, 1, (2, 9, words))
    fold_of = np.arange(9) % 3  # the third is left out by no model
    rows: Any = MagicMock(folds=[None, None], encoded=lambda fold: encodings[fold], fold_of=fold_of)
    rows.inputs.__len__.return_value = 9
    rows.encoder.configure_mock(categorical=["c"] * words, cardinalities=[5] * words)
    design = linear.Design(rows, numbers.astype(np.float32))
    slopes, gradients = rng.normal(size=(2, 3 + words, 2)), rng.normal(size=(2, 9, 2))
    outputs, pulls = design.outputs(slopes), design.pulls(gradients)
    for fold in range(2):
        inputs, kept = np.hstack([numbers, encodings[fold]]), fold_of != fold
        inputs -= inputs[kept].mean(axis=0)
        squares = design.vectors[fold] * design.values[fold] @ design.vectors[fold].T
        for found, expected in (
            (outputs[fold], inputs @ slopes[fold]),
            (pulls[fold], inputs.T @ gradients[fold]),
            (squares, inputs[kept].T @ inputs[kept]),
        ):
            np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.slow
def test_linear_models_take_rows_apart_once_whatever_their_laws_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, _ = interaction()
    taken, eigh = list[tuple[int, ...]](), np.linalg.eigh

    def counted(squares: np.ndarray) -> object:
        taken.append(squares.shape)
        return eigh(squares)

    monkeypatch.setattr(np.linalg, "eigh", counted)
    model = fitted(data, learner="linear")
    assert [*model.facts.heads] == ["linear-gaussian", "linear-log-normal"]
    assert len(taken) == 2, "one for each fold that models leave out"


@pytest.mark.slow
def test_few_rows_are_predicted_by_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _ = interaction()
    model, threads = fitted(data, learner="linear"), list[int]()
    features, distributions = tmp_path / "features.parquet", LikelihoodObjective.distributions
    data.table.write_parquet(features)

    def counted(objective: LikelihoodObjective, raw: torch.Tensor) -> torch.Tensor:
        blas = ThreadpoolController().select(user_api="blas").info()
        threads.extend([torch.get_num_threads(), *(pool["num_threads"] for pool in blas)])
        return distributions(objective, raw)

    monkeypatch.setattr(LikelihoodObjective, "distributions", counted)
    torch.set_num_threads(2)
    with threadpool_limits(2, user_api="blas"):
        predict_file(model, features, tmp_path / "few.parquet")
        assert {*threads} == {1}
        assert torch.get_num_threads() == 2
        threads.clear()
        monkeypatch.setattr("labelveil.feature_party.threads._FEW_ROWS", ROWS - 1)
        predict_file(model, features, tmp_path / "many.parquet")
    assert {*threads} == {2}
    few, many = (pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("few", "many"))
    assert_frame_equal(many, few)


def test_a_linear_model_of_one_fold_knows_categories() -> None:
    rng = np.random.default_rng(2)
    shop = rng.integers(12, size=ROWS)
    means = 15 + 4 * np.sin(shop)
    table = pl.DataFrame({"x": rng.normal(size=ROWS), "shop": shop.astype(str)})
    data = events(table, means)
    assert unexplained(fitted(data, learner="linear", ensemble=1), data, means) < 0.3


def test_a_precision_of_slopes_is_what_a_ridge_has() -> None:
    """Against the normal equations: squared errors of numbers that are seen as they are."""
    rng = np.random.default_rng(5)
    numbers, fold_of = rng.normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2
    seen = 0.1 * (numbers @ [1.0, -2.0, 0.5]) + 0.01 * rng.normal(size=60)
    rows: Any = MagicMock(folds=[np.flatnonzero(fold_of == fold) for fold in range(2)])
    rows.configure_mock(fold_of=fold_of, codes=np.arange(60), inputs=numbers)
    rows.encoder.configure_mock(categorical=[], cardinalities=[])
    table: Any = MagicMock(outputs=1, scale=None)
    table.loss = lambda raw, codes: (raw[:, 0] - seen[codes]) ** 2 / 2
    table.derivatives = lambda raw, codes: (
        table.loss(raw, codes), raw - seen[codes, None], np.ones_like(raw)
    )  # fmt: skip
    design = linear.Design(rows, numbers)
    models = linear.LinearModels(design, rows, table, precision=7.0)
    models.fit(3.0, 2)
    for fold, (slopes, start) in enumerate(models.coefficients):
        kept = fold_of != fold
        centred = numbers[kept] - numbers[kept].mean(axis=0)
        expected = np.linalg.solve(centred.T @ centred + 21 * np.eye(3), centred.T @ seen[kept])
        np.testing.assert_allclose(slopes[:, 0], expected, rtol=1e-4)
        mean = seen[kept].mean() - numbers[kept].mean(axis=0) @ expected
        np.testing.assert_allclose(start, mean, rtol=1e-3, atol=1e-6)
