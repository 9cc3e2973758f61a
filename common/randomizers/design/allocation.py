"""How ε is divided among labels that have a channel each.

The labels' codes are read one by one, so what a label loses depends on its own share of ε alone:
the excess error of the best mixture for it, as a share of what it is with no label at all. All
divisions into twelfths are tried on these curves, which come from public or released numbers.
A little ε tells next to nothing, so that the least sum may starve a label; each therefore gets at
least half of an equal share.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from common.arrays import Floats
from common.randomizers.design.conditionals import effective_rows, plausible_conditionals
from common.randomizers.design.mixture import best_mixture
from common.randomizers.grid import Grid
from common.randomizers.knots import thinned
from common.randomizers.losses import Loss, get_loss

PARTS = 12
_POINTS = 12


def allocate(
    grids: Sequence[Grid],
    priors: Sequence[Floats],
    losses: Sequence[str | Loss],
    weights: Sequence[float],
    epsilon: float,
    rows: int,
) -> tuple[Fraction, ...]:
    """Divide ε > 0 so that the weighted sum of what the labels lose is least.

    ``priors`` have (k_j,) weights of each label's points, uniform where nothing is known;
    ``losses`` say how predictions of each label are judged, and ``weights`` > 0 how much that
    counts. The shares are multiples of 1/12, each at least 1/(2m), and sum to 1.
    """
    m = len(grids)
    least = -(-PARTS // (2 * m))
    possible = range(least, PARTS - (m - 1) * least + 1)
    tables = [
        weight * _losses(grid, prior, get_loss(loss), epsilon, rows, possible)
        for grid, prior, loss, weight in zip(grids, priors, losses, weights, strict=True)
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
    return tuple(Fraction(part, PARTS) for part in best[PARTS][1])


def _losses(
    grid: Grid, prior: Floats, loss: Loss, epsilon: float, rows: int, parts: Sequence[int]
) -> Floats:
    """What a label loses with so many parts of ε each."""
    _, points, mass = thinned(grid.points, prior, _POINTS)
    family = plausible_conditionals(points, mass, loss).tempered()
    effective = effective_rows(rows)
    lost, mixture = [], None
    for part in parts:
        boost = float(np.expm1(epsilon * part / PARTS))
        mixture = best_mixture((family,), boost, effective, start=mixture)
        lost.append(family.excess_error(mixture.channel(boost), effective))
    return np.array(lost) / family.excess_error(np.ones((points.size, 1)), effective)
