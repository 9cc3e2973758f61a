"""Events in rounds: what a model has learned from some of them, it asks of the next ones.

A round is an epoch whose population we submit: a share of our events, dealt by their hashed keys.
With the second and every later one goes a question
(:mod:`labelveil.common.randomizers.message.questions`) from a model of the rounds before. What was
submitted is kept in the folder of the round's release, so that whatever is interrupted goes on with
the same events and the same question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
import polars as pl

from labelveil.common.arrays import Booleans, Floats, Indices
from labelveil.common.console import warn
from labelveil.common.engine.shuffle import KEY_TYPE, match_keys, sort_keys
from labelveil.common.errors import ConfigError, DataError, present
from labelveil.common.release.blocks import KEY_BYTES
from labelveil.common.release.event_keys import read_secret, secret_check
from labelveil.common.release.folder import is_complete
from labelveil.common.release.question import encode_question
from labelveil.feature_party.client.submission import Population
from labelveil.feature_party.config import FeaturePartyConfig, LabelsPartySection
from labelveil.feature_party.learning.questions import (
    LEAST_EXPLAINED,
    ask,
    asks_better,
    explained_by,
)
from labelveil.feature_party.model.several_labels import LabelModels
from labelveil.feature_party.pipeline.transfer import kept_in, read_kept
from labelveil.feature_party.tables import FeatureFile


def deal(keys: bytes, shares: Sequence[float]) -> Indices:
    """(n,) round of each event, counted from 0, by its hashed key: keys of 16 bytes each."""
    words = np.frombuffer(keys, dtype=">u8")[:: KEY_BYTES // 8]
    return np.searchsorted(np.cumsum(shares)[:-1], words / 2.0**64, side="right")


def question_of(
    models: LabelModels, config: FeaturePartyConfig, mine: Booleans | None = None
) -> bytes:
    """What a model asks of our events, or of the (n,) rows that are ``mine``; nothing where it
    would gain nothing.
    """
    (model, *others) = models.by_label.values()
    reasons = {
        "several labels are sent together": bool(others),
        "labels of a few values are best asked in one way": not asks_better(model.problem),
        "the model predicts points alone": not model.has_distributions,
    }
    for reason, holds in reasons.items():
        if holds:
            warn(f"{reason}: these events are submitted without a question")
            return b""

    def predicted() -> Iterator[Floats]:
        first, columns = 0, list(dict.fromkeys([config.key, *model.encoder.columns]))
        for batch in FeatureFile(config.features).batches(columns):
            rows = slice(first, first + batch.height)
            first = rows.stop
            own = batch if mine is None else batch.filter(pl.Series(mine[rows]))
            if own.height:
                yield present(model.distributions(model.encoder.encode(own)).distributions)

    question = ask(model.problem, model.support, predicted, config.rounds.strata)
    if (share := explained_by(question)) < LEAST_EXPLAINED:
        warn(
            f"what is predicted of these events tells {share:.1%} of what labels vary, too little"
            " to ask by: they are submitted without a question"
        )
        return b""
    return encode_question(question)


ModelT = TypeVar("ModelT")


class Learner(Protocol[ModelT]):
    """What rounds need of the stages that learn from releases, of codes or of sums."""

    config: FeaturePartyConfig

    def of(self, config: FeaturePartyConfig) -> Self:
        """The same stages, of other releases."""
        ...

    def population(self) -> Population: ...
    def submit(self, population: Population, folder: Path) -> str: ...
    def fetch(self) -> object: ...
    def load(self) -> ModelT: ...
    def trained(self) -> ModelT:
        """A model of all releases, saved."""
        ...

    def check_dealt(self, rows: Indices) -> None:
        """``DataError`` if (rounds,) numbers of events are too few for one of the rounds."""
        ...

    def ask(self, model: ModelT | None, mine: Booleans, number: int) -> bytes:
        """What to ask of our (n,) rows that are ``mine``, in a round; nothing to ask nothing."""
        ...


@dataclass
class Rounds(Generic[ModelT]):
    """All rounds of one run of the features party."""

    stages: Learner[ModelT]

    @property
    def config(self) -> FeaturePartyConfig:
        return self.stages.config

    @property
    def count(self) -> int:
        return len(self.config.dealt)

    @property
    def left(self) -> range:
        """The rounds whose releases are not here yet, counted from 1."""
        numbers = range(1, self.count + 1)
        there = [number for number in numbers if is_complete(self.config.round_folder(number))]
        return numbers[len(there) :]

    @property
    def next(self) -> int:
        """The first of them; ``ConfigError`` if there is none."""
        if not self.left:
            raise ConfigError(
                f"the releases of all {self.count} rounds are in {self.config.release.directory};"
                " train on them, or name another epoch"
            )
        return self.left[0]

    def party(self, number: int) -> LabelsPartySection:
        epoch = {"epoch": self.config.round_epoch(number)}
        return self.config.only_labels_party.model_copy(update=epoch)

    def through(self, number: int) -> Learner[ModelT]:
        """The stages of a model of the first so many rounds."""
        return self.stages.of(self.config.through(number))

    def asks(self, number: int) -> bool:
        """Whether a round needs a model that asks: not the first, nor one that was submitted."""
        return number > 1 and kept_in(self.config.round_folder(number)) is None

    def submit(self, number: int, model: ModelT | None) -> tuple[Population, str]:
        """Submit a round with what a model asks of it; returns what, and how it ended."""
        config = self.config.model_copy(update={"labels_party": [self.party(number)]})
        stages, folder = self.stages.of(config), self.config.round_folder(number)
        if (place := kept_in(folder)) is None:
            population = self._new(number, model)
        else:
            secret = read_secret(config.secret_of(config.only_labels_party))
            population = read_kept(place, secret_check(secret))
        return population, stages.submit(population, folder)

    def _new(self, number: int, model: ModelT | None) -> Population:
        everybody = self.stages.population()
        self._check_secret(number, everybody)
        dealt = deal(everybody.keys, self.config.dealt)
        rows = np.bincount(dealt, minlength=self.count)
        if not rows.all():
            raise DataError(
                f"none of the {everybody.rows:,} events is dealt to round {int(rows.argmin()) + 1};"
                " set [rounds] shares to fewer and larger ones"
            )
        self.stages.check_dealt(rows)
        mine = dealt == number - 1
        keys = np.frombuffer(everybody.keys, dtype=np.uint8).reshape(-1, KEY_BYTES)[mine]
        self._check_once(number, keys.tobytes(), everybody.secret_check)
        question = self.stages.ask(model, mine, number)
        return Population(keys.tobytes(), everybody.secret_check, question)

    def _check_secret(self, number: int, everybody: Population) -> None:
        """Events are dealt by their hashed keys: another secret would deal some of them twice."""
        for earlier in range(1, number):
            if (place := kept_in(self.config.round_folder(earlier))) is None:
                continue
            if read_kept(place, everybody.secret_check).secret_check != everybody.secret_check:
                raise ConfigError(
                    f"round {earlier} was hashed with another secret than"
                    f" {self.config.secret_of(self.config.only_labels_party)}, under which some of"
                    f" its events would be dealt to round {number}, too; set [keys] secret_file"
                    " back until all rounds are done, or name another epoch"
                )

    def _check_once(self, number: int, keys: bytes, check: bytes) -> None:
        """Other shares would deal some events twice: these would pay again, or be refused."""
        mine = np.frombuffer(keys, dtype=KEY_TYPE)
        for earlier in range(1, number):
            if (place := kept_in(self.config.round_folder(earlier))) is None:
                continue
            there = np.frombuffer(read_kept(place, check).keys, dtype=KEY_TYPE)
            if twice := int(match_keys(there[sort_keys(there)], mine)[1].sum()):
                raise ConfigError(
                    f"{twice:,} events of round {earlier} would be asked again in round {number}:"
                    f" [rounds] shares={self.config.rounds.shares} or [training]"
                    f" holdout={self.config.training.holdout:g} have changed since; set them back"
                    " until all rounds are done, or name another epoch"
                )

    def learn(self) -> Iterator[tuple[LabelsPartySection, Population, str]]:
        """Go through the rounds that are left, up to the last one's release.

        Yields what was submitted, to whom, and how that ended; before its release is fetched.
        """
        for number in self.left:
            if self.asks(number):  # of a withdrawn round nothing is asked on
                self.through(number - 1).fetch()
            model = self.through(number - 1).trained() if self.asks(number) else None
            yield (self.party(number), *self.submit(number, model))
            self.through(number).fetch()
