"""From sums over groups and features to a model: what to ask, training, predictions."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl

from labelveil.common.arrays import Booleans
from labelveil.common.errors import ConfigError, DataError, not_none
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice
from labelveil.common.release.question import decode_question, encode_question
from labelveil.feature_party.client.submission import Population
from labelveil.feature_party.config.sections import FeaturePartyConfig, TrueLabels
from labelveil.feature_party.groups.model import SumsModel, ask_first
from labelveil.feature_party.groups.saved import SavedSums, SumsFacts, is_of_sums
from labelveil.feature_party.groups.scoring import FEWEST, ScoreQuestion
from labelveil.feature_party.model.prediction import Predicted
from labelveil.feature_party.pipeline.predicting import predict
from labelveil.feature_party.pipeline.score import Sums
from labelveil.feature_party.pipeline.transfer import Transfer
from labelveil.feature_party.tables import check_key, collect_table, scan_table

_MEAN_OF = 1 << 16
"""Events that tell what predictions are on average; of more, some at equal distances."""


@dataclass(eq=False)
class SumLearning(Transfer):
    """The stages that ask for sums, and learn from them."""

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
        some = self.table[rows[:: -(-rows.size // _MEAN_OF)]]
        mean = float(model.distributions(model.encoder.encode(some)).points.mean())
        saved = SavedSums(model, replace(self._facts, mean=mean, warnings=(*said, *self.withdrawn)))
        saved.save(config.output.model)
        # what too few sums tell before the last round is for the next one to mend, and for nobody
        last = len(given) >= len(config.round_shares)
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

    def final(self) -> SavedSums:
        """As each of the rounds' models."""
        return self.trained()

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
        rng = np.random.default_rng((self.config.training.seed, len(self.config.round_shares) + 1))
        asked = points, model.facts.mean, lattice, epsilon, rng, model.model.miss
        with self._timed("ask"):
            return encode_question(ScoreQuestion.from_predictions(*asked).question)

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
