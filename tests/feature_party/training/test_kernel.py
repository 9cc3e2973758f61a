"""Ridges on random features: what they learn, and that no fold's codes reach who leaves it out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from labelveil.common.errors import DataError
from labelveil.feature_party.config.sections import DataSection, TrainingSection
from labelveil.feature_party.learning.derivatives import derivatives_of
from labelveil.feature_party.learning.heads import log_axis
from labelveil.feature_party.learning.objectives import LikelihoodObjective
from labelveil.feature_party.learning.several_releases import join_problems
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.model.random_features import RandomFeatures, RandomFeaturesShape
from labelveil.feature_party.ridge.fit import RidgeFit
from labelveil.feature_party.ridge.ridge import Ridge, features_of
from labelveil.feature_party.training import kernel, quick
from labelveil.feature_party.training.events import TrainingSetup
from labelveil.feature_party.training.folds import FoldedRows
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.kernel import KernelFit
from labelveil.feature_party.training.run import train
from tests.feature_party.training.learners import events, fitted, folded, unexplained


def smooth(rows: int = 3000, columns: int = 6) -> tuple[Prepared, np.ndarray]:
    """Means that are a wave along two columns, and a shop's; others say nothing."""
    rng = np.random.default_rng(0)
    x, shop = rng.uniform(-1, 1, size=(rows, columns)), rng.integers(4, size=rows)
    means = 15 + 8 * np.sin(3 * x[:, 0] + 2 * x[:, 1]) + 2 * (shop - 1.5)
    table = pl.DataFrame({f"x{i}": x[:, i] for i in range(columns)} | {"shop": shop.astype(str)})
    return events(table, means), means


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WAVES": 60, "_STEPS": (8, 4), "_ROWS_AT_ONCE": 97}.items():
        monkeypatch.setattr(kernel, name, value)


def test_a_wave_along_two_columns_is_learned_from_few_codes(tmp_path: Path) -> None:
    data, means = smooth()
    linear = unexplained(fitted(data, learner="linear", head="gaussian"), data, means)
    model = fitted(data, learner="kernel", head="gaussian")
    assert model.facts.head == "kernel-gaussian"
    assert unexplained(model, data, means) < 0.1 < linear / 3
    model.save(tmp_path)
    table = pl.concat([data.table.head(300), data.table.head(1).with_columns(shop=pl.lit("new"))])
    assert Model.load(tmp_path).predict(table).equals(model.predict(table))
    both = fitted(data)
    shares = {name: head.weight for name, head in both.facts.heads.items()}
    assert sum(share for name, share in shares.items() if name.startswith("kernel")) > 0.4
    assert unexplained(both, data, means) < 0.1


def test_it_is_tried_where_it_is_ahead_of_a_linear_model(
    monkeypatch: pytest.MonkeyPatch, quickly: None
) -> None:
    def tried(data: Prepared, *, asks: bool = False, **settings: str) -> bool:
        section = TrainingSection(ensemble=2, epochs=1, **settings)  # type: ignore[arg-type]
        heads = train(data, TrainingSetup(section, DataSection(), asks=asks)).facts.heads
        return any(name.startswith("kernel") for name in heads)

    data, _ = smooth(1500, 3)
    assert tried(data)
    assert not tried(data, asks=True)
    assert tried(data, asks=True, learner="kernel", head="gaussian")
    for name, least in ({(quick, "MOST_COLUMNS"): 7, (quick, "MOST_LINEAR"): 1200}).items():
        with monkeypatch.context() as patched:
            patched.setattr(*name, least)
            assert tried(data)
            patched.setattr(*name, least - 1)
            assert not tried(data)
    losses = KernelFit.first_losses
    monkeypatch.setattr(KernelFit, "first_losses", lambda *given: losses(*given) + 0.3)
    assert not tried(data)


@pytest.mark.parametrize("changed", [{"inputs": [0, 9]}, {"groups": [3, -1]}, {"groups": []}])
def test_a_saved_model_of_other_inputs_or_groups_is_damaged(
    changed: dict[str, Any], tmp_path: Path, quickly: None
) -> None:
    fitted(smooth(300, 2)[0], learner="kernel", head="gaussian", ensemble=2).save(tmp_path)
    path = tmp_path / "model.json"
    said = json.loads(path.read_text())
    said["experts"][0]["shape"] |= changed
    path.write_text(json.dumps(said))
    with pytest.raises(DataError, match="is damaged"):
        Model.load(tmp_path)


def fit_of(rows: FoldedRows, support: Support, law: LikelihoodObjective) -> Any:
    table = derivatives_of(law)
    assert table is not None
    return KernelFit(rows, support, "gaussian").fit(law, table(), lambda record: None)


@pytest.mark.parametrize("ensemble", [1, 2, 3])
def test_members_say_of_their_folds_what_is_told_of_them(ensemble: int, quickly: None) -> None:
    rows, support, law = folded(smooth(600, 2)[0], ensemble=ensemble, validation=0.25)
    fit = fit_of(rows, support, law)
    raw = fit.learned(
        torch.as_tensor(rows.inputs.numeric)[None],
        torch.as_tensor(rows.inputs.categories.astype(np.int64))[None],
    )
    assert len(raw) == ensemble == sum(fit.learned.shape.groups)
    said = [law.points(raw[member][held]) for member, held in enumerate(rows.folds)]
    np.testing.assert_allclose(torch.cat(said), fit.predictions, rtol=1e-3)


@pytest.mark.parametrize("fold", [0, 2])
def test_no_fold_has_a_part_in_scales_of_models_that_leave_it_out(fold: int, quickly: None) -> None:
    rows, support, law = folded(smooth(600, 2)[0], ensemble=3, validation=0.25)
    codes = rows.codes.copy()
    codes[rows.folds[fold]] = np.roll(codes[rows.folds[fold]], 1)
    learned = fit_of(rows, support, law).learned
    changed = fit_of(replace(rows, codes=codes), support, law).learned
    mine = [0, 0, 1][fold]  # the group that leaves it out
    same = [
        torch.equal(*pair) for pair in zip(learned.frequencies, changed.frequencies, strict=True)
    ]
    assert same == [number == mine for number in range(2)]
    slopes = zip(learned.of_waves, changed.of_waves, strict=True)
    assert [torch.equal(*pair) for pair in slopes].count(False) >= 2  # others learn from it
    assert not torch.equal(*learned.phases)
    unknown, *values = learned.frequencies[:, len(learned.inputs) :].abs().sum(dim=2).T
    assert not unknown.any()
    assert len(values) == 4
    assert all(each.all() for each in values)


@pytest.mark.parametrize("head", ["gaussian", "gamma"])
def test_they_begin_near_what_a_ridge_says_that_has_not_seen_their_folds(
    head: str, monkeypatch: pytest.MonkeyPatch, quickly: None
) -> None:
    """In units of the label, on whatever axis scales were learned."""
    monkeypatch.setattr(kernel, "_PENALTIES", [(1.0, 0)])  # and there they stay
    data, means = smooth(1200, 2)
    rows, support, law = folded(data, ensemble=2, validation=0.25)
    table = derivatives_of(law)
    assert table is not None
    fit = KernelFit(rows, support, head).fit(law, table(), lambda record: None)
    truth = means[data.training][fit.rows]
    assert np.corrcoef(fit.predictions, truth)[0, 1] > 0.7
    assert fit.predictions.mean() == pytest.approx(truth.mean(), abs=3)


@pytest.mark.parametrize(("head", "logarithmic"), [("gamma", True), ("gaussian", False)])
def test_scales_are_learned_on_the_axis_of_the_law(
    head: str, logarithmic: bool, monkeypatch: pytest.MonkeyPatch, quickly: None
) -> None:
    """By each release's own channel, whatever share of the rows it has."""
    data, _ = smooth(300, 2)
    problem = join_problems([data.problem, data.problem], [200.0, 100.0])
    codes = data.codes + data.problem.outputs.size * (np.arange(300) >= 200)
    rows, support, law = folded(
        Prepared.of_table(data.table, codes, problem), ensemble=2, validation=0.25
    )
    seen, of_codes = list[Any](), kernel.CodeRows

    def noted(*given: Any) -> Any:
        seen.append(given)
        return of_codes(*given)

    monkeypatch.setattr(kernel, "CodeRows", noted)
    table = derivatives_of(law)
    assert table is not None
    KernelFit(rows, support, head).fit(law, table(), lambda record: None)
    axis = log_axis(support.values, support.prior) if logarithmic else support.values
    own = Support.from_problem(data.problem).likelihood
    for _, of, points, channels, mean in seen:
        assert of.max() >= own.shape[1]
        np.testing.assert_array_equal(points, axis)
        for channel in channels:
            np.testing.assert_allclose(channel, own, rtol=1e-3, atol=1e-5)
        assert mean == pytest.approx(support.prior @ axis)


@pytest.mark.parametrize("head", ["log-normal", "gamma", "negative-binomial"])
def test_labels_below_0_have_no_logarithmic_axis(head: str) -> None:
    support = Support.from_problem(smooth(50, 2)[0].problem)
    below = replace(support, values=support.values - support.values[1] / 2)
    assert below.values[0] < 0
    assert kernel._axis(below, head) is below.values


def test_slopes_are_expected_to_be_what_the_ridge_expects_of_coefficients(
    monkeypatch: pytest.MonkeyPatch, quickly: None
) -> None:
    """Before anything is known a prediction has one deviation, by either: in units of labels, of
    which a law's outputs are one deviation long."""
    data, means = smooth(400, 5)
    data = events(data.table.drop("shop"), means)
    rows, support, law = folded(data, ensemble=2, validation=0.25)
    designed, ridges, precisions = list[Any](), list[Any](), list[float]()

    class Noted(RidgeFit):
        def run(self, *given: Any) -> Ridge:
            ridge = super().run(*given)
            ridges.append((self.amplitude, ridge, len(self.codes.rows) if self.codes else 0))
            return ridge

    def noted(design: Any, rows: Any, table: Any, precision: float) -> Any:
        precisions.append(precision)
        return models(design, rows, table, precision)

    models, design = kernel.LinearModels, kernel.Design
    monkeypatch.setattr(kernel, "RidgeFit", Noted)
    monkeypatch.setattr(kernel, "LinearModels", noted)
    monkeypatch.setattr(kernel, "Design", lambda *at: [designed.append(at[1]), design(*at)][1])
    learned = fit_of(rows, support, law).learned
    plain = torch.as_tensor(rows.inputs.numeric[:, list(rows.encoder.plain_inputs)])
    deviation = np.sqrt(support.prior @ support.values**2 - (support.prior @ support.values) ** 2)
    for numbers, (amplitude, ridge, _), precision in zip(designed, ridges, precisions, strict=True):
        features = features_of(
            plain, ridge.scales, ridge.frequencies, ridge.phases, ridge.linear
        ).numpy()
        by_ridge = amplitude * np.sqrt((features[:, 1:] ** 2).sum(axis=1))
        by_law = deviation * np.sqrt((numbers**2).sum(axis=1) / precision)
        np.testing.assert_allclose(by_law, by_ridge, rtol=1e-3)
    # each wave runs along about half of the columns
    along = (learned.frequencies != 0).float().mean()
    assert 0.4 < along < 0.6
    # and at a trial scales are learned by fewer rows
    monkeypatch.setattr(kernel, "_ROWS", 150)
    monkeypatch.setattr(kernel, "_ROWS_TRIED", 90)
    table = derivatives_of(law)
    assert table is not None
    fit = KernelFit(rows, support, "gaussian")
    fit.first_losses(law, table(), lambda record: None)
    fit.fit(law, table(), lambda record: None)
    assert [taught for _, _, taught in ridges[2:]] == [90, 150, 150]


def test_outputs_are_waves_and_lines_of_columns_and_categories() -> None:
    rng = np.random.default_rng(3)
    shape = RandomFeaturesShape((2, 0), (3, 2), waves=4, outputs=2, groups=(1, 2))
    learned = RandomFeatures(shape)
    for weights in learned.parameters():
        weights.data = torch.as_tensor(rng.normal(size=weights.shape).astype(np.float32))
    assert shape.weights == sum(weights.numel() for weights in learned.parameters())
    numeric = rng.normal(size=(5, 3)).astype(np.float32)
    categories = np.stack([rng.integers(3, size=5), rng.integers(2, size=5)], axis=1)
    one_of = np.hstack([np.eye(3)[categories[:, 0]], np.eye(2)[categories[:, 1]]])
    columns = np.hstack([numeric[:, [2, 0]], one_of])
    state = {name: weights.numpy() for name, weights in learned.state_dict().items()}
    expected = []
    for member, group in enumerate((0, 1, 1)):
        waves = np.cos(columns @ state["frequencies"][group] + state["phases"][group])
        lines = columns @ state["slopes"][member] + state["biases"][member]
        expected.append(waves @ state["of_waves"][member] + lines)
    given = torch.as_tensor(numeric)[None], torch.as_tensor(categories)[None]
    np.testing.assert_allclose(learned(*given), np.stack(expected), rtol=1e-4, atol=1e-5)
    part = learned(*given, members=slice(1, 2))
    np.testing.assert_allclose(part, np.stack(expected[1:2]), rtol=1e-4, atol=1e-5)
    learned.check()
    learned.slopes.data[0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="no finite number"):
        learned.check()
