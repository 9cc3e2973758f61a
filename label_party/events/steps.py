"""Complete and randomize a population, on any engine, however many rows it has.

Every range of keys is completed by itself, and the ranges follow each other. What is in memory at a
time is a slice, a bucket or a part for each worker. Rows that fit into this process's memory are
one slice and one bucket: the same tasks, and no scratch file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import numpy as np

from labelveil.common.arrays import Floats, Integers
from labelveil.common.engine.local import InProcess
from labelveil.common.engine.shuffle import Exchange, Files, InMemoryExchange, KeyedRows, Keys
from labelveil.common.engine.task import Engine, Secrets, Task
from labelveil.common.entropy import Entropy
from labelveil.common.errors import not_none
from labelveil.common.files import writing
from labelveil.common.randomizers.cells import Group
from labelveil.common.randomizers.grid import Grid, RoundingEffect
from labelveil.common.randomizers.message.codebooks import Codebooks
from labelveil.common.randomizers.message.strata import Strata
from labelveil.common.release.blocks import block_ranges
from labelveil.common.release.event_keys import secret_check
from labelveil.label_party.events.completion import Rules, check_population
from labelveil.label_party.events.epoch import Rows
from labelveil.label_party.events.row_ranges import (
    Count,
    OfRange,
    Randomize,
    events_of_values,
    moments,
    rounding_effects,
)
from labelveil.label_party.events.tally import Tally
from labelveil.label_party.events.tasks import (
    NAMES,
    PRINT,
    PRINTS,
    ROW,
    ROWS,
    ROWS_OF_USERS,
    Complete,
    FindBeyond,
    FirstPrints,
    KeyPrints,
    Limit,
    MergeFingerprints,
    NamePrints,
    Piece,
    Place,
    Range,
    RowPrints,
    SendSlice,
    Slice,
    SubmittedRows,
    SubmittedSlice,
)
from labelveil.label_party.sources.anomalies import NOTHING, Anomalies
from labelveil.label_party.sources.tables import (
    KEY,
    PLACE,
    USER,
    column_name,
    copy_as_parquet,
    parquet_files,
)
from labelveil.label_party.store.disk import translating_errors
from labelveil.label_party.store.fingerprints import Prints
from labelveil.label_party.store.release_store import PART_ROWS

ResultT = TypeVar("ResultT")
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Sizes:
    """How the work is cut; what comes out does not depend on it."""

    slice_rows: int = 1 << 19  # rows of a file that one task reads
    # rows, of labels and population together, that a bucket holds on average
    bucket_rows: int = 1 << 19
    part_rows: int = PART_ROWS  # rows of one part of the release: a multiple of a block's


@dataclass(frozen=True, eq=False)
class Table:
    """All slices of a source, in the order of its rows."""

    slices: tuple[Slice, ...]
    rows: int  # how many these are
    types: Mapping[str, str]  # their columns
    odd: Anomalies = NOTHING  # what was odd when it was copied


@dataclass(frozen=True)
class Sources:
    """What a release reads."""

    labels: Table  # rows of labels
    # rows of the population; None if the labels' own keys are the population, or it was submitted
    population: Table | None
    submitted: SubmittedRows | None  # the population that was submitted

    @property
    def rows(self) -> int:
        listed = self.population.rows if self.population else 0
        return self.labels.rows + listed + (self.submitted.rows if self.submitted else 0)


@dataclass(frozen=True)
class Work:
    """An engine, the secret, and where rows lie meanwhile."""

    engine: Engine
    # that all workers see. None: everything stays in this process's memory, in one piece.
    folder: Path | None
    join_secret: bytes
    sizes: Sizes  # how work is cut, where there is a folder

    @classmethod
    def in_memory(cls, join_secret: bytes) -> Work:
        """Work in this process, without a file."""
        return cls(InProcess(), None, join_secret, Sizes())

    def open_table(self, wanted: Rows, name: str) -> Table:
        """Read a source, or cut it into slices of Parquet files, copying it if it is none."""
        if self.folder is None:
            loaded = wanted.read()
            whole = Slice(wanted, loaded=loaded)
            return Table((whole,), loaded[0].height, whole.types)
        files, odd = parquet_files(wanted.source), NOTHING
        if files is None:
            stem = self.folder / f"copied-{name}"
            copies, odd = copy_as_parquet(
                wanted.source, wanted.columns, stem, wanted.naming, wanted.dialect, wanted.holds
            )
            files = [rows for path in copies for rows in not_none(parquet_files(path))]
        slices = (
            Slice(replace(wanted, source=path), ends)
            for path, total in files
            for ends in block_ranges(total, self.sizes.slice_rows)
        )
        return Table(tuple(slices), sum(total for _, total in files), Slice(wanted).types, odd)

    def bucket_count(self, rows: int) -> int:
        """Into how many buckets n rows go."""
        return 1 if self.folder is None else max(1, -(-rows // self.sizes.bucket_rows))

    def ranges(self, rows: int) -> list[tuple[int, int]]:
        """Cut the numbers of rows into ranges of a bucket each."""
        return list(block_ranges(rows, rows if self.folder is None else self.sizes.bucket_rows))

    def run(self, tasks: Sequence[Task[ResultT]], entropy: Entropy | None = None) -> list[ResultT]:
        """Run tasks, with the release's key if they draw from it, and return their results."""
        return list(self.stream(tasks, entropy))

    def stream(
        self, tasks: Sequence[Task[ResultT]], entropy: Entropy | None = None
    ) -> Iterator[ResultT]:
        """Yield the results as they come, in the tasks' order."""
        if entropy is None:
            return self.engine.stream(tasks, Secrets(self.join_secret))
        return self.engine.stream(tasks, Secrets(self.join_secret, entropy.key, entropy.secure))

    def exchange(self, kind: str, count: int, buckets: int, types: Mapping[str, str]) -> Exchange:
        """Name what ``count`` tasks will write for the next step's."""
        if self.folder is None:
            return InMemoryExchange(Files(Path(kind), count), buckets, types)
        return Exchange(Files(self.folder / kind, count), buckets, types)

    def published(self, codebooks: Codebooks) -> Codebooks | Path:
        """What tasks are given of what codes mean."""
        if self.folder is None:
            return codebooks
        path = self.folder / "codebooks.json"
        with writing(path):
            path.write_text(json.dumps(codebooks.to_json()), encoding="utf-8")
        return path


class Events:
    """Every label of every event, completed, as a release is built from them.

    ``tally`` says what completing did. ``submitted`` is the population that the features party
    submitted, so that it need not be sent the keys.
    """

    def __init__(self, pieces: Sequence[Piece], tally: Tally, work: Work, sources: Sources) -> None:
        self.tally = tally
        self.submitted = sources.submitted
        self.in_memory = work.folder is None
        self._pieces = pieces
        self._work = work
        # the rows that name the events; None if keys were submitted, which are hashed
        self._named = sources.population or (None if sources.submitted else sources.labels)

    @property
    def rows(self) -> int:
        return self.tally.rows

    @property
    def named(self) -> bool:
        """Whether the events' names are known, and not their hashed keys alone."""
        return self._named is not None

    @property
    def join_check(self) -> str:
        """``secret_check`` of the secret that their keys are hashed under, in hexadecimal."""
        return secret_check(self._work.join_secret).hex()

    def keys_and_labels(self) -> Iterator[tuple[Keys, Floats]]:
        """Yield (n,) keys, ascending or in the order submitted, and (n, m) labels, by range."""
        return ((part.keys(), part.labels()) for part in self._ranges(1))

    def codes(self, name: str) -> Integers:
        """(n,) codes of a further column, all at once."""
        return Range(0, self.rows, tuple(self._pieces)).read(column_name(name))

    def labels(self, index: int) -> Floats:
        """(n,) one label of every event, all at once, not yet clipped."""
        return np.concatenate([labels[:, index] for _, labels in self.keys_and_labels()])

    def strata(self, values: int) -> Integers:
        """(values + 1,) events of each public value of the strata's column, and of none of them."""
        counted = self._of_ranges(partial(events_of_values, values=values))
        return np.asarray(np.sum(counted, axis=0))

    def explained(self, strata: Strata) -> list[float]:
        """Share of each label's variance that its stratum tells; for the operator alone."""
        sums = np.sum(self._of_ranges(partial(moments, strata=strata)), axis=0)
        shares = []
        for rows, first, second in sums:
            kept = rows > 0
            within = float(np.sum(second[kept] - first[kept] ** 2 / rows[kept]))
            whole = float(second.sum() - first.sum() ** 2 / rows.sum())
            shares.append(1 - within / whole if whole > 0 else 0.0)
        return shares

    def count(
        self, groups: Sequence[Group], entropy: Entropy, strata: Strata | None = None
    ) -> list[Integers]:
        """Return the histogram of each group of labels; with strata one of each, in rows."""
        tasks = [Count(part, tuple(groups), strata) for part in self._ranges(1)]
        counted = self._work.run(tasks, entropy)
        return [np.sum(each, axis=0) for each in zip(*counted, strict=True)]

    def rounding_effects(self, grids: Sequence[Grid]) -> list[RoundingEffect]:
        """Return what placing each label on its grid does; for the operator alone."""
        effects = self._of_ranges(partial(rounding_effects, grids=tuple(grids)))
        return [sum(each, RoundingEffect()) for each in zip(*effects, strict=True)]

    def randomize(
        self,
        codebooks: Codebooks,
        strata: Strata | None,
        entropy: Entropy,
        block_rows: int,
        folder: Path,
    ) -> Iterator[tuple[Randomize, list[str]]]:
        """Yield what randomized each part of the rows, in their order, and its blocks' digests.

        Each has written two files, durably: to ``folder``, unless the work has one of its own.
        """
        folder, books = self._work.folder or folder, self._work.published(codebooks)
        tasks = [
            Randomize(
                part,
                books,
                block_rows,
                self.submitted is not None,
                strata,
                folder / f"keys-{index}",
                folder / f"codes-{index}",
            )
            for index, part in enumerate(self._ranges(block_rows))
        ]
        return zip(tasks, self._work.stream(tasks, entropy), strict=True)

    def fingerprints(self, secret: bytes) -> Iterator[Prints]:
        """Yield the fingerprints of the events, and of their users, ascending, each once.

        Where the labels' own keys are the population, an event's user is its first row's.
        """
        work, rows = self._work, self.rows
        secrets = Secrets(work.join_secret, fingerprints=secret)
        parts: list[KeyedRows] = [KeyPrints(Range(p.start, p.stop, (p,))) for p in self._pieces]
        slices = [part.of_names for part in self._named.slices] if self._named else []
        rows += self._named.rows if self._named else 0
        ranges, first = work.bucket_count(rows), None
        if slices and slices[0].names_users:
            first = work.exchange("named", len(slices), ranges, NAMES)
            work.engine.run(first.tasks(map(RowPrints, slices)), secrets)
            parts += [FirstPrints(index, first) for index in range(ranges)]
        else:
            parts += map(NamePrints, slices)
        prints = work.exchange("prints", len(parts), ranges, PRINTS)
        work.engine.run(prints.tasks(parts), secrets)
        merged = work.exchange("merged", ranges, 1, PRINTS)
        tasks = [MergeFingerprints(index, prints, merged) for index in range(ranges)]
        for index, _ in enumerate(work.stream(tasks)):
            yield merged.receive(0, [index])[PRINT]
        _remove(prints, merged, *([first] if first else []))

    def _of_ranges(self, made: Callable[[Range], ResultT]) -> list[ResultT]:
        return self._work.run([OfRange(part, made) for part in self._ranges(1)])

    def _ranges(self, block_rows: int) -> list[Range]:
        """Cut the rows into the release's parts, whatever the pieces that they lie in."""
        size = max(self._work.sizes.part_rows, block_rows)
        return [
            Range(
                start,
                stop,
                tuple(p for p in self._pieces if p.start < stop and start < p.stop),
            )
            for start, stop in block_ranges(self.rows, size)
        ]


def complete(
    sources: Sources,
    work: Work,
    rules: Rules,
    max_records_per_user: int | None = None,
    progress: Progress = lambda rows: None,
) -> Events:
    """Give every event of the population its labels.

    ``max_records_per_user`` events of one user keep their labels; None if the unit is a record.
    ``progress`` is called with the number of rows read since the last call. ``DataError`` as
    :func:`labelveil.label_party.events.completion.check_population`.
    """
    buckets = work.bucket_count(sources.rows)
    labels, listed, odd = _exchange(sources, buckets, work, progress)
    types = {**(listed.types if listed else {}), **labels.types}
    del types[PLACE]  # where an operator finds a row is told by what is odd about it
    # a bucket's events are in the release's order already, by key. A submitted population has an
    # order of its own: they go to ranges of its rows, each of which is then sorted by itself
    ends, sent = [(0, 0)], types
    if sources.submitted is not None:
        ends = work.ranges(sources.submitted.rows)
        sent = {name: kind for name, kind in types.items() if name != KEY}
    completed = work.exchange("completed", buckets, len(ends), sent)
    size = ends[0][1]
    tasks = [Complete(bucket, labels, listed, rules, completed, size) for bucket in range(buckets)]
    tallies = work.run(tasks)
    tally = sum(tallies, odd)
    check_population(tally)
    _remove(labels, *([listed] if listed else []))
    if sources.submitted is not None:
        pieces = _place(completed, sources.submitted.keys, ends, types, work)
        return Events(pieces, tally, work, sources)
    stops = list(accumulate(each.rows for each in tallies))
    pieces = [
        Piece(completed, index, stop - each.rows, stop)
        for index, (stop, each) in enumerate(zip(stops, tallies, strict=True))
    ]
    if max_records_per_user is not None:
        pieces, over = _limit_users(pieces, max_records_per_user, rules, buckets, work)
        tally = replace(tally, over_limit=over)
    return Events(pieces, tally, work, sources)


def _exchange(
    sources: Sources, buckets: int, work: Work, progress: Progress
) -> tuple[Exchange, Exchange | None, Tally]:
    """Hash labels and population, and send their rows to the buckets of their keys.

    Return where they went, and a tally of what is odd about them.
    """

    # that no row of it was found makes it no other population
    listed: Sequence[Slice | SubmittedSlice] | None = None
    types: Mapping[str, str] = {}
    if sources.population is not None:
        listed, types = sources.population.slices, sources.population.types
    elif sources.submitted is not None:
        sent = sources.submitted
        listed, types = [SubmittedSlice(sent, *ends) for ends in work.ranges(sent.rows)], sent.types
    slices = sources.labels.slices
    labels = work.exchange("labels", len(slices), buckets, sources.labels.types)
    tasks = [SendSlice(one, labels, index) for index, one in enumerate(slices)]
    population = None
    if listed is not None:
        population = work.exchange("listed", len(listed), buckets, types)
        tasks += [SendSlice(one, population, index) for index, one in enumerate(listed)]
    tally = Tally(odd=sources.labels.odd)
    if sources.population is not None:
        tally += Tally(odd_population=sources.population.odd)
    for task, (rows, odd) in zip(tasks, work.stream(tasks), strict=True):
        tally += Tally(odd=odd) if task.exchange is labels else Tally(odd_population=odd)
        progress(rows)
    return labels, population, tally


def _place(
    ranges: Exchange,
    keys: Path,
    ends: Sequence[tuple[int, int]],
    types: Mapping[str, str],
    work: Work,
) -> list[Piece]:
    """Put completed labels in the order in which their keys were submitted."""
    kept = {name: kind for name, kind in types.items() if name != ROW}
    placed = work.exchange("placed", len(ends), 1, kept)
    pieces = [Piece(placed, index, start, stop) for index, (start, stop) in enumerate(ends)]
    work.run([Place(piece, ranges, keys) for piece in pieces])
    _remove(ranges)
    return pieces


def _limit_users(
    pieces: list[Piece], limit: int, rules: Rules, buckets: int, work: Work
) -> tuple[list[Piece], int]:
    """Find the events beyond their users' limit, and give them the missing value."""
    users = work.exchange("users", len(pieces), buckets, ROWS_OF_USERS)
    work.run(users.tasks(pieces))
    starts = tuple(piece.start for piece in pieces)
    beyond = work.exchange("beyond", buckets, len(pieces), ROWS)
    work.run([FindBeyond(bucket, users, limit, starts, beyond) for bucket in range(buckets)])
    before = pieces[0].file
    kept = {name: kind for name, kind in before.types.items() if name != USER}
    limited = work.exchange("limited", len(pieces), 1, kept)
    after = [Piece(limited, index, p.start, p.stop) for index, p in enumerate(pieces)]
    tasks = [
        Limit(piece, index, beyond, rules.missing, out)
        for index, (piece, out) in enumerate(zip(pieces, after, strict=True))
    ]
    over = sum(work.run(tasks))
    _remove(users, beyond, before)
    return after, over


def _remove(*done: Exchange) -> None:
    for exchange in done:
        with translating_errors(exchange.files.stem):
            exchange.remove()
