"""How a mixture is weighed, and how far it is believed at all."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.feature_party.learning.mixing import choose_mixture, null_share, prior_adjustment


def _losses(gain: float, spread: float, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses of a model that gains ``gain`` nats a row on average, and of nothing."""
    noise = spread * np.sin(np.arange(rows) * 12.9898)  # deterministic, mean about 0
    return np.full(rows, 1.0) - gain + noise, np.full(rows, 1.0)


def test_a_model_that_explains_the_labels_is_believed() -> None:
    assert null_share(*_losses(0.02, 0.05, 20_000), 1e4) == 0.0


def test_a_model_that_is_worse_than_nothing_is_not() -> None:
    assert null_share(*_losses(-0.05, 0.05, 5_000), 1e4) > 1 - 1e-4


def test_belief_starts_from_even_odds() -> None:
    model, nothing = np.full(100, 1.0), np.full(100, 1.0)
    assert null_share(model, nothing, 1e4) == pytest.approx(0.5)
    # nothing and a sure gain of ln 3 nats at odds 1 : 3, and every share a of it at 1 + 2 a, nearly
    shares = np.linspace(0, 1, 51)
    between = np.exp(shares * np.log(3))
    wanted = (1 + (between * (1 - shares)).mean()) / (4 + between.mean())
    found = null_share(model - np.log(3) / 100, nothing, 1e4)
    assert found == pytest.approx(wanted, abs=1e-3)


def test_a_gain_as_large_as_its_error_is_half_believed() -> None:
    """The same gain, of rows that agree and of rows that do not."""
    sure, unsure = (_losses(0.005, spread, 1_000) for spread in (0.01, 0.2))
    assert null_share(*sure, 1e4) < 0.1
    assert 0.15 < null_share(*unsure, 1e4) < null_share(*unsure, 50) < 0.5


def test_extreme_losses_do_not_overflow() -> None:
    assert null_share(np.full(10, 1e5), np.zeros(10), 1e4) > 0.99
    assert null_share(np.zeros(1000), np.full(1000, 1e5), 1e4) == 0.0


def test_flexible_parts_must_prove_themselves() -> None:
    rng = np.random.default_rng(7)
    plain = 1 + 0.1 * rng.normal(size=(2, 4_000))
    slightly, clearly = plain[:1] - 1e-4, plain[:1] - 0.1
    slightly = slightly + 0.1 * rng.normal(size=slightly.shape)
    assert choose_mixture(plain, slightly, 1e4)[1].sum() == 0
    assert choose_mixture(plain, clearly, 1e4)[1].sum() > 0.5


def test_the_first_head_is_trusted_most_where_labels_cannot_tell() -> None:
    same, none = np.ones((3, 200)), np.zeros((0, 200))
    np.testing.assert_allclose(choose_mixture(same, none, 1e5)[0], [1 / 3] * 3)
    np.testing.assert_allclose(choose_mixture(same, none, 250.0)[0], [0.8, 0.1, 0.1])
    np.testing.assert_allclose(choose_mixture(same, none, np.inf)[0], [1 / 3] * 3)
    np.testing.assert_allclose(choose_mixture(same[:1], none, 1e5)[0], [1.0])
    worse = np.ones((3, 2000)) + np.array([[0.5], [0.0], [0.5]])
    np.testing.assert_allclose(choose_mixture(worse, none, 250.0)[0], [0, 1, 0], atol=0.05)


def test_few_nats_do_not_move_what_is_believed() -> None:
    rng = np.random.default_rng(5)
    first = 0.3 + 0.1 * rng.normal(size=1000)
    noise = 0.05 * rng.normal(size=1000)
    noise -= noise.mean()

    def share(nats: float) -> float:
        losses = np.stack([first, first - nats / 1000 + noise])
        return float(choose_mixture(losses, np.zeros((0, 1000)), 40.0)[0][0])

    assert share(3.0) > 0.9  # what the best of several gains by chance
    assert share(400.0) < 0.1


def test_the_fewer_the_labels_the_nearer_is_the_average_to_the_prior() -> None:
    rng = np.random.default_rng(3)
    predicted = rng.dirichlet(np.full(8, 30.0), size=500)
    prior = rng.dirichlet(np.full(8, 20.0))
    before = predicted.mean(axis=0)

    def average(weights: np.ndarray) -> np.ndarray:
        adjusted = predicted * weights
        return np.asarray((adjusted / adjusted.sum(axis=1, keepdims=True)).mean(axis=0))

    apart = np.abs(np.log(before / prior)).max()
    assert apart > 0.2
    nothing, some, plenty = (prior_adjustment(before, prior, w) for w in (0.0, 1e3, 1e9))
    assert np.abs(np.log(average(nothing) / prior)).max() < 0.05 * apart
    np.testing.assert_allclose(average(some), np.sqrt(before * prior), rtol=0.05)
    np.testing.assert_allclose(average(plenty), before, rtol=1e-5)


def test_a_cell_that_is_never_predicted_stays_finite() -> None:
    factors = prior_adjustment(np.array([1.0, 0.0]), np.array([0.9, 0.1]), 0.0)
    assert np.isfinite(factors).all()


def test_a_candidate_that_is_clearly_behind_begins_with_next_to_nothing() -> None:
    rng = np.random.default_rng(0)
    best = rng.normal(1.0, 0.1, 5000)
    near, far = best + rng.normal(0, 0.05, 5000), best + 0.02 + rng.normal(0, 0.05, 5000)
    weights, _ = choose_mixture(np.stack([near, far, best]), np.zeros((0, 5000)), 400.0)
    assert weights[1] == 0
    # unless it adds to the others: it is right where they are wrong
    half = np.arange(5000) < 2000
    other = best + np.where(half, -1.0, 1.0)
    weights, _ = choose_mixture(np.stack([best, other]), np.zeros((0, 5000)), 400.0)
    assert weights[1] > 0.1
