"""``auto`` takes the debiased objective where every head is wrong, and only there."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from common.entropy import seeded_entropy
from common.randomizers import build_randomizer
from feature_party.config import FeaturePartyConfig
from feature_party.learning.mixing import Gain, decoded_gain
from feature_party.learning.problem import LabelProblem
from feature_party.model.model import Model
from feature_party.training.holdout import draw_holdout
from feature_party.training.in_memory import Prepared
from tests.feature_party.learn import train

GRID = np.arange(21.0)


def prepared(
    labels: np.ndarray, x: np.ndarray, randomizer: str = "randomized-response"
) -> Prepared:
    prior = np.bincount(labels, minlength=GRID.size) / labels.size
    built = build_randomizer(randomizer, labels=GRID, prior=prior, epsilon=4.0)
    codes = built.randomize(labels.astype(float), seeded_entropy(1))
    problem = LabelProblem.from_channel(built.channel, prior, "squared")
    holdout = draw_holdout(labels.size, 0.2, 0)
    return Prepared.of_table(pl.DataFrame({"x": x}), codes, problem, holdout)


def fitted(data: Prepared, **training: object) -> Model:
    section = {"ensemble": 2, "epochs": 8, "hidden": [16, 8], **training}
    config = FeaturePartyConfig.model_validate({"data": {"key": "event"}, "training": section})
    return train(data, config)


def two_kinds(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, rows)
    return np.where(rng.uniform(size=rows) < 0.05 + 0.15 * (x > 0), 20, np.where(x > 0, 1, 3)), x


@pytest.mark.slow
def test_a_refuted_mixture_gives_way_to_decoded_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    data = prepared(*two_kinds(3_000), "discrete-laplace")
    table = data.table
    compared = []

    def refuted(decoded: np.ndarray, mixed: np.ndarray, rival: np.ndarray) -> Gain:
        compared.append((decoded, mixed, rival))
        return Gain(2.1, 1.0)

    monkeypatch.setattr("feature_party.training.run.decoded_gain", refuted)
    model = fitted(data)
    assert model.facts.objective == "debiased"
    assert model.facts.debiased_gain == Gain(2.1, 1.0)
    assert not model.has_distributions
    assert model.predict(table).equals(fitted(data, objective="debiased").predict(table))
    decoded, mixed, rival = compared[0]
    assert decoded.std() > 2 * max(mixed.std(), rival.std())  # decodings, then predictions
    monkeypatch.setattr("feature_party.training.run.decoded_gain", lambda *_: Gain(1.9, 1.0))
    assert fitted(data).facts.objective == "likelihood"


def test_nothing_is_compared_with_a_chosen_head_or_a_channel_that_decodes_nothing() -> None:
    labels, x = two_kinds(2_000)
    chosen = fitted(prepared(labels, x, "randomized-response"), head="softmax", epochs=1)
    assert chosen.facts.debiased_gain is None
    undecodable = fitted(prepared(labels, x, "rr-with-prior"), epochs=1)
    assert undecodable.facts.debiased_gain is None


def test_the_gain_is_that_of_the_true_errors() -> None:
    rng = np.random.default_rng(1)
    truth = rng.normal(size=200_000)
    better, worse = truth + rng.normal(size=truth.size), truth + 2 * rng.normal(size=truth.size)
    gain = decoded_gain(truth + 10 * rng.normal(size=truth.size), worse, better)
    assert gain.value == pytest.approx(3.0, abs=6 * gain.error)
    assert gain.certain
    assert not decoded_gain(truth + 10 * rng.normal(size=truth.size), better, worse).certain
