"""Matched events that lie in memory, with a holdout set apart, and their encoded rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch

from common.arrays import Booleans, Floats, Integers
from feature_party.join.matches import MatchCounts
from feature_party.learning.objectives import Objective, PointObjective
from feature_party.learning.problem import LabelProblem
from feature_party.learning.sources import own_labels
from feature_party.learning.target_encoding import scores_of_codes
from feature_party.model.encoding import Encoded, Encoder
from feature_party.model.facts import FitSettings
from feature_party.training.batches import MemorySource, Plan, Source
from feature_party.training.events import Codes, Encoding
from feature_party.training.folds import FoldedRows


@dataclass(frozen=True)
class Joined:
    """Matched events, in the order of the features.

    Attributes
    ----------
    table
        (m, …) their features, key column included.
    codes
        (m,) unsigned privatized labels.
    matches
        Counts on both sides.
    rows
        (m,) row of each matched event in the features.
    """

    table: pl.DataFrame
    codes: Codes
    matches: MatchCounts
    rows: Integers


@dataclass(frozen=True)
class Prepared:
    """Matched events in memory, split.

    Attributes
    ----------
    joined
        All matched events.
    training, holdout
        Their rows to train on, and to score on.
    problem, release_id
        As in :class:`Events`.
    key
        Their key column.
    among
        (t,) places of the training rows among all that were trained on, if these are one source's.
    """

    joined: Joined
    training: Integers
    holdout: Integers
    problem: LabelProblem
    release_id: str
    key: str = ""
    among: Integers | None = None

    @property
    def matches(self) -> MatchCounts:
        return self.joined.matches

    @property
    def training_rows(self) -> int:
        return self.training.size

    def held_out(self) -> tuple[pl.DataFrame, Codes]:
        return self.joined.table[self.holdout], self.joined.codes[self.holdout]

    def all_codes(self) -> Codes:
        return self.joined.codes

    def keys(self) -> pl.Series:
        return self.joined.table[self.key]

    def trained(self, start: int, stop: int) -> Booleans:
        return np.isin(np.arange(start, stop), self.joined.rows[self.training])

    def training_of(self, fold: Integers) -> Integers:
        """Training rows by their places among all that were trained on."""
        return self.training[fold if self.among is None else np.isin(self.among, fold)]

    def encoded(self, how: Encoding) -> InMemory:
        table, codes = self.joined.table, self.joined.codes[self.training]
        rows = table if not self.holdout.size else table[self.training]
        labels = None if how.true_labels is None else how.true_labels[self.training]
        return InMemory(how.fit(rows), rows, codes, labels)

    def of(self, source: str) -> Prepared:
        codes = self.problem.codes_of(source)
        mine = (codes.start <= self.joined.codes) & (self.joined.codes < codes.stop)
        places, among = np.cumsum(mine) - 1, np.flatnonzero(mine[self.training])
        joined = Joined(
            self.joined.table.filter(pl.Series(mine)),
            self.joined.codes[mine] - codes.start,
            self.matches.of(source),
            self.joined.rows[mine],
        )
        return replace(
            self,
            joined=joined,
            training=places[self.training[among]],
            holdout=places[self.holdout[mine[self.holdout]]],
            problem=own_labels(self.problem, source),
            among=among,
        )


class InMemory:
    """Encoded rows to train on, in memory.

    Parameters
    ----------
    encoder
        How they are encoded.
    rows
        What is encoded.
    codes
        Their privatized labels.
    labels
        Their true ones, for the objective ``true`` alone.
    """

    def __init__(
        self, encoder: Encoder, rows: pl.DataFrame, codes: Codes, labels: Floats | None = None
    ) -> None:
        self.encoder, self.codes, self.labels = encoder, codes, labels
        self.inputs: Encoded = encoder.encode(rows)

    def codes_of(self, rows: Integers) -> Codes:
        """(v,) privatized labels of some rows."""
        return self.codes[rows]

    def folded(self, problem: LabelProblem, settings: FitSettings) -> FoldedRows:
        """The rows with the folds that the networks leave out, too."""
        plan = Plan.of(settings, [len(self.inputs)])
        folds = plan.folds(0)[1][:: plan.group].numpy()
        codes = self.codes.astype(np.int64)
        scores = scores_of_codes(problem)[codes]
        return FoldedRows(self.encoder, self.inputs, codes, scores, folds, settings.seed)

    def left_out(self, share: float) -> float:
        """The share of rows that each network leaves out: what is asked for."""
        return share

    def source(self, objective: Objective, device: torch.device) -> Source:
        """The rows with what an objective needs of each."""
        if self.labels is not None and isinstance(objective, PointObjective):
            targets = objective.value_targets(self.labels)
        else:
            targets = objective.targets(self.codes)
        return MemorySource(self.inputs, targets, device)
