"""Encoded rows in folds, for learners that see all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from labelveil.common.arrays import Floats, Indices
from labelveil.feature_party.learning.objectives import Objective
from labelveil.feature_party.learning.target_encoding import TargetEncoding
from labelveil.feature_party.model.encoding import Encoded, Encoder
from labelveil.feature_party.model.network import Learned
from labelveil.feature_party.training.fitting import EpochRecord, Fit

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class FoldedRows:
    """Encoded rows to train on, and the folds of them that one model each leaves out."""

    encoder: Encoder
    inputs: Encoded
    codes: NDArray[np.int64]  # (n,) privatized labels, or of true ones their rows
    scores: Floats  # (n,) what each code says of its label, for the encoding of categories
    folds: Indices  # (K, v) rows of each fold; a row may be in none
    seed: int  # of the run
    labels: Floats | None = None  # (n,) true ones, for the objective ``true``

    @cached_property
    def fold_of(self) -> Indices:
        """(n,) fold of each row; those in none make up more folds, that no model leaves out: rows
        of one fold are encoded from the others."""
        fold_of = np.full(len(self.inputs), len(self.folds))
        for fold, rows in enumerate(self.folds):
            fold_of[rows] = fold
        others = np.flatnonzero(fold_of == len(self.folds))
        more = max(round(others.size / self.folds.shape[1]), 1)
        fold_of[others] += np.arange(others.size) % more
        return fold_of

    @cached_property
    def _encoding(self) -> TargetEncoding:
        sizes = self.encoder.cardinalities
        return TargetEncoding(self.inputs.categories, sizes, self.scores, self.fold_of)

    def matrix(self, fold: int, columns: Sequence[int]) -> Floats:
        """(n, q) numeric inputs, then each category's encoding, for the model without a fold."""
        numeric = self.inputs.numeric[:, columns].astype(np.float64)
        if not self.encoder.categorical:
            return numeric
        return np.concatenate([numeric, self.encoded(fold)], axis=1)

    def encoded(self, fold: int) -> Floats:
        """(n, C) each category's encoding, for the model without a fold."""
        return self._encoding.rows(fold)

    @property
    def encodings(self) -> Floats:
        """(K, Σ cardinalities) the encodings that new rows get."""
        if not self.encoder.categorical:
            return np.zeros((len(self.folds), 0))
        return np.stack([self._encoding.encoding(fold) for fold in range(len(self.folds))])

    @torch.no_grad()
    def fit(
        self,
        objective: Objective,
        learned: Learned,
        history: list[EpochRecord],
        outputs: Sequence[Floats],
    ) -> Fit:
        """What a model of one member a fold says about the rows that the member did not see.

        ``outputs`` are each member's (v, p) for the rows of its fold.
        """
        losses, predictions, estimates, marginal = [], [], [], np.zeros(objective.cells)
        rows, raw = self.folds.reshape(-1), np.concatenate(outputs)
        for start in range(0, rows.size, _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            some = torch.as_tensor(raw[part], dtype=torch.float32)
            targets = objective.targets(self.codes[rows[part]])
            found = objective.evaluate(some, targets)
            losses.append(found.losses.numpy())
            estimates.append(found.estimates.numpy())
            predictions.append(found.points.numpy())
            if found.distributions is not None:
                marginal += found.distributions.sum(dim=0).numpy()
        loss, points, told = (
            np.concatenate(each, dtype=np.float64) for each in (losses, predictions, estimates)
        )
        return Fit(learned, history, rows, loss, points, told, marginal / marginal.sum())
