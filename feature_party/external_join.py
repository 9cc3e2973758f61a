"""Match features with a release, both larger than memory, into Parquet shards.

The keys of both sides are exchanged between ranges of hashed keys (:mod:`common.shuffle`), matched
range by range, and the codes sent back to the slices of the features. A slice, a range and a block
of the release are in memory at a time, whatever the number of rows. The result is that of
:func:`feature_party.join.join_release`, row for row, in the order of the features.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.channel import Codes
from common.errors import DataError, ReleaseError
from common.keys import canonical_keys, hash_keys
from common.release import (
    KEY_BYTES,
    LABELS_FILE,
    MANIFEST_FILE,
    Manifest,
    block_digest,
    block_ranges,
    encode_codes,
    keys_bytes,
)
from common.shuffle import Keys, key_buckets, match_keys, read_bucket, sort_keys, write_buckets
from feature_party.join import check_key, scan_table
from feature_party.report import MatchCounts

CODE = "privatized_label_code"
"""Column of the shards with each event's code; outputs of the manifest's channel."""

_KEY_TYPE = f"S{KEY_BYTES}"


@dataclass(frozen=True)
class JoinSizes:
    """How much is in memory at a time; what comes out does not depend on it, but for the shards.

    Attributes
    ----------
    shard_rows
        Rows of the features that become one shard.
    bucket_rows
        Rows of both sides that one range of keys holds on average.
    """

    shard_rows: int = 1 << 19
    bucket_rows: int = 1 << 20


def join_to_shards(
    release: Path,
    features: Path,
    key: str,
    secret: bytes,
    out: Path,
    sizes: JoinSizes | None = None,
) -> MatchCounts:
    """Write the matched events to ``out/shard-00000.parquet``, … with their codes.

    Parameters
    ----------
    release
        A fetched release's directory; its digests are verified on the way.
    features
        A Parquet file, one row an event.
    key
        Its key column.
    secret
        The shared secret that keys are hashed with.
    out
        A new directory, which appears when it is complete.

    Raises
    ------
    DataError
        If keys are missing, occur twice, or match nothing.
    ReleaseError
        If the release is not what its manifest says.
    """
    if out.exists():
        raise DataError(f"{out} exists already; name a new directory for the shards")
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        (work / "shards").mkdir()
        counts = _Join(release, features, key, secret, work, sizes or JoinSizes()).run()
        (work / "shards").rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return counts


class _Join:
    def __init__(
        self, release: Path, features: Path, key: str, secret: bytes, work: Path, sizes: JoinSizes
    ) -> None:
        self.frame = scan_table(features, key)
        check_key(self.frame, key)
        if CODE in self.frame.collect_schema().names():
            raise DataError(f"{features} has a column {CODE!r} already; rename it")
        self.rows = int(self.frame.select(pl.len()).collect().item())
        self.manifest = Manifest.from_bytes((release / MANIFEST_FILE).read_bytes())
        self.labels = release / LABELS_FILE
        self.key, self.secret, self.work, self.sizes = key, secret, work, sizes
        total = self.rows + self.manifest.population.rows
        self.buckets = max(1, -(-total // sizes.bucket_rows))
        self.slices = list(block_ranges(self.rows, sizes.shard_rows))

    def run(self) -> MatchCounts:
        if not self.rows:
            raise DataError("the features have no rows")
        submitted = self.manifest.content.key_bytes == 0
        matched = self._by_order() if submitted else self._by_key()
        released = self.manifest.population.rows
        if not matched:
            raise DataError(
                f"none of the {self.rows:,} events in the features is among the {released:,} in the"
                f" release; check the key column {self.key!r}, the epoch and that both parties use"
                " the same key secret"
            )
        return MatchCounts(released, self.rows, matched)

    def _by_key(self) -> int:
        ours = [
            self._spread("ours", index, keys, np.arange(start, start + keys.size))
            for index, (start, keys) in enumerate(self._hashed())
        ]
        theirs = [
            self._spread("theirs", index, keys, codes.astype(np.int64))
            for index, (keys, codes) in enumerate(self._released())
        ]
        columns = {"key": _KEY_TYPE, "value": "<i8"}
        matched, repeated = [], 0
        for bucket in range(self.buckets):
            mine = read_bucket(ours, bucket, self.buckets, columns)
            sent = read_bucket(theirs, bucket, self.buckets, columns)
            repeated += _repeated(mine["key"])
            rows, codes = _match(mine, sent)
            path = self.work / f"matched-{bucket}"
            values: dict[str, NDArray[Any]] = {"row": rows, "code": codes}
            write_buckets(path, rows // self.sizes.shard_rows, len(self.slices), values)
            matched.append(path)
        if repeated:
            raise DataError(
                f"{repeated:,} rows repeat a key that occurred before in column {self.key!r}; keep"
                " one row for each event"
            )
        total = 0
        for index, (start, stop) in enumerate(self.slices):
            found = read_bucket(matched, index, len(self.slices), {"row": "<i8", "code": "<u2"})
            order = np.argsort(found["row"])
            self._write(index, start, stop, found["row"][order] - start, found["code"][order])
            total += order.size
        return total

    def _by_order(self) -> int:
        digest = hashlib.sha256()
        for _, keys in self._hashed():
            digest.update(keys.tobytes())
        if digest.hexdigest() != self.manifest.population.digest:
            raise DataError(
                f"the release covers {self.manifest.population.rows:,} submitted events, and column"
                f" {self.key!r} of the features, with {self.rows:,} rows, is not the list that was"
                " submitted; use exactly the submitted events in their order, and the same [keys]"
                " secret_file"
            )
        codes = np.concatenate([part for _, part in self._released()])  # two bytes a row
        for index, (start, stop) in enumerate(self.slices):
            self._write(index, start, stop, np.arange(stop - start), codes[start:stop])
        return self.rows

    def _hashed(self) -> Iterator[tuple[int, Keys]]:
        """Hashed keys of the features, slice by slice."""
        for start, stop in self.slices:
            keys = self.frame.select(self.key).slice(start, stop - start).collect()[self.key]
            hashed = hash_keys(canonical_keys(keys), self.secret)
            yield start, np.frombuffer(hashed, dtype=_KEY_TYPE)

    def _released(self) -> Iterator[tuple[Keys, Codes]]:
        """Verified rows of the release, some blocks at a time."""
        content, rows = self.manifest.content, self.manifest.population.rows
        outputs = self.manifest.channel.outputs
        population = hashlib.sha256()
        scan = pl.scan_parquet(self.labels)
        step = max(1, self.sizes.shard_rows // content.block_rows) * content.block_rows
        for first, last in block_ranges(rows, step):
            part = scan.select("key", "code").slice(first, last - first).collect()
            if part.height != last - first or part["code"].null_count():
                raise ReleaseError(f"{self.labels} has fewer rows than its manifest; fetch again")
            table = np.empty((part.height, 0), dtype=np.uint8)
            if content.key_bytes:
                table = keys_bytes(part["key"])
            codes = part["code"].to_numpy().astype(np.uint16)
            population.update(table.data)
            for start, stop in block_ranges(part.height, content.block_rows):
                block = block_digest(
                    table[start:stop].data, encode_codes(codes[start:stop], content.code_bytes)
                )
                if block != content.blocks[(first + start) // content.block_rows]:
                    raise ReleaseError(
                        f"rows {first + start:,} to {first + stop:,} do not match the manifest's"
                        " digest; fetch again"
                    )
            if int(codes.max()) >= outputs.size:
                raise ReleaseError(f"code {int(codes.max())} is outside the {outputs.size} outputs")
            yield np.frombuffer(table.tobytes(), dtype=_KEY_TYPE), codes
        if content.key_bytes and population.hexdigest() != self.manifest.population.digest:
            raise ReleaseError("the keys do not give the manifest's population digest")

    def _spread(self, kind: str, index: int, keys: Keys, values: NDArray[np.int64]) -> Path:
        path = self.work / f"{kind}-{index}"
        columns: dict[str, NDArray[Any]] = {"key": keys, "value": values}
        write_buckets(path, key_buckets(keys, self.buckets), self.buckets, columns)
        return path

    def _write(
        self, index: int, start: int, stop: int, rows: NDArray[np.int64], codes: Codes
    ) -> None:
        part = self.frame.slice(start, stop - start).collect()
        part = part[rows].with_columns(pl.Series(CODE, codes, dtype=pl.UInt16))
        part.write_parquet(self.work / "shards" / f"shard-{index:05}.parquet")


def _repeated(keys: Keys) -> int:
    ordered = keys[sort_keys(keys)]
    return int(np.count_nonzero(ordered[1:] == ordered[:-1]))


def _match(
    mine: dict[str, NDArray[Any]], sent: dict[str, NDArray[Any]]
) -> tuple[NDArray[np.int64], Codes]:
    """Rows of our events that were sent, and their codes."""
    order = sort_keys(sent["key"])
    if not order.size:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint16)
    at, known = match_keys(sent["key"][order], mine["key"])
    return mine["value"][known], sent["value"][order][at[known]].astype(np.uint16)
