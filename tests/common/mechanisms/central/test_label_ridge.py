"""Ridge under label DP: sensitivity by search, the law of the noise, what the shape is worth."""

from __future__ import annotations

import contextlib
import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import DataError, PrivacyError
from labelveil.common.guarantees import Adjacency, PureDP
from labelveil.common.mechanisms.central import label_ridge as module
from labelveil.common.mechanisms.central import label_statistics as statistics
from labelveil.common.mechanisms.central.label_ridge import LabelRidge, design_measurement
from labelveil.common.mechanisms.central.label_statistics import Measurement, gaussian_release
from tests.common.mechanisms.central.test_minimiser import uniforms
from tests.effort import EXHAUSTIVE, effort
from tests.statistics import follows


def _data(n: int = 2000) -> tuple[Floats, Floats]:
    """Features of very different spread, a few odd rows, and labels that need the small ones."""
    rows = uniforms(2, n, 5) * np.array([1, 0.6, 0.3, 0.1, 0.05])
    rows[:5] *= 10
    rows = np.column_stack([rows, np.ones(n)])
    truth = rows @ np.array([0.3, -0.3, 0.8, 2.0, 5.0, 0.1])
    return rows, np.clip(truth + 0.2 * uniforms(3, n), -1, 1)


def _measured(design: Measurement, labels: Floats) -> Floats:
    return design.vectors.T @ labels


@pytest.mark.parametrize("noise", [0.1, 10.0, 1000.0])
def test_no_change_of_a_label_passes_the_sensitivity(noise: float) -> None:
    rows, labels = _data(300)
    design = design_measurement(rows, noise)
    base, worst = _measured(design, labels), 0.0
    for record in range(300):
        for label in (-1.0, 1.0):
            changed, other = labels.copy(), labels.copy()
            changed[record], other[record] = label, -label
            assert np.linalg.norm(_measured(design, changed) - base) <= design.sensitivity
            gap = np.linalg.norm(_measured(design, changed) - _measured(design, other))
            worst = max(worst, float(gap))
    assert worst <= design.sensitivity
    assert worst > 0.999 * float(design.sensitivity)  # a smaller bound would be passed


@pytest.mark.slow
@pytest.mark.statistical
def test_radial_noise_has_its_law(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = _data(50)
    seen: list[tuple[Floats, float]] = []

    def overhear(vectors: Floats, rows: Floats, noisy: Floats, variance: float, *_: Any) -> Floats:
        seen.append((noisy - vectors.T @ labels, variance))
        return np.zeros(6)

    monkeypatch.setattr(module, "posterior_mean", overhear)
    ridge = LabelRidge(0.7)
    assert ridge.guarantee == PureDP.of(0.7, Adjacency.REPLACE_LABEL)
    fits = [ridge.draw(rows, labels, seeded_entropy(seed)) for seed in range(effort(100, 300))]
    noise = np.array([entry[0] for entry in seen])
    assert np.mean(noise**2) == pytest.approx(seen[0][1], rel=0.35)
    scale = float(fits[0].design.sensitivity / Fraction(0.7))
    sample, law = np.linalg.norm(noise, axis=1), stats.gamma(6, scale=scale)
    assert follows(sample, law.cdf)
    far = 1.5 if EXHAUSTIVE else 2
    for wrong in (far, 1 / far):
        assert not follows(wrong * sample, law.cdf)


def test_gaussian_noise_is_made_for_the_rounded_statistic() -> None:
    statistic = np.zeros(3)
    noisy, variance, guarantee = gaussian_release(
        statistic, Fraction(2), Fraction(1, 8), seeded_entropy(1)
    )
    assert noisy.shape == (3,)
    assert guarantee.exact_rho <= Fraction(1, 8)
    # σ² = Δ²/(2ρ) = 16, a little more for rounding
    assert 16 < variance < 16.3


def test_a_coarser_grid_holds_the_noise_of_a_tiny_budget() -> None:
    rho = Fraction(1, 10**7)
    zeros, entropy = np.zeros(3), seeded_entropy(1)
    _, variance, guarantee = gaussian_release(zeros, Fraction(2), rho, entropy)
    assert guarantee.exact_rho <= rho
    assert 1 <= variance / (4 / (2 * 1e-7)) < 1.5
    with pytest.raises(PrivacyError, match="raise epsilon"):
        gaussian_release(np.zeros(90), Fraction(2), rho / 20, entropy)
    # of one step the sensitivity is 4 with rounding, and the sampler takes deviations below 2^16
    for steps, taken in ((6, True), (Fraction(599, 100), False)):
        least = (steps / Fraction(1 << 16)) ** 2 / 2
        with contextlib.nullcontext() if taken else pytest.raises(PrivacyError, match="too small"):
            assert gaussian_release(zeros, Fraction(2), least, entropy)[2].exact_rho <= least


def test_the_shape_and_the_quantile_beat_plain_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = _data()

    def error() -> float:
        fits = [LabelRidge(0.5).draw(rows, labels, seeded_entropy(seed)) for seed in range(8)]
        return float(np.mean([np.mean((rows @ fit.weights - labels) ** 2) for fit in fits]))

    shaped = error()
    monkeypatch.setattr(module, "SHAPES", (0.0,))
    monkeypatch.setattr(module, "QUANTILES", (1.0,))
    plain = error()
    assert shaped < 0.5 * plain
    assert shaped < 0.5 * np.var(labels)


def test_no_noise_leaves_least_squares() -> None:
    rows, labels = _data()
    rows = rows[5:]
    labels = labels[5:]
    exact = np.linalg.lstsq(rows, labels)[0]
    found = LabelRidge(1e5).draw(rows, labels, seeded_entropy(1))
    least = np.mean((rows @ exact - labels) ** 2)
    assert np.mean((rows @ found.weights - labels) ** 2) < 1.05 * least


def test_pure_noise_is_shrunk_away() -> None:
    rows, labels = _data()
    found = LabelRidge(1e-4).draw(rows, labels, seeded_entropy(1))
    assert np.mean((rows @ found.weights - labels) ** 2) < 2 * np.mean(labels**2)


@pytest.mark.parametrize("strength", [0.0, 3.0])
def test_the_prior_is_the_likeliest_and_the_mean_is_its(strength: float) -> None:
    """Against every covariance written out: features, two more kinds of them, and a constant."""
    rows = uniforms(8, 40, 5) * np.array([0.5, 0.5, 2.0, 3.0, 0.0]) + np.array([0, 0, 0, 0, 1.0])
    vectors, noisy = uniforms(9, 40, 4), strength * uniforms(10, 4) + 0.1
    found = statistics.posterior_mean(vectors, rows, noisy, 0.3, 2, (0.1, 2.0))
    moments, best = vectors.T @ rows, (-math.inf, np.zeros(5))
    sizes = [float(np.mean(np.sum(rows[:, part] ** 2, axis=1))) for part in ([0, 1], [2, 3])]
    for residual, signal, ratio in product(statistics._RESIDUALS, statistics._SIGNALS, (0.1, 2.0)):
        first, second = signal / sizes[0], signal * ratio / sizes[1]
        prior = np.array([first, first, second, second, statistics._PRIOR_OF_CONSTANT])
        noise = 0.3 * np.eye(4) + residual * vectors.T @ vectors
        covariance = noise + (moments * prior) @ moments.T
        likelihood = float(stats.multivariate_normal(np.zeros(4), covariance).logpdf(noisy))
        if likelihood > best[0]:
            best = likelihood, prior * (moments.T @ np.linalg.solve(covariance, noisy))
    assert found == pytest.approx(best[1], rel=1e-6)


def test_rows_of_no_length_are_limited_to_nothing() -> None:
    lengths = np.array([0.0, 0.0, 1.0, 4.0])
    kept = [(top, weights.tolist()) for _, top, weights in statistics.limited(lengths, (0, 0.5, 1))]
    assert kept == [(0.5, [1, 1, 0.5, 0.125]), (4.0, [1, 1, 1, 1])]


def test_the_choice_never_sees_a_label() -> None:
    rows, labels = _data(100)
    designs = [
        LabelRidge(1.0).draw(rows, y, seeded_entropy(1)).design
        for y in (labels, -labels, 0 * labels)
    ]
    for design in designs[1:]:
        assert np.array_equal(design.vectors, designs[0].vectors)
        assert design.sensitivity == designs[0].sensitivity


def test_directions_without_variation_are_left_out() -> None:
    rows, labels = _data()
    doubled = np.column_stack([rows[:, 0], rows])  # a copied feature
    assert design_measurement(doubled, 1.0).vectors.shape[1] == 6
    found = LabelRidge(100.0).draw(doubled, labels, seeded_entropy(1))
    assert np.mean((doubled @ found.weights - labels) ** 2) < 0.5 * np.var(labels)


def test_impossible_requests_are_refused() -> None:
    rows, labels = _data(10)
    for epsilon in (0.0, math.inf):
        with pytest.raises(PrivacyError, match=f"epsilon={epsilon:g}"):
            LabelRidge(epsilon)
    with pytest.raises(DataError, match="one label a row"):
        LabelRidge(1.0).draw(rows, labels[1:], seeded_entropy(0))
    with pytest.raises(DataError, match="features are 0"):
        LabelRidge(1.0).draw(0 * rows, labels, seeded_entropy(0))


def test_the_noise_is_for_the_farthest_two_labels_of_any_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of scale ``max_i 2 ‖v_i‖ / ε`` on the sum of ``v_i y_i``, labels beyond -1 … 1 clipped."""
    asked: list[tuple[Any, Fraction]] = []

    def still(centre: Any, scale: Fraction, exponent: int, source: object) -> Any:
        asked.append((centre, scale))
        return np.rint(np.ldexp(centre, -exponent)).astype(np.int64)

    monkeypatch.setattr(module, "radial_laplace", still)
    rng = np.random.default_rng(4)
    rows = np.column_stack([rng.normal(size=(50, 3)), np.ones(50)])
    labels = rng.normal(size=50) * 2
    design = LabelRidge(0.5).draw(rows, labels, seeded_entropy(1)).design
    ((centre, scale),) = asked
    assert centre == pytest.approx(design.vectors.T @ np.clip(labels, -1, 1))
    farthest = 2 * float(np.linalg.norm(design.vectors, axis=1).max())
    assert farthest / 0.5 <= float(scale) <= farthest / 0.5 * (1 + 1e-6)
