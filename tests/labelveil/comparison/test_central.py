"""Baselines of a trusted curator: clipping and noise of DP-SGD, its accounting, comparisons."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from labelveil.commands.cli import main
from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.guarantees import epsilon_at, guarantee_from_json, subsampled_gaussian
from labelveil.common.guarantees.gaussian import gaussian_sigma
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


@pytest.mark.parametrize("label", [-1.0, 1.0])
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


def test_secret_samples_hide_no_more_than_one_pass_over_all_rows() -> None:
    """The noise of all steps, brought to one sum over all rows, against one release's."""
    epsilon, steps = 1.0, PrivateSteps(1 / 16, 200)
    sigma = noise_multiplier(steps, epsilon, 1e-6)
    assert sigma / (steps.rate * steps.steps**0.5) > gaussian_sigma(epsilon, 1e-6)
    assert sigma < gaussian_sigma(epsilon, 1e-6) * steps.steps**0.5  # each step alone has less


def test_impossible_budgets_are_refused() -> None:
    for epsilon, delta in ((0.0, 1e-6), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(PrivacyError, match="must"):
            noise_multiplier(PrivateSteps(0.1, 10), epsilon, delta)


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
