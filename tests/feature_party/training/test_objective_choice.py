"""``auto`` lets trees that learn means take part where codes speak for them."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from labelveil.common.entropy import seeded_entropy
from labelveil.common.randomizers import build_randomizer
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.learning.derivatives import MeanTable
from labelveil.feature_party.learning.heads import Head, build_head
from labelveil.feature_party.learning.law_table import LawTable
from labelveil.feature_party.learning.mixing import Evidence, squares
from labelveil.feature_party.learning.objectives import LikelihoodObjective
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.training.holdout import draw_holdout
from labelveil.feature_party.training.in_memory import Prepared
from tests.feature_party.learn import train

GRID = np.arange(21.0)
TREES = "trees-mean"
MIXTURE = "labelveil.feature_party.training.mixture"


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


@pytest.mark.slow
def test_a_share_makes_the_prediction_a_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    data = prepared(*two_kinds(3_000), "discrete-laplace")
    monkeypatch.setattr("labelveil.feature_party.training.run.prior_adjustment", lambda *_: None)
    points = {}
    for share in (0.0, 0.5, 1.0):

        def of_trees(_: Evidence, rows: np.ndarray, share: float = share) -> np.ndarray:
            shares = np.zeros(rows.size)
            shares[[0, -2]] = 1 - share, share
            return shares

        monkeypatch.setattr(f"{MIXTURE}.stack", of_trees)
        model = fitted(data)
        assert model.facts.heads[TREES].weight == pytest.approx(share)
        points[share] = model.predict(data.table)["prediction"].to_numpy()
    np.testing.assert_allclose(points[0.5], (points[0.0] + points[1.0]) / 2, atol=0.02)


@pytest.mark.slow
def test_codes_count_for_what_they_say_beyond_the_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise predictions that are too steep would look better wherever features are strong."""
    x = np.random.default_rng(0).uniform(-1, 1, 3_000)
    data = prepared(np.where(x > 0, 17, 3), x)
    seen = []

    def seeing(residual: np.ndarray, predictions: np.ndarray, before: np.ndarray) -> Evidence:
        seen.append((residual, predictions))
        return squares(residual, predictions, before)

    monkeypatch.setattr(f"{MIXTURE}.squares", seeing)
    model = fitted(data)
    said = Support.from_problem(data.problem).estimates
    alone = np.sqrt(said.information[0]) * said.of_code[data.codes]
    ((residual, predictions),) = seen
    assert residual.std() < 0.7 * alone.std()
    assert len(predictions) == len(model.facts.heads) + 1  # of every candidate, and the prior
    assert not predictions[-1].any()


@pytest.mark.slow
def test_all_learners_of_a_law_share_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many channels one takes seconds, and hundreds of megabytes."""
    made: list[str] = []
    tables: list[weakref.ref[LawTable]] = []

    def make(table: LawTable, head: Head, *rest: Any) -> None:
        made.append(head.name)
        tables.append(weakref.ref(table))
        initialise(table, head, *rest)

    initialise = LawTable.__init__
    monkeypatch.setattr(LawTable, "__init__", make)
    model = fitted(prepared(*two_kinds(3_000)))
    heads = model.facts.heads
    assert {"linear", "trees"} < {name.partition("-")[0] for name in heads}
    assert len(made) > 1
    assert len(made) == len({*made})
    gc.collect()
    assert model.experts
    assert not any(table() for table in tables), "a model keeps none"


def test_nothing_is_compared_with_a_chosen_head() -> None:
    labels, x = two_kinds(2_000)
    chosen = fitted(prepared(labels, x, "randomized-response"), head="softmax", epochs=1)
    assert TREES not in chosen.facts.heads


@pytest.mark.slow
def test_a_channel_that_decodes_nothing_judges_means_too() -> None:
    model = fitted(prepared(*two_kinds(2_000), "rr-with-prior"), epochs=1)
    assert TREES in model.facts.heads


def test_codes_of_a_law_say_on_average_what_its_output_is() -> None:
    support = Support.from_problem(prepared(*two_kinds(3_000)).problem)
    head, said = build_head("mean", support), support.estimates.of_code
    overall = support.estimates.overall
    low, high = overall.min(), overall.max()
    raw = torch.linspace(0.9 * low, 0.9 * high, 50, dtype=torch.float64)[:, None]
    laws = torch.softmax(head.logits(raw), dim=-1).numpy()
    codes = laws @ support.likelihood
    np.testing.assert_allclose(codes @ said, raw[:, 0].numpy(), rtol=1e-2, atol=1e-2)
    assert np.all(np.diff(laws @ support.values) > 0)  # the more they say, the higher the mean
    far = torch.tensor([[-99.0], [99.0]])
    ends = torch.softmax(head.logits(far), dim=-1).numpy() @ overall
    np.testing.assert_allclose(ends, [low, high], atol=0.1)


def with_another(support: Support, channel: np.ndarray) -> Support:
    """A fourth of the rows goes through a second channel, (m, d)."""
    first = support.likelihood.shape[1]
    return replace(
        support,
        likelihood=np.concatenate([support.likelihood, channel], axis=1),
        channel_of=np.repeat([0, 1], [first, channel.shape[1]]),
        shares=np.array([0.75, 0.25]),
    )


def test_what_codes_should_say_is_their_expectation_by_each_channel() -> None:
    data = prepared(*two_kinds(3_000))
    weak = Support.from_problem(data.problem)
    strong = np.eye(weak.size) + 0.01
    support = with_another(weak, strong / strong.sum(axis=1)[:, None])
    objective = LikelihoodObjective(data.problem, support, build_head("gaussian", support))
    raw = torch.linspace(-0.4, 0.3, 2 * objective.outputs).view(2, -1)
    laws = objective.distributions(raw).numpy()
    for channel in (0, 1):
        own = np.flatnonzero(support.channel_of == channel)
        expected = laws @ support.likelihood[:, own] @ support.estimates.of_code[own]
        through = objective.targets(np.full(2, own[0]))
        np.testing.assert_allclose(objective.evaluate(raw, through).estimates, expected, atol=1e-5)
    assert support.estimates.information[0] < support.estimates.information[1]


def test_means_take_part_where_channels_say_the_same() -> None:
    labels, x = two_kinds(3_000)
    first, second = (
        Support.from_problem(prepared(part, x[: part.size]).problem)
        for part in (labels, labels[:1_500])
    )
    assert first.estimates.apart == 0.0
    assert with_another(first, second.likelihood).estimates.alike
    whether_three = np.where((first.values == 3)[:, None], [0.1, 0.9], [0.9, 0.1])
    assert not with_another(first, whether_three).estimates.alike
    nothing = np.full_like(first.likelihood, 1 / first.likelihood.shape[1])
    assert not replace(first, likelihood=nothing).estimates.alike


def test_what_a_code_says_has_slope_one_at_the_prior() -> None:
    support = Support.from_problem(prepared(*two_kinds(3_000)).problem)
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
