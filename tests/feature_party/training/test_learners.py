"""Boosted trees and linear models: they learn what suits them, and are models like any other."""

from __future__ import annotations

import math
import subprocess
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
from threadpoolctl import ThreadpoolController, threadpool_limits

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers import build_randomizer
from labelveil.common.randomizers.knots import interpolation
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.evaluation.unseen import unseen
from labelveil.feature_party.export.run import export_model
from labelveil.feature_party.join.matches import MatchCounts
from labelveil.feature_party.learning.law_table import LawTable
from labelveil.feature_party.learning.mixing import Gain
from labelveil.feature_party.learning.objectives import LikelihoodObjective
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.model.network import EMBEDDING, Ensemble
from labelveil.feature_party.model.prediction import predict_file
from labelveil.feature_party.model.several_labels import LabelModels
from labelveil.feature_party.model.trees import Trees
from labelveil.feature_party.threads import threads_for
from labelveil.feature_party.training import linear, quick, run, trees
from labelveil.feature_party.training.fitting import EpochRecord, Fit
from labelveil.feature_party.training.folds import FoldedRows
from labelveil.feature_party.training.holdout import draw_holdout
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.mixture import MEAN, Candidate, Mixture, Stack, Trained
from tests.effort import one_in
from tests.feature_party.learn import train

GRID = np.arange(31.0)
ROWS = 6000


def events(table: pl.DataFrame, means: np.ndarray, epsilon: float = 2.0) -> Prepared:
    """Labels around (n,) means, privatized, with the table as features."""
    rng = np.random.default_rng(1)
    labels = np.clip(np.rint(means + rng.normal(size=means.size)), 0, 30)
    prior = np.bincount(labels.astype(int), minlength=GRID.size) + 1.0
    built = build_randomizer(
        "randomized-thresholds", labels=GRID, prior=prior / prior.sum(), epsilon=epsilon
    )
    codes = built.randomize(labels, seeded_entropy(1))
    problem = LabelProblem.from_channel(built.channel, prior)
    return Prepared.of_table(table, codes, problem, draw_holdout(means.size, 0.2, 0))


def interaction(rows: int = ROWS) -> tuple[Prepared, np.ndarray]:
    """Numbers that matter together alone, and a category with 300 values."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(rows, 3))
    shop = rng.integers(300, size=rows)
    means = 15 + 6 * np.sign(x[:, 0] * x[:, 1]) + 3 * rng.normal(size=300)[shop]
    table = pl.DataFrame({f"x{i}": x[:, i] for i in range(3)} | {"shop": shop.astype(str)})
    return events(table, means), means


def configured(**training: object) -> FeaturePartyConfig:
    section = {"ensemble": 4, "epochs": 2, "hidden": [16, 8], **training}
    return FeaturePartyConfig.model_validate({"data": {"key": "event"}, "training": section})


def fitted(data: Prepared, **training: object) -> Model:
    return train(data, configured(**training))


def unexplained(model: Model, data: Prepared, means: np.ndarray) -> float:
    predicted = model.predict(data.table[data.holdout])["prediction"].to_numpy()
    truth = means[data.holdout]
    return float(np.mean((predicted - truth) ** 2) / np.var(truth))


@pytest.mark.slow
def test_trees_find_an_interaction_and_say_the_same_wherever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, means = interaction()
    model = fitted(data, learner="trees")
    assert next(iter(model.facts.heads)).startswith("trees-")
    assert unexplained(model, data, means) < 0.35
    again = fitted(data, learner="trees")
    for folder, one in (("one", model), ("two", again)):
        one.save(tmp_path / folder)
    weights = [(tmp_path / folder / "weights.pt").read_bytes() for folder in ("one", "two")]
    assert weights[0] == weights[1]
    loaded = Model.load(tmp_path / "one")
    table = data.table.head(500)
    found = model.predict(table, 0.9)
    assert loaded.predict(table, 0.9).equals(found)
    monkeypatch.setattr("labelveil.feature_party.model.trees._ROWS", 7)
    assert loaded.predict(table, 0.9).equals(found)
    assert loaded.predict(table[:0], 0.9).equals(found[:0])
    few = pl.concat([loaded.predict(rows, 0.9) for rows in table.iter_slices(100)])
    assert_frame_equal(few, found, check_exact=False, rel_tol=1e-9)  # these are walked


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trees.pt2", "trees.onnx"])
def test_trees_are_exported(tmp_path: Path, name: str) -> None:
    data, _ = interaction()
    model = fitted(data, learner="trees")
    models = LabelModels({"y": model})
    exported = export_model(models, tmp_path / name, "auto", data.table.head(500))
    assert exported.rows > 500  # compared there with the model itself


@pytest.mark.parametrize("size", one_in(2, [trees._SMALL, trees._LARGE]))
@pytest.mark.parametrize("last", one_in(2, [trees.ROUNDS, 3]))
def test_trees_as_tensors_are_those_of_lightgbm(
    monkeypatch: pytest.MonkeyPatch, last: int, size: trees._Size
) -> None:
    """Also of a fold that finds nothing to split any more, rounds before the others."""
    data, _ = interaction(1500)
    monkeypatch.setattr(trees, "_SMALL", size)
    monkeypatch.setattr(trees, "_LARGE", size)
    monkeypatch.setattr(trees, "ROUNDS", 40)
    made = []

    class Numbered(trees.Fold):
        def __init__(self, rows: FoldedRows, fold: int) -> None:
            super().__init__(rows, fold)
            self.rows, self.number = rows, fold

    class Watched(trees._Booster):
        def __init__(self, fold: Numbered, table: LawTable, size: trees._Size) -> None:
            super().__init__(fold, table, size)
            made.append((self.booster, fold.rows, fold.number))
            self.last = last if fold.number == 1 else trees.ROUNDS

        def round(self) -> tuple[float, float]:
            if self.booster.current_iteration() < self.last:
                self.told = super().round()
            return self.told  # type: ignore[no-any-return]

    monkeypatch.setattr(trees, "Fold", Numbered)
    monkeypatch.setattr(trees, "_Booster", Watched)
    model = fitted(data, learner="trees", head="gaussian")
    learned = model.experts[0].learned
    assert isinstance(learned, Trees)
    booster, rows, fold = made[1]
    assert (booster.current_iteration() == 3) == (last == 3)
    assert learned.shape.rounds > 3
    held = rows.folds[fold]
    wanted = booster.predict(
        rows.matrix(fold, rows.encoder.plain_inputs)[held],
        raw_score=True,
        num_iteration=learned.shape.rounds,
    )
    numeric = torch.as_tensor(rows.inputs.numeric[held])[None]
    categories = torch.as_tensor(rows.inputs.categories[held].astype(np.int64))[None]
    found = learned(numeric, categories)[fold].numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-9)


THREADS = "labelveil.feature_party.threads.THREADS"


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


@pytest.mark.slow
@pytest.mark.parametrize("size", [trees._SMALL, trees._LARGE])
def test_trees_are_as_large_as_codes_say(size: trees._Size) -> None:
    """Sums of bends, or 200 shops of which three numbers say which, and nothing of the others."""
    rng = np.random.default_rng(0)
    shop = rng.integers(200, size=ROWS)
    x = rng.uniform(-1, 1, size=(200, 3))[shop]
    bends, alone = 3 * np.abs(x).sum(axis=1), 4 * rng.normal(size=200)[shop]
    means = 15 + (bends if size is trees._SMALL else alone)
    data = events(pl.DataFrame(x), means, 4.0)
    learned = fitted(data, learner="trees", head="gaussian").experts[0].learned
    assert isinstance(learned, Trees)
    assert learned.shape.depth == size.depth


class Given:
    """A model that leaves a fold out, with losses of that fold that are given."""

    def __init__(self, held: list[float]) -> None:
        self.held, self.at, self.kept = held, 0, 0
        self.booster, self.best_outputs = self, held

    def round(self) -> tuple[float, float]:
        self.at += 1
        return 1 / self.at, self.held[min(self.at, len(self.held)) - 1]

    def keep(self) -> None:
        self.kept = self.at

    def model_to_string(self, num_iteration: int) -> str:
        return f"{num_iteration} trees"


FALLING = [9.0 - number for number in range(7)]  # to 3


@pytest.mark.parametrize(
    ("held", "rival", "rounds", "best", "ended"),
    [
        (FALLING, [], 15, 7, "no better for 8 rounds"),  # as good is no better
        ([*FALLING, *[4.0] * 7, 2.5], [], 23, 15, "no better for 8 rounds"),
        ([*FALLING, *[4.0] * 7, 2.5], [3.5, 3.0], 23, 15, "no better for 8 rounds"),
        ([*FALLING, *[4.0] * 7, 2.5], [2.9], 10, 7, "behind smaller trees"),
        (FALLING, [0.1] * 9 + [3.0] + [0.1] * 9, 15, 7, "no better for 8 rounds"),
        (FALLING, [9.0] * 9 + [2.9] + [9.0] * 9, 10, 7, "behind smaller trees"),
        ([100.0 - number for number in range(99)], [], 25, 25, ""),
    ],
)
def test_trees_are_added_until_they_help_no_more_or_are_behind(
    monkeypatch: pytest.MonkeyPatch, held: list[float], rival: list[float], rounds: int, best: int,
    ended: str,
) -> None:  # fmt: skip
    """By the mean of all folds; smaller ones are compared every ten rounds, as long as they are."""
    monkeypatch.setattr(trees, "ROUNDS", 25)
    boosters: Any = [Given([loss + apart for loss in held]) for apart in (-0.5, 0.5)]
    records: list[EpochRecord] = []
    found = trees._Boosted.run(trees._SMALL, boosters, rival, records.append)
    assert found.models == [f"{best} trees"] * 2
    assert [each.kept for each in boosters] == [best] * 2
    assert len(found.least) == rounds
    assert found.least[-1] == min(held[:rounds])
    assert found.history == records
    assert [record.epoch for record in records] == [*range(10, rounds, 10), rounds]
    last = records[-1]
    losses = 1 / rounds, pytest.approx(held[min(rounds, len(held)) - 1])
    assert (last.epochs, last.training, last.validation, last.ended) == (25, *losses, ended)


@pytest.mark.parametrize("rows", [43, 44])
def test_trees_take_as_many_rows_as_two_leaves_have(rows: int) -> None:
    """Of 43 and of 44 rows four are left out."""
    x = np.linspace(-1, 1, rows)
    data = replace(events(pl.DataFrame({"x": x}), 15 + 3 * x), training=np.arange(rows))
    settings: dict[str, Any] = {"learner": "trees", "head": "gaussian", "ensemble": 1}
    if rows == 44:
        assert fitted(data, **settings).facts.head == "trees-gaussian"
    else:
        with pytest.raises(ConfigError, match="39 events to train on bear no branch of 20 each"):
            fitted(data, **settings)


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
def test_programs_load_lightgbm_without_what_only_its_own_estimators_need() -> None:
    program = (
        "import sys, importlib.util as later, numpy as np\n"
        "from labelveil.feature_party.training.trees import lightgbm, load_lightgbm\n"
        "load_lightgbm()\n"
        "print(*sorted({'lightgbm', 'sklearn', 'pandas'} & {*sys.modules}))\n"
        "print(lightgbm().Dataset(np.eye(50), params={'verbosity': -1}).construct().num_data())\n"
        "print(*(later.find_spec(name).name for name in ('sklearn', 'pandas')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split("\n")[-4:] == ["lightgbm", "50", "sklearn pandas", ""], done.stderr


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
            found = Stack(problem, support, 1e3).by_squares(
                mixture, [Trained(MEAN, said(laws))], codes
            )
            shares.append(found.trained[1].weight)
    assert shares[2:] == pytest.approx(shares[:2])
    one, other = nothing @ GRID, right @ GRID
    errors = [np.mean((one + s * (other - one) - labels) ** 2) for s in np.linspace(0, 1, 101)]
    assert shares[0] == pytest.approx(np.argmin(errors) / 100, abs=0.05)
    assert shares[1] == 0


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
    monkeypatch.setattr(Gain, "likely", False)  # a large lead may be chance
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

    monkeypatch.setattr(Gain, "likely", True)
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
