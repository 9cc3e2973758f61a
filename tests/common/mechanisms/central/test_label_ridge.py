"""Ridge under label DP: sensitivity by search, the law of the noise, what the shape is worth."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from common.arrays import Floats
from common.entropy import seeded_entropy
from common.errors import DataError, PrivacyError
from common.guarantees import Adjacency, ApproximateDP, PureDP
from common.mechanisms.central import label_ridge as module
from common.mechanisms.central.label_ridge import Design, design_measurement, label_ridge
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


def _measured(design: Design, labels: Floats) -> Floats:
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


@pytest.mark.statistical
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_noise_has_its_law(delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = _data(50)
    seen = []

    def overhear(design: Design, rows: Floats, noisy: Floats, variance: float) -> Floats:
        seen.append((noisy - _measured(design, labels), design, variance))
        return np.zeros(6)

    monkeypatch.setattr(module, "_posterior_mean", overhear)
    for seed in range(effort(100, 300)):
        found = label_ridge(rows, labels, 0.7, delta, seeded_entropy(seed))
    noise = np.array([entry[0] for entry in seen])
    _, design, variance = seen[0]
    assert np.mean(noise**2) == pytest.approx(variance, rel=0.35)
    if delta == 0:
        assert found.guarantee == PureDP.of(0.7, Adjacency.REPLACE_LABEL)
        scale = float(design.sensitivity / Fraction(0.7))
        sample, law = np.linalg.norm(noise, axis=1), stats.gamma(6, scale=scale)
    else:
        assert isinstance(found.guarantee, ApproximateDP)
        assert 0.69 < found.guarantee.epsilon <= 0.7
        assert found.guarantee.delta <= 1e-6
        sample, law = noise.ravel(), stats.norm(scale=math.sqrt(variance))
    assert follows(sample, law.cdf)
    far = 1.5 if EXHAUSTIVE else 2
    for wrong in (far, 1 / far):
        assert not follows(wrong * sample, law.cdf)


def test_gaussian_noise_is_made_for_the_rounded_statistic() -> None:
    statistic = np.zeros(3)
    noisy, variance, guarantee = module.gaussian_release(
        statistic, Fraction(2), Fraction(1, 8), seeded_entropy(1)
    )
    assert noisy.shape == (3,)
    assert guarantee.exact_rho <= Fraction(1, 8)
    # σ² = Δ²/(2ρ) = 16, a little more for rounding
    assert 16 < variance < 16.3


def test_a_coarser_grid_holds_the_noise_of_a_tiny_budget() -> None:
    rho = Fraction(1, 10**7)
    zeros, entropy = np.zeros(3), seeded_entropy(1)
    _, variance, guarantee = module.gaussian_release(zeros, Fraction(2), rho, entropy)
    assert guarantee.exact_rho <= rho
    assert 1 <= variance / (4 / (2 * 1e-7)) < 1.5
    with pytest.raises(PrivacyError, match="raise epsilon"):
        module.gaussian_release(np.zeros(90), Fraction(2), rho / 20, entropy)


def test_the_shape_and_the_quantile_beat_plain_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = _data()

    def error() -> float:
        fits = [label_ridge(rows, labels, 0.5, 0.0, seeded_entropy(seed)) for seed in range(8)]
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
    found = label_ridge(rows, labels, 1e5, 0.0, seeded_entropy(1))
    least = np.mean((rows @ exact - labels) ** 2)
    assert np.mean((rows @ found.weights - labels) ** 2) < 1.05 * least


def test_pure_noise_is_shrunk_away() -> None:
    rows, labels = _data()
    found = label_ridge(rows, labels, 1e-4, 0.0, seeded_entropy(1))
    assert np.mean((rows @ found.weights - labels) ** 2) < 2 * np.mean(labels**2)


def test_the_choice_never_sees_a_label() -> None:
    rows, labels = _data(100)
    designs = [
        label_ridge(rows, y, 1.0, 0.0, seeded_entropy(1)).design
        for y in (labels, -labels, 0 * labels)
    ]
    for design in designs[1:]:
        assert np.array_equal(design.vectors, designs[0].vectors)
        assert design.sensitivity == designs[0].sensitivity


def test_directions_without_variation_are_left_out() -> None:
    rows, labels = _data()
    doubled = np.column_stack([rows[:, 0], rows])  # a copied feature
    assert design_measurement(doubled, 1.0).vectors.shape[1] == 6
    found = label_ridge(doubled, labels, 100.0, 0.0, seeded_entropy(1))
    assert np.mean((doubled @ found.weights - labels) ** 2) < 0.5 * np.var(labels)


@pytest.mark.parametrize(
    ("epsilon", "delta", "error", "message"),
    [
        (0.0, 0.0, PrivacyError, "epsilon=0"),
        (math.inf, 0.0, PrivacyError, "epsilon=inf"),
        (1.0, 1.0, PrivacyError, "delta=1"),
    ],
)
def test_impossible_budgets_are_refused(
    epsilon: float, delta: float, error: type[Exception], message: str
) -> None:
    rows, labels = _data(10)
    with pytest.raises(error, match=message):
        label_ridge(rows, labels, epsilon, delta, seeded_entropy(0))
    with pytest.raises(DataError, match="one label a row"):
        label_ridge(rows, labels[1:], 1.0, 0.0, seeded_entropy(0))
    with pytest.raises(DataError, match="features are 0"):
        label_ridge(0 * rows, labels, 1.0, 0.0, seeded_entropy(0))
