"""Categories as numbers: what privatized labels say of each on average, without a row's own.

A code z says E[y | z] of its label under the released prior; a category's encoding is the mean of
that over its rows, drawn towards 0 as far as the means of categories of its size are noise. A row
that is trained on is encoded from other folds than its own, and nothing is ever encoded from the
rows that a model is judged on.

Source: Micci-Barreca, *A Preprocessing Scheme for High-Cardinality Categorical Attributes*, 2001.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labelveil.common.arrays import Floats, Indices
from labelveil.feature_party.learning.problem import LabelProblem

_COMMON = 100
"""Rows of a category whose own ones hardly move its mean: LightGBM's ``min_data_per_group``."""
_LEAST_SHARE = 1e-4
"""Of the variance between categories in that of all scores: less would not be seen."""


def scores_of_codes(problem: LabelProblem) -> Floats:
    """(d,) E[y | z] of each code, with mean 0 and variance 1 under the prior."""
    marginal = np.maximum(problem.output_prior, 1e-300)
    means = (problem.prior * problem.grid) @ problem.channel / marginal
    centred = means - marginal @ means
    return np.asarray(centred / max(float(marginal @ centred**2) ** 0.5, 1e-12))


class TargetEncoding:
    """Encodings of categorical columns, for models that each leave out a fold of the rows.

    Takes (n, C) vocabulary indices and the vocabularies' sizes, the (n,) ``scores`` that say what
    each row's code says, and the (n,) fold of each row.
    """

    def __init__(
        self,
        categories: NDArray[np.int32],
        cardinalities: Sequence[int],
        scores: Floats,
        fold_of: Indices,
    ) -> None:
        starts = np.concatenate([[0], np.cumsum(cardinalities)]).astype(np.int64)
        self.places, self.fold_of = categories + starts[:-1], fold_of
        folds, size = int(fold_of.max()) + 1, int(starts[-1])
        at = (fold_of[:, None] * size + self.places).ravel()

        def total(weights: Floats | None) -> Floats:
            sums = np.bincount(at, weights=weights, minlength=folds * size)
            return sums.reshape(folds, size).astype(np.float64)

        self.counts, self.sums = total(None), total(np.repeat(scores, len(cardinalities)))
        # 0 where noise leaves a single value of the label possible: no code says anything then
        self.variance = float(np.mean(scores**2)) or 1.0
        columns = itertools.pairwise(starts)
        self.strength = np.concatenate([self._strength(slice(*ends)) for ends in columns])

    def _strength(self, column: slice) -> Floats:
        """Rows of noise that a category's mean is diluted with: variance within over between."""
        counts, sums = self.counts[:, column].sum(axis=0), self.sums[:, column].sum(axis=0)
        rows = counts.sum()
        explained = np.sum(sums**2 / np.maximum(counts, 1)) / rows
        between = explained / self.variance - np.count_nonzero(counts) / rows
        return np.full(counts.size, 1 / max(between, _LEAST_SHARE))

    def encoding(self, *left_out: int) -> Floats:
        """(size,) encoding of every category, from all folds but some."""
        sums, counts = (np.delete(of, left_out, axis=0) for of in (self.sums, self.counts))
        return np.asarray(sums.sum(axis=0) / (counts.sum(axis=0) + self.strength))

    def rows(self, left_out: int) -> Floats:
        """(n, C) encodings of all rows for the model that leaves a fold out.

        Its own fold is encoded as rows will be that nobody has seen: from all others. So are all
        rows of common categories, which must not change their order from fold to fold.
        """
        whole = self.encoding(left_out)
        common = np.delete(self.counts, left_out, axis=0).sum(axis=0) >= _COMMON
        encoded = np.empty(self.places.shape)
        for fold in range(len(self.counts)):
            mine, alone = self.fold_of == fold, self.encoding(fold, left_out)
            encoded[mine] = np.where(common, whole, alone)[self.places[mine]]
        return encoded
