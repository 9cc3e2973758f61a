"""The stages of a model of sums over groups: what to ask, learning, the score and the report."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from labelveil.common.arrays import Booleans, Floats
from labelveil.common.config.answers import json_text
from labelveil.common.errors import ConfigError, DataError, ReleaseError, not_none
from labelveil.common.files import write_text
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice, PrivateSums
from labelveil.common.release.folder import MANIFEST_FILE, read_manifest
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.question import decode_question, encode_question
from labelveil.feature_party.client.submission import Population
from labelveil.feature_party.config.sections import FeaturePartyConfig, TrueLabels
from labelveil.feature_party.evaluation.intervals import Measured, compared
from labelveil.feature_party.evaluation.sentences import TOLD, figure_words
from labelveil.feature_party.evaluation.true_labels import (
    TrueErrors,
    match_true_labels,
    mean_label,
)
from labelveil.feature_party.groups.model import SumsModel, ask_first
from labelveil.feature_party.groups.saved import SavedSums, SumsFacts, is_of_sums
from labelveil.feature_party.groups.scoring import FEWEST, Score, ScoreQuestion
from labelveil.feature_party.learning.problem import LabelProblem, silent_leg
from labelveil.feature_party.model.prediction import Predicted
from labelveil.feature_party.pipeline.predicting import predict, write_metrics
from labelveil.feature_party.pipeline.score import Sums
from labelveil.feature_party.pipeline.transfer import Transfer
from labelveil.feature_party.tables import check_key, collect_table, scan_table
from labelveil.feature_party.training.events import TrainingSetup
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.run import train

_UNASKED = (
    "no sums tell how good this model is: what differs within groups cancels in those that teach;"
    " ask with lv.ask_score"
)


def learns_from_sums(config: FeaturePartyConfig) -> bool:
    """Whether a run asks for sums, or all releases that are here are of sums."""
    if config.groups.configured:
        return True
    there = [path for path in config.release_folders if (path / MANIFEST_FILE).is_file()]
    return bool(there) and all(Manifest.from_bytes(read_manifest(p)).sums for p in there)


@dataclass(eq=False)
class SumStages(Transfer):
    """One run of a features party that learns from sums over groups."""

    truth: TrueLabels = field(default_factory=TrueLabels)
    predicted: Predicted | None = None
    _features: pl.DataFrame | None = None
    _answers: list[Sums] | None = None

    def with_config(self, config: FeaturePartyConfig) -> Self:
        """The same stages, of other releases."""
        return replace(self, config=config, _answers=None)

    @property
    def features(self) -> pl.DataFrame:
        """All events with their keys, in memory."""
        if self._features is None:
            frame = scan_table(self.config.features)
            check_key(frame, self.config.key)
            self._features = collect_table(frame)
        return self._features

    @property
    def table(self) -> pl.DataFrame:
        """What is known of all events."""
        return self.features.drop(self.config.key)

    @property
    def answers(self) -> list[Sums]:
        """The sums of all releases, oldest first."""
        if self._answers is None:
            self.check_withdrawn()
            with self._timed("join"):
                keys = self.features[self.config.key]
                self._answers = [
                    Sums.read(path, keys, self.config.secrets_of(party))
                    for party, path in self.config.releases
                ]
        return self._answers

    @property
    def learned_from(self) -> list[Sums]:
        """Those that teach; ``DataError`` if there are none."""
        if not (teaching := [each for each in self.answers if not each.scores]):
            raise DataError(
                f"the sums in {self.config.release.directory} tell how good a model is, and teach"
                " none; fetch those of lv.ask_groups, or of [groups], too"
            )
        return teaching

    def train(self) -> SavedSums:
        """Train and save a model of all sums that teach."""
        config, given = self.config, self.learned_from
        rows = np.concatenate([each.rows for each in given])
        with self._timed("train"), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            model = SumsModel.fit(
                self.table[rows],
                [each.answer for each in given],
                stated=config.data.stated,
                seed=config.training.seed,
            )
        said = [str(warning.message) for warning in caught if warning.category is UserWarning]
        mean = float(model.distributions(model.encoder.encode(self.table[rows])).points.mean())
        saved = SavedSums(model, replace(self._facts, mean=mean, warnings=(*said, *self.withdrawn)))
        saved.save(config.output.model)
        # what too few sums tell before the last round is for the next one to mend, and for nobody
        last = len(given) >= len(config.rounds.shares)
        for warning in saved.facts.warnings if last else self.withdrawn:
            self.warn(warning)
        return saved

    @property
    def _facts(self) -> SumsFacts:
        """What a model of these releases knows of its training, but for what comes of it."""
        config, given = self.config, self.learned_from
        return SumsFacts(
            releases=tuple(each.digest for each in given),
            events=sum(each.rows.size for each in given),
            mean=0.0,
            columns=str(config.data.stated),
            seed=config.training.seed,
            key=config.key,
            label=self.manifests[0].labels[0].name,
        )

    def trained(self) -> SavedSums:
        """The saved model, if it is of these releases, columns and seed; else a new one.

        How good it is, was asked of the very model that is saved.
        """
        directory = self.config.output.model
        if is_of_sums(directory):
            saved = SavedSums.load(directory)
            if replace(saved.facts, mean=0.0, warnings=()) == self._facts:
                return saved
        return self.train()

    def load(self) -> SavedSums:
        """Read the saved model, and refuse one of other releases."""
        directory = self.config.output.model
        saved = SavedSums.load(directory)
        if replace(saved.facts, mean=0.0, warnings=()) != self._facts:
            raise DataError(
                f"the model in {directory} was trained on other sums, columns or with another seed"
                f" than {self.config.training.seed}; train again"
            )
        return saved

    def check_kept(self, rows: int, kept: int) -> None:
        """``DataError`` if too few events are kept to score a model."""
        if kept < FEWEST:
            raise DataError(
                f"holdout={self.config.training.holdout:g} keeps {kept} of {rows:,}"
                f" events, and {FEWEST} are the fewest that can be scored; set [training] holdout"
                " higher, or give more events"
            )

    def submit(self, population: Population, folder: Path) -> str:
        """As all stages; ``ConfigError`` if what was kept to be submitted asks about other labels
        than are agreed by now."""
        if population.question and self.config.groups.configured:
            asked = decode_question(population.question, population.rows)
            groups = self.config.groups
            kept = asked.lattice if isinstance(asked, GroupQuestion) else None
            if kept is not None and (kept.lower, kept.upper) != (groups.lower, groups.upper):
                raise ConfigError(
                    f"the question in {folder} is about labels in {kept.lower:g} … {kept.upper:g},"
                    f" and [groups] says lower={groups.lower:g}, upper={groups.upper:g}; set these"
                    " back, or remove that folder to ask anew"
                )
        return super().submit(population, folder)

    def ask_score(self, model: SavedSums, mine: Booleans) -> bytes:
        """What to ask of our (n,) rows that are ``mine``, to tell how good a model is."""
        points = model.predict(self.table.filter(pl.Series(mine)))["prediction"].to_numpy()
        lattice, epsilon = self._spent()
        rng = np.random.default_rng((self.config.training.seed, len(self.config.rounds.shares) + 1))
        asked = points, model.facts.mean, lattice, epsilon, rng, model.model.miss
        with self._timed("ask"):
            return encode_question(ScoreQuestion.of(*asked).question)

    def ask(self, model: SavedSums | None, mine: Booleans, number: int) -> bytes:
        """What to ask of our (n,) rows that are ``mine``, in a round."""
        config, own = self.config, self.table.filter(pl.Series(mine))
        lattice, epsilon = self._spent()
        rng = np.random.default_rng((config.training.seed, number))
        with self._timed("ask"):
            if model is None:
                question = ask_first(own, lattice, epsilon, rng, config.data.stated)
            else:
                question = model.model.ask(own, epsilon, rng)
        return encode_question(question)

    def _spent(self) -> tuple[Lattice, float]:
        """Where labels lie, and the ε of each, as agreed."""
        groups = self.config.groups
        if groups.epsilon is None:
            raise ConfigError(
                "a model of sums asks for sums, of groups whose size follows from what each label"
                " spends; set epsilon, lower and upper in [groups]"
            )
        return Lattice.between(not_none(groups.lower), not_none(groups.upper)), groups.epsilon

    @property
    def _lattice(self) -> Lattice:
        """Of the labels that were asked about."""
        return self.learned_from[0].answer.question.lattice

    @property
    def _learned(self) -> Booleans:
        """Which of our rows a sum that teaches is about."""
        learned = np.zeros(self.features.height, dtype=np.bool_)
        for each in self.learned_from:
            learned[each.rows] = True
        return learned

    def predict(self, model: SavedSums) -> Predicted:
        """Predict every row of the features file."""
        learned = self._learned
        with self._timed("predict"):
            self.predicted = predict(
                self.config,
                model,
                quiet=self.quiet,
                trained=lambda start, stop: learned[start:stop],
            )
        return self.predicted

    def evaluate(self, model: SavedSums, nonprivate: Path | None = None) -> dict[str, Any]:
        """Say how good the model is; writes metrics, report and model card, and returns metrics.

        Where true labels are named, its errors against them are beside, and those in the file
        ``nonprivate``, of a model that they have trained.
        """
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
        """Train networks on the true labels of the same events; returns the file with their
        errors."""
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
            update={"objective": "true", "learner": "networks", "checkpoint": False}
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
        truth = self.truth
        if truth.true_labels is None:
            raise DataError(
                "true labels are needed; pass --true-labels FILE --true-label COLUMN (simulations)"
            )
        (label, *_), lattice = self.manifests[-1].labels, self._lattice
        return match_true_labels(
            self.features[self.config.key],
            truth.true_labels,
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
        asked = ScoreQuestion.asked(answer.question, points, model.facts.mean, model.model.miss)
        return asked.score(answer)

    @staticmethod
    def words(metrics: Mapping[str, Any]) -> list[str]:
        """What to print of metrics, in lines."""
        rounds = metrics["rounds"]
        groups = " + ".join(f"{asked['groups']:,}" for asked in rounds)
        lines = [f"{groups} sums over {metrics['training_rows']:,} events"]
        if "verdict" in metrics:
            share = Measured.of_json(metrics, "estimated_r2")
            lines.append(
                f"better than a constant: {TOLD[compared(share)]}; R² {figure_words(share)}, by"
                f" sums over {metrics['holdout_rows']:,} events kept"
            )
        return lines


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
