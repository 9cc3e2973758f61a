"""Losses: derivatives by differences, the constants that privacy relies on, ridge's disguise."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.common.errors import PrivacyError
from labelveil.common.mechanisms.central.risk import (
    Huber,
    HuberHinge,
    Logistic,
    Loss,
    Risk,
    minimise,
    ridge_loss,
)

LOSSES: list[Loss] = [Logistic(), HuberHinge(), HuberHinge(0.1), Huber(0.3), ridge_loss(0.01)]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("label", [-1.0, 1.0])
def test_derivatives_and_their_bounds(loss: Loss, label: float) -> None:
    z = np.linspace(-4, 4, 8001)
    y = np.full_like(z, label)
    step = 1e-6
    rise = (loss.value(z + step, y) - loss.value(z - step, y)) / (2 * step)
    assert np.allclose(rise, loss.slope(z, y), atol=1e-5)
    bend = (loss.slope(z + step, y) - loss.slope(z - step, y)) / (2 * step)
    smooth = np.abs(bend - loss.curvature(z, y)) < 1e-5
    assert smooth.mean() > 0.999  # but for the points where it jumps
    assert np.abs(loss.slope(z, y)).max() <= loss.lipschitz
    assert loss.curvature(z, y).max() <= loss.smoothness + 1e-15
    far = np.linspace(-60, 60, 20001)
    labels = np.full_like(far, label)
    # both constants are reached, so that smaller ones would be wrong
    assert np.abs(loss.slope(far, labels)).max() > 0.999 * loss.lipschitz
    assert loss.curvature(far, labels).max() > 0.999 * loss.smoothness


def test_a_loss_of_the_margin_depends_on_it_alone() -> None:
    z = np.linspace(-3, 3, 101)
    for loss in (Logistic(), HuberHinge()):
        assert np.allclose(loss.value(z, -np.ones(101)), loss.value(-z, np.ones(101)))


@pytest.mark.parametrize("ridge", [1e-4, 0.01, 0.5, 3.0])
def test_the_bounded_loss_has_ridges_minimiser(ridge: float) -> None:
    grid = np.linspace(-1, 1, 60)
    rows = np.column_stack([np.cos(7 * grid), np.sin(3 * grid), grid]) / 3**0.5
    labels = np.sign(np.sin(40 * grid))
    exact = np.linalg.solve(rows.T @ rows / 60 + ridge * np.eye(3), rows.T @ labels / 60)
    risk = Risk(ridge_loss(ridge), rows, labels, ridge, np.zeros(3))
    assert minimise(risk, 1e-9) == pytest.approx(exact, abs=1e-7 / ridge)
    # the worst case for the norm of the solution: one direction, labels along it
    s = min(1.0, ridge**0.5)
    worst = Risk(ridge_loss(ridge), np.full((1, 1), s), np.ones(1), ridge, np.zeros(1))
    residual = np.abs(s * minimise(worst, 1e-9) - 1)[0]
    assert residual < ridge_loss(ridge).knee


@pytest.mark.parametrize("bad", [lambda: HuberHinge(0), lambda: Huber(-1), lambda: ridge_loss(0)])
def test_impossible_constants_are_refused(bad: object) -> None:
    with pytest.raises(PrivacyError, match="must"):
        bad()  # type: ignore[operator]
