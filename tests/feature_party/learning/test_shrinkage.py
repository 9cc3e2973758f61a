"""How far predictions are shrunk towards the released prior."""

from __future__ import annotations

import numpy as np
import pytest

from feature_party.learning.mixing import shrinkage


def _losses(gain: float, spread: float, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses of a model that gains ``gain`` nats a row on average, and of nothing."""
    noise = spread * np.sin(np.arange(rows) * 12.9898)  # deterministic, mean about 0
    return np.full(rows, 1.0) - gain + noise, np.full(rows, 1.0)


def test_a_model_that_explains_the_labels_is_left_alone() -> None:
    assert shrinkage(*_losses(0.02, 0.05, 20_000)) < 0.05


def test_a_model_that_is_worse_than_nothing_is_shrunk_to_the_prior() -> None:
    assert shrinkage(*_losses(-0.05, 0.05, 5_000)) > 0.95


def test_few_labels_that_say_nothing_do_not_make_a_model_believed() -> None:
    model, nothing = _losses(0.0, 0.02, 500)
    assert shrinkage(model, nothing) > 0.7


def test_an_overconfident_model_is_shrunk_to_the_mixture_that_explains_best() -> None:
    # hopeless on one row in four, a nat better on the others: L'(s) = 0 where
    # 1 / (4 s) = 3 (e - 1) / 4 / (1 + (e - 1)(1 - s))
    model = np.where(np.arange(40_000) % 4 == 0, 50.0, 0.0)
    best = np.e / (4 * (np.e - 1))
    assert shrinkage(model, np.full(40_000, 1.0)) == pytest.approx(best, abs=0.01)


def test_extreme_losses_do_not_overflow() -> None:
    assert shrinkage(np.full(10, 1e5), np.zeros(10)) == pytest.approx(1.0)
    assert shrinkage(np.zeros(1000), np.full(1000, 1e5)) == 0.0
