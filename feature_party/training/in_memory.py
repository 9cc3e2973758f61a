"""Matched events that lie in memory, with a holdout set apart, and their encoded rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch

from labelveil.common.arrays import Booleans, Floats, Integers
from labelveil.feature_party.join.matches import MatchCounts
from labelveil.feature_party.learning.objectives import Objective, PointObjective
from labelveil.feature_party.learning.problem import Codes, LabelProblem
from labelveil.feature_party.learning.sources import own_labels
from labelveil.feature_party.learning.target_encoding import scores_of_codes
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.model.facts import FitSettings
from labelveil.feature_party.schema import Found
from labelveil.feature_party.training.batches import BatchPlan, MemoryParts, Parts
from labelveil.feature_party.training.events import TrainingSetup
from labelveil.feature_party.training.folds import FoldedRows


@dataclass(frozen=True, eq=False)
class Prepared:
    """:class:`Events` in memory, in the order of the features.

    Of one source among several, ``among`` are the (t,) places of its training rows among all.
    """

    table: pl.DataFrame  # (m, …) their features, key column included
    codes: Codes  # (m,) unsigned privatized labels
    problem: LabelProblem
    release_id: str
    key: str
    matches: MatchCounts
    training: Integers  # (t,) matched labels to train on
    holdout: Integers
    rows: Integers  # (m,) row of each matched event in the features
    among: Integers | None = None
    found: Found | None = None  # what the columns mean; of a table alone its training rows say it

    @classmethod
    def of_table(
        cls,
        table: pl.DataFrame,
        codes: Codes,
        problem: LabelProblem,
        holdout: Integers | None = None,
        key: str = "",
    ) -> Prepared:
        """Rows of a table with a code each, all but those held out to train on."""
        rows = np.arange(table.height)
        held_out = rows[:0] if holdout is None else holdout
        matches = MatchCounts(rows.size, rows.size, rows.size)
        training = np.delete(rows, held_out)
        return cls(table, codes, problem, "", key, matches, training, held_out, rows)

    @property
    def training_rows(self) -> int:
        return self.training.size

    def held_out(self) -> tuple[pl.DataFrame, Codes]:
        return self.table[self.holdout], self.codes[self.holdout]

    def all_codes(self) -> Codes:
        return self.codes

    def keys(self) -> pl.Series:
        return self.table[self.key]

    def trained(self, start: int, stop: int) -> Booleans:
        return np.isin(np.arange(start, stop), self.rows[self.training])

    def training_of(self, fold: Integers) -> Integers:
        """Training rows by their places among all that were trained on."""
        return self.training[fold if self.among is None else np.isin(self.among, fold)]

    def encoded(self, setup: TrainingSetup, fit: Callable[[pl.DataFrame], Encoder]) -> InMemory:
        rows = self.table[self.training] if self.holdout.size else self.table
        labels = None if setup.true_labels is None else setup.true_labels[self.training]
        return InMemory(fit(rows), rows, self.codes[self.training], labels)

    def for_source(self, source: str) -> Prepared:
        codes = self.problem.codes_of(source)
        mine = (codes.start <= self.codes) & (self.codes < codes.stop)
        places, among = np.cumsum(mine) - 1, np.flatnonzero(mine[self.training])
        return replace(
            self,
            table=self.table.filter(pl.Series(mine)),
            codes=self.codes[mine] - codes.start,
            problem=own_labels(self.problem, source),
            matches=self.matches.for_source(source),
            training=places[self.training[among]],
            holdout=places[self.holdout[mine[self.holdout]]],
            rows=self.rows[mine],
            among=among,
        )


class InMemory:
    """:class:`TrainingRows` in memory, with their true labels for the objective ``true``."""

    def __init__(
        self, encoder: Encoder, rows: pl.DataFrame, codes: Codes, labels: Floats | None
    ) -> None:
        self.encoder, self.codes, self.labels = encoder, codes, labels
        self.inputs = encoder.encode(rows)

    def codes_of(self, rows: Integers) -> Codes:
        return self.codes[rows]

    def folded(self, problem: LabelProblem, settings: FitSettings) -> FoldedRows:
        plan = BatchPlan(settings, (len(self.inputs),))
        folds = plan.folds(0)[1][:: plan.group].numpy()
        codes = self.codes.astype(np.int64)
        scores = scores_of_codes(problem)[codes]
        if self.labels is not None:
            codes, scores = np.arange(self.labels.size), self.labels - self.labels.mean()
        given = self.encoder, self.inputs, codes, scores, folds, settings.seed, self.labels
        return FoldedRows(*given)

    def left_out(self, share: float) -> float:
        return share

    def parts(self, objective: Objective, device: torch.device) -> Parts:
        if self.labels is not None and isinstance(objective, PointObjective):
            targets = objective.value_targets(self.labels)
        else:
            targets = objective.targets(self.codes)
        return MemoryParts(self.inputs, targets, device)
