"""Releases of made-up labels, and models of them that were never trained."""

from __future__ import annotations

from functools import cache

import numpy as np

from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.prior import NoisyPrior, private_prior
from labelveil.feature_party.evaluation.decoded_labels import Scored, decode_labels
from labelveil.feature_party.evaluation.explained import Explained, explained
from labelveil.feature_party.evaluation.spread import ReleasedCodes, Spread, label_spread
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Predictions
from tests.feature_party.worlds import thresholds_channel

ROWS, RELEASES = 2000, 30
GRID = Grid(np.linspace(0, 5, 11))


@cache
def events(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Means that features tell, and labels around them."""
    rng = np.random.default_rng(7)
    means = 0.8 + 3.4 * rng.beta(2, 3, rows)
    return means, np.clip(means + 0.5 * rng.normal(size=rows), 0, 5)


@cache
def released(data: bytes, seed: int) -> NoisyPrior:
    """A histogram, whose smoothing takes longer than all that is tested."""
    entropy, labels = seeded_entropy(seed), np.frombuffer(data)
    places = GRID.round(labels, entropy.words("rounding", 0, labels.size))
    return private_prior(np.bincount(places, minlength=len(GRID)), 0.3, entropy)


def sources(labels: np.ndarray, channel: FiniteChannel, seed: int) -> list[ReleasedCodes]:
    """One release of the labels; every tenth has the same histogram."""
    entropy, histogram = seeded_entropy(seed), released(labels.tobytes(), seed % 10)
    places = GRID.round(labels, entropy.words("rounding", 0, labels.size))
    codes = channel.sample(places, entropy.words("labels", 0, labels.size)).astype(np.int64)
    problem = LabelProblem.from_channel(channel, histogram.probabilities)
    return [ReleasedCodes(problem, histogram, GRID.points, np.arange(labels.size), codes)]


def gaussian(points: np.ndarray, width: float, support: Support) -> np.ndarray:
    """(n, m) normal distributions around predictions."""
    logits = -0.5 * ((support.values - points[:, None]) / width) ** 2
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def evaluate(
    points: np.ndarray,
    labels: np.ndarray,
    epsilon: float,
    seed: int,
    width: float | None = 0.5,
    held_out: np.ndarray | None = None,
    channel: FiniteChannel | None = None,
) -> tuple[Explained, Spread]:
    drawn = sources(labels, channel or thresholds_channel(GRID.points, epsilon), seed)
    support = Support.from_problem(drawn[0].problem)
    beliefs = None if width is None else gaussian(points, width, support)
    held = np.ones(labels.size, dtype=np.bool_) if held_out is None else held_out
    return compared(drawn, support, Scored(Predictions(points, beliefs), held))


def compared(
    drawn: list[ReleasedCodes], support: Support, scored: Scored
) -> tuple[Explained, Spread]:
    spread = label_spread(drawn)
    decoded = decode_labels(drawn, support, scored, spread.centre)
    return explained(drawn, support, scored, spread, decoded), spread


def share_explained(points: np.ndarray, labels: np.ndarray) -> float:
    return 1 - float(np.mean((points - labels) ** 2) / labels.var())
