"""What a model asks of further events: strata of like predictions, and what it expects of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from common.arrays import Floats
from common.errors import ConfigError
from common.randomizers.grid import Grid
from common.randomizers.message.questions import Question
from common.randomizers.message.strata import MOST_STRATA
from feature_party.learning.problem import LabelProblem
from feature_party.learning.support import Support

STRATA = 16
_DOUBT = 0.05
"""Share of the released prior in what is expected: no label is impossible because a model says so.
"""
_WEIGHTS = 1 << 30

LEAST_EXPLAINED = 0.05
"""Of the labels' variance: a question of a model that explains less gains nothing that can be seen
(retail amounts at ε = 0.5, of which models explain 9 %: an error of 0.904 ± 0.006 after two rounds,
0.909 after one message)."""


def asks_better(problem: LabelProblem) -> bool:
    """Whether what is expected of labels decides how they are best asked: not of a few values.

    These are sent as they are, by a channel that depends on no prior.
    """
    return not problem.values_alone


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
    predicted: Callable[[], Iterable[Floats]],
    strata: int = STRATA,
) -> Question:
    """Gather events of like predicted means into strata, about as many in each.

    ``problem`` and ``support`` are what the model was trained on, and the m cells that it predicts.
    ``predicted`` yields the (n, m) predicted distributions of the events, a batch after another; it
    is called twice, so that no more than a batch is in memory. Of ``strata``, 1 … 32, there are
    fewer where there are fewer events. ``ConfigError`` if that is no number of strata, or labels
    are a few values: to ask them in another way gains nothing, for the best channel does not depend
    on what is expected of them.
    """
    if not 1 <= strata <= MOST_STRATA:
        raise ConfigError(f"strata={strata} must be 1 … {MOST_STRATA}")
    if not asks_better(problem):
        raise ConfigError(
            f"labels of {problem.values.size} values are asked in the same way whatever is expected"
            " of them; send all events in one round"
        )
    order = np.argsort(
        np.concatenate([batch @ support.values for batch in predicted()]), kind="stable"
    )
    n, first = order.size, 0
    count = min(strata, n)
    stratum = np.empty(n, dtype=np.int64)
    stratum[order] = np.arange(n) * count // n
    sums = np.zeros((count, support.size))
    for batch in predicted():
        np.add.at(sums, stratum[first : first + len(batch)], batch)
        first += len(batch)
    means = sums / np.bincount(stratum, minlength=count)[:, None]
    laws = means[:, support.cell_of] * support.within
    laws = (1 - _DOUBT) * laws / laws.sum(axis=1, keepdims=True) + _DOUBT * problem.prior
    # of one grid, whatever the labels that share its points are
    weights = np.rint(laws * _WEIGHTS).astype(np.int64)
    return Question(stratum, Grid(problem.grid), weights)
