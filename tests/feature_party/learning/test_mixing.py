"""How a mixture is weighed, and how far it is believed at all."""

from __future__ import annotations

import numpy as np
import pytest

from feature_party.learning.mixing import choose_mixture, doubt, mixture_for_means


def _losses(gain: float, spread: float, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses of a model that gains ``gain`` nats a row on average, and of nothing."""
    noise = spread * np.sin(np.arange(rows) * 12.9898)  # deterministic, mean about 0
    return np.full(rows, 1.0) - gain + noise, np.full(rows, 1.0)


def test_a_model_that_explains_the_labels_is_believed() -> None:
    assert doubt(*_losses(0.02, 0.05, 20_000)) < 1e-9


def test_a_model_that_is_worse_than_nothing_is_not() -> None:
    assert doubt(*_losses(-0.05, 0.05, 5_000)) > 1 - 1e-9


def test_belief_takes_more_than_three_to_one() -> None:
    model, nothing = np.full(100, 1.0), np.full(100, 1.0)
    assert doubt(model, nothing) == pytest.approx(0.75)
    assert doubt(model - np.log(3) / 100, nothing) == pytest.approx(0.5)


def test_extreme_losses_do_not_overflow() -> None:
    assert doubt(np.full(10, 1e5), np.zeros(10)) == 1.0
    assert doubt(np.zeros(1000), np.full(1000, 1e5)) == 0.0


def _events(rows: int, noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True conditional means, their decoded labels and a constant."""
    rng = np.random.default_rng(5)
    truth = rng.normal(size=rows)
    return truth, truth + noise * rng.normal(size=rows), np.zeros(rows)


def test_a_part_whose_means_move_too_far_loses_its_weight() -> None:
    truth, decoded, constant = _events(20_000, noise=5.0)
    means = np.stack([truth, 3 * truth, constant])
    weights = mixture_for_means(decoded, means, np.array([0.5, 0.5]), 0.0)
    assert weights @ [1, 3, 0] == pytest.approx(1.0, abs=0.05)
    assert weights[1] < 0.25


def test_steep_parts_alone_are_brought_to_their_slope_by_the_prior() -> None:
    truth, decoded, constant = _events(50_000, noise=5.0)
    weights = mixture_for_means(decoded, np.stack([2 * truth, constant]), np.ones(1), 0.0)
    assert weights[0] == pytest.approx(0.5, abs=0.03)


def test_a_biased_mean_counts_too() -> None:
    truth, decoded, constant = _events(20_000, noise=5.0)
    means = np.stack([truth + 1.0, truth, constant])
    weights = mixture_for_means(decoded, means, np.array([0.9, 0.1]), 0.0)
    assert weights[1] > 0.8


def test_labels_too_noisy_to_tell_leave_the_weights_of_the_likelihood() -> None:
    truth, decoded, constant = _events(2_000, noise=3_000.0)
    means = np.stack([truth, 3 * truth, constant])
    found = mixture_for_means(decoded, means, np.array([0.3, 0.7]), 0.2)
    np.testing.assert_allclose(found, [0.3 * 0.97 * 0.8, 0.7 * 0.97 * 0.8, 0.224], atol=0.01)


def test_a_doubted_model_is_all_prior_where_labels_do_not_speak_for_it() -> None:
    _, decoded, constant = _events(2_000, noise=3_000.0)
    means = np.stack([np.sin(np.arange(2_000.0)), constant])
    assert mixture_for_means(decoded, means, np.ones(1), 1.0)[-1] > 0.97


def test_the_weights_are_the_optimum_over_the_simplex() -> None:
    truth, decoded, constant = _events(3_000, noise=20.0)
    rng = np.random.default_rng(6)
    means = np.stack([truth + rng.normal(size=truth.size), 2 * truth, constant])
    prior = np.array([0.4, 0.6])
    centre = np.append(0.97 * prior, 0.03)

    def value(w: np.ndarray) -> float:
        error = decoded - w @ means
        return float(error @ error / (2 * decoded.var()) - 3 * centre @ np.log(w))

    found = mixture_for_means(decoded, means, prior, 0.0)
    steps = np.linspace(0.01, 0.98, 98)
    others = [value(np.array([a, b, 1 - a - b])) for a in steps for b in steps if a + b < 1 - 1e-3]
    assert value(found) <= min(others) + 1e-3


def test_flexible_parts_must_prove_themselves() -> None:
    rng = np.random.default_rng(7)
    plain = 1 + 0.1 * rng.normal(size=(2, 4_000))
    slightly, clearly = plain[:1] - 1e-4, plain[:1] - 0.1
    slightly = slightly + 0.1 * rng.normal(size=slightly.shape)
    assert choose_mixture(plain, slightly)[1].sum() == 0
    assert choose_mixture(plain, clearly)[1].sum() > 0.5
