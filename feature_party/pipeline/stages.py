"""All stages: evaluation, and the report on it, on top of the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from labelveil.common.arrays import Booleans, Indices
from labelveil.common.config.answers import json_text
from labelveil.common.console import stderr
from labelveil.common.errors import ConfigError
from labelveil.common.files import write_text
from labelveil.common.mechanisms.paired_gain import LossName
from labelveil.common.release.folder import read_manifest
from labelveil.feature_party.client.questions import Questions, Verdict, released_rows, topics
from labelveil.feature_party.config import FeaturePartyConfig
from labelveil.feature_party.evaluation.scores import Scores, labels_json, score
from labelveil.feature_party.evaluation.true_labels import true_errors
from labelveil.feature_party.join.key_secrets import secrets_of_releases
from labelveil.feature_party.model.model import threads_for
from labelveil.feature_party.model.several_labels import LabelModels, label_files
from labelveil.feature_party.pipeline.learning import Learning
from labelveil.feature_party.pipeline.rounds import question_of
from labelveil.feature_party.report import (
    ReportInputs,
    write_labels_overview,
    write_overview,
    write_report,
)
from labelveil.feature_party.tables import file_of


@dataclass(eq=False)
class Stages(Learning):
    """One run of the features party."""

    def of(self, config: FeaturePartyConfig) -> Self:
        """The same stages, of other releases."""
        return replace(self, config=config, _labels=None)

    def trained(self) -> LabelModels:
        """Models of all releases, saved."""
        return self.train()

    def check_dealt(self, rows: Indices) -> None:
        """Any events are enough."""

    def ask(self, model: LabelModels | None, mine: Booleans, number: int) -> bytes:
        """What to ask of our (n,) rows that are ``mine``; of a first round nothing."""
        return b"" if model is None else question_of(model, self.config, mine)

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
        output, by_label = self.config.output, {}
        offered = topics(self.labels)
        for topic in ask:
            if topic not in offered:
                raise ConfigError(f"--ask {topic!r} must be one of {', '.join(offered)}")
        with self._timed("evaluate"), threads_for(self.prepared.matches.matched):
            for label, events in self.labels.items():
                truths = None
                if self.truth.true_labels is not None:
                    truths = {name: self._truth(label, name) for name in events.problem.names}
                by_label[label] = score(
                    models.by_label[label],
                    events,
                    self.manifests,
                    truths,
                    nonprivate,
                    by,
                    label=label,
                )
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

    def write_metrics(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        """Write scores, how what was predicted differs and what took how long; returns it."""
        timings = {name: round(value, 3) for name, value in self.timings.items()}
        drift = [] if self.predicted is None else [c.to_json() for c in self.predicted.drift]
        metrics = {**scores, "drift": drift, "timings": timings}
        write_text(self.config.output.metrics, json_text(metrics) + "\n")
        return metrics

    def train_on_truth(self, folder: Path) -> Path:
        """Train networks on the true labels of the same events; returns the file with their errors.

        Networks alone learn from true labels, whatever learned from the private ones.
        """
        config = self.config
        section = {"objective": "true", "learner": "networks"}
        changed = {
            "training": config.training.model_copy(update=section),
            "output": config.output.model_copy(update={"model": folder}),
        }
        models = replace(self, config=config.model_copy(update=changed)).train()
        errors = []
        for label, events in self.labels.items():
            model, (held_out, _) = models.by_label[label], events.held_out()
            points = model.distributions(model.encoder.encode(held_out)).points
            measured = true_errors(points, self._truth(label), events, None, label)
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
