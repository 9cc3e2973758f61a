"""How a mixture is weighed, and how far it is believed at all."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.feature_party.learning.mixing import (
    Evidence,
    choose_mixture,
    likelihoods,
    null_share,
    prior_adjustment,
    squares,
    stack,
)


def evidence(of: str) -> Evidence:
    rng = np.random.default_rng(5)
    if of == "likelihoods":
        return likelihoods(rng.exponential(1.0, size=(3, 400)))
    truth = rng.normal(size=400)
    predictions = truth + rng.normal(size=(3, 400)) * np.array([[1.0], [2.0], [0.7]])
    before = np.array([0.2, 0.5, 0.3])
    return squares(truth + 3 * rng.normal(size=400) - before @ predictions, predictions, before)


@pytest.mark.parametrize("of", ["likelihoods", "squares"])
@pytest.mark.parametrize("rows", [[3.0, 2.0, 1.0], [0.01, 5.0, 5.0], [4.0, 0.0, 1.0]])
def test_no_other_shares_are_better_than_those_found(of: str, rows: list[float]) -> None:
    against, believed = evidence(of), np.array(rows)
    found = stack(against, believed)
    assert found.sum() == pytest.approx(1)
    assert ((found > 0) == (believed > 0)).all()

    def loss(shares: np.ndarray) -> float:
        some = believed > 0
        return against(shares)[0] - float(believed[some] @ np.log(shares[some]))

    others = np.random.default_rng(0).dirichlet(np.ones((believed > 0).sum()), 300)
    for other in others:
        every = found.copy()
        every[believed > 0] = 0.99 * found[believed > 0] + 0.01 * other
        assert loss(every) >= loss(found) - 1e-6


def test_the_losses_are_those_of_a_mixture() -> None:
    losses, shares = np.array([[1.0, 2.0, 0.3], [0.5, 4.0, 0.2]]), np.array([0.3, 0.7])
    against = likelihoods(losses)
    better = against(shares)[0] - against(np.array([1.0, 0.0]))[0]
    mixed = -np.log(shares @ np.exp(-losses)).sum()
    assert better == pytest.approx(mixed - losses[0].sum(), rel=1e-5)
    residual, predictions = np.array([1.0, -1.0, 2.0]), np.array([[1.0, 0.0, 3.0], [0.0, 2.0, 1.0]])
    after = residual - (shares - [1, 0]) @ predictions
    moved = squares(residual, predictions, np.array([1.0, 0.0]))(shares)[0]
    wanted = (after @ after - residual @ residual) / (2 * residual.var())
    assert moved == pytest.approx(wanted)


@pytest.mark.parametrize(("noise", "least", "most"), [(1.0, 0.75, 0.85), (5000.0, 0.0, 0.25)])
def test_squares_find_the_least_true_error_where_labels_tell(
    noise: float, least: float, most: float
) -> None:
    rng = np.random.default_rng(1)
    truth = rng.normal(size=200_000)
    better, worse = truth + rng.normal(size=truth.size), truth + 2 * rng.normal(size=truth.size)
    residual = truth + noise * rng.normal(size=truth.size) - worse
    of_worse = squares(residual, np.stack([worse, better]), np.array([1.0, 0.0]))
    assert least <= stack(of_worse, np.array([9.0, 1.0]))[1] <= most  # independent: 4 / (4 + 1)


def weighed(plain: np.ndarray, labels: float, flexible: np.ndarray | None = None) -> np.ndarray:
    none = np.zeros((0, plain.shape[1])) if flexible is None else flexible
    return choose_mixture(plain, none, labels)


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
    assert weighed(plain, 1e4, slightly)[-1] == 0
    assert weighed(plain, 1e4, clearly)[-1] > 0.5


def test_the_first_head_is_trusted_most_where_labels_cannot_tell() -> None:
    same = np.ones((3, 200))
    np.testing.assert_allclose(weighed(same, 1e5), [1 / 3] * 3)
    np.testing.assert_allclose(weighed(same, 250.0), [0.8, 0.1, 0.1])
    np.testing.assert_allclose(weighed(same, np.inf), [1 / 3] * 3)
    np.testing.assert_allclose(weighed(same[:1], 1e5), [1.0])
    worse = np.ones((3, 2000)) + np.array([[0.5], [0.0], [0.5]])
    np.testing.assert_allclose(weighed(worse, 250.0), [0, 1, 0], atol=0.05)


def test_few_nats_do_not_move_what_is_believed() -> None:
    rng = np.random.default_rng(5)
    first = 0.3 + 0.1 * rng.normal(size=1000)
    noise = 0.05 * rng.normal(size=1000)
    noise -= noise.mean()

    def share(nats: float) -> float:
        losses = np.stack([first, first - nats / 1000 + noise])
        return float(weighed(losses, 40.0)[0])

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
    weights = weighed(np.stack([near, far, best]), 400.0)
    assert weights[1] < 0.001
    # unless it adds to the others: it is right where they are wrong
    half = np.arange(5000) < 2000
    other = best + np.where(half, -1.0, 1.0)
    weights = weighed(np.stack([best, other]), 400.0)
    assert weights[1] > 0.1
