"""``auto`` lets trees that learn means take part where decoded labels speak for them."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

from common.entropy import seeded_entropy
from common.randomizers import build_randomizer
from feature_party.config import FeaturePartyConfig
from feature_party.learning.derivatives import MeanTable
from feature_party.learning.heads import build_head
from feature_party.learning.mixing import mean_share
from feature_party.learning.problem import LabelProblem
from feature_party.learning.support import Support
from feature_party.model.model import Model
from feature_party.training.holdout import draw_holdout
from feature_party.training.in_memory import Prepared
from tests.feature_party.learn import train

GRID = np.arange(21.0)
TREES = "trees-mean"


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
    section = {"ensemble": 2, "epochs": 2, "hidden": [16, 8], **training}
    config = FeaturePartyConfig.model_validate({"data": {"key": "event"}, "training": section})
    return train(data, config)


def two_kinds(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, rows)
    return np.where(rng.uniform(size=rows) < 0.05 + 0.15 * (x > 0), 20, np.where(x > 0, 1, 3)), x


def test_a_share_makes_the_prediction_a_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    data = prepared(*two_kinds(3_000), "discrete-laplace")
    seen = []

    def half(decoded: np.ndarray, mixed: np.ndarray, rival: np.ndarray) -> float:
        seen.append((decoded, mixed, rival))
        return 0.5

    points = {}
    for share in (lambda *_: 0.0, half, lambda *_: 1.0):
        monkeypatch.setattr("feature_party.training.run.mean_share", share)
        monkeypatch.setattr("feature_party.training.run.prior_adjustment", lambda *_: None)
        model = fitted(data)
        weight = model.facts.heads[TREES].weight
        points[weight] = model.predict(data.table)["prediction"].to_numpy()
    np.testing.assert_allclose(points[0.5], (points[0.0] + points[1.0]) / 2, atol=0.02)
    ((decoded, mixed, rival),) = seen
    assert decoded.std() > 2 * max(mixed.std(), rival.std())  # decodings, then predictions


def test_nothing_is_compared_with_a_chosen_head_or_a_channel_that_decodes_nothing() -> None:
    labels, x = two_kinds(2_000)
    chosen = fitted(prepared(labels, x, "randomized-response"), head="softmax", epochs=1)
    assert TREES not in chosen.facts.heads
    undecodable = fitted(prepared(labels, x, "rr-with-prior"), epochs=1)
    assert TREES not in undecodable.facts.heads


@pytest.mark.parametrize(("noise", "least", "most"), [(1.0, 0.75, 0.85), (5000.0, 0.0, 0.2)])
def test_the_share_is_that_of_the_least_true_error(noise: float, least: float, most: float) -> None:
    rng = np.random.default_rng(1)
    truth = rng.normal(size=200_000)
    better, worse = truth + rng.normal(size=truth.size), truth + 2 * rng.normal(size=truth.size)
    share = mean_share(truth + noise * rng.normal(size=truth.size), worse, better)
    assert least <= share <= most  # independent errors: 4 / (4 + 1)
    assert mean_share(truth, truth, worse) == 0.0


def test_a_law_has_the_mean_that_is_its_output() -> None:
    data = prepared(*two_kinds(3_000))
    support = Support.of(data.problem)
    head = build_head("mean", support)
    raw = torch.linspace(-0.5, 2.3, 50, dtype=torch.float64)[:, None]
    means = torch.softmax(head.logits(raw), dim=-1).numpy() @ support.values
    centre = support.prior @ support.values
    deviation = np.sqrt(support.prior @ (support.values - centre) ** 2)
    np.testing.assert_allclose(means, centre + deviation * raw[:, 0].numpy(), rtol=1e-3)
    far = torch.tensor([[-99.0], [99.0]])
    ends = torch.softmax(head.logits(far), dim=-1).numpy() @ support.values
    np.testing.assert_allclose(ends, support.values[[0, -1]], atol=0.2)


def test_what_a_code_says_has_slope_one_at_the_prior() -> None:
    support = Support.of(prepared(*two_kinds(3_000)).problem)
    table = MeanTable(support)
    codes = np.arange(support.likelihood.shape[1])
    _, slopes, information = table.derivatives(np.zeros((codes.size, 1)), codes)
    said = -slopes[:, 0] / information[:, 0]
    expected = support.likelihood @ said
    centre = support.prior @ support.values
    axis = support.values - centre
    variance = support.prior @ axis**2
    assert support.prior @ (axis * expected) / np.sqrt(variance) == pytest.approx(1.0)
    assert support.prior @ expected == pytest.approx(0.0, abs=1e-9)
