"""How good predictions are, by one question about events that nobody has asked about.

Of predictions f and a reference g, a constant or another model's predictions, the score is

    R² = 1 - M/V,    M = E(y - f)²,    V = E(y - g)²

the share of the reference's squared error that f saves. The events are dealt at random into two
groups, one for each of two noisy sums. The second is Σ (y - g)², the first either Σ (y - f)² or,
where predictions explain little, the weighted sum Σ (f - g) y, which tells the gain

    V - M = E(f - g)² + 2 E(f - g)(y - f)

Each event is in one sum alone, at all of ε. Predictions have to be levels of offsets: they go to
one of their neighbours at random, and the mean square of that is subtracted. What is known without
labels, E(f - g)², is taken from all events in place of a group's own. Both sums are then right on
average whatever labels and predictions are. What earlier releases about other events say of V is
averaged with the second sum, by weights that are decided before there is an answer.

Intervals have room for the noise, for the events being a sample, and for labels between two points
of the lattice. How much labels vary around predictions from event to event is not asked: variances
are those of residuals with a kurtosis of ten, half of whose variance grows as (f - g)² does.

Source for intervals of a ratio: Fieller, *Some Problems in Interval Estimation*, JRSS B 1954.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self

import numpy as np

from labelveil.common.arrays import Booleans, Floats, Indices
from labelveil.common.errors import ConfigError, DataError, not_none
from labelveil.common.mechanisms.group_sums import (
    GroupQuestion,
    Lattice,
    NoisySums,
    PrivateSums,
)
from labelveil.common.mechanisms.group_sums.question import MOST_LEVELS
from labelveil.feature_party.evaluation.intervals import Measured
from labelveil.feature_party.groups.score import EventVariances, Kind, Known, Score, TwoSums

FEWEST = 20
"""Events that a score takes."""

_WEIGHT = 1 << 16
"""The largest weight: what rounding weights adds is then next to nothing."""
_UNKNOWN = 1 / 6
"""Deviation of labels, as a share of their range, where nothing is known of them: a guess, which
decides between questions."""
_CERTAIN = 0.02
"""Variance of V, in its square, from which on it does not matter: a ratio to it is then normal."""
_APART = 0.2
"""Variance of what is told if f saved nothing, in the square of what it saves, from which on it
does not matter: that R² is 0 is then refuted, and an interval has a lower end."""
_ALIKE = 0.01
"""By how much weights may differ from those of predictions, as a share of the largest: these are
not the same to the last bit on every machine."""
_NOISE = 20.0
"""Standard deviations that noise exceeds once in 10¹² answers."""


@dataclass(frozen=True, eq=False)
class ScoreQuestion:
    """What to ask, and what the answer says."""

    question: GroupQuestion
    points: Floats
    """(n,) predictions, within the labels' bounds."""
    reference: Floats
    """(n,) what they are compared with."""
    kind: Kind
    assisted: bool
    """Whether E(f - g)² assists in estimating V: not where predictions are far worse than g."""
    guess: tuple[float, float]
    """M and V as far as they are known before there is an answer."""
    known: Known | None = None

    @classmethod
    def from_predictions(
        cls,
        points: Floats,
        reference: Floats | float,
        lattice: Lattice,
        epsilon: float,
        rng: np.random.Generator,
        miss: float | None = None,
        known: Known | None = None,
    ) -> Self:
        """Ask about (n,) predictions that were made without these events' labels.

        ``miss`` is by how much labels are expected to deviate from them: it decides which sum is
        asked, of how many events, and what what is ``known`` counts for, but not what the answer
        means. ``DataError`` if a prediction is no number or there are too few.
        """
        if points.size < FEWEST:
            raise DataError(f"{points.size} events are too few to score: take at least {FEWEST}")
        reference = np.broadcast_to(np.asarray(reference, dtype=np.float64), points.shape)
        for name, values in (("predictions", points), ("the reference", reference)):
            if wrong := np.count_nonzero(~np.isfinite(values)):
                raise DataError(
                    f"{name} hold {wrong:,} that are no finite numbers; score events that have"
                    " predictions"
                )
        points, reference = (
            np.clip(values, lattice.lower, lattice.upper) for values in (points, reference)
        )
        guess = _guess(points, reference, lattice, miss, known)
        kind, assisted, share = _plan(points, reference, lattice, epsilon, guess, known)
        # some events, by chance, answer the second sum: of no event both are asked
        second = rng.permutation(points.size) >= round(share * points.size)
        levels = _levels(lattice)
        # offsets near the predictions keep clips narrow; their rounding is random, without bias
        nearby = np.where(second, reference, points)
        level = _dithered((nearby - lattice.lower) / lattice.step, levels, rng)
        places = levels[level]
        reach = np.maximum(places, lattice.steps - places)
        widths = np.array([reach[~second].max(), reach[second].max()])
        weights = None
        if kind == "gain":
            widths[0] = lattice.steps
            weights = np.where(second, _WEIGHT, _weights(points - reference, ~second, rng))
        used, level = np.unique(level, return_inverse=True)
        question = GroupQuestion(
            lattice,
            second.astype(np.int64),
            widths,
            levels[used],
            None if used.size == 1 else level,
            weights,
            squares=2 if kind == "errors" else 1,
        )
        return cls(question, points, reference, kind, assisted, guess, known)

    @classmethod
    def from_question(
        cls,
        question: GroupQuestion,
        points: Floats,
        reference: Floats | float,
        miss: float | None,
        known: Known | None = None,
    ) -> Self:
        """The same again, of a question that was asked; ``DataError`` if not about (n,) these, or
        for other sums than tell a score."""
        lattice = question.lattice
        reference = np.broadcast_to(np.asarray(reference, dtype=np.float64), points.shape)
        points, reference = (
            np.clip(values, lattice.lower, lattice.upper) for values in (points, reference)
        )
        second = question.groups == 1
        level = 0 if question.levels is None else question.levels
        offsets = np.broadcast_to(question.offsets[level], points.shape)
        near = (np.where(second, reference, points) - lattice.lower) / lattice.step
        levels = _levels(lattice)
        if np.abs(offsets - near).max() > np.diff(levels).max() + 1e-3:
            raise DataError(
                "the score was asked about other predictions than this model's: train with the seed"
                " and columns of then, or ask about other events, in another epoch"
            )
        _check_sums(question, points - reference, offsets)
        guess = _guess(points, reference, lattice, miss, known)
        _, assisted, _ = _plan(points, reference, lattice, 1.0, guess, known)
        kind: Kind = "errors" if question.weights is None else "gain"
        return cls(question, points, reference, kind, assisted, guess, known)

    def __len__(self) -> int:
        return len(self.question)

    def score(self, answer: PrivateSums) -> Score:
        """Tell how good predictions are; ``ConfigError`` if another question was answered,
        ``DataError`` if no labels with this noise have such sums."""
        if answer.question.digest != self.question.digest:
            raise ConfigError("this answers another question than the score's; ask again for both")
        _check_possible(answer)
        return self._found(answer).score(self.question.lattice)

    def expected(self, epsilon: Fraction) -> Measured:
        """R² as an answer would tell it that has no more noise than usual, if the guess is right:
        how wide its interval will be is known before anything is asked.
        """
        noisy = NoisySums(self.question, epsilon)
        nothing = PrivateSums(noisy, np.zeros(self.question.half_widths.size, dtype=np.int64))
        error, reference = self.guess
        first = error if self.kind == "errors" else reference - error
        found = replace(self._found(nothing), first=first, second=reference)
        return found.score(self.question.lattice).r2

    def _found(self, answer: PrivateSums) -> TwoSums:
        """What an answer says, with the scales of its noise."""
        question, points = self.question, self.points
        lattice, squares = question.lattice, (points - self.reference) ** 2
        second = question.groups == 1
        level = 0 if question.levels is None else question.levels
        offsets = lattice.points(np.broadcast_to(question.offsets[level], points.shape))
        near = np.where(second, self.reference, points)
        moved = [float(np.mean((offsets - near)[part] ** 2)) for part in (~second, second)]
        rows = int((~second).sum()), int(second.sum())
        units = np.ones(2)
        if question.weights is not None:
            units[1] = 1 / _WEIGHT
        common = float(squares.mean())
        if self.kind == "errors":
            tops = answer.values[0] / rows[0] - moved[0]
        else:
            weights = not_none(question.weights)
            largest = _largest(points - self.reference, ~second)
            units[0] = 2 * largest / _WEIGHT
            known = float(np.sum((weights * (offsets - points))[~second]))
            tops = common + units[0] * (answer.values[0] + known) / rows[0]
        below = units[1] * answer.values[1] / rows[1] - moved[1]
        if self.assisted:
            below += common - float(squares[second].mean())
        noise = units * answer.deviations / math.sqrt(2) / rows
        widest = _reach(points, lattice), _reach(self.reference, lattice)
        fourth = float(np.mean(squares**2))
        terms = EventVariances(common, fourth, widest, (moved[0], moved[1]), self.assisted)
        own, beside = 1.0, 0.0
        if self.known is not None:
            value, beside = self.known
            variance = terms.second(*self.guess) / rows[1] + 2 * noise[1] ** 2
            own = beside**2 / (beside**2 + variance)
            below = own * below + (1 - own) * value
        # noise may take M below 0: from there an interval would be too narrow, or 1 from end to end
        tops = max(tops, 0.0) if self.kind == "errors" else min(tops, below)
        scales = noise[0], own * noise[1]
        return TwoSums(self.kind, tops, below, scales, rows, terms, own, beside)


def _check_sums(question: GroupQuestion, difference: Floats, offsets: Floats) -> None:
    """Refuse what is not the two sums of a score: of another meaning, they would tell a wrong one.

    (n,) ``difference`` are those of predictions and reference, ``offsets`` in steps.
    """
    second, steps, weights = question.groups == 1, question.lattice.steps, question.weights
    kinds = 2 if weights is None else 1
    right = question.half_widths.size == 2 and question.squares == kinds
    right = right and bool(question.sizes.all())
    if right:
        reach = np.maximum(offsets, steps - offsets)  # a narrower width would clip errors
        needed = [reach[part].max() for part in (~second, second)]
        right = bool((question.half_widths >= needed).all())
    if right and weights is not None:
        exact = np.where(second, 1.0, difference / _largest(difference, ~second))
        right = bool((np.abs(weights / _WEIGHT - exact) < _ALIKE).all())
    if not right:
        raise DataError(
            "what was asked is not the two sums of a score: take the question that ask_score made"
        )


def _check_possible(answer: PrivateSums) -> None:
    """Refuse sums that no labels have, whatever the noise: they would tell an R² of 1, or any."""
    question = answer.question
    widths = question.half_widths.astype(np.float64)
    each = question.largest_weight * np.where(question.squared, widths**2, widths)
    most = question.sizes * each
    least, room = np.where(question.squared, 0.0, -most), _NOISE * np.sqrt(answer.noisy.variances)
    sums = answer.sums.astype(np.float64)  # in steps, or their squares, as widths are
    if ((sums < least - room) | (sums > most + room)).any():
        raise DataError(
            "no labels have such sums, with the noise that is stated: ask the labels party how they"
            " came about"
        )


def _guess(
    points: Floats, reference: Floats, lattice: Lattice, miss: float | None, known: Known | None
) -> tuple[float, float]:
    """M and V, from what is known without an answer."""
    common = float(np.mean((points - reference) ** 2))
    guess = (_UNKNOWN * (lattice.upper - lattice.lower)) ** 2
    error = miss**2 if miss else max(guess - common, common / 3)
    if known is not None:
        return error, known.value
    total = error + common  # of a model that is right on average
    if common > guess:  # it may be too sure
        total = max(guess, error)
    return error, total


def _plan(
    points: Floats,
    reference: Floats,
    lattice: Lattice,
    epsilon: float,
    guess: tuple[float, float],
    known: Known | None,
) -> tuple[Kind, bool, float]:
    """Which sum to ask first, whether to assist the second, and which share of the events is asked
    the first: what is likely to tell most."""
    squares = (points - reference) ** 2
    common, span = float(squares.mean()), lattice.upper - lattice.lower
    widest = _reach(points, lattice), _reach(reference, lattice)
    error, total = guess
    rows, fourth = points.size, float(np.mean(squares**2))
    both = [
        EventVariances(common, fourth, widest, (0.0, 0.0), assisted) for assisted in (True, False)
    ]
    terms = min(both, key=lambda each: each.second(error, total))
    largest = _largest(points - reference, np.ones(rows, dtype=np.bool_))
    found: list[tuple[float, float, float, Kind, float]] = []
    for share in np.linspace(0.1, 0.9, 17).tolist():
        first, second = share * rows, (1 - share) * rows
        below = terms.second(error, total) / second + 2 * (widest[1] ** 2 / (epsilon * second)) ** 2
        own = 1.0 if known is None else known.error**2 / (known.error**2 + below)
        below *= own  # as an average with what is known has it
        moves: dict[Kind, float] = {"errors": widest[0] ** 2, "gain": 2 * largest * span}
        ratios: dict[Kind, float] = {"errors": error / total, "gain": abs(1 - error / total)}
        for kind, ratio in ratios.items():
            top = terms.first(kind, error) / first + 2 * (moves[kind] / (epsilon * first)) ** 2
            certain = max(below / total**2, _CERTAIN)
            # at the hypothesis M = V residuals are large, and so is what they add
            more = terms.first(kind, total) - terms.first(kind, error)
            useless = top + more / first
            if kind == "errors":
                grown = terms.second(total, total) - terms.second(error, total)
                useless += below + own**2 * grown / second
            apart = max(useless / max(total - error, 1e-9 * total) ** 2, _APART)
            found.append((apart, certain, top + ratio**2 * below, kind, share))
    *_, kind, share = min(found)
    return kind, terms.assisted, share


def _levels(lattice: Lattice) -> Indices:
    """Places of the lattice, from one end to the other: all of them, or at most 256."""
    gap = -(-lattice.steps // (MOST_LEVELS - 1))
    return np.unique(np.append(np.arange(0, lattice.steps, gap), lattice.steps))


def _dithered(places: Floats, levels: Indices, rng: np.random.Generator) -> Indices:
    """Which level each place goes to: one of its neighbours, at random and right on average."""
    low = np.clip(np.searchsorted(levels, places, side="right") - 1, 0, levels.size - 2)
    share = (places - levels[low]) / (levels[low + 1] - levels[low])
    return np.asarray(low + (rng.random(places.size) < share))


def _weights(difference: Floats, first: Booleans, rng: np.random.Generator) -> Indices:
    """Whole numbers in proportion to differences, rounded at random; the first group's alone."""
    exact = np.where(first, difference, 0.0) * (_WEIGHT / _largest(difference, first))
    return np.clip(np.floor(exact + rng.random(difference.size)), -_WEIGHT, _WEIGHT).astype(
        np.int64
    )


def _largest(difference: Floats, part: Booleans) -> float:
    """The largest difference of a group; 1 where all are 0: nothing is then weighed."""
    return float(np.abs(difference[part]).max(initial=0.0)) or 1.0


def _reach(values: Floats, lattice: Lattice) -> float:
    """The furthest that a label may be from one of these."""
    return float(np.maximum(values - lattice.lower, lattice.upper - values).max())
