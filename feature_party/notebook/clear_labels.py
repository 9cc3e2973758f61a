"""Labels that are known, of some events: a consented panel, a test set, what is public anyway."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelveil.common.arrays import finite
from labelveil.common.entropy import seeded_entropy
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.knots import interpolation, thinned
from labelveil.feature_party.learning.problem import LabelProblem, Leg, sums

_POINTS = 256
"""Of the release's grid, to which clear labels are rounded: what that adds is below any noise."""


@dataclass(frozen=True, eq=False)
class ClearLabels:
    """Known labels, said as codes of a channel without noise over a release's grid."""

    codes: NDArray[np.uint16]  # (n,)
    problem: LabelProblem

    @classmethod
    def from_labels(cls, labels: ArrayLike, released: LabelProblem) -> ClearLabels:
        """Say (n,) labels in terms of a release, whose bounds they are clipped to.

        Rounding between points is random and unbiased, and a part of the channel, so that their
        likelihood is exact. ``DataError`` if labels are no finite numbers.
        """
        values = finite(labels, "clear labels")
        weights = sums(released.value_of, released.prior, released.values.size)
        _, places, _ = thinned(released.values, weights, _POINTS)
        words = seeded_entropy(0).words("clear labels", 0, values.size)
        codes = Grid(places).round(values, words).astype(np.uint16)
        rows = interpolation(released.values, places)
        problem = LabelProblem(
            released.grid,
            (Leg(released.prior, rows, released.value_of, places),),
            released.loss,
            discrete=released.discrete,
            joint_values=released.joint_values,
        )
        return cls(codes, problem)
