"""A release for anybody's model: losses and decoded labels are those of the channel."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone

import labelveil as lv
from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.release.event_keys import hash_keys
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.notebook.sources import prior_of_codes, problem_of
from labelveil.programs import feature_party
from tests.commands import RunCommand
from tests.effort import one_in
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


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", one_in(2, [1.0, 4.0]))
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("division", one_in(3, ["alone", "joint", "split"]))
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


@pytest.mark.slow
@pytest.mark.parametrize("division", one_in(3, ["split", "separate", "joint"]))
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


@pytest.mark.slow
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
        moved = raw + step * np.eye(objective.outputs)[-1]  # noise may show a point mass first
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


Learned = tuple[Floats, Floats, lv.PrivateLabels]


@pytest.fixture(scope="module")
def learned() -> Learned:
    """Features, counts, and the counts randomized."""
    rng = np.random.default_rng(2)
    features = rng.normal(size=(2000, 3))
    labels = rng.poisson(np.exp(1 + 0.7 * features[:, 0])).clip(0, 60)
    with repeatable_entropy():
        private = lv.randomize_labels(labels, lower=0, upper=60, epsilon=4.0)
    return features, labels.astype(float), private


@pytest.mark.slow
@pytest.mark.parametrize("head", ["gaussian", "poisson"])
@pytest.mark.parametrize("weighted", [False, True])
def test_scikit_learn_estimators_of_boosting_learn_the_same(
    learned: Learned, head: str, weighted: bool
) -> None:
    """As the library's own way of training, weights included; and a clone does, too."""
    lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    features, labels, private = learned
    codes = pd.Series(private.codes, dtype="uint16[pyarrow]")
    weight = np.where(features[:, 1] > 0, 3.0, 0.5) if weighted else None
    boosted, quiet = lv.lightgbm_objective(private, head), {"verbosity": -1, "num_leaves": 8}
    data = lightgbm.Dataset(features, private.codes, weight=weight)
    trees = lightgbm.train({**boosted.parameters, **quiet, "num_threads": 1}, data, 30)
    raw = trees.predict(features, raw_score=True)
    model = lightgbm.LGBMRegressor(**boosted.parameters, **quiet, n_estimators=30, n_jobs=1)
    model = clone(model).fit(
        features,
        codes,
        sample_weight=weight,
        eval_X=features,
        eval_y=private.codes,
        eval_sample_weight=[weight],
        eval_metric=boosted.metric,
    )
    np.testing.assert_allclose(model.predict(features), raw, rtol=1e-9)
    (said,) = model.evals_result_.values()
    assert said["release_loss"][-1] == pytest.approx(boosted.loss(raw, private.codes, weight))
    assert np.mean((boosted.predict(raw) - labels) ** 2) < 0.8 * labels.var()

    other, trained = lv.xgboost_objective(private, head), {"max_depth": 3, "nthread": 1}
    matrix = xgboost.DMatrix(features, private.codes, weight=weight)
    trees = xgboost.train({**other.parameters, **trained}, matrix, 30, obj=other.objective)
    raw = trees.predict(matrix, output_margin=True)
    model = xgboost.XGBRegressor(
        objective=other.objective,
        eval_metric=other.metric,
        n_estimators=30,
        max_depth=3,
        n_jobs=1,
        **other.parameters,
    )
    held = {"eval_set": [(features, private.codes)], "sample_weight_eval_set": [weight]}
    held = held if weighted else {"eval_set": held["eval_set"]}
    model = clone(model).fit(features, codes, sample_weight=weight, verbose=False, **held)
    np.testing.assert_allclose(model.predict(features, output_margin=True), raw, rtol=1e-6)
    (said,) = model.evals_result().values()
    assert said["metric"][-1] == pytest.approx(other.loss(raw, private.codes, weight), rel=1e-4)
    assert np.mean((other.predict(raw) - labels) ** 2) < 0.8 * labels.var()


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_a_weight_counts_as_rows(learned: Learned, library: str) -> None:
    _, _, private = learned
    objective = getattr(lv, f"{library}_objective")(private, "gaussian")
    raw, codes = np.random.default_rng(0).normal(size=(6, 2)), private.codes[:6]
    times = np.array([0, 1, 2, 3, 1, 0])
    by_weight = objective.derivatives(raw, codes, times)
    rows = np.repeat(np.arange(6), times)
    for mine, all_ in zip(by_weight, objective.derivatives(raw[rows], codes[rows]), strict=True):
        np.testing.assert_allclose(mine.sum(axis=0), all_.sum(axis=0), rtol=1e-12)
    loss = objective.loss(raw, codes, times)
    assert loss == pytest.approx(objective.loss(raw[rows], codes[rows]))
    for line, arguments in (
        (r"raw outputs of shape \(6, 3\) must have 2 a row", (np.zeros((6, 3)), codes)),
        (r"raw outputs of shape \(12,\) must have 2 a row", (raw.ravel(), codes)),
        ("6 raw outputs must be of as many codes as 5", (raw, codes[:5])),
        ("5 weights must be 6 numbers >= 0", (raw, codes, times[:5])),
        ("6 weights must be 6 numbers >= 0", (raw, codes, -times)),
        ("codes must be a column of whole numbers", (raw, np.ma.array(codes, mask=[0, 1] * 3))),
    ):
        with pytest.raises(DataError, match=line):
            objective.derivatives(*arguments)


class _CatBoost:
    """What CatBoost asks of an objective and a metric of one's own, as its manual has it.

    Newton's method with a constant for all rows takes the place of trees, the derivatives being
    those of a function that is maximised.
    """

    def __init__(self, loss_function: Any, eval_metric: Any, boost_from_average: bool) -> None:
        self.loss, self.metric = loss_function, eval_metric
        assert not boost_from_average

    def fit(self, codes: Floats, weights: Floats | None) -> Floats:
        raw = np.zeros(codes.size)
        for _ in range(30):
            pairs = np.array(self.loss.calc_ders_range(raw, codes, weights))
            raw -= pairs[:, 0].sum() / pairs[:, 1].sum()
        return raw

    def score(self, raw: Floats, codes: Floats, weights: Floats | None) -> float:
        halves = [slice(0, 700), slice(700, None)]
        sums = [
            self.metric.evaluate(
                [raw[half]], codes[half], None if weights is None else weights[half]
            )
            for half in halves
        ]
        assert not self.metric.is_max_optimal()
        return float(self.metric.get_final_error(*np.sum(sums, axis=0)))


@pytest.mark.slow
@pytest.mark.parametrize("head", ["poisson", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_catboost_maximises_the_likelihood(head: str, weighted: bool) -> None:
    labels = np.random.default_rng(3).poisson(np.repeat([4.0, 7.0], 2000)).clip(0, 20)
    with repeatable_entropy():
        private = lv.randomize_labels(labels, lower=0, upper=20, epsilon=4.0)
    objective = lv.catboost_objective(private, head)
    weights = np.repeat([0.0, 2.0], 2000) if weighted else None
    codes = private.codes.astype(np.float64)
    library = _CatBoost(**objective.parameters)
    raw = library.fit(codes, weights)
    lost = library.score(raw, codes, weights)
    for step in (-0.05, 0.05):
        assert library.score(raw + step, codes, weights) > lost
    assert lost == pytest.approx(objective.loss(raw, private.codes, weights))
    wanted = np.average(labels, weights=weights)
    assert objective.predict(raw)[0] == pytest.approx(wanted, rel=0.05)
    assert copy.deepcopy(objective) is objective  # or estimators could not be cloned
    with pytest.raises(ConfigError, match="head='auto' has 2 outputs here, and CatBoost learns"):
        lv.catboost_objective(private)


def test_the_loss_refuses_what_is_no_code(private: lv.PrivateLabels) -> None:
    """Broadcast, or cut to whole numbers, all of it would train and learn something else."""
    loss = lv.torch_loss(private, "gaussian")
    raw, codes = torch.zeros(5, 2), torch.as_tensor(private.codes[:5].astype(np.int64))
    most = private.channel.outputs.size - 1
    for outputs, given, line in (
        (raw, codes[:, None], r"codes of shape \(5, 1\) must have the shape \(5,\)"),
        (raw, codes[:1], r"codes of shape \(1,\) must have the shape \(5,\)"),
        (raw, codes.float(), "codes have type torch.float32, and are whole numbers"),
        (raw, codes - 1 - codes.max(), "code -.* must lie in 0 … "),
        (raw, codes + most + 1, f"must lie in 0 … {most}, the channel's outputs"),
        (torch.zeros(5, 3), codes, r"raw outputs of shape \(5, 3\) must have the shape \(n, 2\)"),
        (torch.zeros(2), codes, r"raw outputs of shape \(2,\) must have"),
    ):
        with pytest.raises(DataError, match=line):
            loss(outputs, given)
    for ask in (loss.predict, loss.distribution):
        with pytest.raises(DataError, match=r"raw outputs of shape \(5, 3\)"):
            ask(torch.zeros(5, 3))
    same = loss(raw, codes)
    for kind in (torch.uint16, torch.int32):
        assert loss(raw, codes.to(kind)) == same
    assert loss(raw, private.codes[:5]) == same


def test_the_loss_takes_weights(private: lv.PrivateLabels) -> None:
    loss = lv.torch_loss(private, "gaussian")
    raw = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    codes = torch.as_tensor(private.codes[:4].astype(np.int64))
    rows = torch.tensor([0, 0, 3, 3])
    weighted = loss(raw, codes, torch.tensor([2.0, 0, 0, 2]))
    torch.testing.assert_close(weighted, loss(raw[rows], codes[rows]))
    with pytest.raises(DataError, match=r"weights of shape \(4, 1\) must have the shape \(4,\)"):
        loss(raw, codes, torch.ones(4, 1))
