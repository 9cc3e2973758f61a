"""A release for anybody's model: losses and decoded labels are those of the channel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import labelveil as lv
from common.errors import ConfigError, DataError
from common.release.event_keys import hash_keys
from feature_party.learning.problem import LabelProblem
from feature_party.notebook.sources import prior_of_codes, problem_of
from labelveil.programs import feature_party
from tests.commands import RunCommand
from tests.feature_party.two_labels import NAMES, Division, two_labels
from tests.feature_party.worlds import SECRET, World, build_world
from tests.statistics import mean_fits, repeatable_entropy

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return build_world(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def private() -> lv.PrivateLabels:
    labels = np.random.default_rng(0).gamma(2.0, 2.0, 4000)
    return lv.randomize_labels(labels, lower=0, upper=20, epsilon=2.0)


def test_every_form_of_a_release_tells_the_same(world: World) -> None:
    release = lv.read_release(world.directory)
    forms = [problem_of(one) for one in (release, release.manifest, world.directory)]
    forms += [problem_of(str(world.directory)), problem_of(forms[0])]
    for one in forms:
        assert one.to_json() == forms[0].to_json()
    with pytest.raises(ConfigError, match="int says nothing of how labels were randomized"):
        problem_of(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a channel alone says nothing of the labels"):
        problem_of(release.manifest.channel)


def test_a_prior_is_estimated_from_codes(private: lv.PrivateLabels) -> None:
    found = prior_of_codes(private.channel, private.codes)
    seen = np.bincount(private.codes, minlength=private.channel.outputs.size)
    told = [
        float(seen @ np.log(prior @ private.channel.probabilities))
        for prior in (found, private.prior, np.full(found.size, 1 / found.size))
    ]
    assert told[0] > told[1] > told[2]


@pytest.mark.parametrize("head", ["auto", "gaussian", "log-normal", "prior-tilt"])
def test_the_loss_is_the_likelihood_of_the_codes(private: lv.PrivateLabels, head: str) -> None:
    loss = lv.torch_loss(private, head)
    raw = torch.randn(200, loss.outputs, generator=torch.Generator().manual_seed(0))
    codes = torch.as_tensor(private.codes[:200].astype(np.int64))
    law = loss.distribution(raw).double().numpy()
    np.testing.assert_allclose(law.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(law @ loss.labels.numpy(), loss.predict(raw), rtol=1e-4)
    nearest = np.abs(private.channel.inputs[:, None] - loss.labels.numpy()).argmin(axis=0)
    told = private.channel.probabilities[nearest]
    likelihood = np.sum(law * told[:, codes.numpy()].T, axis=1)
    whole = -np.log(likelihood / told.max(axis=0)[codes.numpy()]).mean()
    assert abs(float(loss(raw, codes)) - whole) < 0.02  # a cell may hold several grid points
    raw.requires_grad_()
    loss(raw, codes).backward()
    assert torch.isfinite(raw.grad).all()


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("method", ["unbiased", "low-variance"])
def test_decoded_labels_are_right_on_average(epsilon: float, method: str) -> None:
    rng = np.random.default_rng(1)
    labels = np.rint(rng.gamma(2.0, 3.0, 20_000).clip(0, 20))
    private = lv.randomize_labels(labels, lower=0, upper=20, epsilon=epsilon)
    targets, weights = lv.decoded_labels(private, method=method)  # type: ignore[arg-type]
    assert targets.shape == weights.shape == labels.shape
    np.testing.assert_allclose(weights, 1)
    if method == "unbiased":
        for y in (0, 3, 12):
            assert mean_fits(targets[labels == y], y)
        assert not mean_fits(targets[labels > 0], 0)
    else:
        problem = problem_of(private)
        each = np.arange(problem.outputs.size)
        means = problem.channel @ lv.decoded_labels(private, each, "low-variance").targets
        centred = problem.grid - problem.mean
        assert abs(problem.prior @ (means * centred) / problem.deviation**2 - 1) < 1e-6
        noisier = lv.decoded_labels(private, method="unbiased").targets
        assert targets.var() < noisier.var()


@pytest.mark.parametrize("skewed", [False, True])
def test_labels_decoded_around_predictions_say_more(skewed: bool) -> None:
    """Right on average where the predictions are, with less noise than around the prior."""
    rng = np.random.default_rng(3)
    points = 2 + rng.exponential(4, 40_000) if skewed else rng.uniform(2, 18, 40_000)
    labels = rng.gamma(9, points / 9) if skewed else rng.normal(points, 2)
    labels = labels.clip(0, 50 if skewed else 20)
    with repeatable_entropy():
        private = lv.randomize_labels(labels, lower=0, upper=labels.max(), epsilon=2.0)
    plain = lv.decoded_labels(private, method="low-variance").targets
    targets, weights = lv.decoded_labels(private, around=points)
    noise = np.average((targets - labels) ** 2, weights=weights)
    assert noise < 0.7 * np.mean((plain - labels) ** 2)
    for low in (3, 6, 10):
        near = (low < points) & (points < low + 3)
        assert abs(np.mean(targets[near] - labels[near])) < 0.3
    with pytest.raises(DataError, match=r"around=\(2,\) must be a prediction for each of"):
        lv.decoded_labels(private, around=points[:2])


@pytest.mark.parametrize("division", ["alone", "joint", "split"])
def test_codes_to_learn_from_tell_the_prior(division: str) -> None:
    """A histogram that is off by noise alone comes nearer to what the codes say."""
    rng = np.random.default_rng(4)
    labels = rng.gamma(2.0, 2.0, 1500).clip(0, 20)
    private: Any
    with repeatable_entropy():
        if division == "alone":
            private = lv.randomize_labels(labels, lower=0, upper=20, epsilon=1.0)
        else:
            terms = {"amount": (0, 20), "high": (0, 1)}
            events = {"amount": labels, "high": labels > 4}
            made = lv.randomize_events(events, terms, epsilon=2.0, division=division)
            private = made["amount"]
    alone, told = problem_of(private), problem_of(private, private.codes[:1200])
    seen = np.bincount(private.codes[:1200], minlength=alone.outputs.size)
    assert seen @ np.log(told.output_prior) > seen @ np.log(alone.output_prior)
    with pytest.raises(DataError, match="codes must be a column of whole numbers"):
        problem_of(private, np.array([0.5]))


@pytest.mark.parametrize("division", ["split", "separate", "joint"])
def test_each_label_of_a_release_is_named(division: Division) -> None:
    release, _, labels = two_labels(3000, division)
    for name, own in zip(NAMES, labels.T, strict=True):
        decoded = lv.decoded_labels(release[name])
        assert mean_fits(decoded.targets - own, 0.0)
        assert lv.torch_loss(release[name]).outputs > 0
        told = problem_of(release[name], release[name].codes)
        seen = np.bincount(release[name].codes, minlength=told.outputs.size)
        alone = problem_of(release[name])
        assert seen @ np.log(told.output_prior) > seen @ np.log(alone.output_prior)
    for several in (release, release.manifest):
        with pytest.raises(ConfigError, match="has the labels returned, amount; name one, such as"):
            problem_of(several)
    with pytest.raises(ConfigError, match="label='price' must be one of returned, amount"):
        release["price"]


def test_codes_that_cannot_be_are_refused(private: lv.PrivateLabels) -> None:
    most = private.channel.outputs.size - 1
    for codes, line in (
        ([0, most + 1], f"code {most + 1} must lie in 0 … {most}"),
        ([0.5], "codes must be a column of whole numbers"),
        ([[0]], "codes must be a column of whole numbers"),
    ):
        with pytest.raises(DataError, match=line):
            lv.decoded_labels(private, codes)
    with pytest.raises(ConfigError, match="LabelProblem holds no codes"):
        lv.decoded_labels(problem_of(private))
    with pytest.raises(ConfigError, match="method='best' must be unbiased or low-variance"):
        lv.decoded_labels(private, method="best")  # type: ignore[arg-type]


@pytest.mark.parametrize("shards", ["never", "always"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_labels_are_written_for_other_languages(
    world: World, tmp_path: Path, run_command: RunCommand, suffix: str, shards: str
) -> None:
    out = tmp_path / f"labels{suffix}"
    done = run_command(
        feature_party,
        "labels",
        f"--set=data.features={world.features}",
        "--set=data.key=event",
        f"--set=keys.secret_file={world.secret_file}",
        f"--set=release.directory={world.directory}",
        f"--set=training.shards={tmp_path if shards == 'always' else 'never'}",
        f"--set=join.directory={tmp_path / 'joined'}",
        f"--output={out}",
        "--quiet",
    )
    assert done.code == 0, done
    table = pl.read_csv(out) if suffix == ".csv" else pl.read_parquet(out)
    facts = json.loads(out.with_suffix(".json").read_text())
    assert np.shape(facts["channel"]) == (
        len(facts["grid"]),
        world.release.manifest.channel.outputs.size,
    )
    hashed = hash_keys(table["event"], SECRET)
    codes = dict(zip(world.release.labels["key"], world.release.labels["code"], strict=True))
    keys = [hashed[at : at + 16] for at in range(0, len(hashed), 16)]
    assert [codes[key] for key in keys] == table["code"].to_list()
    problem = LabelProblem.from_channel(world.release.manifest.channel, facts["prior"])
    wanted = lv.decoded_labels(problem, table["code"].to_numpy())
    np.testing.assert_allclose(table["target"], wanted.targets)


BOOSTED = [("gaussian", 2), ("log-normal", 2), ("poisson", 1)]


@pytest.mark.parametrize(("head", "outputs"), BOOSTED)
def test_lightgbm_and_xgboost_learn_from_codes(head: str, outputs: int) -> None:
    lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    rng = np.random.default_rng(2)
    features = rng.normal(size=(4000, 3))
    labels = np.exp(1 + 0.7 * features[:, 0] + 0.3 * rng.normal(size=4000)).clip(0, 60)
    if head == "poisson":
        labels = rng.poisson(labels).clip(0, 60).astype(float)
    with repeatable_entropy():
        private = lv.randomize_labels(labels, lower=0, upper=60, epsilon=4.0)
    learned = {}
    boosted = lv.lightgbm_objective(private, head)
    assert boosted.outputs == outputs
    data = lightgbm.Dataset(features, private.codes)
    quiet = {"verbosity": -1, "num_threads": 1, "num_leaves": 8}
    trees = lightgbm.train(
        {**boosted.parameters, **quiet}, data, 60, valid_sets=[data], feval=boosted.metric
    )
    learned["lightgbm"] = boosted.predict(trees.predict(features, raw_score=True))
    other = lv.xgboost_objective(private, head)
    matrix = xgboost.DMatrix(features, private.codes)
    rounds = xgboost.train(
        {**other.parameters, "max_depth": 3, "nthread": 1},
        matrix,
        60,
        obj=other.objective,
        custom_metric=other.metric,
        evals=[(matrix, "train")],
        verbose_eval=False,
    )
    learned["xgboost"] = other.predict(rounds.predict(matrix, output_margin=True))
    for name, points in learned.items():
        assert np.mean((points - labels) ** 2) < 0.8 * labels.var(), name
        law = other.distribution(np.zeros((1, outputs)))
        np.testing.assert_allclose(law.sum(), 1, rtol=1e-6)


@pytest.mark.parametrize("head", ["gaussian", "log-normal", "gamma", "poisson"])
def test_boosting_goes_on_from_predictions(private: lv.PrivateLabels, head: str) -> None:
    """Laws have the means that were predicted, and the width that explains the codes best."""
    rng = np.random.default_rng(0)
    labels = rng.gamma(2.0, 2.0, private.codes.size)  # as they were randomized
    points = (labels + rng.normal(size=labels.size)).clip(1, 12)
    objective = lv.lightgbm_objective(private, head)
    start = objective.start(points, private.codes)
    np.testing.assert_allclose(objective.predict(start(points)), points, rtol=0.05)
    raw = start(points)
    best = objective.loss(raw, private.codes)
    for step in (-1, 1) if objective.outputs > 1 else ():
        moved = raw + np.array([0, step])
        assert objective.loss(moved, private.codes) > best
    with pytest.raises(DataError, match=r"predictions=\(2,\) must be one for each of"):
        objective.start(points[:2], private.codes)


def test_classes_are_no_start() -> None:
    labels = np.arange(300) % 3
    classes = lv.randomize_labels(labels, lower=0, upper=2, values=[0, 1, 2], epsilon=1.0)
    objective = lv.xgboost_objective(classes)
    with pytest.raises(ConfigError, match="head='softmax' has laws that a mean does not tell"):
        objective.start(np.ones(300), classes.codes)


def test_a_law_of_many_parameters_is_not_boosted(private: lv.PrivateLabels) -> None:
    with pytest.raises(ConfigError, match="head='softmax' has more parameters than boosting"):
        lv.lightgbm_objective(private, "softmax")
