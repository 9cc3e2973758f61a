"""What is asked of groups: like events together, around what is predicted of them.

Nothing is known before the first question: groups are of events with like columns, and labels are
summed as they are. Later ones sum what is left of labels after a prediction, clipped to a width
that fits it, over groups that are alike in what the model does not know: of events on which it errs
together, as far as it can tell, and whose columns are alike where they matter. A tenth of the
events ask for the labels' deviation from predictions: how many lie more than that above them, and
below. Like events are found by k-means, in two levels where there are many groups.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import scipy
from scipy.special import ndtr, ndtri

from labelveil.common.arrays import Floats, Indices, Singles
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice
from labelveil.common.mechanisms.group_sums.question import MOST_LEVELS
from labelveil.feature_party.ridge.law import clipped_moments, inside_share

_AT_ONCE = 128
"""Groups that are looked for at once; of more, parts are split one by one."""
_STEPS = 12
_MANY = 1 << 15
"""Points by which means are found; of more, each then goes to the nearest one."""


def clusters(points: Floats | Singles, count: int, rng: np.random.Generator) -> Indices:
    """(n,) group 0 … of each of (n, d) points, by its nearest mean: about ``count`` groups.

    None of the groups is empty. In groups of one at most, as many as there are points.
    """
    count = max(1, min(count, len(points)))
    if count <= _AT_ONCE:
        found = _k_means(points, count, rng)
    else:
        coarse = _k_means(points, int(np.ceil(np.sqrt(count))), rng)
        found, first = np.empty(len(points), dtype=np.int64), 0
        for part in range(int(coarse.max()) + 1):
            rows = np.flatnonzero(coarse == part)
            share = max(1, round(count * rows.size / len(points)))
            own = clusters(points[rows], share, rng)
            found[rows] = first + own
            first += int(own.max()) + 1 if rows.size else 0
    return np.unique(found, return_inverse=True)[1].reshape(-1)


def _k_means(points: Floats | Singles, count: int, rng: np.random.Generator) -> Indices:
    """Lloyd's algorithm from points drawn at random; groups may stay empty."""
    if count == 1:
        return np.zeros(len(points), dtype=np.int64)
    first = points[rng.choice(len(points), count, replace=False)]
    some = _some(points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of points that are alike some groups are
        means, nearest = scipy.cluster.vq.kmeans2(
            some, first, iter=_STEPS, minit="matrix", missing="warn"
        )
    if len(some) < len(points):
        nearest = np.empty(len(points), dtype=np.int64)
        for start in range(0, len(points), _MANY):
            part = slice(start, start + _MANY)
            nearest[part], _ = scipy.cluster.vq.vq(points[part], means)
    return np.asarray(nearest, dtype=np.int64)


def _some(points: Floats | Singles) -> Floats | Singles:
    """Some of many points, whose order tells nothing."""
    return points[:: -(-max(len(points), 1) // _MANY)]


WIDTH = 1.5
"""Half-width of what is not clipped, in deviations of labels from predictions. Relative to ±3
deviations, ±1.5 says three times as much of a normal label; ±0.7 is hardly better than 1.5."""

_UNKNOWN = 1 / 6
"""Deviation of labels from nothing predicted, as a share of their range: a guess, which decides how
many groups are asked first."""
_INSIDE = 0.866
"""Share of normal labels within 1.5 deviations."""
_SURVEYED = 0.1
"""Share of the events that ask for the deviation."""
_COLUMNS = 0.7
"""Weight of the columns where groups are compared, relative to what a model does not know: which of
them matter is not known for sure either."""
_LEVELS_PER_DEVIATION = 4
_LEAST_EPSILON = 1e-6
"""Below it sums gain as they do there: squares of it are no numbers any more."""
_MOST_PARTS, _PLACES = 16, 9
"""Of a label's range, that a code may tell apart; of predictions, by which that is averaged."""


def groups_of(events: int, epsilon: float, width: float, deviation: float) -> int:
    """How many groups to ask: of ``2 width/(ε deviation)`` events each.

    So many events vary together by as much as their noise: with fewer in a group noise hides what
    they say, with more they say less of each.
    """
    return max(1, int(events * epsilon * deviation / (2 * width)))


def worth_of_sum(epsilon: float) -> float:
    """How many true labels an event of a group is worth at most, in labels that are normal around
    what is predicted of them, with deviation 1.

    Where all means shift by 1, the sum over a group of n events shifts by ``n p``, with p the share
    of labels that are not clipped. It varies by ``n v``, v of a clipped label, and by its noise, of
    scale ``2h/ε``. An event tells ``n p²/(n v + 8 h²/ε²)`` of what a true label does.
    """
    mean, half_width = np.zeros(1), np.array([WIDTH])
    variance = clipped_moments(mean, 1, half_width)[1].item()
    inside = inside_share(mean, 1, half_width).item()
    size = 2 * (2 * WIDTH / _INSIDE) / epsilon  # as groups_of has it
    told = size * inside**2 / (size * variance + 2 * (2 * WIDTH / epsilon) ** 2)
    return (1 - _SURVEYED) * float(told)


def worth_of_code(epsilon: float, unknown: float = 0.0) -> float:
    """How many true labels a code is worth at most, in labels that are normal around what will be
    predicted of them, with deviation 1.

    By randomized response it says in which of d equally likely parts a label lies; its worth is its
    Fisher information about the prediction, with the best d. Around a prediction that is known
    that is ``(2/π) tanh²(ε/2)`` up to ε = 2, where d is 2. Of one that is not known when the label
    is asked about, but is normal with the deviation ``unknown``, it is the mean information.
    """
    means = unknown * ndtri((np.arange(_PLACES) + 0.5) / _PLACES)

    def worth(parts: int) -> float:
        edges = math.hypot(1, unknown) * ndtri(np.arange(parts + 1) / parts) - means[:, None]
        slopes = np.diff(np.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi))
        shares, odds = np.diff(ndtr(edges)), math.expm1(epsilon)
        told = (odds * slopes) ** 2 / (odds * shares + 1) / (odds + parts)
        return float(np.mean(told.sum(axis=1)))

    return max(map(worth, range(2, _MOST_PARTS + 1)))


def gain_of_sums(epsilon: float, *, in_rounds: bool) -> float:
    """How many times as much as a code an event tells in a sum, if groups are alike in all that
    matters.

    Codes are asked around predictions, as sums are, where there are enough events for rounds. Else
    there is one message of codes, of features that, it is supposed, explain half of the variance.
    """
    epsilon = max(epsilon, _LEAST_EPSILON)
    return worth_of_sum(epsilon) / worth_of_code(epsilon, 0.0 if in_rounds else 1.0)


def gain_of_rounds(epsilon: float) -> float:
    """How many times as much as in one message a code tells that is asked around a prediction.

    Of one message it is supposed that features explain half of the variance.
    """
    epsilon = max(epsilon, _LEAST_EPSILON)
    return worth_of_code(epsilon) / worth_of_code(epsilon, 1.0)


def first_question(
    inputs: Floats | Singles, lattice: Lattice, epsilon: float, rng: np.random.Generator
) -> GroupQuestion:
    """Sums of labels as they are over groups of (n, F) rows that are alike."""
    count = groups_of(len(inputs), epsilon, lattice.steps, _UNKNOWN * lattice.steps)
    groups = clusters(inputs, count, rng)
    widths = np.full(int(groups.max()) + 1, (lattice.steps + 1) // 2)
    return GroupQuestion(lattice, groups, widths, np.array([lattice.steps // 2]))


@dataclass(frozen=True, eq=False)
class Expected:
    """What a model of earlier rounds says of the events that are to be asked about."""

    inputs: Floats | Singles
    """(n, F) columns, scaled by how much they matter."""
    doubts: Floats | Singles
    """(n, K) what is not known of predictions: a product of two rows is their covariance."""
    predictions: Floats
    """(n,) in units of the label."""
    miss: float
    """Deviation of labels from them."""

    def question(self, lattice: Lattice, epsilon: float, rng: np.random.Generator) -> GroupQuestion:
        """Sums of what is left after the prediction."""
        rows, miss = len(self.inputs), max(self.miss / lattice.step, 0.5)
        half_width = min(round(WIDTH * miss), lattice.steps)
        above, below, asked = _dealt(rows, rng)
        count = groups_of(asked.size, epsilon, 2 * half_width / _INSIDE, miss)
        groups = np.empty(rows, dtype=np.int64)
        groups[asked] = found = clusters(self._compared(asked), count, rng)
        count = int(found.max()) + 1
        wild = self._more_unknown(found, asked, lattice)
        wild = np.where(wild > miss, np.hypot(miss, wild), miss)
        half_widths = np.minimum(np.rint(WIDTH * wild), lattice.steps).astype(np.int64)
        gap = max(1, int(miss / _LEVELS_PER_DEVIATION), -(-lattice.steps // (MOST_LEVELS - 2)))
        places = np.rint((self.predictions - lattice.lower) / lattice.step / gap) * gap
        if above.size:  # a step to either side of an offset: whether a label lies beyond it
            groups[above], groups[below] = count, count + 1
            half_widths = np.append(half_widths, [1, 1])
            difference = gap * max(1, round(miss / gap))
            places[above] += difference
            places[below] -= difference
        places = np.clip(places, 0, lattice.steps).astype(np.int64)
        offsets, levels = np.unique(places, return_inverse=True)
        one = offsets.size == 1
        return GroupQuestion(lattice, groups, half_widths, offsets, None if one else levels)

    def _more_unknown(self, groups: Indices, rows: Indices, lattice: Lattice) -> Floats:
        """(G,) steps by which predictions of a group's rows may err beyond what all may, on
        average.

        Columns far from all others' make a prediction wild: if labels were clipped near it, as
        those of others are, a sum would say no more than that it is too far.
        """
        squares = np.sum((self.doubts / lattice.step) ** 2, axis=1)
        of_group = np.bincount(groups, squares[rows]) / np.bincount(groups)
        return np.asarray(np.sqrt(np.maximum(of_group - squares.mean(), 0.0)))

    def _compared(self, rows: Indices) -> Floats | Singles:
        """(n, K + F) what rows are compared by: how predictions err together, and columns."""
        columns = math.sqrt(_some(self.inputs).var(axis=0, dtype=np.float64).sum()) or 1.0
        doubts = math.sqrt(np.mean(np.sum(self.doubts**2, axis=1))) or 1.0
        own, kind = self.doubts.shape[1], np.result_type(self.doubts, self.inputs)
        points = np.empty((rows.size, own + self.inputs.shape[1]), kind)
        for start in range(0, rows.size, _MANY):
            part = slice(start, start + _MANY)
            points[part, :own] = self.doubts[rows[part]] / doubts
            points[part, own:] = self.inputs[rows[part]] * (_COLUMNS / columns)
        return points


def _dealt(rows: int, rng: np.random.Generator) -> tuple[Indices, Indices, Indices]:
    """Events that ask for the deviation, above and below, as many of each; and all others."""
    order, half = rng.permutation(rows), int(_SURVEYED * rows / 2)
    return order[:half], order[half : 2 * half], order[2 * half :]
