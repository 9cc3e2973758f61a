"""Intervals over rounds: a model of the first round chose the channels of the second.

The final model predicts every event of the first round without its code, but what was asked of the
second depends on all of them a little. Errors are estimated from the first round's codes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.randomizers.message.terms import LabelTerms
from labelveil.common.randomizers.prior import private_prior
from labelveil.feature_party.evaluation.decoded_labels import Scored
from labelveil.feature_party.evaluation.explained import Explained
from labelveil.feature_party.evaluation.spread import ReleasedCodes
from labelveil.feature_party.learning.decoding import decoder
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.questions import ask
from labelveil.feature_party.learning.several_labels import strata_view
from labelveil.feature_party.learning.several_releases import join_problems
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Predictions
from tests.feature_party.evaluation.simulated import GRID, compared, gaussian
from tests.feature_party.worlds import thresholds_channel

ROWS, FOLDS, WIDTH, EPSILON = 3000, 4, 0.7, 2.0
TERMS = LabelTerms("label", 0, 5)


@dataclass(frozen=True)
class World:
    """Events, of which the first rows make the first round."""

    features: np.ndarray
    labels: np.ndarray
    first: int

    @classmethod
    def draw(cls, seed: int) -> World:
        rng = np.random.default_rng(seed)
        features = np.column_stack([np.ones(ROWS), rng.normal(size=(ROWS, 3))])
        means = features @ [2.3, 0.6, 0.3, 0.0]
        labels = np.clip(means + 0.5 * rng.normal(size=ROWS), 0, 5)
        return cls(features, labels, round(0.3 * ROWS))


def fitted(features: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Coefficients of a ridge regression."""
    gram = features.T @ features + 5 * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ values)


def in_two_rounds(seed: int) -> tuple[Explained, float]:
    """What is said of a model that two rounds trained, and what it really explains."""
    world, entropy = World.draw(seed), seeded_entropy(seed)
    first, rest = slice(0, world.first), slice(world.first, ROWS)
    rows, rng = np.arange(ROWS), np.random.default_rng(seed + 1_000_000)
    held, fold = rng.random(ROWS) < 0.2, rng.integers(FOLDS, size=ROWS)

    places = GRID.round(world.labels[first], entropy.words("rounding", 0, world.first))
    histogram = private_prior(np.bincount(places, minlength=len(GRID)), 0.3, entropy)
    channel = thresholds_channel(GRID.points, EPSILON)
    sent = channel.sample(places, entropy.words("first", 0, world.first)).astype(np.int64)
    alone = LabelProblem.from_channel(channel, histogram.probabilities)
    support = Support.from_problem(alone)

    own = ~held[first]
    decoded = decoder(alone, alone.grid).values[sent, 0]
    asking = fitted(world.features[first][own], decoded[own])
    laws = gaussian(np.clip(world.features[rest] @ asking, 0, 5), WIDTH, support)
    question = ask(alone, support, lambda some: [laws[some]], strata=8)
    plan = question.plan(TERMS, EPSILON)
    message = plan.build(question.released(plan.channels[0].group))
    codes = message.codebooks.randomize(
        world.labels[rest, None], question.strata, seeded_entropy(seed + 2_000_000)
    )
    books, known = message.codebooks, message.released
    asked = strata_view(books, known, question.classes.rows, "label", "squared")
    both = join_problems([alone, asked.problem], [world.first, ROWS - world.first])

    parts = (alone, sent), (asked.problem, codes)
    values = [decoder(p, p.grid, ridge=1e-3).values[c, 0] for p, c in parts]
    values = np.concatenate(values)
    points = np.zeros(ROWS)
    for out in range(FOLDS):
        of_fold = fitted(world.features[~held & (fold != out)], values[~held & (fold != out)])
        predicted = np.clip(world.features @ of_fold, 0, 5)
        points += np.where(held, predicted / FOLDS, predicted * (fold == out))
    judged, support = points[first], Support.from_problem(both)
    sources = [ReleasedCodes(alone, histogram, GRID.points, rows[first], sent)]
    scored = Scored(Predictions(judged, gaussian(judged, WIDTH, support)), held[first])
    found, _ = compared(sources, support, scored)
    return found, 1 - float(np.mean((points - world.labels) ** 2) / world.labels.var())


@pytest.mark.slow
def test_intervals_cover_what_a_model_of_two_rounds_explains() -> None:
    found = [in_two_rounds(seed) for seed in range(100)]
    for name in ("assumption_free", "share"):
        shares = [(getattr(told, name), truth) for told, truth in found]
        covered = sum(share.low <= truth <= share.high for share, truth in shares)
        assert covered >= 89, f"{name}: {covered} of 100"  # fewer have chance .01 at 95 %
        assert np.median([share.high - share.low for share, _ in shares]) < 0.9
    assert np.median([truth for _, truth in found]) > 0.5
