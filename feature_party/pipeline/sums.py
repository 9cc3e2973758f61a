"""All stages of a model of sums over groups: its score, and the report, on top of the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from labelveil.common.arrays import Booleans, Floats
from labelveil.common.config.answers import json_text
from labelveil.common.errors import ConfigError, DataError, ReleaseError
from labelveil.common.files import write_text
from labelveil.common.mechanisms.group_sums import PrivateSums
from labelveil.feature_party.evaluation.intervals import Measured, compared
from labelveil.feature_party.evaluation.sentences import TOLD, figure_words
from labelveil.feature_party.evaluation.true_labels import (
    TrueErrors,
    match_true_labels,
    mean_label,
)
from labelveil.feature_party.groups.model import SumsModel
from labelveil.feature_party.groups.saved import SavedSums
from labelveil.feature_party.groups.score import Score
from labelveil.feature_party.groups.scoring import ScoreQuestion
from labelveil.feature_party.learning.problem import LabelProblem, silent_leg
from labelveil.feature_party.pipeline.predicting import write_metrics
from labelveil.feature_party.pipeline.score import Sums
from labelveil.feature_party.pipeline.sums_learning import SumLearning
from labelveil.feature_party.training.events import TrainingSetup
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.run import train

_UNASKED = (
    "no sums tell how good this model is: what differs within groups cancels in those that teach;"
    " ask with lv.ask_score"
)


@dataclass(eq=False)
class SumStages(SumLearning):
    """One run of a features party that learns from sums over groups."""

    def check_asked(self, ask: Sequence[str], by: Sequence[str]) -> None:
        """``ConfigError`` if anything is asked, or segments are to be compared."""
        if wrong := [name for name, value in {"--by": by, "--ask": ask}.items() if value]:
            raise ConfigError(
                f"{' and '.join(wrong)} cannot be had of a model of sums, whose score is about all"
                " events kept: leave it out"
            )

    def evaluate(
        self,
        model: SavedSums,
        nonprivate: Path | None = None,
        ask: Sequence[str] = (),
        by: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Say how good the model is; writes metrics, report and model card, and returns metrics.

        Where true labels are named, its errors against them are beside, and those in the file
        ``nonprivate``, of a model that they have trained.
        """
        self.check_asked(ask, by)
        output, given = self.config.output, self.learned_from
        scored, untold = None, _UNASKED
        with self._timed("evaluate"):
            try:
                scored = self._scored(model)
            except (DataError, ReleaseError) as error:  # the model is there, and stays
                untold = f"no sums tell how good this model is: {error}"
            true = {} if self.truth.true_labels is None else self._true_errors(model, nonprivate)
        manifest, answers = self.manifests[0], [each.answer for each in given]
        lattice = self._lattice
        epsilon = max(each.privacy.requested_epsilon for each in self.manifests)
        metrics = {
            **facts_of(answers, model.model),
            "epsilon": epsilon,
            "epsilon_prior": 0.0,
            "epsilon_labels": epsilon,
            "rows": self.features.height,
            "training_rows": sum(each.rows.size for each in given),
            "holdout_rows": 0,
            **({} if scored is None else scored_facts(scored)),
            **true,
            "points": lattice.steps + 1,
            "warnings": [*model.facts.warnings],
            "seed": self.config.training.seed,
        }
        if scored is None:
            metrics["warnings"].append(untold)
        with self._timed("report"):
            # it draws: who trains, or learns from codes, need not wait for matplotlib
            from labelveil.feature_party.report.sums import (
                SumsReport,
                write_sums_card,
                write_sums_report,
            )

            name = output.label_name or manifest.labels[0].name
            page = SumsReport(
                name, f"{manifest.data_set}, epoch {manifest.epoch}", lattice, answers, metrics
            )
            write_sums_report(output.report, page)
            digests = ", ".join(model.facts.releases)
            card = output.report.with_suffix(".md")
            trees = model.model.boosted is not None
            write_sums_card(card, page, model.encoder.columns, digests, trees=trees)
        return self.write_metrics(metrics)

    def write_metrics(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        """Write scores, how what was predicted differs and what took how long; returns it."""
        return write_metrics(self.config.output.metrics, scores, self.predicted, self.timings)

    def train_on_truth(self, folder: Path) -> Path:
        """Learn the true labels of the same events; returns the file with the model's errors."""
        learned, truth = self._learned, self._truth()
        kept = np.flatnonzero(~learned)
        grid = self._lattice.grid.points
        # what codes say of labels: nothing, but how true ones lie
        places = np.searchsorted(grid, truth[learned]).clip(0, grid.size - 1)
        prior = np.bincount(places, minlength=grid.size) / places.size
        problem = LabelProblem(grid, (silent_leg(grid, prior),))
        codes = np.zeros(truth.size, dtype=np.uint8)
        events = Prepared.of_table(self.table, codes, problem, kept)
        section = self.config.training.model_copy(
            update={"objective": "true", "learner": "auto", "checkpoint": False}
        )
        with self._timed("train"):
            model = train(
                events, TrainingSetup(section, self.config.data, folder, true_labels=truth)
            )
        points = model.distributions(model.encoder.encode(self.table[kept])).points
        measured = self._measured(points, truth, learned, None)
        metrics = folder / "metrics.json"
        write_text(metrics, json_text(measured.to_json()) + "\n")
        return metrics

    def _truth(self) -> Floats:
        """(n,) true labels of all our events, completed and clipped as by the labels party."""
        truth, lattice = self.truth, self._lattice
        (label, *_) = self.manifests[-1].labels
        return match_true_labels(
            self.features[self.config.key],
            truth.table,
            truth.true_label or label.name,
            (lattice.lower, lattice.upper),
            label.missing,
            truth.true_key,
        )

    def _true_errors(self, model: SavedSums, nonprivate: Path | None) -> dict[str, float]:
        """Errors against true labels of events that no sum has taught, and how many they are."""
        learned, truth = self._learned, self._truth()
        points = model.predict(self.table.filter(pl.Series(~learned)))["prediction"].to_numpy()
        measured = self._measured(points, truth, learned, nonprivate)
        return {**measured.to_json(), "holdout_rows": points.size}

    def _measured(
        self, points: Floats, truth: Floats, learned: Booleans, nonprivate: Path | None
    ) -> TrueErrors:
        """Errors of predictions of those of (n,) events that were not learned from."""
        if learned.all():
            raise DataError(
                f"all {learned.size:,} events were learned from, and true labels tell errors of"
                " others alone; give the features of further events, too"
            )
        constant = mean_label(truth[learned])
        label = self.manifests[0].labels[0].name
        return TrueErrors.measured(points, truth[~learned], constant, nonprivate, label)

    def _scored(self, model: SavedSums) -> Score | None:
        """What the sums say that were asked about the model's predictions; None if there are none.

        ``DataError`` or ``ReleaseError`` if these are others, cannot be read or cannot be.
        """
        scoring = [each for each in self.answers if each.scores]
        if (folder := self.score_release) is not None:
            secrets = self.config.secrets_of(self.config.only_labels_party)
            scoring.append(Sums.read(folder, self.features[self.config.key], secrets))
        if not scoring:
            return None
        if len(scoring) > 1:
            raise ConfigError(
                f"{len(scoring)} releases tell how good a model is; leave all but one out of"
                " [labels_party] epochs"
            )
        ((rows, answer, *_),) = scoring
        points = model.predict(self.table[rows])["prediction"].to_numpy()
        asked = ScoreQuestion.from_question(
            answer.question, points, model.facts.mean, model.model.miss
        )
        return asked.score(answer)

    @property
    def learned_words(self) -> str:
        """Of how many sums over how many events, in a line."""
        groups = [each.answer.question.half_widths.size for each in self.learned_from]
        events = sum(each.rows.size for each in self.learned_from)
        return f"{' + '.join(f'{each:,}' for each in groups)} sums over {events:,} events"

    def summary(self, scores: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Warnings, and what to print, of metrics."""
        lines = []
        if "verdict" in scores:
            share = Measured.of_json(scores, "estimated_r2")
            lines.append(
                f"better than a constant: {TOLD[compared(share)]}; R² {figure_words(share)}, by"
                f" sums over {scores['holdout_rows']:,} events kept"
            )
        return scores["warnings"], lines


def facts_of(answers: Sequence[PrivateSums], model: SumsModel) -> dict[str, Any]:
    """What ``metrics.json`` says of questions and of what was learned."""
    return {
        "ask": "groups",
        "question_bits": max(map(question_bits, answers)),
        "rounds": [_of_round(answer) for answer in answers],
        "columns_matter": model.learned,
    }


def scored_facts(score: Score) -> dict[str, Any]:
    """What it says of two sums over events that nothing was learned from."""
    return {
        "holdout_rows": score.events,
        "verdict": compared(score.r2),
        **score.r2.to_json("estimated_r2"),
        "estimated_r2_is_bound": score.r2.is_bound,
        **score.mse.to_json("estimated_mse"),
        **score.reference_mse.to_json("estimated_constant_mse"),
    }


def question_bits(answer: PrivateSums) -> float:
    """What a question tells of an event at most: its group and its offset."""
    question = answer.question
    return math.log2(question.half_widths.size) + math.log2(question.offsets.size)


def _of_round(answer: PrivateSums) -> dict[str, Any]:
    question = answer.question
    return {
        "events": len(question),
        "groups": question.half_widths.size,
        "offsets": question.offsets.size,
        "question_bits": question_bits(answer),
    }
