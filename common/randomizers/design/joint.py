"""One channel for several labels: the best public mixture, with thresholds that identify each.

As for one label (:mod:`labelveil.common.randomizers.design.optimal_design`), a fixed share of the
events goes to uniform randomized thresholds, of one label each, so that every label has an unbiased
decoding in every cell whatever the others are; the rest is the mixture of
:mod:`labelveil.common.randomizers.design.mixture`, optimised around them. A label's part of the
criterion is its excess error, tempered as for one label, as a share of what it is with no label at
all, times the label's weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.randomizers.base import Randomizer, check_epsilon, check_prior, register_joint
from labelveil.common.randomizers.cells import Cells
from labelveil.common.randomizers.design.conditionals import (
    EXPLAINED,
    ConditionalFamily,
    effective_rows,
    joint_conditionals,
)
from labelveil.common.randomizers.design.mixture import best_mixture
from labelveil.common.randomizers.design.optimal_design import (
    POINTS,
    Design,
    largest_share,
    uniform_thresholds,
)
from labelveil.common.randomizers.exact_rows import check_size, exact_rows
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.knots import choose_knots, interpolation
from labelveil.common.randomizers.losses import get_loss

JOINT = "joint-design"

register_joint(
    JOINT,
    points=list[list[float]],
    losses=list[str],
    weights=list[float],
    predicted_excess_errors=list[float],
    optimality_gap=float,
    effective_rows=float,
    explained=float,
    threshold_share=float,
)


@dataclass(frozen=True, eq=False)
class Targets:
    """What a channel for several labels is judged by, from a released prior alone."""

    cells: Cells  # of the knots: at most 32 points of each grid
    prior: Floats  # (k,) prior of these
    rounding: Floats  # (all cells, k) probabilities of being rounded to each
    # one a label, tempered, in units such that the sum of their excess errors with no label at all
    # is the sum of the weights
    families: tuple[ConditionalFamily, ...]
    plain: tuple[ConditionalFamily, ...]  # neither tempered nor scaled: in units of the losses
    weights: tuple[float, ...]  # how much each label counts
    effective: float  # randomized events that bear on one prediction

    @classmethod
    def for_cells(
        cls,
        cells: Cells,
        prior: Floats,
        losses: Sequence[str],
        weights: Sequence[float],
        rows: int,
        explained: float = EXPLAINED,
    ) -> Targets:
        """Choose the knots and build the families; parameters as in :func:`build_joint_design`."""
        prior = check_prior(prior, len(cells))
        points = [
            grid.points[choose_knots(grid.points, cells.marginal(prior, j), POINTS)]
            for j, grid in enumerate(cells.grids)
        ]
        parts = (interpolation(g.points, p) for g, p in zip(cells.grids, points, strict=True))
        rounding: Floats = reduce(lambda rest, part: np.asarray(np.kron(rest, part)), parts)
        knots = Cells(tuple(map(Grid, points)))
        judges = [get_loss(loss) for loss in losses]
        plain = joint_conditionals(knots, prior @ rounding, judges, explained)
        effective = effective_rows(rows)
        families = []
        for family, weight in zip(map(ConditionalFamily.tempered, plain), weights, strict=True):
            nothing = family.excess_error(np.ones((family.labels.size, 1)), effective)
            gradients = family.gradients * np.sqrt(weight / nothing)
            families.append(replace(family, gradients=gradients))
        return cls(
            knots, prior @ rounding, rounding, tuple(families), plain, tuple(weights), effective
        )

    def lost(self, channel: Floats) -> float:
        """Weighted sum of the shares of what could be gained that a (k, d) channel loses."""
        return float(np.dot(self.weights, self.shares_lost(channel)))

    def shares_lost(self, channel: Floats) -> list[float]:
        """Share, 0 … 1, of what could be gained for each label that a (k, d) channel loses."""
        information = self.effective * self.families[0].information(channel)
        return [
            family.excess_given(information) / weight
            for family, weight in zip(self.families, self.weights, strict=True)
        ]

    def excess_errors(self, channel: Floats) -> list[float]:
        """Predicted excess error of each label, in the units of its loss."""
        information = self.effective * self.families[0].information(channel)
        return [family.excess_given(information) for family in self.plain]


def build_joint_design(
    cells: Cells,
    prior: Floats,
    epsilon: float,
    losses: Sequence[str],
    weights: Sequence[float],
    rows: int,
    explained: float = EXPLAINED,
) -> Randomizer:
    """Build the channel of least predicted excess error for all labels at once.

    It goes from the numbers of the cells to the numbers of its answers. The (k,) ``prior`` weights
    of the cells are from public or privatized information only; ``epsilon``, at most 40, is of all
    labels of one event together; ``losses`` and ``weights`` > 0 say how predictions of each label
    are judged, and how much that counts; features are taken to have ``explained`` a share of the
    labels' variances, in 0 … 1.
    """
    check_epsilon(epsilon)
    targets = Targets.for_cells(cells, prior, losses, weights, rows, explained)
    boost = float(exp_lower_bound(epsilon)) - 1.0
    design, share = _identifying_design(targets, boost)
    probabilities = targets.rounding @ design.channel
    check_size(*probabilities.shape)
    inputs, outputs = (np.arange(float(size)) for size in probabilities.shape)
    channel = FiniteChannel(inputs, outputs, exact_rows(probabilities, epsilon))
    details = {
        "points": [grid.points.tolist() for grid in targets.cells.grids],
        "losses": list(losses),
        "weights": [float(weight) for weight in weights],
        "predicted_excess_errors": targets.excess_errors(design.channel),
        "optimality_gap": design.gap,
        "effective_rows": targets.effective,
        "explained": explained,
        "threshold_share": share,
    }
    return Randomizer(JOINT, channel, check_prior(prior, len(cells)), get_loss(losses[0]), details)


def _identifying_design(targets: Targets, boost: float) -> tuple[Design, float]:
    """Return the design with the largest affordable threshold share, and that share."""
    families, effective, cells = targets.families, targets.effective, targets.cells
    best = best_mixture(families, boost, effective)
    indices = cells.indices(np.arange(len(cells)))
    thresholds = np.concatenate(
        [
            uniform_thresholds(grid.points, boost)[column] / len(cells.grids)
            for grid, column in zip(cells.grids, indices.T, strict=True)
        ],
        axis=1,
    )
    known = families[0].information(thresholds)

    def with_share(share: float, _: float) -> Design:
        rest = 1.0 - share
        mixture = best_mixture(families, boost, rest * effective, share * effective * known, best)
        parts = [rest * mixture.channel(boost), share * thresholds]
        channel = np.concatenate(parts, axis=1)
        return Design(channel, targets.lost(channel), mixture.gap)

    least, nothing = targets.lost(best.channel(boost)), targets.lost(np.ones((len(cells), 1)))
    return largest_share(with_share, least, nothing)
