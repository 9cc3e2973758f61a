"""Several releases as one problem: one model, every row read through its own release's channel.

The codes of release e are moved behind those of the releases before it, and the joint channel has
the columns of all: ``K[y, (e, z)] = w_e K_e[y, z]``, w_e the share of e's rows. The likelihood of a
code is that of its own channel up to a constant factor, which no gradient sees, so the model is the
only thing that the releases share; their priors are pooled for what a head starts from. Decoding
does not pool: labels may have drifted, and a decoder of the mixture would be unbiased on average
over the releases and for none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from common.arrays import Floats
from common.errors import DataError
from common.randomizers.knots import interpolation
from feature_party.learning.problem import LabelProblem, pooled


def join_problems(parts: Sequence[LabelProblem], rows: Sequence[float]) -> LabelProblem:
    """Make one problem of releases, oldest first, of which some rows each are learned from.

    ``DataError`` if they are about other ranges of labels, or other losses.
    """
    first = parts[0]
    for part in parts[1:]:
        kinds = [f"{p.grid[0]:g} … {p.grid[-1]:g} under {p.loss} loss" for p in (first, part)]
        if (part.grid[0], part.grid[-1], part.loss) != (first.grid[0], first.grid[-1], first.loss):
            raise DataError(
                f"releases of labels in {kinds[0]} and in {kinds[1]} cannot be learned from"
                " together; name releases of one domain and loss"
            )
        together = any(each.grid.size > each.values.size for each in parts)
        if together and not np.array_equal(part.grid, first.grid):
            raise DataError(
                "releases that count several labels together on other grids cannot be learned from"
                " together; train a model for each"
            )
    grid = max((part.grid for part in parts), key=lambda points: points.size)
    return pooled([over_grid(part, grid) for part in parts], rows)


def over_grid(part: LabelProblem, grid: Floats) -> LabelProblem:
    """Restate a release's facts over a finer grid, on which labels are rounded to its own.

    Points of the grid beyond the release's range are clipped to it.
    """
    if np.array_equal(part.grid, grid):
        return part
    low, high = part.grid[[0, -1]]
    rows, row_of = np.unique(
        interpolation(np.clip(grid, low, high), part.grid) @ part.channel,
        axis=0,
        return_inverse=True,
    )
    ends = int(np.abs(grid - low).argmin()), int(np.abs(grid - high).argmin())
    return replace(
        part,
        grid=grid,
        prior=part.prior @ interpolation(part.grid, grid),
        rows=rows,
        row_of=row_of.reshape(-1).astype(np.int64),
        ends=ends if ends[1] - ends[0] + 1 < grid.size else None,
        strata=tuple(over_grid(stratum, grid) for stratum in part.strata),
    )
