"""From a release and features to a model and its predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import polars as pl
from rich.progress import Progress, TaskID

from labelveil.common.arrays import Floats
from labelveil.common.console import progress, stderr
from labelveil.common.errors import DataError
from labelveil.feature_party.config.sections import TrueLabels
from labelveil.feature_party.evaluation.true_labels import match_true_labels
from labelveil.feature_party.join.key_secrets import secrets_of_releases
from labelveil.feature_party.join.matches import JoinInputs, MatchCounts, Party
from labelveil.feature_party.join.shards import JoinedShards
from labelveil.feature_party.learning.several_labels import stated_of
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.model.prediction import Predicted
from labelveil.feature_party.model.several_labels import LabelModels, label_folders
from labelveil.feature_party.pipeline.predicting import predict
from labelveil.feature_party.pipeline.transfer import Transfer
from labelveil.feature_party.schema import NAMELESS
from labelveil.feature_party.training.distributed import joined_workers
from labelveil.feature_party.training.encoded_shards import remove_shards
from labelveil.feature_party.training.events import Events, TrainingSetup
from labelveil.feature_party.training.fitting import EpochRecord
from labelveil.feature_party.training.holdout import holdout_digest
from labelveil.feature_party.training.prepare import Preparation
from labelveil.feature_party.training.run import train
from labelveil.feature_party.training.workers import ALONE, Workers

_COLUMNS = "columns"
"""Stands among the warnings that were given for the list of columns."""


@dataclass(eq=False)
class Learning(Transfer):
    """The stages that need features, and torch."""

    truth: TrueLabels = field(default_factory=TrueLabels)
    workers: Workers = ALONE
    predicted: Predicted | None = None
    _labels: dict[str, Events] | None = None

    def warn(self, text: str) -> None:
        """As of every stage; of several workers the first one warns for all."""
        if self.workers.first:
            super().warn(text)

    def join(self) -> JoinedShards:
        """Match release and features in shards on disk, however large they are."""
        with self._timed("join"), self._preparation() as preparation:
            joined = preparation.joined()
        joined.matches.check()
        self._warn_of_poor(joined.matches)
        return joined

    def _warn_of_poor(self, matches: MatchCounts) -> None:
        poor = matches.poor(self.config.least_match)
        if poor:
            self.warn(poor)

    @contextmanager
    def _preparation(self) -> Iterator[Preparation]:
        """What joins, showing one step after another."""
        config = self.config
        self.check_withdrawn()
        features, key, stated = config.features, config.key, config.data.stated
        of_releases = zip(secrets_of_releases(config), config.releases, strict=True)
        parties = tuple(
            Party(secret, party.called if config.several else "")
            for secret, (party, _) in of_releases
        )
        inputs = JoinInputs(tuple(config.release_folders), features, key, parties, stated)
        with progress(quiet=self.quiet or not self.workers.first) as bar:
            tasks: dict[str, TaskID] = {}

            def show(step: str, done: int, total: int) -> None:
                if step not in tasks:
                    tasks[step] = bar.add_task(step, total=total, note="parts")
                bar.update(tasks[step], completed=done)

            sections = config.training, config.join, config.engine
            yield Preparation(inputs, *sections, bool(config.round_shares), self.workers, show)

    @property
    def labels(self) -> dict[str, Events]:
        """The join of release and features, with the holdout set apart, as each label sees it."""
        if self._labels is None:
            with self._timed("join"), self._preparation() as preparation:
                self._labels = preparation.events()
            self._warn_of_poor(self.prepared.matches)
        return self._labels

    def prefix(self, label: str) -> str:
        """What a line about a label begins with: nothing where it is the only one."""
        return f"{label}: " if len(self.labels) > 1 else ""

    @property
    def prepared(self) -> Events:
        """The first label's, whose events are all labels'."""
        return next(iter(self.labels.values()))

    def train_together(self) -> LabelModels:
        """Train with the other workers that torchrun started, if any; the first saves the model."""
        with joined_workers(self.config.training.device) as self.workers:
            return self.train()

    def train(self, asks: bool = False) -> LabelModels:
        """Train and save a model for each label, or one that only ``asks`` of further events."""
        section = self.config.training
        folders = label_folders(self.config.output.model, self.labels)
        quiet = self.quiet or not self.workers.first
        data = self.config.data.model_copy(update={"min_match": self.config.least_match})
        models: dict[str, Model] = {}
        self._show_columns(quiet)
        with self._timed("train"), progress(quiet=quiet) as bar:
            for label, events in self.labels.items():
                truth = self._truth(label) if section.objective == "true" else None
                setup = TrainingSetup(
                    section,
                    data,
                    folders[label],
                    true_labels=truth,
                    on_epoch=_epochs_on(bar, self.prefix(label)),
                    workers=self.workers,
                    asks=asks,
                )
                models[label] = train(events, setup)
                models[label].facts.warnings.extend(self.withdrawn)
        trained = LabelModels(models)
        self.workers.wait()  # the others may still read the shards
        if not self.workers.first:
            return trained
        trained.save(self.config.output.model)
        for folder in folders.values() if section.shards == "auto" else ():
            remove_shards(folder / "shards")
        for name, why in () if quiet else trained.encoder.left_out:
            stderr.print(f"left out: {name or NAMELESS}, which {why}")
        for label, model in models.items():
            for warning in model.facts.warnings:
                self.warn(self.prefix(label) + warning)
        return trained

    def _show_columns(self, quiet: bool) -> None:
        """Print what each column of the features is taken for, once."""
        found = self.prepared.found
        if found is None or quiet or _COLUMNS in self._warned:
            return
        self._warned.add(_COLUMNS)
        for line in found.describe(self.config.data.stated.ignored):
            stderr.print(line, highlight=False, soft_wrap=True)

    def load(self) -> LabelModels:
        """Read the saved models, and refuse those of another release or split."""
        models = LabelModels.load(self.config.output.model)
        if [*models.by_label] != [*self.labels]:
            ours, theirs = (", ".join(labels) for labels in (self.labels, models.by_label))
            raise DataError(
                f"the model in {self.config.output.model} is of {theirs}, and the release of"
                f" {ours}; train again"
            )
        training = self.config.training
        expected = {
            "release": self.prepared.release_id,
            "matched": self.prepared.matches.matched,
            "holdout": training.holdout,
            "seed": training.seed,
        }
        for name, value in expected.items():
            for model in models.by_label.values():
                trained_with = getattr(model.facts, name)
                if trained_with != value:
                    raise DataError(
                        f"the model in {self.config.output.model} was trained with"
                        f" {name}={trained_with!r}, not {value!r}: its holdout is another; train"
                        " again"
                    )
        for label, model in models.by_label.items():
            if model.facts.held_out not in ("", holdout_digest(self.labels[label])):
                raise DataError(
                    f"the rows of {self.config.data.features} are not those, in their order, that"
                    f" the model in {self.config.output.model} was trained with: its holdout is"
                    " another; evaluate with the same file, or train again"
                )
        return models

    def predict(self, model: LabelModels) -> Predicted:
        """Predict every row of the features file."""
        trained = None if self._labels is None else self.prepared.trained
        with self._timed("predict"):
            self.predicted = predict(self.config, model, quiet=self.quiet, trained=trained)
        return self.predicted

    def _truth(self, label: str, source: str = "", keys: pl.Series | None = None) -> Floats:
        """(m,) true labels of all matched events, or of those of one of several labels parties, or
        of those with some keys."""
        truth, events = self.truth, self.labels[label]
        events = events.for_source(source) if source else events
        column = truth.true_label if len(self.labels) == 1 else None
        return match_true_labels(
            events.keys() if keys is None else keys,
            truth.table,
            column or label,
            (events.problem.grid[0], events.problem.grid[-1]),
            stated_of(self.manifests[-1], label)[0].missing,
            truth.true_key,
            source,
        )


def _epochs_on(bar: Progress, prefix: str) -> Callable[[str, EpochRecord], None]:
    """What shows the epochs of one label's training."""
    tasks: dict[str, TaskID] = {}

    def show(candidate: str, record: EpochRecord) -> None:
        if candidate not in tasks:
            name = prefix + candidate.replace("likelihood-", "")  # what all have in common
            tasks[candidate] = bar.add_task(name, total=record.epochs, note="")
        note = record.ended or f"epochs, validation loss {record.validation:.4f}"
        bar.update(tasks[candidate], completed=record.epoch, note=note)

    return show
