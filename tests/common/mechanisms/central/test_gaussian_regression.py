"""One measurement under label DP: its sensitivity, its noise, and the two theorems behind it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import DataError, PrivacyError
from labelveil.common.guarantees import Adjacency
from labelveil.common.guarantees.gaussian import gaussian_delta
from labelveil.common.mechanisms.central import gaussian_regression as module
from labelveil.common.mechanisms.central.gaussian_regression import (
    LabelProcess,
    Rectifiers,
    best_measurement,
    water_filling,
)
from labelveil.common.mechanisms.central.label_ridge import LabelRidge
from tests.common.mechanisms.central.test_minimiser import uniforms
from tests.effort import EXHAUSTIVE, effort
from tests.statistics import follows, mean_fits


def _data(n: int = 1500) -> tuple[Floats, Floats]:
    """Labels that hang on a product of two features, and a few odd rows."""
    rows = uniforms(2, n, 3)
    labels = np.clip(1.6 * rows[:, 0] * rows[:, 1] + 0.3 * rows[:, 2], -1, 1)
    rows[:3] *= 5
    return np.column_stack([rows, np.ones(n)]), labels


@pytest.mark.parametrize("noise", [0.1, 2.0, 50.0])
def test_no_change_of_a_label_passes_the_sensitivity(noise: float) -> None:
    rows, labels = _data(200)
    measurement = best_measurement(rows, noise)
    vectors, bound, worst = measurement.vectors, float(measurement.sensitivity), 0.0
    for record in range(200):
        changed, other = labels.copy(), labels.copy()
        changed[record], other[record] = 1.0, -1.0
        for neighbour in (labels, other):
            gap = float(np.linalg.norm(vectors.T @ changed - vectors.T @ neighbour))
            assert gap <= bound
            worst = max(worst, gap)
    assert worst > 0.999 * bound  # a smaller bound would be passed


def _overheard(
    rows: Floats, labels: Floats, epsilon: float, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Floats, Floats, float]]:
    """(vectors, noisy statistic, stated variance) of many fits at δ = 1e-6."""
    seen = []

    def overhear(
        vectors: Floats, wide: Floats, noisy: Floats, variance: float, plain: int, *_: Any
    ) -> Floats:
        assert np.array_equal(wide[:, :plain], rows[:, :-1])  # features alone, and all of them
        seen.append((vectors, noisy, variance))
        return np.zeros(wide.shape[1])

    monkeypatch.setattr(module, "posterior_mean", overhear)
    process = LabelProcess(epsilon, 1e-6)
    stated = process.guarantee
    assert 0.98 * epsilon < stated.epsilon <= epsilon
    assert (stated.delta, stated.adjacency) == (1e-6, Adjacency.REPLACE_LABEL)
    for seed in range(seeds):
        process.draw(rows, labels, seeded_entropy(seed))
    return seen


@pytest.mark.slow
@pytest.mark.statistical
def test_the_noise_has_its_law(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = _data(300)
    seen = _overheard(rows, labels, 8.0, effort(25, 60), monkeypatch)
    noise = np.concatenate([noisy - vectors.T @ labels for vectors, noisy, _ in seen])
    scaled = noise / math.sqrt(seen[0][2])
    assert noise.size > 200
    assert follows(scaled, stats.norm.cdf)

    def scale_fits(sample: Floats) -> bool:
        return mean_fits(sample**2, 1, math.sqrt(2))

    assert scale_fits(scaled)
    far = 1.3 if EXHAUSTIVE else 1.6
    for wrong in (far, 1 / far):
        assert not scale_fits(wrong * scaled)


def test_the_farthest_neighbours_are_within_epsilon_and_delta(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """δ(ε) of the noise that is added, by its exact formula, between the worst two labels."""
    rows, labels = _data(60)
    [(vectors, _, variance)] = _overheard(rows, labels, 0.7, 1, monkeypatch)
    gap = 2 * float(np.max(np.linalg.norm(vectors, axis=1)))
    assert gaussian_delta(math.sqrt(variance), 0.7, gap) <= 1e-6
    assert gaussian_delta(math.sqrt(variance) * 0.8, 0.7, gap) > 1e-6  # a twin: a fifth less


def test_what_is_measured_never_depends_on_a_label() -> None:
    rows, labels = _data(100)
    fits = [LabelProcess(1.0, 1e-6).draw(rows, y, seeded_entropy(1)) for y in (labels, -labels)]
    assert np.array_equal(fits[0].measurement.vectors, fits[1].measurement.vectors)
    assert not np.array_equal(fits[0].weights, fits[1].weights)


def test_one_measurement_tells_what_all_steps_tell_and_costs_no_more() -> None:
    """The theorem on steps: equal posterior means from any outcome, ρ at most the steps' sum."""
    n, steps = 12, 5
    queries = [uniforms(seed, 3, n) * (1 + seed) for seed in range(steps)]
    deviations = 0.5 + np.arange(steps)
    information = sum(a.T @ a / s**2 for a, s in zip(queries, deviations, strict=True))
    values, basis = np.linalg.eigh(np.asarray(information))
    one = (np.sqrt(np.maximum(values, 0.0)) * basis).T
    costs = [
        2 * np.max(np.sum(a * a, axis=0)) / s**2 for a, s in zip(queries, deviations, strict=True)
    ]
    assert 2 * np.max(np.sum(one * one, axis=0)) < 0.9 * sum(costs)

    # z of the one release that has the steps' sufficient statistic
    released = [uniforms(40 + step, 3) for step in range(steps)]
    statistic = np.sum(
        [a.T @ z / s**2 for a, z, s in zip(queries, released, deviations, strict=True)], axis=0
    )
    equal = np.linalg.lstsq(one.T, statistic)[0]
    assert np.allclose(one.T @ equal, statistic)
    prior = np.eye(n) + 0.5

    def posterior(measured: Floats, outcome: Floats, noise: Floats) -> Floats:
        covariance = measured @ prior @ measured.T + np.diag(noise)
        return np.asarray(prior @ measured.T @ np.linalg.solve(covariance, outcome))

    from_steps = posterior(
        np.vstack(queries), np.concatenate(released), np.repeat(deviations**2, 3)
    )
    assert np.allclose(from_steps, posterior(one, equal, np.ones(n)))


def _left(b: Floats, variances: Floats, noise: float, residual: float) -> float:
    v = residual + noise**2 / np.maximum(b, 1e-300)
    return float(np.sum(variances * v / (variances + v)))


@pytest.mark.parametrize("noise", [0.5, 5.0, 100.0])
def test_no_other_share_of_the_noise_leaves_less_error(noise: float) -> None:
    """The problem is convex: no better point in many directions means no better point."""
    variances, residual, total = 1000 * np.geomspace(1, 1e-4, 30), 0.05, 2000.0
    best = water_filling(variances, noise, residual, total)
    assert best.sum() == pytest.approx(total, rel=1e-9)
    assert np.all(best >= 0)
    least = _left(best, variances, noise, residual)
    for seed in range(200):
        other = -(np.log(np.abs(uniforms(seed, 30))) ** (1 + seed % 4))
        other *= total / other.sum()
        for part in (1e-3, 0.1, 1.0):
            moved = best + part * (other - best)
            assert _left(moved, variances, noise, residual) >= least * (1 - 1e-12)
    if noise > 1:
        assert best[-1] == 0  # a direction that is not worth its noise
        assert _left(np.full(30, total / 30), variances, noise, residual) > 1.02 * least


@pytest.mark.slow
def test_it_learns_what_no_line_shows() -> None:
    rows, labels = _data()
    fits = [LabelProcess(2.0, 1e-6).draw(rows, labels, seeded_entropy(seed)) for seed in range(3)]
    lines = [LabelRidge(2.0).draw(rows, labels, seeded_entropy(seed)) for seed in range(3)]
    mine = np.mean([(fit.predict(rows) - labels) ** 2 for fit in fits])
    line = np.mean([(rows @ fit.weights - labels) ** 2 for fit in lines])
    assert mine < 0.75 * line
    exact = LabelProcess(1e4, 1e-6).draw(rows, labels, seeded_entropy(1)).predict(rows)
    assert np.mean((exact - labels) ** 2) < 0.1 * line


def test_pure_noise_is_shrunk_away() -> None:
    rows, labels = _data(300)
    found = LabelProcess(1e-3, 1e-6).draw(rows, labels, seeded_entropy(1))
    assert np.mean((found.predict(rows) - labels) ** 2) < 2 * np.mean(labels**2)


def test_rectifiers_are_public_and_small() -> None:
    rows, _ = _data(100)
    first, second = Rectifiers.draw(rows), Rectifiers.draw(rows)
    assert np.array_equal(first.extend(rows[:5]), second.extend(rows[:5]))
    rectified = first.extend(rows)[:, rows.shape[1] - 1 : -1]
    size = np.mean(np.sum(rectified**2, axis=1)) / np.mean(np.sum(rows**2, axis=1))
    assert size == pytest.approx(0.3**2)
    ones: Any = np.ones((10, 1))
    assert np.all(Rectifiers.draw(ones).extend(ones)[:, :-1] == 0)


def test_impossible_input_is_refused() -> None:
    rows, labels = _data(10)
    with pytest.raises(PrivacyError, match=r"delta=0 .*--delta"):
        LabelProcess(1.0, 0.0)
    with pytest.raises(PrivacyError, match="epsilon=0"):
        LabelProcess(0.0, 1e-6)
    with pytest.raises(PrivacyError, match="delta=1"):
        LabelProcess(1.0, 1.0)
    with pytest.raises(DataError, match="one label a row"):
        LabelProcess(1.0, 1e-6).draw(rows, labels[1:], seeded_entropy(0))
    with pytest.raises(DataError, match="features are 0"):
        LabelProcess(1.0, 1e-6).draw(0 * rows, labels, seeded_entropy(0))
