"""What is asked of groups: like events together, around what is predicted of them.

Nothing is known before the first question: groups are of events with like columns, and labels are
summed as they are. Later ones sum what is left of labels after a prediction, clipped to a width
that fits it, over groups that are alike in what the model does not know: of events on which it errs
together, as far as it can tell, and whose columns are alike where they matter. A tenth of the
events ask for the labels' deviation from predictions: how many lie more than that above them, and
below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labelveil.common.arrays import Floats, Indices
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice
from labelveil.common.mechanisms.group_sums.question import MOST_LEVELS
from labelveil.feature_party.groups.clusters import clusters

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


def groups_of(events: int, epsilon: float, width: float, deviation: float) -> int:
    """How many groups to ask: of ``2 width/(ε deviation)`` events each.

    So many events vary together by as much as their noise: with fewer in a group noise hides what
    they say, with more they say less of each.
    """
    return max(1, int(events * epsilon * deviation / (2 * width)))


def first_question(
    inputs: Floats, lattice: Lattice, epsilon: float, rng: np.random.Generator
) -> GroupQuestion:
    """Sums of labels as they are over groups of (n, F) rows that are alike."""
    count = groups_of(len(inputs), epsilon, lattice.steps, _UNKNOWN * lattice.steps)
    groups = clusters(inputs, count, rng)
    widths = np.full(int(groups.max()) + 1, (lattice.steps + 1) // 2)
    return GroupQuestion(lattice, groups, widths, np.array([lattice.steps // 2]))


@dataclass(frozen=True, eq=False)
class Expected:
    """What a model of earlier rounds says of the events that are to be asked about."""

    inputs: Floats
    """(n, F) columns, scaled by how much they matter."""
    doubts: Floats
    """(n, K) what is not known of predictions: a product of two rows is their covariance."""
    predictions: Floats
    """(n,) in units of the label."""
    miss: float
    """Deviation of labels from them."""

    def question(self, lattice: Lattice, epsilon: float, rng: np.random.Generator) -> GroupQuestion:
        """Sums of what is left after the prediction."""
        rows, miss = len(self.inputs), max(self.miss / lattice.step, 0.5)
        half_width = int(np.clip(round(WIDTH * miss), 1, lattice.steps))
        above, below, asked = _dealt(rows, rng)
        count = groups_of(asked.size, epsilon, 2 * half_width / _INSIDE, miss)
        groups = np.empty(rows, dtype=np.int64)
        groups[asked] = clusters(self._compared()[asked], count, rng)
        count = int(groups[asked].max()) + 1
        half_widths = np.full(count, half_width)
        gap = max(1, int(miss / _LEVELS_PER_DEVIATION), -(-lattice.steps // (MOST_LEVELS - 2)))
        places = np.rint((self.predictions - lattice.lower) / lattice.step / gap) * gap
        if above.size:  # a step to either side of an offset: whether a label lies beyond it
            groups[above], groups[below] = count, count + 1
            half_widths = np.append(half_widths, [1, 1])
            away = gap * max(1, round(miss / gap))
            places[above] += away
            places[below] -= away
        places = np.clip(places, 0, lattice.steps).astype(np.int64)
        offsets, levels = np.unique(places, return_inverse=True)
        one = offsets.size == 1
        return GroupQuestion(lattice, groups, half_widths, offsets, None if one else levels)

    def _compared(self) -> Floats:
        """(n, K + F) what groups are alike in: how predictions err together, and columns."""
        columns = np.sqrt(self.inputs.var(axis=0).sum()) or 1.0
        doubts = np.sqrt(np.mean(np.sum(self.doubts**2, axis=1))) or 1.0
        return np.column_stack([self.doubts / doubts, _COLUMNS * self.inputs / columns])


def _dealt(rows: int, rng: np.random.Generator) -> tuple[Indices, Indices, Indices]:
    """Events that ask for the deviation, above and below, as many of each; and all others."""
    order, half = rng.permutation(rows), int(_SURVEYED * rows / 2)
    return order[:half], order[half : 2 * half], order[2 * half :]
