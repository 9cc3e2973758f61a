"""Figures that fit the label: estimated from codes as true labels show them, and known ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.prior import NoisyPrior, private_prior
from labelveil.feature_party.evaluation.decoded_labels import Scored, decode_labels
from labelveil.feature_party.evaluation.fitting import (
    Fitting,
    area_under_curve,
    calibration_error,
    estimate_fitting,
    measure_fitting,
)
from labelveil.feature_party.evaluation.intervals import Measured
from labelveil.feature_party.evaluation.losses import SQUARED, fitting_loss
from labelveil.feature_party.evaluation.spread import ReleasedCodes, label_spread
from labelveil.feature_party.evaluation.unseen import Unseen
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Predictions
from tests.feature_party.worlds import thresholds_channel
from tests.statistics import binomial_range, covers, mean_fits

ROWS = 2000


@dataclass(frozen=True)
class Kind:
    """Labels of some kind around means that a model may know."""

    grid: Grid
    channel: FiniteChannel
    means: np.ndarray
    labels: np.ndarray

    def histogram(self, seed: int) -> NoisyPrior:
        """Every seventh release has the same: smoothing it takes longer than all that is tested."""
        entropy = seeded_entropy(seed)
        places = self.grid.round(self.labels, entropy.words("rounding", 0, self.labels.size))
        return private_prior(np.bincount(places, minlength=len(self.grid)), 0.5, entropy)

    def estimate(self, points: np.ndarray, seed: int) -> tuple[Fitting, LabelProblem]:
        """From one release."""
        entropy, rows = seeded_entropy(seed), self.labels.size
        places = self.grid.round(self.labels, entropy.words("rounding", 0, rows))
        histogram = self.histogram(seed % 7)
        codes = self.channel.sample(places, entropy.words("labels", 0, rows)).astype(np.int64)
        problem = LabelProblem.from_channel(self.channel, histogram.probabilities)
        every = np.arange(rows)
        sources = [ReleasedCodes(problem, histogram, self.grid.points, every, codes)]
        support, scored = (
            Support.from_problem(problem),
            Scored(Predictions(points, None), every >= 0),
        )
        nobody = np.empty((0, 0))
        found = Unseen(pl.DataFrame(), codes, every, scored, [], nobody)
        decoded = decode_labels(sources, support, scored, label_spread(sources).centre)
        fitting = estimate_fitting(problem, sources, support, found, decoded)
        assert fitting is not None
        return fitting, problem


def binary(low: float, high: float) -> Kind:
    rng = np.random.default_rng(3)
    means = rng.beta(1.2, 2.5, ROWS)
    grid = np.array([low, high])
    labels = grid[(rng.random(ROWS) < means).astype(int)]
    channel = FiniteChannel(grid, grid, randomized_response_rows(2, 1.0))
    return Kind(Grid(grid), channel, low + (high - low) * means, labels)


def counts() -> Kind:
    rng = np.random.default_rng(4)
    means = rng.gamma(2.0, 1.0, ROWS)
    grid = np.arange(13.0)
    labels = np.minimum(rng.poisson(means), 12.0)
    return Kind(Grid(grid), thresholds_channel(grid, 2.0), means, labels)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("kind", "runs"),
    [(binary(0, 1), 200), (binary(-2, 3), 200), (counts(), 20)],
    ids=["0/1", "-2/3", "n"],
)
def test_intervals_contain_what_true_labels_show(kind: Kind, runs: int) -> None:
    """The error of the released codes alone is at stake: the labels are the same every time.

    They are as wide as the labels' own chance needs: half of it is too narrow for two hundred runs,
    and not for twenty, where those around figures that are off are rejected.
    """
    found = [kind.estimate(kind.means, seed) for seed in range(runs)]
    problem = found[0][1]
    truth = measure_fitting(problem, kind.means, kind.labels, float(kind.labels.mean()))
    for name in found[0][0].figures:
        several = [fitting.figures[name] for fitting, _ in found]
        true = truth[f"test_{name}"]
        assert covers(true, several), name
        assert not covers(true + max(one.high - one.low for one in several), several)
        assert runs == 20 or not covers(true, several, width=0.5), name
    values = np.array([fitting.figures[next(iter(fitting.figures))].value for fitting, _ in found])
    (loss,) = [name for name in truth if name.startswith("constant_")]
    assert mean_fits(values, truth[loss.replace("constant", "test")])
    assert not mean_fits(values + 3 * values.std(), truth[loss.replace("constant", "test")])
    assert truth[loss.replace("constant", "test")] < truth[loss]
    assert found[0][0].constant == pytest.approx(truth[loss], rel=0.25)


@pytest.mark.slow
@pytest.mark.statistical
def test_probabilities_that_are_off_are_found() -> None:
    kind = binary(0, 1)
    wrong = 0.5 + 0.5 * (kind.means - 0.5)
    for seed in range(5):
        assert kind.estimate(wrong, seed)[0].figures["calibration_error"].low > 0
    lows = [kind.estimate(kind.means, s)[0].figures["calibration_error"].low for s in range(20)]
    assert lows.count(0.0) >= binomial_range(20, 0.95)[0]


def test_known_figures() -> None:
    scores = np.array([0.1, 0.4, 0.35, 0.8])
    assert area_under_curve(scores, np.array([0.0, 0, 1, 1])).value == pytest.approx(0.75)
    assert area_under_curve(np.full(4, 0.3), np.array([0.0, 0, 1, 1])).value == 0.5
    tied = area_under_curve(np.array([0.2, 0.2, 0.2, 0.9]), np.array([0.0, 0, 1, 1]))
    assert tied.value == pytest.approx(0.75)
    for alike in (np.zeros(4), np.ones(4)):
        assert area_under_curve(scores, alike) == Measured(0.5, 0.0, 1.0)
    wrong = area_under_curve(scores, np.array([1.0, 1, 0, 0]))
    assert (wrong.value, wrong.low) == (0.25, 0.0)
    assert calibration_error(scores, scores) == Measured(0.0, 0.0, 0.0)
    rng = np.random.default_rng(0)
    shares = rng.random(40_000)
    labels = (rng.random(shares.size) < np.clip(shares + 0.1, 0, 1)).astype(float)
    assert calibration_error(shares, labels).value == pytest.approx(0.1, abs=0.02)


def test_losses_are_those_of_the_textbooks() -> None:
    points, labels = np.array([0.2, 0.7]), np.array([0.0, 1.0])
    kind = binary(0, 1)
    log_loss = fitting_loss(LabelProblem.from_channel(kind.channel, np.ones(2)))
    assert log_loss is not None
    assert log_loss.losses(points, labels) == pytest.approx(-np.log([0.8, 0.7]))
    # a label that was held for impossible is as far off as can be told
    ends = log_loss.losses(np.array([-1.0, 2.0]), np.array([1.0, 0.0]))
    assert ends == pytest.approx(-np.log([1e-6, 1e-6]))
    deviance = fitting_loss(LabelProblem.from_channel(counts().channel, np.ones(13)))
    assert deviance is not None
    of_two = deviance.losses(np.array([2.0, 2.0]), np.array([0.0, 3.0]))
    assert of_two == pytest.approx([4.0, 2 * (3 * np.log(1.5) - 1)])
    for loss in (SQUARED, log_loss, deviance):
        assert loss.divergence(points, points) == pytest.approx(0)
        assert (loss.divergence(points, points[::-1]) > 0).all()
        offset, slope = loss.gain(points, 0.4)
        gains = loss.losses(np.full(2, 0.4), labels) - loss.losses(points, labels)
        assert offset + slope * labels == pytest.approx(gains)
    halves = LabelProblem.from_channel(thresholds_channel(np.linspace(0, 4, 9), 1.0), np.ones(9))
    assert fitting_loss(halves) is None
    from_one = LabelProblem.from_channel(thresholds_channel(np.arange(1.0, 6), 1.0), np.ones(5))
    assert fitting_loss(from_one) is None
    for problem in (halves, from_one):
        poisson = fitting_loss(replace(problem, loss="poisson"))
        assert poisson is not None
        assert poisson.name == "deviance"
    median = replace(LabelProblem.from_channel(kind.channel, np.ones(2)), loss="absolute")
    assert fitting_loss(median) is None
    assert measure_fitting(median, points, labels, 0.5) == {}


def test_what_fits_two_values_is_measured_on_their_own_axis() -> None:
    kind = binary(-2, 3)
    problem = LabelProblem.from_channel(kind.channel, np.array([0.7, 0.3]))
    shares, ones = np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])
    found = measure_fitting(problem, 5 * shares - 2, 5.0 * ones - 2, -0.5)
    assert found == pytest.approx(
        {
            "test_log_loss": -np.log([0.9, 0.6, 0.35, 0.8]).mean(),
            "constant_log_loss": -np.log([0.7, 0.7, 0.3, 0.3]).mean(),
            "test_auc": 0.75,
            "test_calibration_error": calibration_error(shares, ones).value,
        }
    )
