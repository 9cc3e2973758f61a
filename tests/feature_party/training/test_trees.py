"""Boosted trees: what they find, how large they get, and that they are models like any other."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

from labelveil.common.errors import ConfigError
from labelveil.feature_party.export.run import export_model
from labelveil.feature_party.learning.law_table import LawTable
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.model.several_labels import LabelModels
from labelveil.feature_party.model.trees import Trees
from labelveil.feature_party.training import quick, trees
from labelveil.feature_party.training.fitting import EpochRecord
from labelveil.feature_party.training.folds import FoldedRows
from tests.effort import one_in
from tests.feature_party.training.learners import ROWS, events, fitted, interaction, unexplained


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


@pytest.mark.slow
@pytest.mark.parametrize("size", one_in(2, [trees.SMALL, trees.LARGE]))
@pytest.mark.parametrize("last", one_in(2, [trees.ROUNDS, 3]))
def test_trees_as_tensors_are_those_of_lightgbm(
    monkeypatch: pytest.MonkeyPatch, last: int, size: trees._Size
) -> None:
    """Also of a fold that finds nothing to split any more, rounds before the others."""
    data, _ = interaction(1500)
    monkeypatch.setattr(quick, "SMALL", size)
    monkeypatch.setattr(quick, "LARGE", size)
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


@pytest.mark.slow
@pytest.mark.parametrize("size", [trees.SMALL, trees.LARGE])
def test_trees_are_as_large_as_codes_say(size: trees._Size) -> None:
    """Sums of bends, or 200 shops of which three numbers say which, and nothing of the others."""
    rng = np.random.default_rng(0)
    shop = rng.integers(200, size=ROWS)
    x = rng.uniform(-1, 1, size=(200, 3))[shop]
    bends, alone = 3 * np.abs(x).sum(axis=1), 4 * rng.normal(size=200)[shop]
    means = 15 + (bends if size is trees.SMALL else alone)
    data = events(pl.DataFrame(x), means, 4.0)
    learned = fitted(data, learner="trees", head="gaussian").experts[0].learned
    assert isinstance(learned, Trees)
    assert learned.shape.depth == size.depth


class Given:
    """A model that leaves a fold out, with losses of that fold that are given."""

    def __init__(self, held: list[float]) -> None:
        self.held, self.at, self.kept = held, 0, 0
        self.booster, self.best_outputs = self, np.array(held)
        self.fold = SimpleNamespace(places=np.arange(len(held))[::-1])

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
    found = trees._Boosted.run(trees.SMALL, boosters, rival, records.append)
    assert found.models == [f"{best} trees"] * 2
    assert [each.kept for each in boosters] == [best] * 2
    assert len(found.least) == rounds
    assert found.least[-1] == min(held[:rounds])
    assert [each.tolist() for each in found.outputs] == [each.held[::-1] for each in boosters]
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
