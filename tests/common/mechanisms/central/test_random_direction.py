"""Gradients as random directions: privacy in integers, no bias, and a classifier that learns."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.guarantees import Adjacency, PureDP
from labelveil.common.mechanisms.central.dp_sgd import DPSGDClassifier
from labelveil.common.mechanisms.central.gradient_steps import GradientSteps, RandomDirections
from tests.common.mechanisms.central.test_minimiser import uniforms
from tests.effort import one_in


# of half of these the largest threshold lies above it once a float
@pytest.mark.parametrize("epsilon", [Fraction(n, 16) for n in range(1, 17)] + [Fraction(30)])
def test_either_answer_has_chances_within_the_ratio_whatever_the_gradient(
    epsilon: Fraction,
) -> None:
    made = RandomDirections(epsilon, 3, seeded_entropy(1))
    most, ratio = (1 << 64) - made.least, exp_lower_bound(epsilon)
    assert Fraction(most, made.least) <= ratio < Fraction(most + 1, made.least - 1)
    strange = [0.0, 1.0, -1.0, 1e-200, 1e200, -1e308, math.inf, math.nan, 0.6]
    gradients = np.array([[a, b, 0.3] for a in strange for b in strange])
    directions = np.tile([1.0, 0.0, 0.0], (len(gradients), 1))
    found = [int(one) for one in made.thresholds(gradients, directions)]
    assert made.least <= min(found) < made.least + 2048  # a float's step at 2⁶³
    assert most - 2048 < max(found) <= most
    assert found[strange.index(math.nan) * len(strange)] == 1 << 63


def test_what_has_no_norm_is_on_neither_side() -> None:
    made = RandomDirections(Fraction(2), 2, seeded_entropy(1))
    strange = [[1e200, 0.3], [-1e308, 1.0], [math.inf, 1.0], [0.2, -math.inf], [math.nan, 0.1]]
    gradients = np.array([*strange, [1e150, 0.0], [0.0, 0.0]])  # the last two have one
    for direction, side in (([1.0, 0.0], 1), ([-0.6, 0.8], -1)):
        found = made.thresholds(gradients, np.tile(direction, (len(gradients), 1)))
        *neither, long, short = (int(one) - (1 << 63) for one in found)
        assert neither == [0] * len(strange)
        assert abs(long - side * ((1 << 63) - made.least)) < 2048
        assert short == 0


def _bias(reports: Floats, gradient: Floats) -> Floats:
    return np.asarray(
        (reports.mean(axis=0) - gradient) / (reports.std(axis=0) / math.sqrt(len(reports)))
    )


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("size", one_in(3, [1, 2, 7], first=1))
@pytest.mark.parametrize("norm", one_in(3, [0.0, 0.4, 1.0], first=2))
def test_reports_are_of_one_length_and_unbiased(size: int, norm: float) -> None:
    gradient = norm * np.arange(1, size + 1) / np.linalg.norm(np.arange(1, size + 1))
    made = RandomDirections(Fraction(3, 2), size, seeded_entropy(2))
    reports = np.array([made.sum(gradient[None]) for _ in range(20_000)])
    assert np.allclose(np.linalg.norm(reports, axis=1), made.length)
    assert np.abs(_bias(reports, gradient)).max() < 6
    if norm == 1.0:  # a twin that forgets that answers may be lies
        assert np.abs(_bias(reports * (1 - 2 * made.least / 2**64), gradient)).max() > 6
        if size > 1:
            assert np.mean(reports @ gradient < 0) > 0.1  # the wrong way, now and then


def test_a_sum_is_that_of_its_records() -> None:
    gradients = uniforms(3, 50, 4)
    whole = RandomDirections(Fraction(1), 4, seeded_entropy(3)).sum(gradients)
    one = RandomDirections(Fraction(1), 4, seeded_entropy(3))
    assert np.allclose(whole, sum(one.sum(row[None]) for row in gradients))


def test_the_guarantee_is_that_of_a_replaced_record_in_samples() -> None:
    steps = GradientSteps(100, 100, 1, "direction", "fixed", Fraction(1, 2))
    assert steps.step == PureDP.of(2, Adjacency.REPLACE_RECORD)
    with pytest.raises(ConfigError, match="sampling='fixed'"):
        GradientSteps(100, 10, 1, "direction")


def test_a_classifier_learns_from_them() -> None:
    x = uniforms(4, 4000, 3)
    y = x[:, 0] > 0
    model = DPSGDClassifier(
        3.0, 0, noise="direction", sampling="fixed", steps=16, bounds=(-1, 1),
        entropy=seeded_entropy(5),
    )  # fmt: skip
    assert model.fit(x, y).score(x, y) > 0.85
    assert model.guarantee_.epsilon <= 3.0
