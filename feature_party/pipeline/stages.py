"""All stages: evaluation, and the report on it, on top of the others."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.console import stderr
from common.errors import ConfigError
from common.files import write_text
from common.mechanisms.paired_gain import LossName
from common.release.event_keys import read_secret
from common.release.folder import read_manifest
from feature_party.client.questions import Questions, Verdict, released_rows
from feature_party.evaluation.scores import Scores, score
from feature_party.model.model import Model
from feature_party.pipeline.learning import Learning
from feature_party.report import ReportInputs, write_overview, write_report
from feature_party.tables import file_of


@dataclass
class Stages(Learning):
    """One run of the features party."""

    def evaluate(
        self,
        model: Model,
        nonprivate: Path | None = None,
        ask_loss: LossName | None = None,
        by: Sequence[str] = (),
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
            Have the labels party compare predictions with a constant by this loss on true labels.
        by
            Columns of the features to compare segments by.
        """
        events, output = self.prepared, self.config.output
        with self._timed("evaluate"):
            labels = None if self.truth.true_labels is None else self._truths()
            scores = score(model, events, self.manifests, labels, nonprivate, by)
            if ask_loss is not None:
                scores = replace(scores, answer=(ask_loss, self._ask(scores, ask_loss)))
        with self._timed("report"):
            shown = output.label_name, output.label_unit, self.config.data.ignore
            pages = {name: file_of(output.report, name) for name in scores.sources}
            for name, page in pages.items():
                write_report(page, ReportInputs.of(scores.sources[name], *shown))
            if pages:
                write_overview(output.report, scores, pages)
            else:
                write_report(output.report, ReportInputs.of(scores, *shown))
        timings = {name: round(value, 3) for name, value in self.timings.items()}
        metrics = {**scores.to_json(), "timings": timings}
        write_text(output.metrics, json.dumps(metrics, indent=2) + "\n")
        return scores

    def _ask(self, scores: Scores, loss: LossName) -> Verdict:
        """What the labels party says of the held-out events."""
        config, folders = self.config, self.config.release_folders
        party = config.only_labels_party
        if len(folders) > 1:
            raise ConfigError(
                f"a question is about one release and {len(folders)} are learned from; leave"
                " --ask out, or set [labels_party] epoch to one of them"
            )
        questions = Questions(party, read_manifest(folders[0]), loss)
        terms = questions.terms(scores.points)
        free = scores.explained.free
        terms.check((free.high - free.low) / 2 if loss == "squared" else math.inf)
        stderr.print(terms.sentence, highlight=False)
        secret = read_secret(config.secret_of(party))
        rows = released_rows(folders[0], scores.keys, scores.events.holdout, secret)
        return questions.ask(rows, scores.points, terms)
