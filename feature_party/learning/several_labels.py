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

from labelveil.common.arrays import Indices, Integers
from labelveil.common.errors import not_none
from labelveil.common.randomizers import NoisyPrior
from labelveil.common.randomizers.cells import Group
from labelveil.common.randomizers.message.codebooks import Codebook, Codebooks
from labelveil.common.randomizers.message.message import Message, Released
from labelveil.common.randomizers.prior import expected_prior
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.sections import LabelSection, StatedRandomizer
from labelveil.feature_party.learning.problem import LabelProblem, join_legs, prior_given_codes
from labelveil.feature_party.learning.support import Support

FEW = 16
"""Cells that a law of all labels has a logit each for, at most."""


@dataclass(frozen=True, eq=False)
class LabelView:
    """What a message says of one label: its facts, over the cells of the histogram that counted it;
    those counts, in the order of the problem's grid; and (d,) what each of the message's codes is
    to the channel that sent this label."""

    problem: LabelProblem
    histogram: NoisyPrior
    codes: Indices


def view_of(message: Message, label: str, counts: Integers | None = None) -> LabelView:
    """One label of a message alone; the only one whatever it is called there.

    ``counts``, (d,), say how many of its codes there are to learn from: they tell the priors more
    than their noisy histograms do.
    """
    only = len(message.terms) == 1
    terms = next(each for each in message.terms if only or each.name == label)
    if message.strata is None:
        histograms = message.histograms
        return label_view(message.codebook, histograms, terms.name, terms.loss, counts)
    rows = message.strata.rows
    return strata_view(message.codebooks, message.released, rows, terms.name, terms.loss)


def views_of(message: Message, counts: Integers | None = None) -> dict[str, LabelView]:
    """Every label of a message alone, by its name; ``counts`` as of :func:`view_of`."""
    return {terms.name: view_of(message, terms.name, counts) for terms in message.terms}


def stated_of(manifest: Manifest, label: str) -> tuple[LabelSection, StatedRandomizer]:
    """What a release says of one of its labels, and of what sent it; as :func:`view_of`."""
    only = len(manifest.labels) == 1
    section = next(each for each in manifest.labels if only or each.name == label)
    return section, next(each for each in manifest.randomizers if section.name in each.labels)


def label_view(
    codebook: Codebook,
    priors: Sequence[tuple[Group, NoisyPrior]],
    name: str,
    loss: str,
    counts: Integers | None = None,
) -> LabelView:
    """See one label alone.

    ``priors`` are the histograms, and the labels that each counted: those of one channel are in one
    of them. ``loss`` is what predictions of the label ``name`` are judged by, and ``counts`` are
    the (d,) codes of each kind to learn from.
    """
    label, column = codebook.names.index(name), codebook.column_of(name)
    taken, channel = codebook.groups[column], codebook.channels[column]
    codes = codebook.split(np.arange(codebook.outputs))[:, column].astype(np.int64)
    counted, histogram = next(prior for prior in priors if label in prior[0].labels)
    indices = counted.cells.indices(np.arange(len(counted.cells)))
    inputs = taken.cells.number(indices[:, [counted.labels.index(j) for j in taken.labels]])
    prior = histogram.probabilities
    if counts is not None:
        own = np.bincount(codes, weights=counts).astype(np.int64)
        prior = prior_given_codes(histogram, channel.probabilities[inputs], own)
    if counted.labels == (label,):
        return LabelView(LabelProblem.from_channel(channel, prior, loss), histogram, codes)
    points, place = counted.cells.points, counted.labels.index(label)
    order = np.argsort(points[:, place], kind="stable")
    grid, prior = points[order, place], prior[order]
    seen = LabelProblem.from_channel(channel, np.ones(len(taken.cells)), loss)
    (sent_leg,) = seen.legs
    leg = replace(sent_leg, prior=prior, row_of=sent_leg.row_of[inputs[order]])
    if len(taken.labels) > 1:
        # a code of several labels stands for no value of one, but for what is then expected of it
        joint = prior[:, None] * leg.channel
        leg = replace(leg, outputs=(grid @ joint) / np.maximum(joint.sum(axis=0), 1e-300))
    problem = replace(
        seen,
        grid=grid,
        legs=(leg,),
        discrete=np.unique(grid).size == 2,
        joint_values=points[order] if len(taken.labels) > 1 else None,
    )
    return LabelView(problem, histogram.reordered(order), codes)


def strata_view(
    books: Codebooks, released: Released, rows: Sequence[float], name: str, loss: str
) -> LabelView:
    """See one label alone, whose events are in strata with channels of their own.

    ``released`` is what is public of each stratum's labels, and ``rows`` how many events it has;
    the others are those of :func:`label_view`.
    """
    problems = []
    for book, known in zip(books.books, released.laws_of_strata, strict=True):
        priors = [(group, expected_prior(law)) for group, law in known.items()]
        problems.append(label_view(book, priors, name, loss).problem)
    problem = join_legs(problems, rows, strata=True)
    pooled = label_view(books.books[0], [*released.priors.items()], name, loss)
    return LabelView(problem, pooled.histogram, books.codes_of(name))


def joint_support(problem: LabelProblem, support: Support) -> tuple[Support, Indices]:
    """Cells of all labels that are sent together, each label's values merged as on its own support.

    From the view of one label, and the cells ``support`` of its values; with the place of each cell
    there.
    """
    places = [support.cell_of]
    for values in not_none(problem.joint_values).T:
        if not np.array_equal(values, problem.grid):
            order = np.argsort(values, kind="stable")
            legs = tuple(leg.at(order) for leg in problem.legs)
            other = replace(problem, grid=values[order], legs=legs)
            cell_of = np.empty_like(order)
            cell_of[order] = Support.from_problem(other).cell_of
            places.append(cell_of)
    cells, cell_of = np.unique(np.stack(places, axis=1), axis=0, return_inverse=True)
    joint = Support.in_cells(problem, cell_of.reshape(-1).astype(np.int64))
    return replace(joint, discrete=len(cells) <= FEW), cells[:, 0]
