"""Losses, scalings and steps at their limits, with derivatives by finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.errors import ConfigError, DataError, LabelveilError
from labelveil.common.guarantees import Adjacency, ApproximateDP, PureDP
from labelveil.common.mechanisms.central.gradient_steps import GradientSteps
from labelveil.common.mechanisms.central.perturbation import Perturbation, output_sensitivity
from labelveil.common.mechanisms.central.risk import Huber, HuberHinge, Logistic, ridge_loss
from labelveil.common.mechanisms.clipping import (
    LabelScaling,
    checked_labels,
    clip_rows,
    rounded_within,
)

F = Fraction
LOGISTIC = Logistic()
AT: list[tuple[Callable[[], object], Callable[[], object]]] = [
    (lambda: HuberHinge(0.0), lambda: HuberHinge(1e-9)),
    (lambda: HuberHinge(1.01), lambda: HuberHinge(1.0)),
    (lambda: Huber(0.0), lambda: Huber(1e-9)),
    (lambda: ridge_loss(0.0), lambda: ridge_loss(1e-9)),
    (
        lambda: Perturbation("x", LOGISTIC, 0.1, 1.0),
        lambda: Perturbation("output", LOGISTIC, 0.1, 1.0),
    ),
    (
        lambda: Perturbation("output", LOGISTIC, 0.0, 1.0),
        lambda: Perturbation("input", LOGISTIC, 1e-9, 1.0),
    ),
    (
        lambda: Perturbation("output", LOGISTIC, 0.1, 0.0),
        lambda: Perturbation("output", LOGISTIC, 0.1, 1e-9),
    ),
    (
        lambda: Perturbation("output", LOGISTIC, 0.1, 1.0, 1.0),
        lambda: Perturbation("output", LOGISTIC, 0.1, 1.0, 0.9),
    ),
    (
        lambda: Perturbation("output", LOGISTIC, 0.1, 1.0, -0.1),
        lambda: Perturbation("output", LOGISTIC, 0.1, 1.0, 0.0),
    ),
    (lambda: GradientSteps(10, 5, 0), lambda: GradientSteps(10, 5, 1)),
    (
        lambda: GradientSteps(10, 5, 1, scale=F(0)),
        lambda: GradientSteps(10, 5, 1, scale=F(1, 1024)),
    ),
    (
        lambda: GradientSteps(10, 5, 1, scale=F(1, 3)),
        lambda: GradientSteps(10, 5, 1, scale=F(3, 1024)),
    ),
    (lambda: GradientSteps(10, 5, 1, noise="x"), lambda: GradientSteps(10, 5, 1, noise="laplace")),  # type: ignore[arg-type]
    (
        lambda: GradientSteps(10, 5, 1, sampling="x"),
        lambda: GradientSteps(10, 5, 1, sampling="fixed"),
    ),  # type: ignore[arg-type]
    (
        lambda: GradientSteps(10, 5, 1, noise="direction"),
        lambda: GradientSteps(10, 5, 1, noise="direction", sampling="fixed"),
    ),
]


@pytest.mark.parametrize("number", range(len(AT)))
def test_limits_are_where_they_are_said_to_be(number: int) -> None:
    refused, taken = AT[number]
    with pytest.raises((LabelveilError, DataError, ConfigError)):
        refused()
    taken()


@pytest.mark.parametrize(
    "loss", [Logistic(), HuberHinge(), HuberHinge(0.25), Huber(), Huber(0.5), ridge_loss(0.1)]
)
def test_slopes_and_curvatures_are_those_of_the_values(loss: Logistic | HuberHinge | Huber) -> None:
    outputs = np.linspace(-3, 3, 241) + 1e-3
    for label in (-1.0, 1.0):
        labels, h = np.full(outputs.size, label), 1e-5
        values = [loss.value(outputs + step, labels) for step in (-h, 0.0, h)]
        slope, curvature = loss.slope(outputs, labels), loss.curvature(outputs, labels)
        np.testing.assert_allclose(slope, (values[2] - values[0]) / (2 * h), atol=1e-4)
        # but at a kink of the slope
        slopes = [loss.slope(outputs + step, labels) for step in (-1e-6, 1e-6)]
        np.testing.assert_allclose(curvature, (slopes[1] - slopes[0]) / 2e-6, atol=1e-4)
        assert np.abs(slope).max() <= loss.lipschitz + 1e-12
        assert np.abs(slope).max() > 0.9 * loss.lipschitz or loss.lipschitz > 2
        assert curvature.max() == pytest.approx(loss.smoothness, rel=1e-3)
        assert values[1].min() >= 0
    assert loss.margin == (not isinstance(loss, Huber))


def test_a_hinge_is_as_published_around_its_bend() -> None:
    hinge, ones = HuberHinge(0.5), np.ones(5)
    margins = np.array([-1.0, 0.5, 1.0, 1.5, 2.0])
    np.testing.assert_allclose(hinge.value(margins, ones), [2.0, 0.5, 0.125, 0.0, 0.0])
    np.testing.assert_allclose(hinge.value(-margins, -ones), [2.0, 0.5, 0.125, 0.0, 0.0])
    np.testing.assert_allclose(
        Huber(1.0).value(np.array([0.5, 1, 3]), np.zeros(3)), [0.125, 0.5, 2.5]
    )
    for alpha in (0.01, 0.25, 4.0):
        s = np.linspace(0, 1, 100_001)
        assert ridge_loss(alpha).knee == pytest.approx(1 + (s / (s**2 + alpha)).max(), rel=1e-6)


def test_noise_hides_how_far_minimisers_are_apart() -> None:
    # Δ = 2L/(nλ) + 2γ/λ
    assert output_sensitivity(Logistic(), 50, 0.25) == F(2) / 50 / F(1, 4)
    assert output_sensitivity(Huber(0.5), 50, 0.25, 0.125) == F(1) / 50 / F(1, 4) + 1
    pure = Perturbation("output", LOGISTIC, 0.1, 0.5)
    assert pure.guarantee == PureDP.of(0.5, Adjacency.REPLACE_RECORD)
    both = Perturbation("output", LOGISTIC, 0.1, 0.5, 0.25)
    assert both.guarantee == ApproximateDP.of(0.5, 0.25, Adjacency.REPLACE_RECORD)
    assert pure._scale(F(3)) == 6
    assert float(both._scale(F(3))) == pytest.approx(3 * float(both._scale(F(1))), rel=1e-9)


def test_rows_are_shrunk_to_one_and_rounded_inside() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    np.testing.assert_allclose(clip_rows(rows), [[0.6, 0.8], [0.3, 0.4], [0, 0]])
    assert np.linalg.norm(clip_rows(rows), axis=1).max() <= 1
    rng = np.random.default_rng(1)
    for order in (1, 2):
        some = rng.normal(size=(200, 3))
        some /= np.linalg.norm(some, order, axis=1, keepdims=True)
        steps = rounded_within(some, 64, order)
        assert np.linalg.norm(steps, order, axis=1).max() <= 64
        assert np.abs(steps - 64 * some).max() <= 4
    # no step may be as long as rounding 16 numbers makes a vector longer: 2 steps of 1
    assert not rounded_within(np.eye(16), 1).any()
    np.testing.assert_allclose(checked_labels(rows, np.array([-2.0, 0.5, 3.0])), [-1, 0.5, 1])
    for labels in (np.array([1.0, np.nan, 1.0]), np.array([1.0]), np.ones((3, 1))):
        with pytest.raises(DataError):
            checked_labels(rows, labels)
    scaling = LabelScaling(-2.0, 6.0)
    assert math.isclose(scaling.upper - scaling.lower, 8.0)
