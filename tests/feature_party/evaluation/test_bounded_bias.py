"""Assumption-free intervals have room for the worst that labels may have to do with predictions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.special import ndtr

from labelveil.feature_party.evaluation.decoded_labels import DecodedLabels, Scored, decode_labels
from labelveil.feature_party.evaluation.intervals import NORMAL_95, half_width
from labelveil.feature_party.evaluation.spread import ReleasedCodes
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Predictions
from tests.feature_party.evaluation.simulated import (
    GRID,
    events,
    gaussian,
    sources,
)
from tests.feature_party.worlds import thresholds_channel

ROWS, EPSILON = 1000, 0.25


@pytest.mark.parametrize("bias", [0.0, 0.3, 1.0, 4.999, 5.001, 40.0])
def test_half_of_an_interval_with_room_for_a_bias_holds_as_often_as_it_says(bias: float) -> None:
    half = half_width(2.0, 2.0 * bias) / 2.0
    assert ndtr(half - bias) - ndtr(-half - bias) == pytest.approx(0.95, abs=1e-6)
    assert half <= bias + NORMAL_95 + 1e-12
    assert half_width(0.0, bias) == pytest.approx(bias)


def _decoded(points: np.ndarray, release: list[ReleasedCodes]) -> DecodedLabels:
    support, held = Support.from_problem(release[0].problem), np.ones(points.size, np.bool_)
    scored = Scored(Predictions(points, gaussian(points, 0.5, support)), held)
    return decode_labels(release, support, scored, release[0].problem.mean)


def _values(points: np.ndarray, release: list[ReleasedCodes]) -> np.ndarray:
    """(n, d) what every row is decoded to, for each code that it may have."""
    (one,) = release
    sent = [np.full(points.size, code) for code in range(one.problem.outputs.size)]
    found = [_decoded(points, [replace(one, codes=codes)]).bias_bounded for codes in sent]
    return np.stack(found, axis=1)


@dataclass(frozen=True)
class _Worst:
    """Labels dealt to the predictions for which the decoding's bias is worst.

    Attributes
    ----------
    bias, noise
        By how much the mean of slope times decoded label is off, and its standard deviation: exact.
    limit, unsure
        What an evaluation takes for the largest bias, and its standard error.
    """

    bias: float
    noise: float
    limit: float
    unsure: float

    @classmethod
    def of(cls, points: np.ndarray, labels: np.ndarray, sign: int, seed: int) -> _Worst:
        release = sources(labels, thresholds_channel(GRID.points, EPSILON), seed)
        problem, each = release[0].problem, np.arange(points.size)
        slope = 2 * (points - problem.mean)
        values, place = _values(points, release), np.searchsorted(GRID.points, labels)
        biases = slope[:, None] * (values @ problem.channel.T - GRID.points)
        dealt = place[linear_sum_assignment(sign * biases[:, place], maximize=True)[1]]
        told = problem.channel[dealt]
        variances = (told * values**2).sum(axis=1) - (told * values).sum(axis=1) ** 2
        found, reach = _decoded(points, release), float(np.sqrt(np.mean(slope**2)))
        return cls(
            abs(float(biases[each, dealt].mean())),
            float(np.sqrt(slope**2 @ variances)) / points.size,
            reach * found.limit,
            reach * found.unsure,
        )

    def covered(self, half: float) -> float:
        """How often an interval of this half-width holds."""
        return float(ndtr((half - self.bias) / self.noise) - ndtr((-half - self.bias) / self.noise))


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("sign", [1, -1])
def test_the_labels_for_which_the_bias_is_worst_are_covered(sign: int) -> None:
    points, labels = (array[:ROWS] for array in events())
    labels = GRID.points[np.abs(labels[:, None] - GRID.points).argmin(axis=1)]
    found = [_Worst.of(points, labels, sign, seed) for seed in range(4)]
    for one in found:
        assert one.bias < one.limit + 3 * one.unsure
        assert one.bias > 0.8 * one.limit - 3 * one.unsure  # there is no room to spare
    halves = [half_width(float(np.hypot(one.noise, one.unsure)), one.limit) for one in found]
    assert np.mean([one.covered(half) for one, half in zip(found, halves, strict=True)]) >= 0.95
    # without room for the bias they are not
    assert np.mean([one.covered(NORMAL_95 * one.noise) for one in found]) < 0.93


def test_a_little_bias_makes_the_interval_shorter() -> None:
    points, labels = events()
    release = sources(labels, thresholds_channel(GRID.points, EPSILON), 1)
    found, slope = _decoded(points, release), 2 * (points - release[0].problem.mean)
    without, noise = (
        float(np.std(slope * one)) / np.sqrt(points.size)
        for one in (found.unbiased, found.bias_bounded)
    )
    bias = float(np.sqrt(np.mean(slope**2))) * found.limit
    assert half_width(noise, bias) < 0.97 * NORMAL_95 * without
