"""Matched events in shards on disk, with a holdout set apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import polars as pl

from common.arrays import Booleans, Indices, Integers
from common.errors import ConfigError, DataError
from feature_party.join.matches import MatchCounts
from feature_party.join.shards import JoinedShards
from feature_party.join.tasks import CODE, ROW
from feature_party.learning.problem import LabelProblem
from feature_party.learning.sources import own_labels
from feature_party.training.encoded_shards import (
    Shards,
    fit_encoder,
    shards_content,
    write_shards,
)
from feature_party.training.events import Codes, Encoding
from feature_party.training.in_memory import Joined, Prepared


@dataclass(frozen=True)
class PreparedShards:
    """Matched events in shards on disk, split.

    Attributes
    ----------
    joined
        All matched events.
    held
        (h,) different events to score on, numbered in the features' order, ascending.
    problem, release_id, key
        As in :class:`Prepared`.
    source, codes
        The labels party that these are of alone, and its codes among all.
    own
        (d,) what each code is to the channel of the one label that is seen, if there are several.
    """

    joined: JoinedShards
    held: Integers
    problem: LabelProblem
    release_id: str
    key: str
    source: str = ""
    codes: range | None = None
    own: Indices | None = None

    @property
    def matches(self) -> MatchCounts:
        return self.joined.matches.of(self.source) if self.source else self.joined.matches

    @property
    def training_rows(self) -> int:
        return self.matches.matched - self.holdout.size

    @cached_property
    def holdout(self) -> Integers:
        if self.codes is None and self.joined.rows == sum(self.joined.events):
            return self.held  # every event has one label
        first, found = 0, []
        for index in range(len(self.joined.shards)):
            held = self._held(index)[self._mine(index)]
            found.append(np.flatnonzero(held) + first)
            first += held.size
        return np.concatenate(found)

    def held_out(self) -> tuple[pl.DataFrame, Codes]:
        columns = [*self.joined.columns, CODE]
        parts = (
            part.filter(pl.Series(self._held(index) & self._mine(index)))
            for index, part in enumerate(self.joined.parts(columns))
        )
        table = pl.concat(parts, rechunk=True)
        first = 0 if self.codes is None else self.codes.start
        return table.drop(CODE), self._codes(table) - np.uint32(first)

    def all_codes(self) -> Codes:
        codes = self._codes(pl.concat(self.joined.parts([CODE])))
        if self.codes is None:
            return codes
        return codes[np.isin(codes, self.codes)] - np.uint32(self.codes.start)

    def keys(self) -> pl.Series:
        parts = (
            part.filter(pl.Series(self._mine(index)))
            for index, part in enumerate(self.joined.parts([self.key]))
        )
        return pl.concat(parts)[self.key]

    def of(self, source: str) -> PreparedShards:
        own, codes = own_labels(self.problem, source), self.problem.codes_of(source)
        return replace(self, problem=own, source=source, codes=codes)

    def encoded(self, how: Encoding) -> Shards:
        if how.true_labels is not None:
            raise ConfigError(
                "objective='true' trains in memory alone; set [training] shards to never"
            )
        training, workers = how.training, how.workers
        named = training.shards not in ("auto", "never")
        directory = Path(training.shards) if named else how.folder
        content = shards_content(
            self.joined.content,
            how.data.model_dump(mode="json"),
            [training.holdout, training.seed, training.shard_rows],
        )
        if workers.first and Shards.open(directory, content) is None:
            left_out = {*how.data.ignore, self.key}
            columns = [name for name in self.joined.columns if name not in left_out]
            size = None if training.shard_rows == "auto" else training.shard_rows
            rows, stream, seed = self.training_rows, self.training_events, training.seed
            encoder = fit_encoder(stream, columns, rows, how.fit, seed)
            write_shards(directory, content, stream, rows, encoder, seed, size)
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
        table = pl.concat(self.joined.parts([*self.joined.columns, ROW, CODE]), rechunk=True)
        rows, codes = table[ROW].to_numpy(), self._codes(table)
        joined = Joined(table.drop(ROW, CODE), codes, self.matches, rows)
        training = np.ones(rows.size, dtype=np.bool_)
        training[self.holdout] = False
        return Prepared(
            joined, np.flatnonzero(training), self.holdout, self.problem, self.release_id, self.key
        )

    def training_events(self, columns: Sequence[str]) -> Iterator[tuple[pl.DataFrame, Codes]]:
        """Yield features and codes to train on, a shard at a time, in the features' order."""
        for index, part in enumerate(self.joined.parts([*columns, CODE])):
            kept = part.filter(pl.Series(~self._held(index)))
            yield kept.drop(CODE), self._codes(kept)

    def trained(self, start: int, stop: int) -> Booleans:
        found = np.zeros(stop - start, dtype=np.bool_)
        size = self.joined.slice_rows
        for index in range(start // size, -(-stop // size)):
            rows = self._training_rows_of(index)
            low, high = np.searchsorted(rows, [start, stop])
            found[rows[low:high] - start] = True
        return found

    def _training_rows_of(self, index: int) -> Integers:
        return _kept(self.joined, index)[~self._held(index)]

    def _held(self, index: int) -> Booleans:
        """Which labels of a shard are to be scored on."""
        return _held_labels(self.joined, self.held, index)

    def _mine(self, index: int) -> Booleans:
        """Which labels of a shard are of the source."""
        if self.codes is None:
            return np.ones(sum(self.joined.labels[index]), dtype=np.bool_)
        codes = self._codes(self.joined.read(index, [CODE]))
        return np.asarray((self.codes.start <= codes) & (codes < self.codes.stop))

    def _codes(self, rows: pl.DataFrame) -> Codes:
        """Their codes among those of all releases, as the label's own channels have them."""
        codes = rows[CODE].to_numpy()
        return codes if self.own is None else self.own[codes].astype(np.uint32)


def count_training_codes(joined: JoinedShards, held: Integers, outputs: int) -> Integers:
    """(d,) how many labels to train on have each code, of (h,) events that are held out."""
    counts = np.zeros(outputs, dtype=np.int64)
    for index, part in enumerate(joined.parts([CODE])):
        kept = part[CODE].to_numpy()[~_held_labels(joined, held, index)]
        counts += np.bincount(kept, minlength=outputs)
    return counts


def _held_labels(joined: JoinedShards, held: Integers, index: int) -> Booleans:
    first, events = sum(joined.events[:index]), joined.events[index]
    low, high = np.searchsorted(held, [first, first + events])
    chosen = np.zeros(events, dtype=np.bool_)
    chosen[held[low:high] - first] = True
    if events == sum(joined.labels[index]):  # each event has one label
        return chosen
    rows = _kept(joined, index)
    return np.asarray(chosen[np.cumsum(np.diff(rows, prepend=rows[:1]) != 0)])


@lru_cache(maxsize=2)
def _kept(joined: JoinedShards, index: int) -> Integers:
    """(n,) the features' rows that a shard's labels are about."""
    return joined.read(index, [ROW])[ROW].to_numpy()
