"""The minimiser and its certificate."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import optimize

from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.mechanisms.central.risk import (
    Huber,
    HuberHinge,
    Logistic,
    Loss,
    Risk,
    least_tolerance,
    minimise,
)
from labelveil.common.mechanisms.clipping import clip_rows

LOSSES: list[Loss] = [Logistic(), HuberHinge(), HuberHinge(0.01), Huber(0.1)]


def uniforms(seed: int, *shape: int) -> Floats:
    """Numbers in -1 … 1, repeatable."""
    words = seeded_entropy(seed).words("test", 0, int(np.prod(shape)))
    return ((words >> np.uint64(11)) / 2**52 - 1).reshape(shape)


def _risk(loss: Loss, seed: int, n: int, d: int, ridge: float) -> Risk:
    rows = clip_rows(uniforms(seed, n, d))
    linear = 0.1 * uniforms(seed + 1, d)
    return Risk(loss, rows, np.sign(uniforms(seed + 2, n)), ridge, linear)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize(("n", "d", "ridge"), [(1, 1, 1.0), (50, 3, 0.1), (300, 20, 1e-4)])
def test_it_is_the_minimiser(loss: Loss, n: int, d: int, ridge: float) -> None:
    risk = _risk(loss, n, n, d, ridge)
    tolerance = 1e-5 / n + least_tolerance(n, d, loss.lipschitz)
    w = minimise(risk, tolerance)
    assert np.linalg.norm(risk.gradient(w)) <= tolerance
    found = optimize.minimize(risk.value, w, jac=risk.gradient, method="BFGS")
    assert risk.value(w) <= found.fun + 1e-12
    start = optimize.minimize(risk.value, np.zeros(d), jac=risk.gradient, method="L-BFGS-B")
    # strong convexity: the distance is bounded by both gradients
    apart = np.linalg.norm(start.x - w)
    assert apart <= (np.linalg.norm(risk.gradient(start.x)) + tolerance) / ridge


def test_the_certificate_covers_rounding() -> None:
    """The bound against the same gradient in rational arithmetic."""
    for seed in range(20):
        risk = _risk(Huber(0.4), seed, 30, 4, 0.01)
        w = 3 * uniforms(seed + 5, 4)
        pairs = zip(risk.linear, w, strict=True)
        exact = [Fraction(v) + Fraction(risk.ridge) * Fraction(x) for v, x in pairs]
        knee = Fraction(0.4)
        for row, label in zip(risk.rows, risk.labels, strict=True):
            output = sum(Fraction(a) * Fraction(b) for a, b in zip(row, w, strict=True))
            slope = min(max(output - Fraction(label), -knee), knee)
            exact = [g + slope * Fraction(a) / 30 for g, a in zip(exact, row, strict=True)]
        squared = sum(g * g for g in exact)
        assert squared <= Fraction(risk.certain_norm(w, risk.gradient(w))) ** 2
        error = sum((Fraction(a) - g) ** 2 for a, g in zip(risk.gradient(w), exact, strict=True))
        margin = risk.certain_norm(w, np.zeros(4))
        assert 0 < error <= Fraction(margin) ** 2


def test_the_certificate_covers_the_rounding_of_a_norm_of_many_numbers() -> None:
    """A sum of d squares errs by d units in the last place at most (Higham 2002, Section 3.1)."""
    d = 20_000
    risk = _risk(Huber(0.4), 1, 2, d, 0.01)
    gradient = np.full(d, 1e6)  # beside which nothing else counts
    assert risk.certain_norm(np.zeros(d), gradient) >= 1e6 * math.sqrt(d) * (1 + d * 2**-53)


def test_a_tolerance_below_float_precision_is_refused() -> None:
    with pytest.raises(PrivacyError, match="raise alpha"):
        minimise(_risk(Logistic(), 3, 50, 3, 0.1), 1e-18)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_the_search_ends_where_floats_show_nothing_better(
    loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, gradient = [], Risk.gradient

    def counted(risk: Risk, w: Floats) -> Floats:
        looks.append(w)
        return gradient(risk, w)

    monkeypatch.setattr(Risk, "gradient", counted)
    risk = _risk(loss, 1, 60, 3, 1e-4)
    assert np.linalg.norm(gradient(risk, minimise(risk))) < 1e-15
    assert len(looks) < 180  # a step that leads nowhere is halved 40 times
