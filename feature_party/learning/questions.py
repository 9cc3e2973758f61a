"""What a model asks of further events: strata of like predictions, and what it expects of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from labelveil.common.arrays import Booleans, Floats, Indices
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.randomizers.message.strata import MOST_STRATA
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.several_releases import unrounded
from labelveil.feature_party.learning.support import Support

STRATA = 16
_DOUBT = 0.05
"""Share of the released prior in what is expected: no label is impossible because a model says so.
"""
_WEIGHTS = 1 << 30
_PIECES = 1024
"""Of equally many events, by which the density of their means is known."""
_AVERAGED = 4096
"""Events of a stratum whose laws are averaged: the mean of as many is known well enough."""

LEAST_EXPLAINED = 0.05
"""Of the labels' variance: a question of a model that explains less gains nothing that can be seen
(retail amounts at ε = 0.5, of which models explain 9 %: an error of 0.904 ± 0.006 after two rounds,
0.909 after one message)."""


def asks_better(problem: LabelProblem) -> bool:
    """Whether what is expected of labels decides how they are best asked: not of a few values.

    These are sent as they are, by a channel that depends on no prior.
    """
    return not problem.discrete


def explained_by(question: Question) -> float:
    """Share of the variance of what is expected of all labels that strata explain, in 0 … 1."""
    laws, rows = question.laws / question.laws.sum(axis=1, keepdims=True), question.classes.rows
    shares, points = np.asarray(rows) / sum(rows), question.grid.points
    pooled, means = shares @ laws, laws @ points
    variance = float(pooled @ (points - pooled @ points) ** 2)
    return float(shares @ (means - shares @ means) ** 2) / variance if variance > 0 else 0.0


def ask(
    problem: LabelProblem,
    support: Support,
    predicted: Callable[[Booleans | slice], Iterable[Floats]],
    strata: int = STRATA,
) -> Question:
    """Gather events of like predicted means into strata.

    ``problem`` and ``support`` are what the model was trained on, and the m cells that it predicts.
    ``predicted`` yields the (n, m) predicted distributions of the events, a batch after another, or
    those of the events that an index of all n selects; it is called twice, so that no more than a
    batch is in memory, the second time for at most 4,096 events of each stratum. Of ``strata``,
    1 … 32, there are fewer where not as many have events. ``ConfigError`` if that is no number of
    strata, or labels are a few values: to ask them in another way gains nothing, for the best
    channel does not depend on what is expected of them.
    """
    if not 1 <= strata <= MOST_STRATA:
        raise ConfigError(f"strata={strata} must be 1 … {MOST_STRATA}")
    if not asks_better(problem):
        raise ConfigError(
            f"labels of {problem.values.size} values are asked in the same way whatever is expected"
            " of them; send all events in one round"
        )
    means = np.concatenate([batch @ support.values for batch in predicted(slice(None))])
    found = np.searchsorted(quantized(means, strata), means)
    stratum = np.unique(found, return_inverse=True)[1].reshape(-1)
    some = _some_of_each(stratum)
    of, first = stratum[some], 0
    sums = np.zeros((int(stratum.max()) + 1, support.size))
    for batch in predicted(some):
        np.add.at(sums, of[first : first + len(batch)], batch)
        first += len(batch)
    laws = (sums / np.bincount(of)[:, None])[:, support.cell_of] * support.within
    # models are wrong somewhere: a channel that trusts them wholly could not say so
    laws = (1 - _DOUBT) * laws / laws.sum(axis=1, keepdims=True) + _DOUBT * problem.prior
    grid = unpaid_grid(problem.grid)
    weights = np.rint(unrounded(laws, problem.grid, grid.points) * _WEIGHTS).astype(np.int64)
    return Question(stratum, grid, weights)


def _some_of_each(stratum: Indices) -> Booleans:
    """(n,) which events stand for their stratum: all, or every kth of those in it."""
    rows, order = np.bincount(stratum), np.argsort(stratum, kind="stable")
    place = np.empty_like(order)  # of an event among those of its stratum
    place[order] = np.arange(order.size) - np.repeat(np.cumsum(rows) - rows, rows)
    return np.asarray(place % -(-rows // _AVERAGED)[stratum] == 0)


def quantized(means: Floats, strata: int) -> Floats:
    """(S − 1,) ascending ends of strata within which (n,) means vary least, in the average.

    A stratum's channel suits an event the less the farther its mean lies from the stratum's. The
    best density of ends is proportional to the cube root of the means' (Panter and Dite,
    *Quantization Distortion in Pulse-Count Modulation*, Proceedings of the IRE 1951). Strata of
    equally many events would leave the upper end of a skewed label to one or two.
    """
    pieces = np.quantile(means, np.linspace(0, 1, 1 + _PIECES))
    places = np.append(0.0, np.cumsum(np.diff(pieces) ** (2 / 3)))
    return np.asarray(np.interp(np.arange(1, strata) * (places[-1] / strata), places, pieces))


def unpaid_grid(points: Floats) -> Grid:
    """The grid to ask on: as fine as it may be, where a histogram afforded no more ``points``.

    Between 16 points a price of 1 and one of 1,000 are sent alike; a question is paid by nobody.
    Points that are spaced as none are by default, or one for each whole number, were chosen: they
    stay.
    """
    grid, finest = Grid(points), Grid.default(points[0], points[-1], 1 << 40, 1.0, whole=True)
    return finest if grid.spaced_by_default and len(finest) > len(grid) else grid
