"""``auto`` takes the debiased objective where every head is wrong, and only there."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from common.entropy import seeded_entropy
from common.randomizers import build_randomizer
from feature_party.config import FeaturePartyConfig
from feature_party.join import Joined, split_holdout
from feature_party.learning.mixing import decoded_gain
from feature_party.learning.problem import LabelProblem
from feature_party.model import Model
from feature_party.report import MatchCounts
from feature_party.training import Prepared, train

GRID = np.arange(21.0)


def prepared(
    labels: np.ndarray, x: np.ndarray, randomizer: str = "randomized-response"
) -> Prepared:
    prior = np.bincount(labels, minlength=GRID.size) / labels.size
    built = build_randomizer(randomizer, labels=GRID, prior=prior, epsilon=4.0)
    codes = built.randomize(labels.astype(float), seeded_entropy(1))
    problem = LabelProblem.from_channel(built.channel, prior, "squared")
    training, holdout = split_holdout(labels.size, 0.2, 0)
    rows = labels.size
    joined = Joined(pl.DataFrame({"x": x}), codes, MatchCounts(rows, rows, rows), np.arange(rows))
    return Prepared(joined, training, holdout, problem, "test")


def fitted(data: Prepared, **training: object) -> Model:
    section = {"ensemble": 2, "epochs": 8, "hidden": [16, 8], **training}
    config = FeaturePartyConfig.model_validate({"data": {"key": "event"}, "training": section})
    return train(data, config=config)


def rare_and_large(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Where most labels are smaller more of them are large: one rate says the opposite of both."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, rows)
    return np.where(rng.uniform(size=rows) < 0.05 + 0.1 * (x > 0), 20, np.where(x > 0, 1, 3)), x


def test_a_wrong_head_gives_way_to_decoded_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feature_party.training.candidate_heads", lambda *_: (("poisson",), ()))
    labels, x = rare_and_large(20_000)
    data = prepared(labels, x, "discrete-laplace")
    model = fitted(data)
    assert model.facts["objective"] == "debiased"
    assert model.facts["debiased_gain"]["value"] > 2 * model.facts["debiased_gain"]["error"]
    assert not model.has_distributions
    wrong = fitted(data, objective="likelihood", head="poisson")
    truth, table = labels[data.holdout], data.joined.table[data.holdout]
    errors = [
        float(np.mean((m.predict(table)["prediction"].to_numpy() - truth) ** 2))
        for m in (model, wrong)
    ]
    assert errors[0] < errors[1]


def test_a_right_head_stays() -> None:
    labels, x = rare_and_large(6_000)
    model = fitted(prepared(labels, x, "randomized-response"))
    assert model.facts["objective"] == "likelihood"
    assert not model.facts["debiased_gain"]["value"] > 2 * model.facts["debiased_gain"]["error"]


def test_nothing_is_compared_with_a_chosen_head_or_a_channel_that_decodes_nothing() -> None:
    labels, x = rare_and_large(2_000)
    chosen = fitted(prepared(labels, x, "randomized-response"), head="softmax", epochs=1)
    assert chosen.facts["debiased_gain"] is None
    undecodable = fitted(prepared(labels, x, "rr-with-prior"), epochs=1)
    assert undecodable.facts["debiased_gain"] is None


def test_the_gain_is_that_of_the_true_errors() -> None:
    rng = np.random.default_rng(1)
    truth = rng.normal(size=200_000)
    better, worse = truth + rng.normal(size=truth.size), truth + 2 * rng.normal(size=truth.size)
    gain = decoded_gain(truth + 10 * rng.normal(size=truth.size), worse, better)
    assert gain.value == pytest.approx(3.0, abs=6 * gain.error)
    assert gain.certain
    assert not decoded_gain(truth + 10 * rng.normal(size=truth.size), better, worse).certain
