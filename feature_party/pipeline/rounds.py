"""Events in rounds: what a model has learned from some of them, it asks of the next ones.

A round is an epoch whose population we submit: a share of our events, dealt by their hashed keys.
With the second and every later one goes a question
(:mod:`labelveil.common.randomizers.message.questions`) from a model of the rounds before. What was
submitted is kept in the folder of the round's release, so that whatever is interrupted goes on with
the same events and the same question.

Who is held out is in no round with a question, and in none at all where sums are asked for. After
the last round comes an epoch about these events, which asks how good the model of all rounds is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
import polars as pl

from labelveil.common.arrays import Booleans, Floats, Indices
from labelveil.common.console import warn
from labelveil.common.engine.shuffle import KEY_TYPE, match_keys, sort_keys
from labelveil.common.errors import (
    ConfigError,
    ConnectionFailed,
    DataError,
    ReleaseError,
    not_none,
)
from labelveil.common.release.blocks import KEY_BYTES
from labelveil.common.release.event_keys import read_secret, secret_check
from labelveil.common.release.folder import is_complete
from labelveil.common.release.question import encode_question
from labelveil.feature_party.client.submission import Population
from labelveil.feature_party.config.labels_party import LabelsPartySection
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.groups.scoring import FEWEST
from labelveil.feature_party.learning.questions import (
    LEAST_EXPLAINED,
    ask,
    asks_better,
    explained_by,
)
from labelveil.feature_party.model.several_labels import LabelModels
from labelveil.feature_party.pipeline.transfer import kept_in, read_kept
from labelveil.feature_party.tables import FeatureFile
from labelveil.feature_party.training.encoded_shards import MOST_HELD_OUT
from labelveil.feature_party.training.holdout import deal_holdout


def deal(keys: bytes, shares: Sequence[float]) -> Indices:
    """(n,) round of each event, counted from 0, by its hashed key: keys of 16 bytes each."""
    words = np.frombuffer(keys, dtype=">u8")[:: KEY_BYTES // 8]
    return np.searchsorted(np.cumsum(shares)[:-1], words / 2.0**64, side="right")


def held_out(config: FeaturePartyConfig, rows: int) -> Booleans:
    """Which of our rows no model learns from, in whatever round they are."""
    training, held = config.training, np.zeros(rows, dtype=np.bool_)
    share = min(training.holdout, MOST_HELD_OUT / max(rows, 1))
    held[deal_holdout(np.arange(rows), share, training.seed)] = True
    return held


def rows_of(
    config: FeaturePartyConfig, columns: Sequence[str], mine: Booleans | None = None
) -> Iterator[pl.DataFrame]:
    """Our events, or the (n,) rows that are ``mine``, with their keys, some at a time."""
    first, wanted = 0, list(dict.fromkeys([config.key, *columns]))
    for batch in FeatureFile(config.features).batches(wanted):
        rows = slice(first, first + batch.height)
        first = rows.stop
        own = batch if mine is None else batch.filter(pl.Series(mine[rows]))
        if own.height:
            yield own


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

    rows = FeatureFile(config.features).rows if mine is None else mine.size
    asked = np.arange(rows) if mine is None else np.flatnonzero(mine)

    def predicted(some: Booleans | slice) -> Iterator[Floats]:
        wanted = np.zeros(rows, dtype=np.bool_)
        wanted[asked[some]] = True
        for own in rows_of(config, model.encoder.columns, wanted):
            yield not_none(model.distributions(model.encoder.encode(own)).distributions)

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

    def with_config(self, config: FeaturePartyConfig) -> Self:
        """The same stages, of other releases."""
        ...

    def population(self) -> Population: ...
    def submit(self, population: Population, folder: Path) -> str: ...
    def fetch(self) -> object: ...
    def load(self) -> ModelT: ...
    def trained(self) -> ModelT:
        """A model to ask by, of all releases, saved."""
        ...

    def check_kept(self, rows: int, kept: int) -> None:
        """``DataError`` if of ``rows`` events too few are kept to tell how good a model is."""
        ...

    def ask(self, model: ModelT | None, mine: Booleans, number: int) -> bytes:
        """What to ask of our (n,) rows that are ``mine``, in a round; nothing to ask nothing."""
        ...

    def ask_score(self, model: ModelT, mine: Booleans) -> bytes:
        """What to ask of our (n,) rows that are ``mine``, which no round was about, to tell how
        good a model of all rounds is; nothing where that is known as well."""
        ...


@dataclass
class Rounds(Generic[ModelT]):
    """All rounds of one run of the features party.

    ``last`` are the stages of a model of all of them, where whoever runs them goes on with it.
    """

    stages: Learner[ModelT]
    last: Learner[ModelT] | None = None
    _through: dict[int, Learner[ModelT]] = field(default_factory=dict)

    @property
    def config(self) -> FeaturePartyConfig:
        return self.stages.config

    @property
    def count(self) -> int:
        return len(self.config.round_shares)

    @property
    def left(self) -> range:
        """The rounds whose releases are not here yet, counted from 1."""
        numbers = range(1, self.count + 1)
        there = [number for number in numbers if is_complete(self.config.round_folder(number))]
        return numbers[len(there) :]

    @property
    def next(self) -> int:
        """The first of them, or the score's after all; ``ConfigError`` if that is here, too."""
        if not self.left and is_complete(self.config.score_folder):
            raise ConfigError(
                f"the releases of all {self.count} rounds are in {self.config.release.directory};"
                " train on them, or name another epoch"
            )
        return self.left[0] if self.left else self.count + 1

    def party(self, number: int) -> LabelsPartySection:
        epoch = {"epoch": self.config.round_epoch(number)}
        return self.config.only_labels_party.model_copy(update=epoch)

    def through(self, number: int) -> Learner[ModelT]:
        """The stages of a model of the first ``number`` rounds."""
        if self.last is not None and number == self.count:
            return self.last
        if number not in self._through:  # what was joined is not joined again
            self._through[number] = self.stages.with_config(self.config.through(number))
        return self._through[number]

    def asks(self, number: int) -> bool:
        """Whether a round needs a model that asks: not the first, nor one that was submitted."""
        return number > 1 and kept_in(self.config.round_folder(number)) is None

    def submit_next(self) -> tuple[LabelsPartySection, Population, str]:
        """Submit the next round, about which the saved model of those before it asks.

        Returns to whom, what, and how it ended.
        """
        number = self.next
        if number > self.count and not self._to_score.any():
            return (
                self.party(number),
                Population(b"", self.stages.population().secret_check),
                "too few held-out events are known to be in none of the"
                f" {self.count} rounds, to ask how good the model is; next: feature-party evaluate",
            )
        model = self.through(number - 1).load() if self.asks(number) else None
        return (self.party(number), *self.submit(number, model))

    def submit(
        self, number: int, model: ModelT | None, population: Population | None = None
    ) -> tuple[Population, str]:
        """Submit a round with what a model asks of it; returns what, and how it ended.

        After the last one comes the score, of no events if there is nothing to ask for it.
        """
        config = self.config.model_copy(update={"labels_party": [self.party(number)]})
        stages, folder = self.stages.with_config(config), self.config.round_folder(number)
        if (place := kept_in(folder)) is None:
            population = population or self._new(number, model)
            if number > self.count and not population.question:
                return Population(b"", population.secret_check), (
                    f"the codes of {self.count} rounds tell how good the model is as well as"
                    " another question would; next: feature-party evaluate"
                )
        else:
            secret = read_secret(config.secret_of(config.only_labels_party))
            population = read_kept(place, secret_check(secret))
        return population, stages.submit(population, folder)

    def _new(self, number: int, model: ModelT | None) -> Population:
        everybody = self.stages.population()
        self._check_secret(number, everybody)
        keys = np.frombuffer(everybody.keys, dtype=np.uint8).reshape(-1, KEY_BYTES)
        if number > self.count:
            mine, learner = self._to_score, self.through(self.count)
            question = learner.ask_score(not_none(model), mine) if mine.any() else b""
            return Population(keys[mine].tobytes(), everybody.secret_check, question)
        held = held_out(self.config, everybody.rows)
        self.stages.check_kept(everybody.rows, int(held.sum()))
        dealt = deal(everybody.keys, self.config.round_shares)
        # a code that was asked about what else is unknown of its label tells little of errors, and
        # sums tell nothing: of who is held out something else is asked at the end
        spared = held & ((dealt > 0) | self.config.groups.configured)
        rows = np.bincount(dealt[~spared], minlength=self.count)
        if not rows.all():
            raise DataError(
                f"none of the {everybody.rows:,} events is dealt to round {int(rows.argmin()) + 1};"
                " set [rounds] shares to fewer and larger ones"
            )
        mine = dealt == number - 1
        question = self.stages.ask(model, mine & ~spared, number)
        mine &= ~spared | (not question)
        self._check_once(number, keys[mine].tobytes(), everybody.secret_check)
        return Population(keys[mine].tobytes(), everybody.secret_check, question)

    @cached_property
    def _to_score(self) -> Booleans:
        """Which of our rows are held out and were submitted in no round, once all rounds were: none
        where these are not known, are too few, or were asked about."""
        everybody = self.stages.population()
        ours = np.frombuffer(everybody.keys, dtype=KEY_TYPE)
        kept = held_out(self.config, ours.size)
        nothing = np.zeros_like(kept)
        if is_complete(self.config.score_folder):
            return nothing
        for number in range(1, self.count + 1):
            if (place := kept_in(self.config.round_folder(number))) is None:
                return nothing
            sent = np.frombuffer(read_kept(place, everybody.secret_check).keys, dtype=KEY_TYPE)
            kept &= ~match_keys(sent[sort_keys(sent)], ours)[1]
        return kept if np.count_nonzero(kept) >= FEWEST else nothing

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
                    f" [rounds] shares={self.config.round_shares} or [training]"
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

    def score(self, model: ModelT) -> Iterator[tuple[LabelsPartySection, Population, str]]:
        """Ask how good a model of all rounds is, of events that none of them was about.

        Yields as :meth:`learn`, at most once. What is refused, or not answered in time, is left
        with a warning: the model is there all the same.
        """
        number, folder = self.count + 1, self.config.score_folder
        if is_complete(folder):
            return
        population = None
        if kept_in(folder) is None and not (population := self._new(number, model)).question:
            return
        # in a folder of its epoch's name, as every round
        epochs = {"epoch": "", "epochs": [self.config.round_epoch(number)]}
        party = self.config.only_labels_party.model_copy(update=epochs)
        config = self.config.model_copy(update={"labels_party": [party]})
        try:
            yield (self.party(number), *self.submit(number, model, population))
            self.stages.with_config(config).fetch()
        except (ConnectionFailed, ReleaseError) as error:
            warn(f"no sums tell how good the model is: {error}")
