"""Baselines of a trusted curator: clipping and noise of DP-SGD, its accounting, comparisons."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from labelveil.commands.cli import main
from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    epsilon_at,
    guarantee_from_json,
    subsampled_gaussian,
)
from labelveil.common.guarantees.gaussian import gaussian_delta, gaussian_sigma
from labelveil.common.guarantees.pld import PrivacyLoss
from labelveil.comparison import central as baselines
from labelveil.comparison.central import (
    MOST_VALUES,
    PrivateSteps,
    central_predictions,
    dense_features,
    noise_multiplier,
    spent_epsilon,
    train_privately,
)
from labelveil.comparison.names import CENTRAL, FEATURE_AWARE_RIDGE, NEED_DELTA
from labelveil.feature_party.model.encoding import Encoder
from tests.commands import RunCommand
from tests.effort import one_in
from tests.labelveil.comparison.runs import answers


def _table(rows: int = 600) -> tuple[pl.DataFrame, Floats]:
    grid = np.linspace(0, 60, rows)
    x, kind = np.sin(grid * 7), (grid * 10).astype(int) % 3
    label = 5 + 3 * x + kind
    return pl.DataFrame({"x": x, "kind": kind.astype(str), "z": np.cos(grid)}), label


def test_dense_features_are_numbers_indicators_and_a_constant() -> None:
    values = [f"v{i:03}" for i in range(100) for _ in range(200 - i)]
    table = pl.DataFrame({"x": np.arange(len(values)) * 1.0, "kind": values})
    encoder = Encoder.fit(table)
    dense = dense_features(encoder, encoder.encode(table))
    assert dense.shape == (len(values), 1 + 1 + MOST_VALUES + 1)
    assert np.all(dense[:, -1] == 1)
    assert np.all(dense[:, 1:-1].sum(axis=1) == 1)
    rare = np.array([value >= "v064" for value in values])
    assert np.array_equal(dense[:, 1] == 1, rare)


def _moved(rows: Floats, labels: Floats, sigma: float, monkeypatch: pytest.MonkeyPatch) -> Floats:
    """Noisy sum of clipped gradients of one step over all rows."""
    monkeypatch.setattr(torch.optim, "Adam", lambda params, lr: torch.optim.SGD(params, lr=1.0))
    monkeypatch.setattr(baselines, "noise_multiplier", lambda *_: sigma)
    monkeypatch.setattr(baselines, "spent_epsilon", lambda *_: 1.0)
    steps = PrivateSteps(1.0, 1, clip=0.5)
    entropy = seeded_entropy(3)
    after = train_privately(rows, labels, 1.0, 1e-6, entropy, (40, 30), steps).module
    key = int(entropy.words("DP-SGD", 0, 2)[1] >> np.uint64(1))
    before = baselines._network(rows.shape[1], (40, 30), key)
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    change = np.concatenate([(a - b).detach().double().numpy().ravel() for a, b in pairs])
    return np.asarray(change * len(rows))


@pytest.mark.parametrize("label", one_in(2, [1.0, -1.0]))
def test_one_row_moves_the_sum_by_at_most_the_clipping_norm(
    label: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.linspace(-2, 2, 60).reshape(20, 3)
    rows[-1] = 1000.0  # a row made to have a huge gradient
    labels = np.append(np.zeros(19), label)
    with_row = _moved(rows, labels, 1e-6, monkeypatch)
    without = _moved(rows[:-1], labels[:-1], 1e-6, monkeypatch)
    gap = float(np.linalg.norm(with_row - without))  # the noise is negligible
    assert 0.99 * 0.5 < gap < 1.001 * 0.5


@pytest.mark.statistical
def test_the_noise_has_the_stated_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.ones((1, 3))
    change = _moved(rows, np.zeros(1), 7.0, monkeypatch)
    # 1,381 parameters: the square norm of their noise is within 6 √(2/1381) = 23% but for 1e-8
    size = float(np.sum(change**2) / change.size / (7.0 * 0.5) ** 2)
    assert abs(size - 1) < 6 * (2 / change.size) ** 0.5


@pytest.mark.slow
def test_the_accountant_agrees_with_loss_distributions() -> None:
    epsilon = 1.0
    steps = PrivateSteps(1 / 16, 200)
    sigma = noise_multiplier(steps, epsilon, 1e-6)
    spent = spent_epsilon(steps, sigma, 1e-6)
    assert 0.97 * epsilon < spent <= epsilon
    exact = PrivacyLoss.of_gaussian(sigma, rate=steps.rate).repeat(steps.steps).epsilon(1e-6)
    assert spent == pytest.approx(exact, rel=0.04)
    assert epsilon_at(subsampled_gaussian(sigma, steps.rate).repeat(steps.steps), 1e-6) > exact


@pytest.mark.slow
def test_secret_samples_hide_no_more_than_one_pass_over_all_rows() -> None:
    """The noise of all steps, brought to one sum over all rows, against one release's."""
    epsilon, steps = 1.0, PrivateSteps(1 / 16, 200)
    sigma = noise_multiplier(steps, epsilon, 1e-6)
    assert sigma / (steps.rate * steps.steps**0.5) > gaussian_sigma(epsilon, 1e-6)
    assert sigma < gaussian_sigma(epsilon, 1e-6) * steps.steps**0.5  # each step alone has less


def test_impossible_budgets_are_refused() -> None:
    for epsilon, delta in (
        *((epsilon, 1e-6) for epsilon in (0.0, -1.0, math.inf, math.nan)),
        *((1.0, delta) for delta in (0.0, 1.0, -0.5, 1.5, math.nan)),
    ):
        with pytest.raises(PrivacyError, match="must"):
            noise_multiplier(PrivateSteps(0.1, 10), epsilon, delta)


@pytest.mark.slow
def test_the_accountant_is_asked_for_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def multiplier(**given: Any) -> float:
        asked.append(given)
        return 2.5

    monkeypatch.setattr("opacus.accountants.utils.get_noise_multiplier", multiplier)
    assert noise_multiplier(PrivateSteps(0.1, 10), 2.0, 1e-6) == 2.5
    assert asked == [{
        "target_epsilon": 2.0, "target_delta": 1e-6, "sample_rate": 0.1, "steps": 10,
        "accountant": "prv", "epsilon_tolerance": 0.02,
    }]  # fmt: skip
    # four steps over all rows are one with half of the noise
    spent = spent_epsilon(PrivateSteps(1.0, 4), 4.0, 1e-6)
    assert gaussian_delta(2.0, spent) == pytest.approx(1e-6, rel=0.15)
    assert spent_epsilon(PrivateSteps(0.5, 4), 4.0, 1e-6) < spent


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CENTRAL))
def test_baselines_learn_within_their_budget(name: str) -> None:
    features, labels = _table(2000)
    predict = partial(
        central_predictions,
        name,
        features,
        labels,
        features,
        key="id",
        hidden=[128, 64],
        bounds=(0, 12),
        epsilon=8.0,
    )
    central = predict(delta=1e-5)
    assert np.mean((central.predictions - labels) ** 2) < 0.5 * np.var(labels)
    assert epsilon_at(central.guarantee, 1e-5) <= 8.0
    assert guarantee_from_json(central.guarantee.to_json()) == central.guarantee
    if name in NEED_DELTA:
        with pytest.raises(ConfigError, match="--delta"):
            predict(delta=None)


def test_a_worker_learns_from_the_true_labels_of_training_events(tmp_path: Path) -> None:
    job = {"randomizer": FEATURE_AWARE_RIDGE, "epsilon": 100.0}
    (found,) = answers(tmp_path, 300, {}, job)
    assert found["test_mse"] < 0.7 * found["constant_mse"]
    assert found["label_mse"] is None


@pytest.mark.slow
def test_compare_puts_them_in_one_table(tmp_path: Path, run_command: RunCommand) -> None:
    features, labels = _table(400)
    path = tmp_path / "events.parquet"
    features.with_columns(id=pl.int_range(400), y=pl.Series(labels)).write_parquet(path)
    files = ["--labels", str(path), "--features", str(path), "--key", "id", "--label", "y"]
    small = ["--set-training", "epochs=2", "--set-training", "ensemble=1", "--workers", "1"]
    options = ["--lower", "0", "--upper", "12", "--epsilons", "2", "--runs", "1", "--quiet"]
    compare = partial(run_command, main, "compare", *files, *small, *options)
    out = tmp_path / "out"
    done = compare("--baselines", "central", "--delta", "1e-5", "--out", str(out))
    assert done.code == 0, done
    table = pl.read_csv(out / "table.csv")
    assert set(table["method"]) == {"true labels", "auto · auto", *CENTRAL}
    assert table["test_mse_mean"].is_finite().all()
    text = (out / "table.md").read_text()
    assert "δ = 1e-05" in text
    label_table = text[text.index("Error of the randomized label") :]
    assert "auto" in label_table
    assert "| dp-sgd" not in label_table
    for bad, message in (
        (["--baselines", "central", "--delta", "0"], "delta=0 must be"),
        (["--baselines", "none"], 'must be "central"'),
        (["--method", "dp-sgd:raw"], "no objective, head or options"),
    ):
        assert message in compare(*bad, "--out", str(tmp_path / "other")).error
        assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("rows", "rate", "steps"),
    [
        (100, 1.0, 25),
        (255, 1.0, 25),
        (1024, 0.25, 100),
        (16_000, 1 / 16, 400),
        (64_000, 1 / 16, 400),
        (81_920, 1 / 20, 500),
        (4_096_000, 1 / 1000, 1000),
    ],
)
def test_steps_follow_from_the_number_of_rows(rows: int, rate: float, steps: int) -> None:
    """A sixteenth, of 256 to 4,096 rows; 25 passes, of a thousand steps at most."""
    suited = PrivateSteps.suited_to(rows)
    assert (suited.rate, suited.steps) == (pytest.approx(rate), steps)
    assert (suited.clip, suited.learning_rate) == (1.0, 4e-3)


@pytest.mark.parametrize(("label", "clip"), [(1.0, 0.25), (1.0, 10.0), (-1.0, 10.0)])
def test_the_sum_of_a_sample_is_divided_by_its_expected_size(
    monkeypatch: pytest.MonkeyPatch, label: float, clip: float
) -> None:
    """A step of three tenths of the rows, or as many as is said: how far a weight goes."""
    monkeypatch.setattr(torch.optim, "Adam", lambda params, lr: torch.optim.SGD(params, lr=lr))
    monkeypatch.setattr(baselines, "noise_multiplier", lambda *given: 1e-9)
    told: list[Any] = []
    monkeypatch.setattr(baselines, "spent_epsilon", lambda *given: told.append(given) or 0.5)
    rows, labels = np.ones((42, 1)), np.full(42, 5.0 * label)  # clipped to 1
    steps = PrivateSteps(0.3, 1, clip=clip, learning_rate=0.1)
    trained = train_privately(rows, labels, 1.0, 1e-6, seeded_entropy(3), (), steps)
    words = seeded_entropy(3).words("DP-SGD", 0, 2) >> np.uint64(1)
    before = baselines._network(1, (), int(words[1]))
    generator = torch.Generator().manual_seed(int(words[0]))
    sample = int((torch.rand(42, generator=generator) < 0.3).sum())
    weight, bias = (each.detach().item() for each in before.parameters())

    def step(clip: float) -> float:
        """Every row's gradient is 2 (w + b - 1) (1, 1), clipped to a norm."""
        slope = 2 * (weight + bias - label)
        return math.copysign(min(clip, abs(slope) * math.sqrt(2)) / math.sqrt(2), slope)

    moved = weight - 0.1 * sample / 13 * step(clip)
    assert trained.module[0].weight.item() == pytest.approx(moved, abs=1e-6)  # type: ignore[index]
    assert told == [(steps, 1e-9, 1e-6)]
    assert trained.guarantee == ApproximateDP.of(0.5, 1e-6, Adjacency.ADD_REMOVE)
    assert trained.noise_multiplier == 1e-9
    assert trained.predict(np.full((3, 1), 1e6)).tolist() == pytest.approx(
        [math.copysign(1.0, trained.module[0].weight.item())] * 3  # type: ignore[index]
    )
    # of so few rows, by default, all take part in 25 steps, and late weights count
    trained = train_privately(rows, labels, 1.0, 1e-6, seeded_entropy(3), ())
    assert told[1] == (PrivateSteps(1.0, 25), 1e-9, 1e-6)
    average = weight
    for at in range(25):
        moved = 4e-3 * (1 + math.cos(math.pi * at / 25)) / 2 * step(1.0)
        weight, bias = weight - moved, bias - moved
        average = 0.6 * average + 0.4 * weight if at else weight
    assert trained.module[0].weight.item() == pytest.approx(average, abs=1e-6)  # type: ignore[index]


def test_steps_get_shorter_along_a_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    class Recorded(torch.optim.SGD):
        def step(self, *given: Any, **named: Any) -> Any:
            rates.append(self.param_groups[0]["lr"])
            return super().step(*given, **named)

    monkeypatch.setattr(torch.optim, "Adam", lambda params, lr: Recorded(params, lr=lr))
    monkeypatch.setattr(baselines, "noise_multiplier", lambda *given: 1.0)
    monkeypatch.setattr(baselines, "spent_epsilon", lambda *given: 1.0)
    steps = PrivateSteps(1.0, 4, learning_rate=0.5)
    train_privately(np.ones((9, 1)), np.zeros(9), 1.0, 1e-6, seeded_entropy(0), (), steps)
    assert rates == pytest.approx([0.25 * (1 + math.cos(math.pi * at / 4)) for at in range(4)])


def test_a_baseline_is_given_scaled_labels_and_told_of_in_their_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Labels of 0 … 12 as -1 … 1, features as dense columns, the budget as it is."""
    features, labels = _table(60)
    given: dict[str, Any] = {}

    def private(
        rows: Floats, scaled: Floats, epsilon: float, delta: float, entropy: Any, hidden: Any
    ) -> Any:
        given.update(rows=rows, scaled=scaled, budget=(epsilon, delta), hidden=hidden)
        predict = lambda queried: np.full(len(queried), 0.5)  # noqa: E731
        guarantee = ApproximateDP.of(1, 1e-5, Adjacency.ADD_REMOVE)
        return SimpleNamespace(predict=predict, guarantee=guarantee, noise_multiplier=1.2345)

    monkeypatch.setattr(baselines, "train_privately", private)
    predict = partial(
        central_predictions, "dp-sgd", features, labels, features[:7],
        key="z", hidden=[9, 8], bounds=(0, 12), epsilon=2.0, delta=1e-5,
    )  # fmt: skip
    found = predict()
    assert found.predictions.tolist() == [9.0] * 7
    assert found.chosen == "DP-SGD, noise multiplier 1.23"
    assert given["scaled"] == pytest.approx(labels / 6 - 1)
    assert (given["budget"], given["hidden"]) == ((2.0, 1e-5), (9, 8))
    assert given["rows"][:, -1].tolist() == [1.0] * 60
    for name in ("dp-sgd", "feature-aware-gaussian"):
        with pytest.raises(ConfigError, match=f"{name} needs a delta above 0; pass --delta 1e-6"):
            partial(predict.func, name, *predict.args[1:])(**predict.keywords | {"delta": None})
    process = partial(predict.func, "feature-aware-gaussian", *predict.args[1:])
    found = process(**predict.keywords | {"epsilon": 40.0, "delta": 0.1})
    assert found.chosen.split()[1:3] == ["directions,", "quantile"]
    assert epsilon_at(found.guarantee, 0.1) == pytest.approx(40.0, rel=1e-3)
    assert found.predictions.shape == (7,)
    ridge = partial(predict.func, FEATURE_AWARE_RIDGE, *predict.args[1:])
    found = ridge(**predict.keywords | {"delta": None, "epsilon": 1e6})
    assert np.mean((found.predictions - labels[:7]) ** 2) < 0.2 * np.var(labels)
    assert found.chosen.startswith("ridge, shape ")
    assert epsilon_at(found.guarantee, 0.0) == pytest.approx(1e6)
