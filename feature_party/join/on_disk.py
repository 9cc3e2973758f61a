"""Match features with releases, both larger than memory, into Parquet shards, on any engine.

The keys of both sides are exchanged between ranges of hashed keys, matched range by range, and the
codes sent back to the slices of the features (:mod:`labelveil.feature_party.join.tasks`). A slice,
a range and a part of the release are in memory at a time for each worker, whatever the number of
rows. The result is in the order of the features; neither engine nor number of workers shows in its
bytes.

Work in progress lies beside the result, in ``.<name>.work``. Every task's result is kept there, so
that a join that was interrupted goes on where it stopped; a refusal leaves nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from pydantic import TypeAdapter

from labelveil.common.engine.local import InProcess
from labelveil.common.engine.shuffle import Exchange, Files, Send
from labelveil.common.engine.task import Engine, EngineError, Secrets, Task
from labelveil.common.errors import DataError, LabelveilError, ReleaseError
from labelveil.common.files import appearing, exclusive, sha256_of, sync
from labelveil.common.formats import JOIN
from labelveil.common.release.blocks import block_ranges
from labelveil.common.release.event_keys import secret_check
from labelveil.common.release.folder import POPULATION_FILE, read_manifest
from labelveil.common.release.manifest import Manifest, manifest_digest, manifest_in
from labelveil.common.release.rows import open_rows
from labelveil.feature_party.join.key_secrets import spelling_that_matches
from labelveil.feature_party.join.matches import JoinInputs, MatchCounts
from labelveil.feature_party.join.shards import JOIN_MANIFEST, JoinedShards, shard_path
from labelveil.feature_party.join.tasks import (
    CODE,
    CODES_OF_ROWS,
    KEYED_CODES,
    ROW,
    ROWS_OF_KEYS,
    DiskFull,
    HashKeys,
    Match,
    Once,
    ReleaseBlocks,
    WriteShard,
    slices_of,
)
from labelveil.feature_party.schema import Found
from labelveil.feature_party.tables import (
    FeatureFile,
    check_key,
    check_type_of_key,
    rows_of,
    scan_table,
    table_files,
)

ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)
Progress = Callable[[str, int, int], None]
"""Called with a step's name, its finished tasks, and all of its tasks."""

_SLICE_BYTES = 1 << 26
_ROWS_AT_ONCE = 1 << 18
_FOUND_JSON = TypeAdapter(Found)


class _Writing(Task[ResultT_co], Protocol[ResultT_co]):
    """A task with a file of its own."""

    @property
    def out(self) -> Path: ...


@dataclass(frozen=True)
class JoinSizes:
    """How much is in memory at a time; what comes out does not depend on it, but for the shards."""

    slice_rows: int = 1 << 19  # rows of the features that become one shard
    bucket_rows: int = 1 << 19  # rows of both sides that one range of keys holds on average

    @classmethod
    def suiting(cls, columns: int) -> JoinSizes:
        """Smaller slices for wide tables."""
        return cls(slice_rows=min(cls.slice_rows, max(_SLICE_BYTES // (8 * columns), 1 << 10)))


def join_content(inputs: JoinInputs, sizes: JoinSizes) -> str:
    """What identifies a join: releases and whose, features as they were left, key column."""
    digests = [manifest_digest(read_manifest(folder)) for folder in inputs.releases]
    states = [(str(path.resolve()), path.stat()) for path in table_files(inputs.features)]
    files = [[name, state.st_size, state.st_mtime_ns] for name, state in states]
    check, *others = [(secret_check(p.secret).hex(), p.name) for p in inputs.parties]
    facts: list[object] = [str(JOIN), digests, files, inputs.key, check[0], sizes.slice_rows]
    facts += [inputs.stated.facts()]
    if any(other != check for other in others):
        facts += [check[1], *others]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def join_to_shards(
    inputs: JoinInputs,
    out: Path,
    *,
    engine: Engine | None = None,
    sizes: JoinSizes | None = None,
    progress: Progress = lambda step, done, total: None,
) -> JoinedShards:
    """Write the matched events to ``out/shard-00000.parquet``, … with their codes.

    Digests of releases are verified on the way. The directory appears when it is complete. If it
    holds this very join, that is returned; if another one, that is replaced.

    ``DataError`` if keys are missing, occur twice, or match nothing; if ``out`` holds other
    files, another process joins into it, or the disk is full; ``ReleaseError`` if a release is not
    what its manifest says.
    """
    frame = scan_table(inputs.features)
    check_key(frame, inputs.key)
    check_type_of_key(inputs.features, inputs.key)
    columns = frame.collect_schema().names()
    for name in (CODE, ROW):
        if name in columns:
            raise DataError(f"{inputs.features} has a column {name!r} already; rename it")
    sizes = sizes or JoinSizes.suiting(len(columns))
    content = join_content(inputs, sizes)
    if (joined := JoinedShards.open(out, content)) is not None:
        return joined
    occupied = out.is_file() or (out.exists() and any(out.iterdir()))
    if occupied and not (out / JOIN_MANIFEST).is_file():
        raise DataError(
            f"{out} holds other files than a join; set [join] directory to a folder that is empty"
            " or does not exist yet"
        )
    work = out.with_name(f".{out.name}.work")
    with _working(work, content):
        run = _Join(inputs, work, sizes, engine or InProcess(), progress)
        joined = run.join(content, out)
        with appearing(work / "shards" / JOIN_MANIFEST, durable=True) as file:
            file.write(joined.to_bytes())
        sync(work / "shards")
        if out.exists():
            (out / JOIN_MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(out)
        (work / "shards").rename(out)
        sync(out.parent)
        shutil.rmtree(work)
    return joined


@contextmanager
def _working(work: Path, content: str) -> Iterator[None]:
    """Hold the working folder, with what an interrupted join of the same content left there."""
    busy = DataError(f"another process joins in {work}; wait for it, or set [join] directory")
    try:
        work.mkdir(parents=True, exist_ok=True)
        with exclusive(work / "lock", busy):
            mark = work / "content"
            if not mark.exists() or mark.read_text(encoding="ascii") != content:
                for path in work.iterdir():
                    if path.is_dir():
                        shutil.rmtree(path)
                    elif path.name != "lock":
                        path.unlink()
                (work / "shards").mkdir()
                with appearing(mark) as file:
                    file.write(content.encode())
            try:
                yield
            except (DiskFull, EngineError):
                raise
            except LabelveilError:
                shutil.rmtree(work, ignore_errors=True)
                raise
    except OSError as error:
        raise DiskFull(work, error) from error


class _Join:
    def __init__(
        self, inputs: JoinInputs, work: Path, sizes: JoinSizes, engine: Engine, progress: Progress
    ) -> None:
        self.inputs = inputs
        self.folders, self.key, self.parties = inputs.releases, inputs.key, inputs.parties
        self.manifests = [manifest_in(folder) for folder in self.folders]
        self.work, self.sizes = work, sizes
        self.engine, self.progress = engine, progress
        self.found, files = self._features(inputs)
        self.rows = sum(rows for _, rows in files)
        self.slices = slices_of(files, sizes.slice_rows, inputs.key)
        self.released = sum(manifest.population.rows for manifest in self.manifests)
        self.buckets = max(1, -(-(self.rows + self.released) // sizes.bucket_rows))
        outputs = [manifest.codebooks.outputs for manifest in self.manifests]
        self.offsets = (0, *np.cumsum(outputs)[:-1].tolist())

    def join(self, content: str, out: Path) -> JoinedShards:
        shards = self._by_key()
        matched = np.sum([shard["labels"] for shard in shards], axis=0).tolist()
        if not any(matched):
            secrets = (
                f", and how keys are written; the key secret is the right one{self._spelling()}"
                if self.right_secrets
                else " and that both parties use the same key secret"
            )
            raise DataError(
                f"none of the {self.rows:,} events in the features is among the"
                f" {self.released:,} in the release; check the key column {self.key!r}, the"
                f" epoch{secrets}"
            )
        released = [manifest.population.rows for manifest in self.manifests]
        names = [party.name for party in self.parties]
        epochs = [manifest.epoch for manifest in self.manifests]
        matches = MatchCounts.by_release(
            self.rows, released, matched, names, epochs, self.right_secrets
        )
        events = tuple(shard["events"] for shard in shards)
        labels = tuple(tuple(shard["labels"]) for shard in shards)
        return JoinedShards(
            out, content, matches, self.sizes.slice_rows, events, labels, self.found
        )

    def _features(self, inputs: JoinInputs) -> tuple[Found, list[tuple[Path, int]]]:
        """What the columns mean, and Parquet files with their rows: the features', or a copy."""
        features, kept = FeatureFile(inputs.features), self.work / "found.json"
        if not features.rows:
            raise DataError("the features have no rows")
        copy = self.work / "features.parquet"
        self.progress("look at columns", 0, 1)
        if kept.exists():
            found = _FOUND_JSON.validate_json(kept.read_bytes())
        else:
            if features.files is None:
                found = features.to_parquet(copy, inputs.stated, without=self.key)
            else:
                found = features.find_schema(inputs.stated, without=self.key)
            with appearing(kept, durable=True) as file:
                file.write(_FOUND_JSON.dump_json(found))
        self.progress("look at columns", 1, 1)
        files = [copy] if features.files is None else features.files
        return found, [(path, rows_of(path)) for path in files]

    def _by_key(self) -> list[dict[str, Any]]:
        ours: dict[bytes, Exchange] = {}
        for number, secret in enumerate(dict.fromkeys(party.secret for party in self.parties)):
            mine = self._exchange(f"ours-{number}", len(self.slices), self.buckets, ROWS_OF_KEYS)
            self._run("hash keys", mine.tasks(self.slices), secret)
            ours[secret] = mine
        theirs: list[Exchange] = []
        send: list[Send] = []
        for index, (folder, manifest) in enumerate(zip(self.folders, self.manifests, strict=True)):
            keys = None
            if manifest.content.key_bytes:
                self._check_population(folder, manifest)
            else:
                keys = self._submitted(index)
            step = max(1, self.sizes.slice_rows // manifest.content.block_rows)
            rows = step * manifest.content.block_rows
            parts = [
                _blocks(folder, manifest, keys, start, stop)
                for start, stop in block_ranges(manifest.population.rows, rows)
            ]
            name = f"theirs-{index}"
            theirs.append(self._exchange(name, len(parts), self.buckets, KEYED_CODES))
            send += theirs[-1].tasks(parts)
        self._run("read labels", send)
        count = len(ours) * self.buckets
        matched = self._exchange("matched", count, len(self.slices), CODES_OF_ROWS)
        tasks: list[Match] = []
        for secret, mine in ours.items():
            alike = [index for index, party in enumerate(self.parties) if party.secret == secret]
            sent, offsets = zip(*((theirs[i], self.offsets[i]) for i in alike), strict=True)
            for bucket in range(self.buckets):
                index = len(tasks)
                rows = self.sizes.slice_rows
                tasks.append(Match(bucket, mine, sent, offsets, matched, index, rows))
        # under each secret the same rows are counted
        if repeated := sum(self._run("match", tasks)[: self.buckets]):
            what = "row repeats" if repeated == 1 else "rows repeat"
            raise DataError(
                f"{repeated:,} {what} a key that occurred before in column {self.key!r}; keep one"
                " row for each event"
            )
        for done in (*ours.values(), *theirs):
            for path in done.files:
                path.unlink(missing_ok=True)
        return self._write(matched)

    def _spelling(self) -> str:
        given = self.inputs.features, self.key, self.folders[0], self.parties[0].secret
        return spelling_that_matches(*given)

    @property
    def right_secrets(self) -> bool:
        """Whether manifests say that the keys in them are hashed with the secrets that we have."""
        return all(
            manifest.population.secret_check == secret_check(party.secret).hex()
            for manifest, party in zip(self.manifests, self.parties, strict=True)
        )

    def _submitted(self, index: int) -> Path:
        """The keys of a release that has none: as they were kept, or those of the features."""
        folder, manifest = self.folders[index], self.manifests[index]
        kept = folder / POPULATION_FILE
        if kept.is_file() and sha256_of(kept) == manifest.population.digest:
            return kept
        # names of its own: another release's may be hashed with another secret
        hashed = Files(self.work / f"hashed-{index}", len(self.slices))
        tasks = [HashKeys(part, path) for part, path in zip(self.slices, hashed, strict=True)]
        self._run("hash keys", tasks, self.parties[index].secret)
        listed = self.work / f"population-{index}.keys"
        with appearing(listed, durable=True) as file:
            for path in hashed:
                file.write(path.read_bytes())
        if sha256_of(listed) != manifest.population.digest:
            raise DataError(
                f"the release covers {manifest.population.rows:,} submitted events, and column"
                f" {self.key!r} of the features, with {self.rows:,} rows, is not the list that was"
                " submitted; use exactly the submitted events in their order, and the same [keys]"
                " secret_file"
            )
        return listed

    def _write(self, matched: Exchange) -> list[dict[str, Any]]:
        names, folder = tuple(party.name for party in self.parties), self.work / "shards"
        tasks = [
            WriteShard(part, index, matched, self.offsets, names, shard_path(folder, index))
            for index, part in enumerate(self.slices)
        ]
        return self._run("write shards", tasks)

    def _run(
        self, step: str, tasks: Sequence[_Writing[ResultT]], secret: bytes = b""
    ) -> list[ResultT]:
        """Run tasks that were not done before, and return the results of all."""
        self.progress(step, 0, len(tasks))
        once = [Once(task, self.work / f"done-{task.out.name}") for task in tasks]
        results = []
        for result in self.engine.stream(once, Secrets(secret)):
            results.append(result)
            self.progress(step, len(results), len(tasks))
        return results

    def _exchange(self, kind: str, count: int, buckets: int, types: dict[str, str]) -> Exchange:
        return Exchange(Files(self.work / kind, count), buckets, types, durable=True)

    def _check_population(self, folder: Path, manifest: Manifest) -> None:
        """Compare the digest of all keys, which follow each other as rows do."""
        rows, digest = open_rows(folder, manifest), hashlib.sha256()
        for start, stop in block_ranges(manifest.population.rows, _ROWS_AT_ONCE):
            digest.update(rows.read(start, stop)[0].data)
        if digest.hexdigest() != manifest.population.digest:
            raise ReleaseError(f"the keys in {folder} do not give the manifest's population digest")


def _blocks(
    folder: Path, manifest: Manifest, keys: Path | None, start: int, stop: int
) -> ReleaseBlocks:
    """The blocks that some rows of a release lie in."""
    content, size = manifest.content, manifest.content.block_rows
    first, end = start // size, -(-stop // size)
    return ReleaseBlocks(
        rows=open_rows(folder, manifest),
        submitted=keys,
        start=first * size,
        stop=min(end * size, manifest.population.rows),
        block_rows=size,
        blocks=tuple(content.blocks[first:end]),
        code_bytes=content.code_bytes,
        outputs=manifest.codebooks.outputs,
    )
