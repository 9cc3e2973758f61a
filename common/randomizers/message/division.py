"""How several labels of an event share one ε: one channel for all of them, or one a label.

- *split*: every label its own prior and channel, as if it were sent alone, with a share of ε that
  public facts decide;
- *joint*: one prior over the cells of small grids, and one channel designed for all labels;
- *auto*: one prior over cells is paid for, and from that alone it is decided whether one channel or
  one a label, on the same grids, is predicted to serve better. Where labels need more than 400
  cells together, it is split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.exact.channel import MAX_OUTPUTS
from labelveil.common.exact.rational import rational
from labelveil.common.exact.rounding import float_below
from labelveil.common.randomizers.base import Randomizer, build_randomizer
from labelveil.common.randomizers.cells import Cells, Group, row_products
from labelveil.common.randomizers.design.conditionals import effective_rows, plausible_conditionals
from labelveil.common.randomizers.design.joint import Targets, build_joint_design
from labelveil.common.randomizers.design.mixture import best_mixture
from labelveil.common.randomizers.design.optimal_design import fitting, most_knots
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.knots import thinned
from labelveil.common.randomizers.losses import Loss, get_loss
from labelveil.common.randomizers.message.terms import Division, LabelTerms

Channels = tuple[tuple[Group, Randomizer], ...]
"""Randomizers, by the labels that each sends."""

MOST_CELLS = 400
FEWEST_POINTS = 8
_FEWEST_CELLS = 144
_PARTS = 12
_KNOTS = 12


def divide(
    terms: Sequence[LabelTerms],
    cells: Cells,
    prior: Floats,
    epsilon: float,
    rows: int,
    division: Division = "auto",
) -> Channels:
    """Choose between one channel for all labels and one a label, from a released prior alone.

    ``prior`` has (k,) released or public weights of the cells, ``epsilon`` is for all labels of one
    event, and ``joint`` leaves no choice.
    """
    losses, weights = [one.loss for one in terms], [one.weight for one in terms]
    joint = joint_channel(terms, cells, prior, epsilon, rows)
    if division == "joint":
        return joint
    own = split_channels(terms, cells, prior, epsilon, rows)
    targets = Targets.for_cells(cells, prior, losses, weights, rows)
    return min(joint, own, key=lambda one: targets.lost(at_knots(targets, cells, one)))


def joint_channel(
    terms: Sequence[LabelTerms], cells: Cells, prior: Floats, epsilon: float, rows: int
) -> Channels:
    """Design one channel for all labels; parameters as in :func:`divide`."""
    losses, weights = [one.loss for one in terms], [one.weight for one in terms]
    everything = Group(tuple(range(len(terms))), cells)
    return ((everything, build_joint_design(cells, prior, epsilon, losses, weights, rows)),)


def split_channels(
    terms: Sequence[LabelTerms],
    cells: Cells,
    prior: Floats,
    epsilon: float,
    rows: int,
    parts: int = 1,
) -> Channels:
    """Build a channel for each label, ε divided among them, of one of ``parts`` parts.

    The other parameters are those of :func:`divide`.
    """
    marginals = [cells.marginal(prior, j) for j in range(len(terms))]
    shares = allocate(terms, cells.grids, marginals, epsilon, rows)

    def build(points: int) -> list[Randomizer]:
        return [
            build_randomizer(
                "auto",
                labels=grid.points,
                prior=marginals[j],
                epsilon=float_below(rational(epsilon) * shares[j]),
                loss=terms[j].loss,
                rows=rows,
                **({"points": points} if len(grid) > 2 else {}),
            )
            for j, grid in enumerate(cells.grids)
        ]

    # never refused: at most five grids of three points or more make at most 400 cells
    knots = most_knots(designed_outputs(cells.grids), MAX_OUTPUTS // parts)
    groups = [Group((j,), Cells((grid,))) for j, grid in enumerate(cells.grids)]
    return tuple(zip(groups, fitting(build, knots, parts), strict=True))


def designed_outputs(grids: Sequence[Grid]) -> list[int | None]:
    """Outputs of each label's own channel; None where a design decides."""
    return [2 if len(grid) == 2 else None for grid in grids]


def at_knots(targets: Targets, cells: Cells, channels: Channels) -> Floats:
    """(k, d) probabilities of the combined codes in the cells that are knots."""
    knots = targets.rounding.argmax(axis=0)
    indices = cells.indices(knots)
    parts = [one.channel.probabilities[group.number(indices)] for group, one in channels]
    return reduce(row_products, parts)


def cell_grids(terms: Sequence[LabelTerms], rows: int, epsilon: float) -> tuple[Grid, ...] | None:
    """Choose small grids with at most 400 cells in all, from public facts.

    As with one label's grid, the number of cells is such that Theorem 7's √(k/n) spends about a
    sixteenth of ε on the prior, within 144 … 400. Grids that were chosen stay. None where they
    would have fewer than 8 points.
    """
    chosen = math.prod(len(one.grid) for one in terms if one.grid)
    free = sorted(
        (j for j, one in enumerate(terms) if not one.grid),
        key=lambda j: len(terms[j].coarse_grid(MOST_CELLS)),
    )
    affordable = min(max(rows * (epsilon / 16) ** 2, _FEWEST_CELLS), MOST_CELLS)
    # what is affordable first; if that leaves a label too few points, all cells that may be
    for room in (affordable, MOST_CELLS):
        left, grids = room / chosen, {j: one.grid for j, one in enumerate(terms) if one.grid}
        for place, j in enumerate(free):
            # labels of few values come first, so that room which they cannot use goes to the others
            most = int(left ** (1 / (len(free) - place)) + 1e-9)
            if most < 2:
                break
            grids[j] = terms[j].coarse_grid(most)
            left /= len(grids[j])
            if len(grids[j]) < min(FEWEST_POINTS, len(terms[j].coarse_grid(MOST_CELLS))):
                break
        else:
            if left >= 1:
                return tuple(grids[j] for j in range(len(terms)))
    return None


def allocate(
    terms: Sequence[LabelTerms],
    grids: Sequence[Grid],
    priors: Sequence[Floats],
    epsilon: float,
    rows: int,
) -> tuple[Fraction, ...]:
    """Divide ε > 0 so that the weighted sum of what the labels lose is least.

    The labels' codes are read one by one, so what a label loses depends on its own share of ε
    alone: the excess error of the best mixture for it, as a share of what it is with no label at
    all. All divisions into twelfths are tried on these curves, which come from public or released
    numbers. A little ε tells next to nothing, so that the least sum may starve a label; each
    therefore gets at least half of an equal share.

    ``priors`` have (k_j,) weights of each label's points, uniform where nothing is known. The
    shares sum to 1.
    """
    m = len(grids)
    least = -(-_PARTS // (2 * m))
    possible = range(least, _PARTS - (m - 1) * least + 1)
    tables = [
        label.weight * _losses(grid, prior, get_loss(label.loss), epsilon, rows, possible)
        for label, grid, prior in zip(terms, grids, priors, strict=True)
    ]
    # best divisions among the first labels of what they have together, label by label
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for table in tables:
        longer = [
            (value + lost, (*parts, part))
            for value, parts in best.values()
            for part, lost in zip(possible, table.tolist(), strict=True)
        ]
        best = {sum(parts): (value, parts) for value, parts in sorted(longer, reverse=True)}
    return tuple(Fraction(part, _PARTS) for part in best[_PARTS][1])


def _losses(
    grid: Grid, prior: Floats, loss: Loss, epsilon: float, rows: int, parts: Sequence[int]
) -> Floats:
    """What a label loses with ``parts`` parts of ε each."""
    _, points, mass = thinned(grid.points, prior, _KNOTS)
    family = plausible_conditionals(points, mass, loss).tempered()
    effective = effective_rows(rows)
    lost, mixture = [], None
    for part in parts:
        boost = float(np.expm1(epsilon * part / _PARTS))
        mixture = best_mixture((family,), boost, effective, start=mixture)
        lost.append(family.excess_error(mixture.channel(boost), effective))
    return np.array(lost) / family.excess_error(np.ones((points.size, 1)), effective)
