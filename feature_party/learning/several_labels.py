"""One label of several that an event has, as a problem of its own: a view of what was sent.

A histogram may count, and a channel may take, several labels at once: its inputs are *cells*, one
value of each. A view of one label has these cells for its grid, in the order of that label's
values. Cells of one value are told apart by the channel alone: a decoder is without bias for each
of them, whatever the other labels are. A law of this label takes the others to be as the prior
says of each of its values, whatever the features are; a law of all labels is about the cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from common.arrays import Floats, Indices
from common.randomizers import NoisyPrior
from common.randomizers.cells import Codebook, Group
from feature_party.learning.problem import LabelProblem
from feature_party.learning.support import Support

FEW = 16
"""Cells that a law of all labels has a logit each for, at most."""


@dataclass(frozen=True)
class LabelView:
    """What a message says of one label.

    Attributes
    ----------
    problem
        Its facts, over the cells of the histogram that counted it.
    histogram
        Those counts, in the order of the problem's grid.
    column
        Which of the message's channels sent it: its column of the split codes.
    """

    problem: LabelProblem
    histogram: NoisyPrior
    column: int


def label_view(
    codebook: Codebook, priors: Sequence[tuple[Group, NoisyPrior]], name: str, loss: str
) -> LabelView:
    """See one label alone.

    Parameters
    ----------
    codebook
        What codes mean.
    priors
        The histograms, and the labels that each counted: those of one channel are in one of them.
    name
        The label.
    loss
        What predictions of it are judged by.
    """
    label, sent = codebook.names.index(name), codebook.for_label(name)
    taken = codebook.groups[sent.column]
    counted, histogram = next(one for one in priors if label in one[0].labels)
    prior = histogram.probabilities
    if counted.labels == (label,):
        alone = LabelProblem.from_channel(sent.channel, prior, loss)
        return LabelView(alone, histogram, sent.column)
    points, place = counted.cells.points, counted.labels.index(label)
    order = np.argsort(points[:, place], kind="stable")
    grid, prior = points[order, place], prior[order]
    indices = counted.cells.indices(order)
    inputs = taken.cells.number(indices[:, [counted.labels.index(one) for one in taken.labels]])
    seen = LabelProblem.from_channel(sent.channel, np.ones(len(taken.cells)), loss)
    row_of = seen.row_of[inputs]
    told = prior[:, None] * seen.rows[row_of]
    problem = replace(
        seen,
        grid=grid,
        prior=prior,
        row_of=row_of,
        # a code of several labels stands for no value of one: for what is then expected of it
        outputs=(grid @ told) / np.maximum(told.sum(axis=0), 1e-300),
        values_alone=np.unique(grid).size == 2,
        together=points[order] if len(taken.labels) > 1 else None,
    )
    ordered = replace(histogram, noisy_counts=histogram.noisy_counts[order])
    return LabelView(problem, ordered, sent.column)


def joint_support(problem: LabelProblem, support: Support) -> tuple[Support, Indices]:
    """Cells of all labels that are sent together, each label's values merged as on its own support.

    Parameters
    ----------
    problem, support
        The view of one label, with :attr:`LabelProblem.together`, and the cells of its values.

    Returns
    -------
    The cells, and the place of each on ``support``.
    """
    assert problem.together is not None
    others = [
        _merged(problem, values)
        for values in problem.together.T
        if not np.array_equal(values, problem.grid)
    ]
    places = np.stack([support.cell_of, *others], axis=1)
    cells, cell_of = np.unique(places, axis=0, return_inverse=True)
    joint = Support.in_cells(problem, cell_of.reshape(-1).astype(np.int64))
    return replace(joint, values_alone=len(cells) <= FEW), cells[:, 0]


def _merged(problem: LabelProblem, values: Floats) -> Indices:
    """(k,) cells of another label's values."""
    order = np.argsort(values, kind="stable")
    prior, row_of = problem.prior[order], problem.row_of[order]
    other = replace(problem, grid=values[order], prior=prior, row_of=row_of)
    found = np.empty_like(order)
    found[order] = Support.of(other).cell_of
    return found
