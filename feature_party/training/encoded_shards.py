"""Encoded training rows on disk, in Parquet shards that each fit in memory.

The features are read in a stream, three times at most: a sample for the encoding, columns of
categories for their vocabularies, and what is encoded. Each row goes to a shard drawn from the
seed, so that every shard is a random sample of all rows and an epoch that walks shard by shard
still sees them in random order. ``shards.json`` comes last; without it a folder holds no shards.

An encoding that is fitted to more than ``SAMPLE_ROWS`` rows takes the numeric columns' quantiles
from about that many, drawn uniformly: each lies within 0.32% of its rank with probability 1 − 10⁻⁹
(Dvoretzky, Kiefer and Wolfowitz 1956, with Massart's constant 1990). Vocabularies are counted on
all rows, exactly unless a column has more than ``MOST_VALUES`` distinct values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from labelveil.common.arrays import Integers
from labelveil.common.errors import DataError
from labelveil.common.files import PUBLIC, appearing, leftovers
from labelveil.feature_party.learning.objectives import Objective
from labelveil.feature_party.learning.problem import Codes, LabelProblem
from labelveil.feature_party.model.encoding import Encoded, Encoder
from labelveil.feature_party.model.facts import FitSettings
from labelveil.feature_party.training.batches import Parts, Rows

MOST_HELD_OUT = 1 << 20
"""Events that are scored, and that each network leaves out, where features do not fit in memory:
their mean loss is known to a thousandth of its spread, and more would have to fit there."""
SAMPLE_ROWS = 1 << 20
MOST_VALUES = 1 << 22
ENCODED_MANIFEST = "shards.json"
_FORMAT = "labelveil-shards/2"

_SHARD_BYTES = 64 << 20
_ORDER_BYTES = 48
"""What a row's order and folds take in memory, besides the row."""
_MOST_SHARDS = 512
"""Written to at the same time, each an open file."""
_PENDING_BYTES = 256 << 20
_GROUP_BYTES = 4 << 20
"""Of a shard that are written at once, unless all shards' pass ``_PENDING_BYTES``."""


@dataclass(frozen=True)
class RowStream:
    """The rows to train on, as often as they are asked for.

    ``walk`` starts a pass: some of their columns and codes, a batch at a time.
    """

    walk: Callable[[Sequence[str]], Iterator[tuple[pl.DataFrame, Codes]]]
    rows: int  # how many there are
    seed: int  # chooses a sample of them, and each one's shard


@dataclass(frozen=True)
class Shards:
    """Shards on disk: their folder, what their rows were encoded by, the rows of each, and the
    manifest's digest."""

    directory: Path
    encoder: Encoder
    sizes: tuple[int, ...]
    digest: str

    @classmethod
    def open(cls, directory: Path, content: str) -> Shards | None:
        """Shards with this content, if the folder holds them; ``DataError`` if they are damaged."""
        path = directory / ENCODED_MANIFEST
        if not path.is_file():
            return None
        data = path.read_bytes()
        try:
            manifest = json.loads(data)
            if manifest["content"] != content:
                return None
            encoder, sizes = Encoder.from_json(manifest["encoder"]), tuple(manifest["sizes"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} is damaged; remove {directory} and train again") from error
        shards = cls(directory, encoder, sizes, hashlib.sha256(data).hexdigest())
        for part in range(len(sizes)):
            shards._table(part, [])
        return shards

    def read(self, part: int) -> tuple[Encoded, Codes]:
        """Encoded rows and codes of one shard."""
        table = self._table(part)
        numeric = _matrix(table, "numeric", self.encoder.inputs, np.float32)
        categories = _matrix(table, "categories", len(self.encoder.categorical), np.int32)
        return Encoded(numeric, categories), _matrix(table, "code", 1, np.uint32)[:, 0]

    def codes_of(self, rows: Integers) -> Codes:
        """As :class:`TrainingRows` has it, rows being numbered shard after shard."""
        codes = np.empty(rows.size, dtype=np.uint32)
        starts = np.concatenate([[0], np.cumsum(self.sizes)])
        order = np.argsort(rows)
        cuts = np.searchsorted(rows[order], starts)
        for part in range(len(self.sizes)):
            here = order[cuts[part] : cuts[part + 1]]
            of_part = _matrix(self._table(part, ["code"]), "code", 1, np.uint32)
            codes[here] = of_part[rows[here] - starts[part], 0]
        return codes

    def folded(self, problem: LabelProblem, settings: FitSettings) -> None:
        """None: these rows are not seen all at once."""

    def left_out(self, share: float) -> float:
        # few enough to be in memory
        return min(share, MOST_HELD_OUT / sum(self.sizes))

    def parts(self, objective: Objective, device: torch.device) -> Parts:
        return ShardParts(self, objective, device)

    def _table(self, part: int, columns: list[str] | None = None) -> pa.Table:
        """Columns of a shard, or all; one that is not all there is refused."""
        path, size = _path(self.directory, part), self.sizes[part]
        try:
            with pq.ParquetFile(path) as file:
                rows, table = file.metadata.num_rows, file.read(columns)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path} is missing or damaged; remove {self.directory} and train again"
            ) from error
        if rows != size:
            raise DataError(
                f"{path} holds {rows:,} rows, not {size:,}; remove {self.directory} and train again"
            )
        return table


class ShardParts(Parts):
    """Training rows in shards, with targets that an objective makes of their codes; the next shard
    is read while one is trained on."""

    def __init__(self, shards: Shards, objective: Objective, device: torch.device) -> None:
        self.shards, self.objective, self.device = shards, objective, device
        self.sizes = shards.sizes

    def part(self, index: int) -> Rows:
        inputs, codes = self.shards.read(index)
        return Rows.on_device(inputs, self.objective.targets(codes), self.device)

    def walk(self, parts: Sequence[int]) -> Iterator[Rows]:
        with ThreadPoolExecutor(1) as reader:
            following = [reader.submit(self.part, part) for part in parts[:1]]
            for place in range(len(parts)):
                rows = following.pop().result()
                if place + 1 < len(parts):
                    following.append(reader.submit(self.part, parts[place + 1]))
                yield rows
                del rows

    def fingerprint(self) -> list[float | str]:
        return [self.shards.digest]


def shards_content(joined: str, *facts: object) -> str:
    """What identifies the content of shards: the join that they are made from, and facts."""
    return hashlib.sha256(json.dumps([_FORMAT, joined, *facts]).encode()).hexdigest()


def fit_encoder(
    stream: RowStream, columns: Sequence[str], fit: Callable[[pl.DataFrame], Encoder]
) -> Encoder:
    """Decide on an encoding of some columns of a stream.

    ``fit`` decides from a table; what it makes of all rows, if they are at most ``SAMPLE_ROWS``, is
    the result.
    """
    if stream.rows <= SAMPLE_ROWS:
        return fit(pl.concat([table for table, _ in stream.walk(columns)], rechunk=True))
    generator, sample = np.random.default_rng([stream.seed, 1]), []
    for table, _ in stream.walk(columns):
        chosen = generator.random(table.height) < SAMPLE_ROWS / stream.rows
        sample.append(table.filter(pl.Series(chosen)))
    encoder = fit(pl.concat(sample, rechunk=True))
    names = [column.name for column in encoder.categorical]
    counts: dict[str, pl.DataFrame] = {}
    for table, _ in stream.walk(names) if names else ():
        for name in names:
            more = encoder.schema[name].read(table[name]).alias("value").value_counts()
            both = pl.concat([counts.get(name, more[:0]), more])
            both = both.group_by("value").agg(pl.col("count").sum())
            if both.height > MOST_VALUES:  # the rarest go
                both = both.sort(["count", "value"], descending=[True, False])
                both = both.head(MOST_VALUES // 2)
            counts[name] = both
    return encoder.with_counts(counts)


def write_shards(
    directory: Path,
    content: str,
    stream: RowStream,
    encoder: Encoder,
    shard_rows: int | None = None,
) -> None:
    """Encode rows and scatter them over shards in a folder, in place of those that it held.

    ``content`` is what :meth:`Shards.open` must ask for. A shard has about ``shard_rows`` rows; the
    default makes 64 MB of it in memory, or 512 larger ones.
    """
    width = 4 * (encoder.inputs + len(encoder.categorical)) + 2
    if shard_rows is None:
        shard_rows = max(_SHARD_BYTES // (width + _ORDER_BYTES), 1)
    count = max(1, min(round(stream.rows / shard_rows), _MOST_SHARDS))
    try:
        remove_shards(directory)
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise DataError(
                f"{directory} holds other files than shards; set [training] shards to a folder"
                " that is empty or does not exist yet"
            )
        with _Writer(directory, count, encoder) as writer:
            generator = np.random.default_rng([stream.seed, 2])
            for table, codes in stream.walk(encoder.columns):
                places = generator.integers(count, size=table.height).astype(np.uint16)
                writer.add(encoder.encode(table), codes, places)
        manifest = {"content": content, "encoder": encoder.to_json(), "sizes": writer.sizes}
        with appearing(directory / ENCODED_MANIFEST, mode=PUBLIC) as file:
            file.write(json.dumps(manifest).encode())
    except OSError as error:
        remove_shards(directory)
        raise DataError(
            f"{directory} cannot be written: {error.strerror or error}; {stream.rows * width:,}"
            " bytes are needed, see [training] shards"
        ) from error


def remove_shards(directory: Path) -> None:
    """Remove shards, and their folder if it holds nothing else."""
    with suppress(OSError):
        manifest = directory / ENCODED_MANIFEST
        for path in (manifest, *leftovers(manifest), *directory.glob("part-*.parquet")):
            path.unlink(missing_ok=True)
        directory.rmdir()


class _Writer:
    """Shards being written, a row group at a time in each."""

    def __init__(self, directory: Path, count: int, encoder: Encoder) -> None:
        # rows as bytes: Parquet would count the numbers of a list one by one
        widths = {"numeric": 4 * encoder.inputs, "categories": 4 * len(encoder.categorical)}
        kinds = {name: pa.binary(width) for name, width in widths.items() if width}
        fields = {"code": pa.uint32(), **kinds}.items()
        self.schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])
        paths = [_path(directory, part) for part in range(count)]
        plain = {"compression": "lz4", "use_dictionary": False, "write_statistics": False}
        self.writers = [pq.ParquetWriter(path, self.schema, **plain) for path in paths]
        self.sizes = [0] * count
        self.pending: list[list[pa.RecordBatch]] = [[] for _ in self.writers]
        self.bytes = 0

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.flush()
        for writer in self.writers:
            writer.close()

    def add(self, inputs: Encoded, codes: Codes, places: Codes) -> None:
        """Take in rows, each for its shard."""
        order, columns = np.argsort(places, kind="stable"), []
        numbers = {
            "code": codes.astype(np.uint32),
            "numeric": inputs.numeric,
            "categories": inputs.categories,
        }
        for field in self.schema:
            # by their bytes: Arrow would import pandas to look at an array
            buffer = pa.py_buffer(np.take(numbers[field.name], order, axis=0))
            columns.append(pa.Array.from_buffers(field.type, order.size, [None, buffer]))
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        ends = np.cumsum(np.bincount(places, minlength=len(self.sizes))).tolist()
        for part, (start, stop) in enumerate(pairwise([0, *ends])):
            self.pending[part].append(rows[start:stop])
            self.sizes[part] += stop - start
        self.bytes += rows.nbytes
        if self.bytes >= min(_PENDING_BYTES, len(self.sizes) * _GROUP_BYTES):
            self.flush()

    def flush(self) -> None:
        """Write what is pending, in its order."""
        for writer, batches in zip(self.writers, self.pending, strict=True):
            if batches:
                writer.write_table(pa.Table.from_batches(batches))
            batches.clear()
        self.bytes = 0


def _path(directory: Path, part: int) -> Path:
    return directory / f"part-{part:05d}.parquet"


def _matrix(table: pa.Table, name: str, columns: int, kind: type) -> NDArray[Any]:
    """(n, columns) numbers; of nothing but rows where a shard has no such column."""
    # a copy: Arrow's memory is read-only, which torch does not take
    matrix: NDArray[Any] = np.empty((table.num_rows, columns), kind)
    start = 0
    for chunk in filter(len, table[name].chunks if columns else ()):
        rows: NDArray[Any] = np.frombuffer(chunk.buffers()[1], kind).reshape(-1, columns)
        matrix[start : start + len(chunk)] = rows[chunk.offset : chunk.offset + len(chunk)]
        start += len(chunk)
    return matrix
