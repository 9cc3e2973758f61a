"""How good a model of rounds of codes is, by sums over events that no round was about.

Codes of later rounds were asked about what else is unknown of their labels, and say little of
errors. Of the events that are held out, these rounds are about none: all of their ε is left for two
sums (:mod:`labelveil.feature_party.groups.scoring`) about the last model's predictions. Where an
interval of theirs will be no narrower than that of the codes, which is known beforehand, nothing is
asked.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import polars as pl

from labelveil.common.arrays import Floats, Indices
from labelveil.common.errors import ConfigError, DataError, not_none
from labelveil.common.mechanisms.group_sums import NO_GROUP, Lattice, PrivateSums
from labelveil.common.mechanisms.group_sums.lattice import MOST_STEPS
from labelveil.common.randomizers.grid import Grid
from labelveil.common.release.event_keys import read_secret, secret_check
from labelveil.common.release.folder import read_manifest
from labelveil.common.release.manifest import manifest_digest, manifest_in
from labelveil.common.release.sections import LabelSection
from labelveil.common.release.sums import about, read_sums
from labelveil.feature_party.evaluation.explained import Explained
from labelveil.feature_party.evaluation.intervals import NORMAL_95, Measured
from labelveil.feature_party.evaluation.spread import Spread
from labelveil.feature_party.groups.score import Known, Score
from labelveil.feature_party.groups.scoring import ScoreQuestion
from labelveil.feature_party.learning.problem import LabelProblem

_FINE = 511
"""Steps of a lattice, at least, where a label's points leave it open."""


class Sums(NamedTuple):
    """The sums of one release."""

    rows: Indices
    """(m,) of the features: of the events that are in a group."""
    answer: PrivateSums
    """About these, in their order."""
    digest: str
    """SHA-256 of its manifest."""
    epsilon: float
    """What it may reveal of a privacy unit, as its manifest states."""

    @classmethod
    def read(cls, folder: Path, keys: pl.Series, secrets: Sequence[Path]) -> Self:
        """Read sums about some of our events, of which these are all keys; raises as
        :func:`~labelveil.common.release.sums.read_sums`."""
        manifest = manifest_in(folder)
        check = manifest.population.secret_check
        found = (path for path in secrets if secret_check(read_secret(path)).hex() == check)
        with warnings.catch_warnings():  # of a withdrawal, which was warned of
            warnings.simplefilter("ignore", UserWarning)
            answer = read_sums(folder, keys, next(found, secrets[0]))
        rows = np.flatnonzero(answer.question.groups != NO_GROUP)
        epsilon = float(not_none(manifest.sums).spent.exact_epsilon)
        return cls(rows, about(answer, rows), manifest_digest(read_manifest(folder)), epsilon)

    @property
    def scores(self) -> bool:
        """Whether it tells how good a model is, rather than what to learn: that takes squares."""
        return bool(self.answer.question.squares)


@dataclass(frozen=True, eq=False)
class Judged:
    """What codes say of a model, as far as a question about it starts from that."""

    centre: float  # the constant that it is compared with
    miss: float  # by how much labels are expected to deviate from predictions
    known: Known  # the constant's squared error
    half_width: float  # of the interval of R²

    @classmethod
    def from_evaluation(
        cls, explained: Explained, spread: Spread, problem: LabelProblem, whole: bool
    ) -> Self:
        """Take it from an evaluation; ``whole`` says that all labels are points of the grid."""
        grid = problem.grid
        gaps = np.diff(grid)
        wide = np.maximum(np.append(gaps, 0.0), np.append(0.0, gaps))
        # labels between two points went to one of them: that adds a quarter of a gap's square,
        # at most
        added = 0.0 if whole else float(problem.prior @ wide**2) / 4
        value = max(spread.value - added / 2, 0.1 * spread.shown, spread.least / 2)
        known = Known(value, math.hypot(spread.error, added / 2))
        half = _half_width(explained.share)
        if explained.share.high >= 1:  # noise that took it there may have left next to nothing
            loss = explained.loss
            half = max(half, (loss.high - loss.low) / 2 / value)
        miss = math.sqrt(value * max(1 - _likely(explained.share.value, half), 0.02))
        return cls(spread.centre, miss, known, half)


def _likely(share: float, half_width: float) -> float:
    """R² as it is expected, 0 … 1, of an estimate with so wide an interval.

    The mean of a normal distribution between these ends: noise that takes an estimate near 1 must
    not lead to a question that only a perfect model's errors are small enough for.
    """
    places = (np.arange(200) + 0.5) / 200
    deviation = min(max(half_width, 1e-3), 10.0) / NORMAL_95
    logs = -0.5 * ((places - share) / deviation) ** 2
    return float(np.average(places, weights=np.exp(logs - logs.max())))


def ask_score(
    judged: Judged, points: Floats, lattice: Lattice, epsilon: Fraction, seed: int
) -> ScoreQuestion | None:
    """What to ask about (n,) predictions; None where codes tell as well."""
    rng = np.random.default_rng((seed, points.size))
    asked = ScoreQuestion.from_predictions(
        points, judged.centre, lattice, float(epsilon), rng, judged.miss, judged.known
    )
    return asked if _half_width(asked.expected(epsilon)) < judged.half_width else None


def _half_width(share: Measured) -> float:
    """Of an interval that may be cut off at 1, where noise takes an estimate, too."""
    return max(share.value - share.low, (share.high - share.low) / 2)


def read_score(answer: PrivateSums, points: Floats, judged: Judged) -> Score | None:
    """What sums tell of (n,) predictions for their events; None if they were asked about others,
    tell nothing, or cannot be."""
    try:
        asked = ScoreQuestion.from_question(
            answer.question, points, judged.centre, judged.miss, judged.known
        )
        score = asked.score(answer)
    except DataError:
        return None
    ends = score.r2.low, score.r2.high, score.mse.high
    told = all(map(math.isfinite, ends))
    return score if told and score.reference_mse.value > 0 else None


def lattice_of(section: LabelSection) -> Lattice | None:
    """Of a label: between its bounds, or with all points that its labels party named; None if these
    are no whole steps of a common one apart."""
    grid = Grid.from_edges(section.grid)
    if not section.asked:
        return Lattice.between(grid.lower, grid.upper)
    try:
        steps = Lattice.from_grid(grid).steps
    except ConfigError:
        return None
    finer = min(-(-_FINE // steps), MOST_STEPS // steps)
    return Lattice(grid.lower, grid.upper, steps * finer)
