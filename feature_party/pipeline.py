"""The features party's work in stages; each command runs one or more of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.progress import Progress, TaskID

from common.arrays import Floats
from common.console import progress, stderr
from common.errors import ConfigError, DataError
from common.release.event_keys import read_secret
from common.release.folder import read_manifest
from common.release.manifest import Manifest
from feature_party.client.questions import Verdict, ask, released_rows
from feature_party.client.release_client import Fetched, ReleaseClient
from feature_party.client.submission import Population, hash_population
from feature_party.config import FeaturePartyConfig, LabelsPartySection, TrueLabels
from feature_party.evaluation.scores import Scores, score
from feature_party.evaluation.true_labels import match_true_labels
from feature_party.join.matches import MatchCounts
from feature_party.join.on_disk import Progress as JoinProgress
from feature_party.join.shards import JoinedShards
from feature_party.model.model import Model
from feature_party.model.prediction import predict_file
from feature_party.report import ReportInputs, write_report
from feature_party.tables import check_key, collect_table, scan_table
from feature_party.training.encoded_shards import remove_shards
from feature_party.training.examples import Prepared, PreparedShards
from feature_party.training.fitting import EpochRecord
from feature_party.training.prepare import join_shards, prepare
from feature_party.training.run import train
from feature_party.training.workers import ALONE, Workers, joined_workers


@dataclass
class Stages:
    """One run of the features party.

    Attributes
    ----------
    config
        The configuration.
    truth
        True labels to train on or to score with, in simulations.
    quiet
        Whether to show no progress.
    workers
        Those who train together.
    timings
        Seconds that each stage took.
    """

    config: FeaturePartyConfig
    truth: TrueLabels = field(default_factory=TrueLabels)
    quiet: bool = False
    workers: Workers = ALONE
    timings: dict[str, float] = field(default_factory=dict)
    _prepared: Prepared | PreparedShards | None = None

    def submit(self) -> tuple[Population, str]:
        """Submit the keys of the features as the population; returns them, and how it ended."""
        config = self.config
        secret = read_secret(config.secret_file)
        client = ReleaseClient(config.labels_party)
        frame = scan_table(config.features, config.key)
        check_key(frame, config.key)
        keys = collect_table(frame.select(config.key))[config.key]
        with self._timed("submit"), progress(quiet=self.quiet) as bar:
            hashing = bar.add_task("hash keys", total=keys.len(), note="keys")
            population = hash_population(
                keys, secret, lambda done, total: bar.update(hashing, completed=done)
            )
            task = bar.add_task("submit", total=population.rows, note="keys")
            begun = time.monotonic()

            def show(done: int, total: int) -> None:
                rate = done / max(time.monotonic() - begun, 1e-9)
                bar.update(task, completed=done, total=total, note=f"keys, {rate:,.0f}/s")

            ending = client.submit(population, show)
            bar.update(task, completed=population.rows)
            return population, ending

    def fetch(self) -> list[Fetched]:
        """Fetch and verify the release, or one of each epoch that is configured."""
        party = self.config.labels_party
        wanted = [(party, self.config.release.directory)]
        if party.epochs:
            folders = zip(party.epochs, self.config.release_folders, strict=True)
            wanted = [
                (party.model_copy(update={"epoch": epoch, "epochs": []}), folder)
                for epoch, folder in folders
            ]
        with self._timed("fetch"), progress(quiet=self.quiet) as bar:
            try:
                return [self._fetch(bar, *one) for one in wanted]
            except KeyboardInterrupt:
                stderr.print("interrupted; what has arrived is kept, run fetch again to go on")
                raise

    def _fetch(self, bar: Progress, party: LabelsPartySection, folder: Path) -> Fetched:
        what = f"fetch {party.epoch}" if self.config.labels_party.epochs else "fetch"
        task = bar.add_task(what, total=None, note="rows")
        begun, first = time.monotonic(), None

        def show(done: int, total: int) -> None:
            nonlocal begun, first
            if first is None:  # rows that an earlier fetch left count for no rate
                begun, first = time.monotonic(), done
            rate = (done - first) / max(time.monotonic() - begun, 1e-9)
            bar.update(task, completed=done, total=total, note=f"rows, {rate:,.0f}/s")

        return ReleaseClient(party).fetch(folder, show)

    def join(self) -> JoinedShards:
        """Match release and features in shards on disk, however large they are."""
        config = self.config
        with self._timed("join"), self._join_progress() as show:
            secret = read_secret(config.secret_file)
            folders = config.release_folders
            joined = join_shards(
                folders,
                config.features,
                config.key,
                secret,
                config.join,
                config.engine,
                progress=show,
            )
        self._warn_of_poor(joined.matches)
        return joined

    def _warn_of_poor(self, matches: MatchCounts) -> None:
        poor = matches.poor(self.config.data.min_match)
        if poor and self.workers.first:
            stderr.print(f"[bold yellow]warning:[/] {poor}")

    @contextmanager
    def _join_progress(self) -> Iterator[JoinProgress]:
        """Show a join's steps, one after another."""
        with progress(quiet=self.quiet or not self.workers.first) as bar:
            tasks: dict[str, TaskID] = {}

            def show(step: str, done: int, total: int) -> None:
                if step not in tasks:
                    tasks[step] = bar.add_task(step, total=total, note="parts")
                bar.update(tasks[step], completed=done)

            yield show

    @property
    def manifests(self) -> list[Manifest]:
        """What the releases that are learned from state, oldest first."""
        return [Manifest.from_bytes(read_manifest(one)) for one in self.config.release_folders]

    @property
    def prepared(self) -> Prepared | PreparedShards:
        """The join of release and features, with the holdout set apart."""
        if self._prepared is None:
            config = self.config
            with self._timed("join"), self._join_progress() as show:
                self._prepared = prepare(
                    config.release_folders,
                    config.features,
                    config.key,
                    read_secret(config.secret_file),
                    config.training,
                    config.join,
                    config.engine,
                    workers=self.workers,
                    progress=show,
                )
            self._warn_of_poor(self._prepared.matches)
        return self._prepared

    def train_together(self) -> Model:
        """Train with the other workers that torchrun started, if any; the first saves the model."""
        with joined_workers(self.config.training.device) as self.workers:
            return self.train()

    def train(self) -> Model:
        """Train and save the model."""
        events, section, directory = self.prepared, self.config.training, self.config.output.model
        truth = self._truth() if section.objective == "true" else None
        quiet = self.quiet or not self.workers.first
        with self._timed("train"), progress(quiet=quiet) as bar:
            tasks: dict[str, TaskID] = {}

            def show(what: str, record: EpochRecord) -> None:
                if what not in tasks:
                    tasks[what] = bar.add_task(what, total=record.epochs, note="")
                note = f"epochs, validation loss {record.validation:.4f}"
                bar.update(tasks[what], completed=record.epoch, note=note)

            model = train(
                events,
                section,
                self.config.data,
                shards=directory / "shards",
                true_labels=truth,
                on_epoch=show,
                checkpoints=directory / "checkpoints" if section.checkpoint else None,
                workers=self.workers,
            )
        if not self.workers.first:
            return model
        model.save(directory)
        if section.shards == "auto":
            remove_shards(directory / "shards")
        for warning in model.facts.warnings:
            stderr.print(f"[bold yellow]warning:[/] {warning}")
        return model

    def load(self) -> Model:
        """Read the saved model, and refuse one that was trained on another release or split."""
        model = Model.load(self.config.output.model)
        training = self.config.training
        wanted = {
            "release": self.prepared.release_id,
            "matched": self.prepared.matches.matched,
            "holdout": training.holdout,
            "seed": training.seed,
        }
        for name, value in wanted.items():
            found = getattr(model.facts, name)
            if found != value:
                raise DataError(
                    f"the model in {self.config.output.model} was trained with {name}={found!r},"
                    f" not {value!r}: its holdout is another; train again"
                )
        return model

    def evaluate(
        self, model: Model, nonprivate: Path | None = None, ask_loss: str | None = None
    ) -> Scores:
        """Score the held-out events; writes metrics and report.

        Parameters
        ----------
        model
            What to score.
        nonprivate
            Metrics file of a model that was trained on true labels, in simulations: its errors are
            shown beside this model's.
        ask_loss
            ``squared`` or ``absolute``: have the labels party compare predictions with true labels.
        """
        events, output = self.prepared, self.config.output
        with self._timed("evaluate"):
            labels = None if self.truth.true_labels is None else self._truth()
            scores = score(model, events, self.manifests, labels, nonprivate)
            if ask_loss is not None:
                scores = replace(scores, answer=(ask_loss, self._ask(scores, ask_loss)))
        with self._timed("report"):
            write_report(output.report, ReportInputs.of(scores))
        timings = {name: round(value, 3) for name, value in self.timings.items()}
        metrics = {**scores.to_json(), "timings": timings}
        output.metrics.parent.mkdir(parents=True, exist_ok=True)
        output.metrics.write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
        return scores

    def predict(self, model: Model) -> int:
        """Predict every row of the features file."""
        prepared = self._prepared
        trained = None if prepared is None else prepared.trained
        with self._timed("predict"), progress(quiet=self.quiet) as bar:
            task = bar.add_task("predict", total=None, note="rows")
            return predict_file(
                model,
                self.config.features,
                self.config.output.predictions,
                key=self.config.data.key,
                interval=self.config.output.interval,
                trained=trained,
                on_rows=lambda done, total: bar.update(task, completed=done, total=total),
            )

    def _ask(self, scores: Scores, loss: str) -> Verdict:
        """What the labels party says of the held-out events."""
        config, folders = self.config, self.config.release_folders
        if len(folders) > 1:
            raise ConfigError(
                f"a question is about one release and {len(folders)} are learned from; leave"
                " --ask out, or set [labels_party] epoch to one of them"
            )
        secret = read_secret(config.secret_file)
        rows = released_rows(folders[0], scores.keys, scores.events.holdout, secret)
        estimate = scores.squared if loss == "squared" else scores.absolute
        manifest = read_manifest(folders[0])
        return ask(config.labels_party, manifest, rows, scores.points, loss, estimate.value)

    def _truth(self) -> Floats:
        """(m,) true labels of all matched events."""
        truth = self.truth
        if truth.true_labels is None or truth.true_label is None:
            raise DataError(
                "true labels are needed; pass --true-labels FILE --true-label COLUMN (simulations)"
            )
        return match_true_labels(
            self.prepared.keys(),
            truth.true_labels,
            truth.true_label,
            self.prepared.problem,
            self.manifests[-1].label.missing,
            truth.true_key,
        )

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.timings[stage] = time.monotonic() - begun
