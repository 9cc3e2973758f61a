"""Labels of several parties as one problem: each source's own at (y − location) / scale.

Labels that are all >= 0 are divided by their mean, so that 0 stays 0; others are centred, and
divided by their deviation. Both are those of the source's released prior. Two values, or the same
few classes, stay what they are. On the common axis the releases are joined as those of several
epochs are (:mod:`labelveil.feature_party.learning.several_releases`): every label is read through
its own channel, and only the model is shared.

A prediction is a distribution over cells of that axis. :func:`own_labels` and :func:`own_cells`
bring it back to the labels of one source: whatever lies beyond its range is at the range's ends,
where its labels were clipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.errors import DataError
from labelveil.feature_party.learning.problem import (
    LabelProblem,
    LabelSource,
    join_legs,
    silent_leg,
)
from labelveil.feature_party.learning.several_releases import join_problems, refined
from labelveil.feature_party.learning.support import Support

_POINTS = 512
"""Of the common axis, unless one source has more."""
_SAME = 1e-9
"""Share of the axis up to which points are one."""


def join_sources(
    parts: Sequence[LabelProblem], rows: Sequence[float], names: Sequence[str]
) -> LabelProblem:
    """Make one problem of releases, each with its rows that are learned from and its source.

    A source's releases follow each other, oldest first. ``DataError`` if a source's releases do not
    belong together, or sources have other kinds of labels.
    """
    if len(set(names)) < 2:
        return join_problems(parts, rows)
    groups = {name: list(places) for name, places in groupby(range(len(parts)), names.__getitem__)}
    own = {
        name: join_problems([parts[i] for i in places], [rows[i] for i in places])
        for name, places in groups.items()
    }
    if any(each.grid.size > each.values.size for each in own.values()):
        raise DataError(
            "labels that are counted together, of several labels parties, cannot be learned from"
            " together; ask for releases with [privacy] division = split, or train a model for each"
            " labels party"
        )
    _check_kinds(own)
    positive = all(each.grid[0] >= 0 for each in own.values())
    # each party's labels by their own location and scale, then all on one axis: what is learned
    # from one party's events says where in its own range another's labels lie
    scales = {name: _scale(each, positive) for name, each in own.items()}
    moved = {name: _moved(each, *scales[name]) for name, each in own.items()}
    axis = _axis([each.grid for each in moved.values()])
    sources, releases = [], list[LabelProblem]()
    for name, places in groups.items():
        restated = [refined(part, axis) for part in moved[name].releases]
        releases += restated
        first, last = (int(np.abs(axis - end).argmin()) for end in moved[name].grid[[0, -1]])
        prior = join_legs(restated, [rows[i] for i in places]).prior
        sources.append(LabelSource(name, *scales[name], first, last, prior, len(places)))
    return replace(join_legs(releases, rows), sources=tuple(sources))


def own_labels(problem: LabelProblem, name: str) -> LabelProblem:
    """The facts about one source's labels alone, in their own units.

    Of a problem that a model was saved with, grid and prior alone.
    """
    source, start = problem.source(name)
    inside = slice(source.first, source.last + 1)
    unmoved = -source.location / source.scale, 1 / source.scale
    grid = (source.location + source.scale * problem.grid)[inside]
    if len(problem.legs) > 1:
        own = _moved(problem.some_releases(start, start + source.releases), *unmoved)
        return replace(own, grid=grid, legs=tuple(leg.at(inside) for leg in own.legs))
    silent = silent_leg(grid, source.prior[inside])
    return LabelProblem(grid, (silent,), problem.loss, discrete=problem.discrete)


def own_cells(
    problem: LabelProblem, support: Support, name: str, own: LabelProblem
) -> tuple[Support, Floats]:
    """One source's m' cells: those of the common axis, in its units.

    ``own`` is :func:`own_labels` of it. The (m, m') matrix takes distributions over all cells to
    them.
    """
    source, _ = problem.source(name)
    first, last = support.cell_of[[source.first, source.last]]
    cells = support.cell_of[source.first : source.last + 1] - first
    places = np.clip(np.arange(support.size), first, last) - first
    return Support.in_cells(own, cells), np.eye(last - first + 1)[places]


def _check_kinds(own: dict[str, LabelProblem]) -> None:
    (name, first), *others = own.items()
    for other, problem in others:
        kinds = _kind(first), _kind(problem)
        if kinds[0] != kinds[1]:
            raise DataError(
                f"labels of {name!r}, {kinds[0]}, and of {other!r}, {kinds[1]}, cannot be learned"
                " from together; train a model for each"
            )


def _kind(problem: LabelProblem) -> str:
    if not problem.discrete:
        return f"on a range under {problem.loss} loss"
    count = problem.grid.size
    values = "" if count == 2 else " " + ", ".join(f"{value:g}" for value in problem.grid)
    return f"{count} values{values} under {problem.loss} loss"


def _scale(problem: LabelProblem, positive: bool) -> tuple[float, float]:
    """Location and scale of a source's labels."""
    low, high = float(problem.grid[0]), float(problem.grid[-1])
    if problem.discrete:
        return (low, high - low) if problem.grid.size == 2 else (0.0, 1.0)
    if positive:
        return 0.0, max(problem.mean, 1e-6 * high)
    return problem.mean, problem.deviation


def _moved(problem: LabelProblem, location: float, scale: float) -> LabelProblem:
    """The facts about (y − location) / scale."""
    return replace(
        problem,
        grid=(problem.grid - location) / scale,
        legs=tuple(replace(leg, outputs=(leg.outputs - location) / scale) for leg in problem.legs),
    )


def _axis(grids: Sequence[Floats]) -> Floats:
    """Points of all grids, or some of them where they are many; every grid's ends among them."""
    ends = np.array([grid[[0, -1]] for grid in grids]).reshape(-1)
    points = np.unique(np.concatenate(grids))
    most = max(_POINTS, *(grid.size for grid in grids))
    points = np.concatenate([ends, points[:: -(-points.size // most)]])
    # an end comes first among equals, so that it is the one that is kept
    order = np.lexsort((np.arange(points.size) >= ends.size, points))
    points = points[order]
    return points[np.diff(points, prepend=-np.inf) > _SAME * np.ptp(points)]
