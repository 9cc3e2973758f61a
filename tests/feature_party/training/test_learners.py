"""Learners side by side: which take part, how they are mixed, and what they say on the way."""

from __future__ import annotations

import math
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers import build_randomizer
from labelveil.common.randomizers.knots import interpolation
from labelveil.feature_party.config.sections import FeaturePartyConfig, TrainingSection
from labelveil.feature_party.evaluation.unseen import unseen
from labelveil.feature_party.join.matches import MatchCounts
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.model.network import Ensemble
from labelveil.feature_party.threads import threads_for
from labelveil.feature_party.training import run, trees
from labelveil.feature_party.training.events import TrainingSetup
from labelveil.feature_party.training.fitting import EpochRecord, Fit
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.mixture import MEAN, Candidate, Mixture, Stack, Trained
from tests.feature_party.learn import train
from tests.feature_party.training.learners import (
    GRID,
    ROWS,
    configured,
    events,
    fitted,
    interaction,
    unexplained,
)

THREADS = "labelveil.feature_party.threads.THREADS"


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["trees", "auto"])
def test_what_is_trained_side_by_side_is_what_one_thread_trains_and_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], learner: str
) -> None:
    data, _ = interaction(600)
    monkeypatch.setattr(trees, "ROUNDS", 5)
    found = []
    for cores in (1, 3):
        monkeypatch.setattr(THREADS, cores)
        with threads_for(1):
            found.append(fitted(data, learner=learner))
    for one, other in zip(*(model.experts for model in found), strict=True):
        assert one.weight == other.weight
        for name, tensor in one.learned.state_dict().items():
            assert torch.equal(tensor, other.learned.state_dict()[name]), name
    assert capfd.readouterr() == ("", "")


def test_an_interrupt_among_trees_ends_networks_after_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, _ = interaction(1500)
    monkeypatch.setattr(THREADS, 2)
    boosting, networks = threading.Event(), list[int]()

    def on_epoch(what: str, record: EpochRecord) -> None:
        if "trees" in what:
            boosting.set()
            raise KeyboardInterrupt
        if "linear" not in what:
            boosting.wait(60)
            networks.append(record.epoch)

    with threads_for(1), pytest.raises(KeyboardInterrupt):
        train(data, configured(epochs=200), on_epoch=on_epoch)
    assert len(networks) <= 1
    assert not [each.name for each in threading.enumerate() if "ThreadPool" in each.name]


@pytest.mark.parametrize(
    ("first", "step", "head"),
    [(0, 1, "negative-binomial"), (1, 1, "gamma"), (0, 2, "gamma")],
)
def test_labels_are_counts_where_they_are_whole_numbers_from_zero_on(
    first: int, step: int, head: str
) -> None:
    grid = first + step * np.arange(30.0)
    rng = np.random.default_rng(0)
    places = np.minimum(rng.geometric(0.3, 400) - 1, 29) * (rng.random(400) < 0.9)
    prior = np.bincount(places, minlength=30) + 0.01
    built = build_randomizer(
        "randomized-thresholds", labels=grid, prior=prior / prior.sum(), epsilon=3.0
    )
    codes = built.randomize(grid[places], seeded_entropy(1))
    problem = LabelProblem.from_channel(built.channel, prior)
    data = Prepared.of_table(pl.DataFrame({"x": places + rng.normal(size=400)}), codes, problem)
    heads = fitted(data, learner="linear", ensemble=2).facts.heads
    assert {name.removeprefix("linear-") for name in heads} >= {"log-normal", head}
    assert len({"gamma", "negative-binomial"} & {n.removeprefix("linear-") for n in heads}) == 1


@pytest.mark.slow
def test_learners_are_mixed_and_the_likelihood_chooses() -> None:
    data, means = interaction()
    model = fitted(data)
    heads = model.facts.heads
    assert sum(one.weight for name, one in heads.items() if name.startswith("trees")) > 0.5
    assert {name.split("-")[0] for name in heads} >= {"gaussian", "linear", "trees"}
    assert unexplained(model, data, means) < 0.35


@pytest.mark.slow
def test_every_learner_takes_part_where_a_fold_is_left_out() -> None:
    data, _ = interaction()
    model = fitted(data, ensemble=8, epochs=1)
    counts = {expert.learned.shape.members for expert in model.experts}
    assert 4 in counts  # one a fold, where there are two networks
    found = unseen(model, data).scored.predicted
    assert found.distributions is not None
    assert np.allclose(found.distributions.sum(axis=1), 1)


def test_networks_go_on_where_lightgbm_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    monkeypatch.setattr(trees, "lightgbm", trees.lightgbm.__wrapped__)
    data, _ = interaction(300)
    data = replace(data, matches=MatchCounts(300, 300, 100))
    model = fitted(data, epochs=1)
    warned = "\n".join(model.facts.warnings)
    assert warned.count("boosted trees are left out, LightGBM cannot be loaded (") == 1
    assert "install the system's OpenMP library, on Debian and Ubuntu libgomp1" in warned
    assert "only 100 events match" in warned
    assert not any(name.startswith("trees") for name in model.facts.heads)
    with pytest.raises(ConfigError, match="libgomp1"):
        fitted(data, learner="trees")


@pytest.mark.parametrize("ensemble", [1, 4])
def test_a_handful_of_events_is_no_failure(ensemble: int) -> None:
    x = np.linspace(-1, 1, 12)
    data = events(pl.DataFrame({"x": x, "shop": ["a", "b"] * 6}), 15 + 3 * x)
    model = fitted(data, ensemble=ensemble, epochs=1)
    assert "bear no branch" in model.facts.warnings[0]
    assert sum(one.weight for one in model.facts.heads.values()) == pytest.approx(1)
    with pytest.raises(ConfigError, match="bear no branch of 20"):
        fitted(data, learner="trees", ensemble=ensemble)


def test_a_learner_says_what_it_cannot_do() -> None:
    data, _ = interaction(300)
    with pytest.raises(ConfigError, match="law of one or two parameters"):
        fitted(data, learner="trees", head="softmax")
    with pytest.raises(ConfigError, match="objective='debiased' is for networks"):
        fitted(data, learner="linear", objective="debiased")


@pytest.mark.slow
def test_progress_tells_of_every_learner() -> None:
    data, _ = interaction()
    seen: dict[str, list[EpochRecord]] = {}
    section = {"ensemble": 4, "epochs": 1, "hidden": [8]}
    config = FeaturePartyConfig.model_validate({"data": {"key": "event"}, "training": section})
    train(
        replace(data),
        config,
        on_epoch=lambda what, record: seen.setdefault(what, []).append(record),
    )
    assert {"likelihood-linear-gaussian", "likelihood-trees-gaussian"} <= set(seen)
    assert not any("prior-tilt" in name for name in seen)  # 1,000 labels' worth is too little
    assert all(records[-1].epoch <= records[-1].epochs for records in seen.values())


def test_what_makes_the_squared_error_least_counts_most_in_any_unit() -> None:
    """Beside what knows nothing: what is right has a share near that of least true error, what is
    not has none, and cents have the shares of euros."""
    rng, shares = np.random.default_rng(3), []
    means = rng.uniform(4, 26, ROWS)
    labels = np.clip(np.rint(means + rng.normal(size=ROWS)), 0, 30)
    prior = np.bincount(labels.astype(int), minlength=GRID.size) + 1.0
    prior /= prior.sum()
    right = np.exp(-0.5 * (GRID - means[:, None]) ** 2) * prior
    right /= right.sum(axis=1, keepdims=True)
    nothing = np.broadcast_to(prior, right.shape)
    for unit in (1.0, 100.0):
        built = build_randomizer(
            "randomized-thresholds", labels=unit * GRID, prior=prior, epsilon=2.0
        )
        codes = built.randomize(unit * labels, seeded_entropy(1))
        problem = LabelProblem.from_channel(built.channel, prior)
        support = Support.from_problem(problem)

        def said(
            laws: np.ndarray, support: Support = support, grid: np.ndarray = unit * GRID
        ) -> Fit:
            laws, rows = laws @ interpolation(grid, support.values), np.arange(ROWS)
            points, told = laws @ support.values, laws @ support.estimates.overall
            return Fit(
                cast(Ensemble, None), [], rows, np.zeros(ROWS), points, told, laws.mean(axis=0)
            )

        mixture = Mixture((Trained(Candidate("likelihood", "gaussian"), said(nothing), 1.0),))
        for laws in (right, right[::-1]):
            found = Stack(problem, support, 1e3, codes.__getitem__).by_squares(
                mixture, [Trained(MEAN, said(laws))]
            )
            shares.append(found.trained[1].weight)
    assert shares[2:] == pytest.approx(shares[:2])
    one, other = nothing @ GRID, right @ GRID
    errors = [np.mean((one + s * (other - one) - labels) ** 2) for s in np.linspace(0, 1, 101)]
    assert shares[0] == pytest.approx(np.argmin(errors) / 100, abs=0.1)
    assert shares[1] < 0.05


@pytest.mark.slow
def test_what_is_behind_on_a_part_of_the_rows_is_not_trained_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "_MANY_LABELS", 0.0)  # it is tried with few labels, too
    monkeypatch.setattr(trees, "ROUNDS", 3)
    data, _ = interaction(600)
    section = {"ensemble": 4, "epochs": 3, "hidden": [8]}
    config = FeaturePartyConfig.model_validate({"data": {"key": "event"}, "training": section})
    ended: dict[str, str] = {}
    mixtures, beats, plain = list[Mixture](), list[tuple[float, int]](), run.Fitter

    def stacked_plain(*given: Any) -> Mixture:
        mixtures.append(by_likelihood(*given))
        return mixtures[-1]

    def fitter(*given: Any) -> Any:
        beats.append(given[-2:])
        return plain(*given)

    by_likelihood = Stack.by_likelihood
    monkeypatch.setattr(run, "ahead", lambda *_: False)  # a large lead may be chance
    worth = run._WORTH
    monkeypatch.setattr(run, "_WORTH", -1e9)
    monkeypatch.setattr(Stack, "by_likelihood", stacked_plain)
    monkeypatch.setattr(run, "Fitter", fitter)
    model = train(data, config, on_epoch=lambda what, record: ended.update({what: record.ended}))
    # those tried are to beat the mixture on what the first of two groups of two left out
    losses = mixtures[-1].losses
    assert beats == [(math.inf, 0), (pytest.approx(losses[: losses.size // 2].mean()), 0)]
    assert ended["tried-likelihood-prior-tilt+softmax"] == (
        "behind the mixture on a part of the rows, left out"
    )
    lost = [name for name, reason in ended.items() if reason.startswith("behind the mixture")]
    assert "tried-likelihood-prior-tilt+softmax" in lost
    assert "likelihood-prior-tilt+softmax" not in ended
    assert model.facts.heads["softmax"].weight == 0

    monkeypatch.setattr(run, "ahead", lambda *_: True)
    monkeypatch.setattr(run, "_WORTH", worth)
    ended.clear()
    train(data, config, on_epoch=lambda what, record: ended.update({what: record.ended}))
    assert "likelihood-prior-tilt+softmax" not in ended  # a lead that is certain is too small

    monkeypatch.setattr(run, "_WORTH", -1e9)  # the other members join those that were tried
    ended.clear()
    said: list[Fit] = []

    def stacked(stack: Stack, plain: list[Trained], flexible: tuple[Trained, ...] = ()) -> Mixture:
        said[:] = [each.fit for each in (*plain, *flexible)]
        return by_likelihood(stack, plain, flexible)

    monkeypatch.setattr(Stack, "by_likelihood", stacked)
    beats.clear()
    model = train(data, config, on_epoch=lambda what, record: ended.update({what: record.ended}))
    assert {"tried-likelihood-prior-tilt+softmax", "likelihood-prior-tilt+softmax"} < {*ended}
    assert [first for _, first in beats] == [0, 0, 2]
    assert len(said) > 4
    for fit in said:
        assert np.array_equal(fit.rows, said[0].rows)
        assert fit.marginal.sum() == pytest.approx(1)
        if isinstance(fit.learned, Ensemble) and fit.learned.shape.hidden:
            assert fit.learned.shape.members == 4


def test_trees_learn_true_labels_of_numbers_and_categories(tmp_path: Path) -> None:
    """Steps of two numbers, and what 300 categories add: nearly nothing is left, where a line and
    all means of categories leave the most of it."""
    data, means = interaction()
    section = TrainingSection(learner="trees", objective="true", checkpoint=False)
    model = run.train(data, TrainingSetup(section, true_labels=means))
    assert unexplained(model, data, means) < 0.05
    assert model.facts.heads.keys() == {"trees-true"}
    model.save(tmp_path)
    assert_frame_equal(Model.load(tmp_path).predict(data.table), model.predict(data.table))


@pytest.mark.parametrize(("steps", "learned"), [(False, "true"), (True, "trees-true")])
def test_of_few_true_labels_the_better_of_trees_and_networks_learns(
    steps: bool, learned: str
) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, size=(600, 2))
    means = 15 + (6 * np.sign(x[:, 0] * x[:, 1]) if steps else 6 * x[:, 0] - 3 * x[:, 1])
    data = events(pl.DataFrame(x), means)
    section = TrainingSection(objective="true", ensemble=4, checkpoint=False)
    model = run.train(data, TrainingSetup(section, true_labels=means))
    assert model.facts.heads.keys() == {learned}
    assert unexplained(model, data, means) < 0.1
    far = replace(data, problem=replace(data.problem, loss="absolute"))
    with pytest.raises(ConfigError, match="objective='true' is for networks alone"):
        run.train(
            far,
            TrainingSetup(section.model_copy(update={"learner": "trees"}), true_labels=means),
        )
