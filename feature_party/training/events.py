"""What training asks of matched events, wherever they lie: in memory, or in shards on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import polars as pl

from labelveil.common.arrays import Booleans, Floats, Integers
from labelveil.feature_party.config.sections import DataSection, TrainingSection
from labelveil.feature_party.join.matches import MatchCounts
from labelveil.feature_party.learning.objectives import Objective
from labelveil.feature_party.learning.problem import Codes, LabelProblem
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.model.facts import FitSettings
from labelveil.feature_party.schema import Found
from labelveil.feature_party.training.batches import Parts
from labelveil.feature_party.training.folds import FoldedRows
from labelveil.feature_party.training.mixture import ProgressCallback
from labelveil.feature_party.training.workers import ALONE, Workers

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """What a model is trained with, besides its events.

    The folder is for encoded rows that memory is too small for, where ``training`` names no other;
    and for checkpoints, of which None keeps none.
    """

    training: TrainingSection  # how to train
    data: DataSection = field(default_factory=DataSection)  # what the features' columns are
    folder: Path | None = None
    true_labels: Floats | None = None  # (m,) of the matched events, for the objective ``true``
    on_epoch: ProgressCallback | None = None  # progress
    workers: Workers = ALONE  # each is given the same data, and returns the same model
    asks: bool = False  # whether it only asks of further events: as good in a fraction of the time


class TrainingRows(Protocol):
    """Encoded rows to train on."""

    @property
    def encoder(self) -> Encoder:
        """How they are encoded."""

    def codes_of(self, rows: Integers) -> Codes:
        """(v,) privatized labels of some rows."""

    def parts(self, objective: Objective, device: torch.device) -> Parts:
        """The rows with what an objective needs of each."""

    def folded(self, problem: LabelProblem, settings: FitSettings) -> FoldedRows | None:
        """The rows with the folds that networks leave out, for learners that see all at once."""

    def left_out(self, share: float) -> float:
        """The share of rows that each network leaves out, where ``share`` is asked for."""


class Events(Protocol):
    """Matched events, split: what training, evaluation and prediction ask of them."""

    @property
    def problem(self) -> LabelProblem:
        """Public facts of the releases."""

    @property
    def release_id(self) -> str:
        """Digest of the release's manifest, or of several manifests' digests."""

    @property
    def key(self) -> str:
        """Column of the events' keys."""

    @property
    def matches(self) -> MatchCounts:
        """Counts on both sides."""

    @property
    def found(self) -> Found | None:
        """What the columns of the features mean; None where these rows alone are to say it."""

    @property
    def training_rows(self) -> int:
        """Number of matched labels to train on."""

    @property
    def holdout(self) -> Integers:
        """(h,) matched labels to score on, ascending."""

    def held_out(self) -> tuple[pl.DataFrame, Codes]:
        """Features, key column included, and codes of the (h,) labels to score on."""

    def all_codes(self) -> Codes:
        """(m,) codes of all matched labels."""

    def keys(self) -> pl.Series:
        """(m,) keys of all matched labels' events."""

    def trained(self, start: int, stop: int) -> Booleans:
        """(stop - start,) which rows of the features are trained on."""

    def for_source(self, source: str) -> Events:
        """Those of one labels party among several, with its own problem and codes."""

    def encoded(self, setup: TrainingSetup, fit: Callable[[pl.DataFrame], Encoder]) -> TrainingRows:
        """Encode the rows to train on, as ``fit`` decides from a table."""
