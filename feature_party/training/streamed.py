"""Matched events in shards on disk, with a holdout set apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import polars as pl

from labelveil.common.arrays import Booleans, Indices, Integers
from labelveil.common.errors import ConfigError, DataError
from labelveil.feature_party.join.matches import MatchCounts
from labelveil.feature_party.join.shards import JoinedShards
from labelveil.feature_party.join.tasks import CODE, ROW
from labelveil.feature_party.learning.problem import Codes, LabelProblem
from labelveil.feature_party.learning.sources import own_labels
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.schema import Found
from labelveil.feature_party.training.encoded_shards import (
    RowStream,
    Shards,
    fit_encoder,
    shards_content,
    write_shards,
)
from labelveil.feature_party.training.events import TrainingSetup
from labelveil.feature_party.training.in_memory import Prepared


@dataclass(frozen=True, eq=False)
class PreparedShards:
    """:class:`Events` in shards on disk."""

    joined: JoinedShards  # all matched events
    held_events: Integers  # (h,) different events to score on, in the features' order, ascending
    problem: LabelProblem
    release_id: str
    key: str
    label_codes: Indices | None = (
        None  # (d,) what each code is to the channel of one of several labels
    )
    source: str = ""  # the labels party that these are of alone
    source_codes: range | None = None  # its codes among all

    @property
    def matches(self) -> MatchCounts:
        return self.joined.matches.for_source(self.source) if self.source else self.joined.matches

    @property
    def found(self) -> Found:
        return self.joined.found

    @property
    def training_rows(self) -> int:
        return self.matches.matched - self.holdout.size

    @cached_property
    def holdout(self) -> Integers:
        if self.source_codes is None and self.joined.rows == sum(self.joined.events):
            return self.held_events  # every event has one label
        first, parts = 0, []
        for index in range(len(self.joined.shards)):
            held = self._held(index)[self._mine(index)]
            parts.append(np.flatnonzero(held) + first)
            first += held.size
        return np.concatenate(parts)

    def held_out(self) -> tuple[pl.DataFrame, Codes]:
        columns = [*self.joined.columns, CODE]
        parts = self._parts(columns, lambda index: self._held(index) & self._mine(index))
        table = pl.concat(parts, rechunk=True)
        return table.drop(CODE), self._codes(table)

    def all_codes(self) -> Codes:
        return self._codes(pl.concat(self._parts([CODE], self._mine)))

    def keys(self) -> pl.Series:
        return pl.concat(self._parts([self.key], self._mine))[self.key]

    def for_source(self, source: str) -> PreparedShards:
        own, codes = own_labels(self.problem, source), self.problem.codes_of(source)
        return replace(self, problem=own, source=source, source_codes=codes)

    def encoded(self, setup: TrainingSetup, fit: Callable[[pl.DataFrame], Encoder]) -> Shards:
        if setup.true_labels is not None:
            raise ConfigError(
                "objective='true' trains in memory alone; set [training] shards to never"
            )
        training, workers = setup.training, setup.workers
        directory = (setup.folder or Path()) / "shards"
        if training.shards not in ("auto", "never"):
            directory = Path(training.shards)
        drawn = [training.holdout, training.seed, training.shard_rows]
        content = shards_content(self.joined.content, setup.data.model_dump(mode="json"), drawn)
        if workers.first and Shards.open(directory, content) is None:
            ignored = {*setup.data.stated.ignored, self.key}
            columns = [name for name in self.joined.columns if name not in ignored]
            size = None if training.shard_rows == "auto" else training.shard_rows
            stream = RowStream(self.training_events, self.training_rows, training.seed)
            write_shards(directory, content, stream, fit_encoder(stream, columns, fit), size)
        workers.wait()
        shards = Shards.open(directory, content)
        if shards is None:
            raise DataError(
                f"worker {workers.rank} does not see the shards in {directory}; set [training]"
                " shards to a folder that all workers share"
            )
        return shards

    def loaded(self) -> Prepared:
        """The same in memory."""
        table = pl.concat(self.joined.tables([*self.joined.columns, ROW, CODE]), rechunk=True)
        rows = table[ROW].to_numpy()
        training = np.delete(np.arange(rows.size), self.holdout)
        facts = self.problem, self.release_id, self.key, self.matches
        codes = self._codes(table)
        features = table.drop(ROW, CODE)
        return Prepared(
            features, codes, *facts, training, self.holdout, rows, found=self.joined.found
        )

    def training_events(self, columns: Sequence[str]) -> Iterator[tuple[pl.DataFrame, Codes]]:
        """Yield features and codes to train on, a shard at a time, in the features' order."""
        for kept in self._parts([*columns, CODE], lambda index: ~self._held(index)):
            yield kept.drop(CODE), self._codes(kept)

    def trained(self, start: int, stop: int) -> Booleans:
        trained, size = np.zeros(stop - start, dtype=np.bool_), self.joined.slice_rows
        for index in range(start // size, -(-stop // size)):
            rows = _rows(self.joined, index)[~self._held(index)]
            low, high = np.searchsorted(rows, [start, stop])
            trained[rows[low:high] - start] = True
        return trained

    def _parts(
        self, columns: list[str], chosen: Callable[[int], Booleans]
    ) -> Iterator[pl.DataFrame]:
        """Yield those of every shard's labels that are chosen."""
        for index, part in enumerate(self.joined.tables(columns)):
            yield part.filter(pl.Series(chosen(index)))

    def _held(self, index: int) -> Booleans:
        """Which labels of a shard are to be scored on."""
        return _held_labels(self.joined, self.held_events, index)

    def _mine(self, index: int) -> Booleans:
        """Which labels of a shard are of the source."""
        if self.source_codes is None:
            return np.ones(sum(self.joined.labels[index]), dtype=np.bool_)
        # codes below the source's first have wrapped around
        return self._codes(self.joined.read(index, [CODE])) < len(self.source_codes)

    def _codes(self, rows: pl.DataFrame) -> Codes:
        """Their codes as the label's own channels have them, or the source's alone."""
        codes = rows[CODE].to_numpy()
        if self.label_codes is not None:
            codes = self.label_codes[codes].astype(np.uint32)
        return codes - np.uint32(0 if self.source_codes is None else self.source_codes.start)


def count_training_codes(joined: JoinedShards, held_events: Integers, outputs: int) -> Integers:
    """(d,) how many labels to train on have each code, of (h,) events that are held out."""
    counts = np.zeros(outputs, dtype=np.int64)
    for index, part in enumerate(joined.tables([CODE])):
        kept = part[CODE].to_numpy()[~_held_labels(joined, held_events, index)]
        counts += np.bincount(kept, minlength=outputs)
    return counts


def _held_labels(joined: JoinedShards, held_events: Integers, index: int) -> Booleans:
    first, events = sum(joined.events[:index]), joined.events[index]
    low, high = np.searchsorted(held_events, [first, first + events])
    chosen = np.zeros(events, dtype=np.bool_)
    chosen[held_events[low:high] - first] = True
    if events == sum(joined.labels[index]):  # each event has one label
        return chosen
    rows = _rows(joined, index)
    return np.asarray(chosen[np.cumsum(np.diff(rows, prepend=rows[:1]) != 0)])


@lru_cache(maxsize=2)
def _rows(joined: JoinedShards, index: int) -> Integers:
    """(n,) the features' rows that a shard's labels are about."""
    return joined.read(index, [ROW])[ROW].to_numpy()
