"""All stages: evaluation, and the report on it, on top of the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
import polars.selectors as cs

from labelveil.common.arrays import Booleans, Floats
from labelveil.common.config.answers import json_text
from labelveil.common.console import stderr
from labelveil.common.errors import ConfigError, ReleaseError, not_none
from labelveil.common.exact.rational import decimal_value
from labelveil.common.files import write_text
from labelveil.common.mechanisms.paired_gain import LossName
from labelveil.common.release.event_keys import canonical_keys
from labelveil.common.release.folder import read_manifest
from labelveil.common.release.question import encode_question
from labelveil.feature_party.client.questions import Questions, Verdict, released_rows, topics
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.evaluation.scores import Scores, labels_json, score
from labelveil.feature_party.evaluation.true_labels import true_errors
from labelveil.feature_party.join.key_secrets import secrets_of_releases
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.model.several_labels import LabelModels, label_files
from labelveil.feature_party.pipeline.learning import Learning
from labelveil.feature_party.pipeline.predicting import write_metrics
from labelveil.feature_party.pipeline.rounds import held_out, question_of, rows_of
from labelveil.feature_party.pipeline.score import (
    Judged,
    Sums,
    ask_score,
    lattice_of,
    read_score,
)
from labelveil.feature_party.report import (
    ReportInputs,
    write_labels_overview,
    write_overview,
    write_report,
)
from labelveil.feature_party.tables import collect_table, file_of, scan_table
from labelveil.feature_party.threads import threads_for


@dataclass(eq=False)
class Stages(Learning):
    """One run of the features party."""

    _judged: dict[str, Scores] | None = None
    _points: tuple[Model, Booleans, Floats] | None = None

    def with_config(self, config: FeaturePartyConfig) -> Self:
        """The same stages, of other releases."""
        return replace(self, config=config, _labels=None, _judged=None)

    def trained(self) -> LabelModels:
        """Models to ask by, of all releases, saved."""
        return self.train(asks=True)

    def final(self) -> LabelModels:
        """Models of all releases, saved."""
        return self.train()

    def check_kept(self, rows: int, kept: int) -> None:
        """Where too few are, codes tell alone."""

    def ask(self, model: LabelModels | None, mine: Booleans, number: int) -> bytes:
        """What to ask of our (n,) rows that are ``mine``; of a first round nothing."""
        return b"" if model is None else question_of(model, self.config, mine)

    def ask_score(self, model: LabelModels, mine: Booleans) -> bytes:
        """What to ask of our (n,) rows that are ``mine``, to tell how good a model is; nothing of
        several labels, or where codes tell as well."""
        if len(self.labels) > 1:
            return b""
        (scores,), (own,) = self._judge(model).values(), model.by_label.values()
        manifest, seed = self.manifests[0], self.config.training.seed
        if (lattice := lattice_of(manifest.labels[0])) is None:
            return b""
        asks, group = manifest.privacy.requested_epsilon, manifest.privacy.records_per_unit
        epsilon = decimal_value(asks) / group  # of a label, from the decimal as it was written
        judged, points = self._judged_by_codes(scores), self._predicted(own, mine)
        asked = ask_score(judged, points, lattice, epsilon, seed)
        return b"" if asked is None else encode_question(asked.question)

    def _judged_by_codes(self, scores: Scores) -> Judged:
        section, explained = self.manifests[0].labels[0], scores.explained
        whole = section.asked and all(point % 1 == 0 for point in section.grid)
        return Judged.from_evaluation(
            explained, not_none(explained.spread), scores.events.problem, whole
        )

    def _predicted(self, model: Model, mine: Booleans) -> Floats:
        """What a model predicts of our (n,) rows that are ``mine``; kept until others are asked."""
        kept = self._points
        if kept is None or kept[0] is not model or not np.array_equal(kept[1], mine):
            parts = [
                model.distributions(model.encoder.encode(own)).points
                for own in rows_of(self.config, model.encoder.columns, mine)
            ]
            self._points = kept = model, mine, np.concatenate(parts)
        return kept[2]

    def _keys(self) -> pl.Series:
        """Of all our rows."""
        key = self.config.key
        return collect_table(scan_table(self.config.features).select(cs.by_name(key)))[key]

    def _score(self) -> Sums | None:
        """The sums that tell how good a model of all rounds is, if they are here."""
        if len(self.labels) > 1 or (folder := self.score_release) is None:
            return None
        secrets = self.config.secrets_of(self.config.only_labels_party)
        try:
            return Sums.read(folder, self._keys(), secrets)
        except ReleaseError as error:  # the model is there, and codes tell of it
            self.warn(f"no sums tell how good the model is: {error}")
            return None

    def _kept(self) -> Booleans | None:
        """Which of our rows are held out and in no round, if any are: sums may tell of them."""
        if not self.config.round_shares or len(self.labels) > 1:
            return None
        keys, asked = canonical_keys(self._keys()), canonical_keys(self.prepared.keys())
        kept = held_out(self.config, keys.len()) & ~keys.is_in(asked.implode()).to_numpy()
        return kept if kept.any() else None

    def _judge(self, models: LabelModels) -> dict[str, Scores]:
        """What codes say of each label's model."""
        if self._judged is None:
            with self._timed("evaluate"), threads_for(self.prepared.matches.matched):
                self._judged = {
                    label: score(models.by_label[label], events, self.manifests, label=label)
                    for label, events in self.labels.items()
                }
        return self._judged

    def _with_kept(
        self, label: str, scores: Scores, truth: Floats | None, nonprivate: Path | None
    ) -> Scores:
        """Scores judged by events that no round was about, where these are informative."""
        if (sums := self._score()) is None:
            kept = self._kept()
        else:
            kept = np.zeros(self._keys().len(), dtype=np.bool_)
            kept[sums.rows] = True
        if kept is None:
            return scores
        scores = replace(scores, kept=int(kept.sum()))
        if truth is None and sums is None:
            return scores
        points = self._predicted(scores.model, kept)
        if truth is not None:
            more = points, self._truth_of_kept(label, kept)
            measured = true_errors(scores.points, truth, scores.events, nonprivate, label, more)
            scores = replace(scores, truth=measured)
        if sums is None:
            return scores
        scores = replace(scores, kept_epsilon=sums.epsilon)
        told = read_score(sums.answer, points, self._judged_by_codes(scores))
        if told is None:
            self.warn(
                f"the sums in {self.config.score_folder} were asked about another model's"
                " predictions, or tell nothing: how good this model is, codes tell alone"
            )
            return scores
        figures = told.r2, told.mse, told.reference_mse.value, told.events
        explained = scores.explained.by_sums(*figures)
        return replace(scores, explained=explained, clipped=None)

    def _truth_of_kept(self, label: str, kept: Booleans) -> Floats:
        keys = canonical_keys(self._keys().filter(pl.Series(kept)))
        return self._truth(label, keys=keys)

    def check_asked(self, ask: Sequence[str], by: Sequence[str]) -> None:
        """``ConfigError`` if there is no such question; segments are read where they are needed."""
        offered = topics(self.labels) if ask else {}
        for topic in ask:
            if topic not in offered:
                raise ConfigError(f"--ask {topic!r} must be one of {', '.join(offered)}")

    def evaluate(
        self,
        models: LabelModels,
        nonprivate: Path | None = None,
        ask: Sequence[str] = (),
        by: Sequence[str] = (),
    ) -> dict[str, Scores]:
        """Score the held-out events by each label; writes metrics and reports.

        ``nonprivate`` is the metrics file of a model that was trained on true labels, in
        simulations: its errors are shown beside this model's. ``ask`` is what the labels party is
        to compare with a constant on true labels, of
        :func:`~labelveil.feature_party.client.questions.topics`, and ``by`` columns of the features
        to compare segments by.
        """
        self.check_asked(ask, by)
        output, by_label, offered = self.config.output, {}, topics(self.labels)
        judged = {} if self._judged is None or by or nonprivate else self._judged
        with self._timed("evaluate"), threads_for(self.prepared.matches.matched):
            for label, events in self.labels.items():
                truths = None
                if self.truth.true_labels is not None:
                    truths = {name: self._truth(label, name) for name in events.problem.names}
                scores = None if truths else judged.get(label)
                scores = scores or score(
                    models.by_label[label],
                    events,
                    self.manifests,
                    truths,
                    nonprivate,
                    by,
                    label=label,
                )
                truth = None if truths is None else truths.get("")
                by_label[label] = self._with_kept(label, scores, truth, nonprivate)
            for topic in ask:
                label, loss = offered[topic]
                answer = self._ask(by_label[label], loss)
                by_label[label] = replace(by_label[label], answer=answer)
        with self._timed("report"):
            pages = label_files(output.report, by_label)
            for label, scores in by_label.items():
                self._write_report(scores, pages[label])
            if len(by_label) > 1:
                write_labels_overview(output.report, by_label, pages)
        self.write_metrics(labels_json(by_label))
        return by_label

    @property
    def learned_words(self) -> str:
        """How many events were matched, in a line."""
        return str(self.prepared.matches)

    def summary(self, scores: Mapping[str, Scores]) -> tuple[list[str], list[str]]:
        """Warnings, and what to print, of each label's scores."""
        warnings, lines = [], []
        for label, own in scores.items():
            warnings += [self.prefix(label) + warning for warning in own.warnings]
            lines += [f"{label}:"] if len(scores) > 1 else []
            lines += own.summary
        return warnings, lines

    def write_metrics(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        """Write scores, how what was predicted differs and what took how long; returns it."""
        return write_metrics(self.config.output.metrics, scores, self.predicted, self.timings)

    def train_on_truth(self, folder: Path) -> Path:
        """Learn the true labels of the same events; returns the file with the model's errors."""
        config = self.config
        section = {"objective": "true", "learner": "auto"}
        changed = {
            "training": config.training.model_copy(update=section),
            "output": config.output.model_copy(update={"model": folder}),
        }
        models = replace(self, config=config.model_copy(update=changed)).train()
        errors = []
        for label, events in self.labels.items():
            model, (held_out, _) = models.by_label[label], events.held_out()
            points = model.distributions(model.encoder.encode(held_out)).points
            more = None
            if (kept := self._kept()) is not None:
                more = self._predicted(model, kept), self._truth_of_kept(label, kept)
            measured = true_errors(points, self._truth(label), events, None, label, more)
            errors.append({"name": label, **measured.to_json()})
        metrics = folder / "metrics.json"
        write_text(metrics, json_text({"labels": errors, **errors[0]}) + "\n")
        return metrics

    def _write_report(self, scores: Scores, page: Path) -> None:
        output = self.config.output
        drift = () if self.predicted is None else self.predicted.drift
        shown = output.label_name, output.label_unit, self.config.data.stated.ignored, drift
        pages = {name: file_of(page, name) for name in scores.sources}
        for name, own in pages.items():
            write_report(own, ReportInputs(scores.sources[name], *shown))
        if pages:
            write_overview(page, scores, pages)
        else:
            write_report(page, ReportInputs(scores, *shown))

    def _ask(self, scores: Scores, loss: LossName) -> Verdict:
        """What the labels party answers about the held-out events."""
        config, folders = self.config, self.config.release_folders
        party = config.only_labels_party
        if len(folders) > 1:
            raise ConfigError(
                f"a question is about one release and {len(folders)} are learned from; leave"
                " --ask out, or set [labels_party] epoch to one of them"
            )
        questions = Questions(party, read_manifest(folders[0]), loss, scores.label)
        terms = questions.terms(scores.points)
        share = scores.explained.share
        terms.check((share.high - share.low) / 2 if loss == "squared" else math.inf)
        stderr.print(terms.sentence, highlight=False)
        (secret,) = secrets_of_releases(config)
        rows = released_rows(folders[0], scores.keys, scores.events.holdout, secret)
        return questions.ask(rows, scores.points, terms)
