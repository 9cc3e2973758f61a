"""Laws of one family by their means: what a prediction says of a label's distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from labelveil.common.arrays import Floats, Indices
from labelveil.common.errors import ConfigError, DataError, not_none
from labelveil.feature_party.learning.heads import AtomHead
from labelveil.feature_party.learning.objectives import LikelihoodObjective

_PLACES = np.linspace(-6, 6, 241)
"""Of laws, in standard deviations of all labels, for a family with a location."""
_WIDTHS = np.linspace(-4, 4, 33)
"""What a family's second parameter, if it has one, is chosen from."""


@dataclass(frozen=True, eq=False)
class LawsByMean:
    """Laws that differ by one parameter; calling them with means gives a family's raw outputs."""

    outputs: Floats  # (m, p) raw outputs of the laws
    moving: int  # which of the outputs differs
    probabilities: Floats  # (m, k) of the cells of the family's support
    means: Floats  # (m,) in label units, ascending

    @classmethod
    def fitted(
        cls, law: LikelihoodObjective, points: Floats, codes: NDArray[np.integer]
    ) -> LawsByMean:
        """Take the width under which laws with (n,) predicted means make (n,) codes likeliest.

        ``ConfigError`` if one number does not tell a law of the family, as of the
        probabilities of classes; ``DataError`` if there are not as many predictions as codes.
        """
        family = law.family.inner if isinstance(law.family, AtomHead) else law.family
        if family.outputs > 2 or family.name == "softmax":
            raise ConfigError(f"head={family.name!r} has laws that a mean does not tell apart")
        if points.shape != codes.shape:
            raise DataError(f"predictions={points.shape} must be one for each of {codes.shape}")
        moving, best, likeliest = law.outputs - family.outputs, np.inf, None
        for width in _WIDTHS[: None if family.outputs > 1 else 1]:
            outputs = np.zeros((_PLACES.size, law.outputs))
            outputs[:, moving + 1 :], outputs[:, moving] = width, _PLACES
            laws = law.distributions(torch.as_tensor(outputs)).numpy()
            means = np.maximum.accumulate(laws @ law.support.values)
            candidate = cls(outputs, moving, laws, means)
            chances = (laws @ law.support.likelihood)[candidate.nearest(points), codes]
            loss = -np.log(chances).mean()
            if loss < best:
                best, likeliest = loss, candidate
        return not_none(likeliest)

    def nearest(self, points: Floats) -> Indices:
        """(n,) laws whose means are nearest to (n,) numbers."""
        return np.searchsorted((self.means[1:] + self.means[:-1]) / 2, points)

    def __call__(self, points: Floats) -> Floats:
        """(n, p) raw outputs of the laws with (n,) means, in label units."""
        values = np.asarray(points, np.float64)
        raw = np.tile(self.outputs[0], (values.size, 1))
        raw[:, self.moving] = np.interp(values, self.means, self.outputs[:, self.moving])
        return raw
