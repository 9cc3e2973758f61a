"""Complete and randomize a population that does not fit into memory, on any engine.

The same steps as :func:`label_party.events.completion.complete` takes in memory, and the same rows:
every range of keys is completed by itself, and the ranges follow each other. What is in memory at a
time is a slice, a bucket or a part for each worker, whatever the number of rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import numpy as np

from common.arrays import Floats, Integers
from common.engine.shuffle import KEY_TYPE, WORD_TYPE, Exchange, Files, KeyedRows, Keys, read_rows
from common.engine.task import Engine, Secrets, Task
from common.entropy import Entropy
from common.randomizers.cells import Codebook, Group
from common.release.blocks import block_ranges
from label_party.config.sections import LabelPartyConfig
from label_party.events.completion import check_population
from label_party.events.epoch import Rows
from label_party.events.row_ranges import RowWriter
from label_party.events.tally import Tally
from label_party.events.tasks import (
    PRINTS,
    ROWS,
    ROWS_OF_KEYS,
    ROWS_OF_USERS,
    Complete,
    Count,
    FindBeyond,
    FingerprintedPiece,
    FingerprintedSlice,
    Limit,
    MergeFingerprints,
    Piece,
    Place,
    Randomize,
    Range,
    Slice,
    SubmittedSlice,
    label_type,
    labels_of_rows,
    read_keys,
)
from label_party.sources.tables import KEY, LABEL, USER, copy_as_parquet, parquet_files
from label_party.store.disk import translating_errors
from label_party.store.fingerprints import Prints
from label_party.store.release_store import PART_ROWS

ResultT = TypeVar("ResultT")
Progress = Callable[[int], None]

SLICE_ROWS = 1 << 19
BUCKET_ROWS = 1 << 19


@dataclass(frozen=True)
class Sizes:
    """How the work is cut; what comes out does not depend on it.

    Attributes
    ----------
    slice_rows
        Rows of a file that one task reads.
    bucket_rows
        Rows, of labels and population together, that a bucket holds on average.
    part_rows
        Rows of one part of the release: a multiple of a block's.
    """

    slice_rows: int = SLICE_ROWS
    bucket_rows: int = BUCKET_ROWS
    part_rows: int = PART_ROWS


@dataclass(frozen=True)
class Table:
    """Parquet files of one role, with the number of their rows, and what is wanted of them."""

    files: tuple[tuple[Path, int], ...]
    wanted: Rows

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.files)

    def slices(self, rows: int) -> Iterator[Slice]:
        """Cut it into slices, in the order of the rows."""
        for path, total in self.files:
            for start, stop in block_ranges(total, rows):
                yield Slice(replace(self.wanted, source=path), start, stop)

    @property
    def types(self) -> dict[str, str]:
        """Columns of its slices."""
        wanted = len(self.wanted.labels)
        labels = {LABEL: label_type(wanted)} if wanted else {}
        users = {} if self.wanted.user is None else {USER: KEY_TYPE}
        return {KEY: KEY_TYPE} | labels | users


@dataclass(frozen=True)
class Sources:
    """What a release reads.

    Attributes
    ----------
    labels
        Files of labels.
    population
        Files of the population; None if the labels' own keys are the population, or it was
        submitted.
    submitted
        File and rows of the population that was submitted.
    """

    labels: Table
    population: Table | None
    submitted: tuple[Path, int] | None

    @property
    def rows(self) -> int:
        """Rows to hash and exchange."""
        listed = self.population.rows if self.population else 0
        return self.labels.rows + listed + (self.submitted[1] if self.submitted else 0)


def open_sources(
    labels: Rows, population: Rows | None, submitted: tuple[Path, int] | None, folder: Path
) -> Sources:
    """Find Parquet files and count their rows; copy other sources into the scratch folder first."""
    return Sources(
        _table(labels, folder / "copied-labels"),
        None if population is None else _table(population, folder / "copied-population"),
        submitted,
    )


def _table(wanted: Rows, copy: Path) -> Table:
    files = parquet_files(wanted.source)
    if files is None:
        copies = copy_as_parquet(wanted.source, wanted.columns, copy)
        files = [rows for path in copies for rows in parquet_files(path) or ()]
    return Table(tuple(files), wanted)


class StoredEvents:
    """Completed events in a scratch folder, as a release is built from them.

    Attributes
    ----------
    tally
        What completing did.
    submitted
        Whether the features party submitted the keys.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        tally: Tally,
        work: Work,
        named: Table | None,
        *,
        submitted: bool,
    ) -> None:
        self.tally = tally
        self.submitted = submitted
        self._pieces = pieces
        self._work = work
        self._named = named

    @property
    def rows(self) -> int:
        return self.tally.rows

    def parts(self) -> Iterator[tuple[Keys, Floats]]:
        """Yield (n,) keys and (n, m) labels, a part at a time."""
        return ((part.keys(), part.labels()) for part in self._ranges(1))

    def count(self, groups: Sequence[Group], entropy: Entropy) -> list[Integers]:
        """Return the histogram of each group of labels."""
        tasks = [Count(part, tuple(groups)) for part in self._ranges(1)]
        counted = self._work.run(tasks, entropy)
        return [np.sum(each, axis=0) for each in zip(*counted, strict=True)]

    def randomize(
        self,
        codebook: Codebook,
        entropy: Entropy,
        writer: RowWriter,
        block_rows: int,
        progress: Progress,
    ) -> tuple[list[str], str]:
        """Write all rows; return their blocks' digests, and the digest of all keys."""
        folder = self._work.folder
        public = folder / "codebook.json"
        public.write_text(json.dumps(codebook.to_json()), encoding="utf-8")
        tasks = [
            Randomize(
                part,
                public,
                block_rows,
                self.submitted,
                folder / f"keys-{index}",
                folder / f"codes-{index}",
            )
            for index, part in enumerate(self._ranges(block_rows))
        ]
        blocks: list[str] = []
        population = hashlib.sha256()
        for task, digests in zip(tasks, self._work.stream(tasks, entropy), strict=True):
            for piece in task.rows.pieces:
                first, last = max(task.rows.start, piece.start), min(task.rows.stop, piece.stop)
                keys = read_keys(piece.path, first - piece.start, last - piece.start)
                population.update(keys.data)
            writer.adopt(task.keys, task.codes)
            blocks += digests
            progress(task.rows.stop - task.rows.start)
        return blocks, population.hexdigest()

    def fingerprints(self, secret: bytes) -> Iterator[Prints]:
        """Yield the fingerprints of the events, and of their users, ascending, each once."""
        work, rows = self._work, self.rows
        parts: list[KeyedRows] = [FingerprintedPiece(piece) for piece in self._pieces]
        if self._named is not None:
            rows += self._named.rows
            slices = self._named.slices(work.sizes.slice_rows)
            parts += [FingerprintedSlice(part) for part in slices]
        ranges = max(1, -(-rows // work.sizes.bucket_rows))
        prints = work.exchange("prints", len(parts), ranges, PRINTS)
        work.engine.run(prints.tasks(parts), Secrets(work.join, fingerprints=secret))
        files = work.files("merged", ranges)
        tasks = [MergeFingerprints(index, prints, out) for index, out in enumerate(files)]
        for task, count in zip(tasks, work.stream(tasks), strict=True):
            yield read_rows(task.out, 0, count, WORD_TYPE)
            _remove([task.out])
        _remove(prints.files)

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


@dataclass(frozen=True)
class Work:
    """An engine, a folder that all its workers see, the secret, and how work is cut."""

    engine: Engine
    folder: Path
    join: bytes
    sizes: Sizes

    def run(self, tasks: Sequence[Task[ResultT]], entropy: Entropy | None = None) -> list[ResultT]:
        """Run tasks, with the release's key if they draw from it, and return their results."""
        return list(self.stream(tasks, entropy))

    def stream(
        self, tasks: Sequence[Task[ResultT]], entropy: Entropy | None = None
    ) -> Iterator[ResultT]:
        """Yield the results as they come, in the tasks' order."""
        if entropy is None:
            return self.engine.stream(tasks, Secrets(self.join))
        return self.engine.stream(tasks, Secrets(self.join, entropy.key, entropy.secure))

    def files(self, kind: str, count: int) -> Files:
        """Name the files that a step's tasks will write."""
        return Files(self.folder / kind, count)

    def exchange(self, kind: str, count: int, buckets: int, types: dict[str, str]) -> Exchange:
        """Name the files that ``count`` tasks will write for the next step's."""
        return Exchange(self.files(kind, count), buckets, types)


def complete_external(
    config: LabelPartyConfig, sources: Sources, work: Work, progress: Progress
) -> StoredEvents:
    """Give every event of the population its labels.

    Parameters
    ----------
    sources
        From :func:`open_sources`.
    progress
        Called with the number of rows read since the last call.

    Raises
    ------
    DataError
        As :func:`label_party.events.completion.complete`.
    """
    buckets = max(1, -(-sources.rows // work.sizes.bucket_rows))
    labels, listed = _exchange(sources, buckets, work, progress)
    completed = work.files("completed", buckets)
    missing = tuple(terms.missing for terms in config.labels)
    ranges = None
    if sources.submitted is not None:
        count = -(-sources.submitted[1] // work.sizes.bucket_rows)
        ranges = Exchange(completed, count, labels_of_rows(len(config.labels)))
    tasks = [
        Complete(
            bucket=bucket,
            labels=labels,
            population=listed,
            missing=missing,
            domains=tuple(terms.bounds for terms in config.labels),
            duplicates=config.data.duplicates,
            users=config.privacy.unit == "user",
            out=completed[bucket],
            ranges=ranges,
            range_rows=work.sizes.bucket_rows,
        )
        for bucket in range(buckets)
    ]
    found = work.run(tasks)
    tally = sum(found, Tally())
    check_population(tally)
    _remove([*labels.files, *(listed.files if listed else ())])
    if sources.submitted is not None and ranges is not None:
        pieces = _place(ranges, *sources.submitted, work, len(missing))
        return StoredEvents(pieces, tally, work, None, submitted=True)
    ends = list(accumulate(each.rows for each in found))
    pieces = [
        Piece(path, end - each.rows, end, len(missing))
        for path, end, each in zip(completed, ends, found, strict=True)
        if each.rows
    ]
    over = 0
    limit = config.privacy.max_records_per_user
    if limit is not None:
        pieces, over = _limit_users(pieces, limit, missing, buckets, work)
    named = sources.population or sources.labels
    tally = replace(tally, over_limit=over)
    return StoredEvents(pieces, tally, work, named, submitted=False)


def _exchange(
    sources: Sources, buckets: int, work: Work, progress: Progress
) -> tuple[Exchange, Exchange | None]:
    """Hash labels and population, and send their rows to the buckets of their keys."""
    size = work.sizes.slice_rows
    slices = list(sources.labels.slices(size))
    labels = work.exchange("labels", len(slices), buckets, sources.labels.types)
    tasks, listed = labels.tasks(slices), None
    if sources.population is not None:
        slices = list(sources.population.slices(size))
        listed = work.exchange("listed", len(slices), buckets, sources.population.types)
        tasks += listed.tasks(slices)
    elif sources.submitted is not None:
        path, rows = sources.submitted
        ranges = [SubmittedSlice(path, *ends) for ends in block_ranges(rows, size)]
        listed = work.exchange("listed", len(ranges), buckets, ROWS_OF_KEYS)
        tasks += listed.tasks(ranges)
    for done in work.stream(tasks):
        progress(done)
    return labels, listed


def _place(ranges: Exchange, keys: Path, rows: int, work: Work, labels: int) -> list[Piece]:
    """Put completed labels in the order in which their keys were submitted."""
    placed = work.files("placed", ranges.buckets)
    tasks = [
        Place(index, start, stop, ranges, keys, placed[index])
        for index, (start, stop) in enumerate(block_ranges(rows, work.sizes.bucket_rows))
    ]
    work.run(tasks)
    _remove(ranges.files)
    return [Piece(task.out, task.start, task.stop, labels) for task in tasks]


def _limit_users(
    pieces: list[Piece], limit: int, missing: tuple[float, ...], buckets: int, work: Work
) -> tuple[list[Piece], int]:
    """Find the events beyond their users' limit, and give them the missing value."""
    users = work.exchange("users", len(pieces), buckets, ROWS_OF_USERS)
    work.run(users.tasks(pieces))
    starts = tuple(piece.start for piece in pieces)
    beyond = work.exchange("beyond", buckets, len(pieces), ROWS)
    work.run([FindBeyond(bucket, users, limit, starts, beyond) for bucket in range(buckets)])
    limited = work.files("limited", len(pieces))
    tasks = [
        Limit(piece, index, beyond, missing, limited[index]) for index, piece in enumerate(pieces)
    ]
    over = sum(work.run(tasks))
    _remove([*users.files, *beyond.files, *(piece.path for piece in pieces)])
    done = [replace(piece, path=out) for piece, out in zip(pieces, limited, strict=True)]
    return done, over


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with translating_errors(path):
            path.unlink()
