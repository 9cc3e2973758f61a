"""Joining what does not fit into memory: the rows and codes of the join in memory, in shards."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.engine.local import InProcess, Pool
from labelveil.common.engine.task import Engine, EngineError, Secrets
from labelveil.common.errors import DataError, ReleaseError
from labelveil.common.files import exclusive
from labelveil.common.release.folder import CODES_FILE, KEYS_FILE, MANIFEST_FILE
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.join.matches import JoinInputs, MatchCounts, Party
from labelveil.feature_party.join.on_disk import JoinSizes, join_to_shards
from labelveil.feature_party.join.shards import JoinedShards
from labelveil.feature_party.join.tasks import CODE, ROW
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.streamed import PreparedShards
from tests.effort import one_in
from tests.feature_party.learn import prepare
from tests.feature_party.worlds import SECRET, World, build_world

SMALL = JoinSizes(slice_rows=256, bucket_rows=300)


def _stored(world: World, folder: Path) -> Path:
    world.release.write(folder / "stored")
    return folder / "stored"


def _others_between(world: World) -> pl.DataFrame:
    """Features with some events that were not sent, in between."""
    table = pl.read_parquet(world.features)
    others = table.head(200).with_columns(event=pl.col("event") + "?")
    return pl.concat([table[100:700], others, table[700:]])


def _join(
    world: World,
    folder: Path,
    features: Path,
    engine: Engine | None = None,
    progress: Callable[[str, int, int], None] = lambda step, done, total: None,
) -> JoinedShards:
    release, out = _stored(world, folder), folder / "out"
    return join_to_shards(
        JoinInputs((release,), features, "event", (Party(SECRET),)),
        out,
        engine=engine,
        sizes=SMALL,
        progress=progress,
    )


def _bytes(joined: JoinedShards) -> list[bytes]:
    return [path.read_bytes() for path in joined.shards]


@pytest.mark.parametrize(
    ("kind", "keyed"),
    one_in(3, itertools.product(("file", "directory", "partitions", "csv"), (True, False))),
)
def test_every_event_gets_its_own_code(tmp_path: Path, keyed: bool, kind: str) -> None:
    world = build_world(tmp_path, rows=1500, keyed=keyed)
    table = _others_between(world) if keyed else pl.read_parquet(world.features)
    features = tmp_path / "table.parquet"
    if kind == "file":
        table.write_parquet(features, row_group_size=177)
    elif kind == "csv":
        features = tmp_path / "table.csv"
        table.write_csv(features)
    elif kind == "partitions":  # of which one has a column of its own
        features, half = tmp_path / "table", table.height // 2
        for day, rows in (("1", table[:half].drop("x")), ("2", table[half:])):
            (features / f"day={day}").mkdir(parents=True)
            rows.write_parquet(features / f"day={day}" / "part-0.parquet")
        first = pl.int_range(pl.len()) < half
        x = pl.when(first).then(None).otherwise("x").alias("x")
        day = pl.when(first).then(pl.lit("1")).otherwise(pl.lit("2")).alias("day")
        table = table.select(pl.exclude("x"), day, x)
    else:
        features = tmp_path / "table"
        features.mkdir()
        cuts = [0, 100, 100, 500, 1020, table.height]  # an empty file, and shards across files
        for index, (low, high) in enumerate(itertools.pairwise(cuts)):
            table[low:high].write_parquet(features / f"part-{index}.parquet")
    folder = tmp_path / "all [1]*"  # no pattern, but a name
    folder.mkdir()
    joined = _join(world, folder, features)
    # the features were shuffled; event e17 is row 17 of the release
    sent = table.with_row_index("row").filter(pl.col("event").str.ends_with("?").not_())
    place = sent["event"].str.strip_prefix("e").cast(pl.Int64).to_numpy()
    assert joined.matches == MatchCounts(1500, table.height, sent.height)
    assert len(joined.shards) == -(-table.height // 256)
    assert joined.rows == sent.height
    found = pl.concat(joined.tables([*joined.columns, ROW, CODE]))
    if kind == "csv":  # numbers, and other cells as they stand
        cells = pl.read_csv(features, infer_schema=False)
        cells = cells.with_columns(pl.col("x", "income").cast(pl.Float64).fill_nan(None))
        assert found.drop(CODE, ROW).equals(cells[sent["row"].to_list()])
    else:
        assert found.drop(CODE, ROW).equals(sent.drop("row"))
    np.testing.assert_array_equal(found[CODE].to_numpy(), world.release.codes[place])
    np.testing.assert_array_equal(found[ROW].to_numpy(), sent["row"].to_numpy())
    assert not list(folder.glob(".out*"))


@pytest.mark.slow
def test_worker_processes_give_the_same_bytes(world: World, tmp_path: Path) -> None:
    alone = _bytes(_join(world, tmp_path / "1", world.features))
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        pool = Pool(executor, 2)
        assert _bytes(_join(world, tmp_path / "2", world.features, pool)) == alone


@dataclass
class Killed(Exception):
    """What a test ends a join with."""


@dataclass
class Counting(Engine):
    """An engine that counts what tasks really do, and dies after some of them."""

    last: int = 1 << 30
    done: list[str] = field(default_factory=list)

    def stream(self, tasks: Sequence[Any], secrets: Secrets) -> Iterator[Any]:
        for task in tasks:
            yield replace(task, task=_Counted(task.task, self)).run(secrets)


@dataclass(frozen=True)
class _Counted:
    task: Any
    engine: Counting

    def run(self, secrets: Secrets) -> Any:
        self.engine.done.append(self.task.out.name)
        if len(self.engine.done) > self.engine.last:
            raise Killed
        return self.task.run(secrets)


def test_an_interrupted_join_goes_on_where_it_stopped(world: World, tmp_path: Path) -> None:
    whole = Counting()
    expected = _bytes(_join(world, tmp_path / "whole", world.features, whole))
    kinds = {name.partition("-")[0] for name in whole.done}
    assert kinds == {"ours", "theirs", "matched", "shard"}
    for last in (0, 9, len(whole.done) - 1):
        folder = tmp_path / str(last)
        begun = Counting(last)
        with pytest.raises(Killed):
            _join(world, folder, world.features, begun)
        assert not (folder / "out").exists()
        rest = Counting()
        assert _bytes(_join(world, folder, world.features, rest)) == expected
        assert sorted(begun.done[:last] + rest.done) == sorted(whole.done)
        assert not list(folder.glob(".out*"))
    again = Counting()
    _join(world, tmp_path / "whole", world.features, again)
    assert not again.done  # what is joined is not joined again


def test_other_features_are_joined_anew(world: World, tmp_path: Path) -> None:
    features = tmp_path / "features.parquet"
    table = pl.read_parquet(world.features)
    table.write_parquet(features)
    with pytest.raises(Killed):
        _join(world, tmp_path, features, Counting(9))
    table[:1000].write_parquet(features)  # neither what was begun …
    assert _join(world, tmp_path, features).matches.matched == 1000
    table[:900].write_parquet(features)  # … nor what was finished is of any use
    assert _join(world, tmp_path, features).matches.matched == 900
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 4


def test_refusals_leave_nothing(world: World, tmp_path: Path) -> None:
    release, out = _stored(world, tmp_path), tmp_path / "out"
    table = pl.read_parquet(world.features)

    def refused(frame: pl.DataFrame, kind: type[Exception], said: str) -> None:
        frame.write_parquet(tmp_path / "features.parquet")
        inputs = JoinInputs((release,), tmp_path / "features.parquet", "event", (Party(SECRET),))
        with pytest.raises(kind, match=said):
            join_to_shards(inputs, out, sizes=SMALL)
        assert not list(tmp_path.glob("*out*"))

    refused(pl.concat([table, table.head(3)]), DataError, "^3 rows repeat a key")
    refused(pl.concat([table, table.head(1)]), DataError, "^1 row repeats a key")
    refused(table.with_columns(event=pl.col("event") + "?"), DataError, "^none of the 1,500")
    refused(table.head(0), DataError, "no rows")
    refused(table.with_columns(event=None), DataError, "has .* missing values")
    refused(table.rename({"x": CODE}), DataError, "has a column 'privatized_label_code' already")
    keys, codes = ((release / name).read_bytes() for name in (KEYS_FILE, CODES_FILE))
    manifest = world.release.manifest
    other = manifest.population.model_copy(update={"digest": "0" * 64})
    claimed = manifest.model_copy(update={"population": other})
    (release / MANIFEST_FILE).write_bytes(claimed.to_bytes())
    refused(table, ReleaseError, "do not give the manifest's population digest")
    (release / MANIFEST_FILE).write_bytes(world.release.manifest_bytes)
    (release / CODES_FILE).write_bytes(codes[:-1] + bytes([codes[-1] ^ 1]))
    refused(table, ReleaseError, "do not match the manifest's digest")
    (release / CODES_FILE).write_bytes(codes[:-700])
    refused(table, ReleaseError, "its manifest says 1,500 rows")
    (release / KEYS_FILE).write_bytes(keys[: 16 * 800])
    refused(table, ReleaseError, "not all on the disk; fetch again")


def test_neither_other_files_nor_another_join_are_harmed(world: World, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(DataError, match="holds other files than a join; set"):
        _join(world, tmp_path, world.features)
    assert (tmp_path / "out").read_text() == "mine"
    (tmp_path / "out").unlink()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(DataError, match="holds other files than a join; set"):
        _join(world, tmp_path, world.features)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]
    (tmp_path / "out" / "mine.txt").unlink()
    work = tmp_path / ".out.work"
    work.mkdir()
    with (
        exclusive(work / "lock", DataError("")),
        pytest.raises(DataError, match="another process joins in"),
    ):
        _join(world, tmp_path, world.features)
    assert [path.name for path in work.iterdir()] == ["lock"]


def test_a_full_disk_is_one_line_and_what_is_done_is_kept(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, left = os.fsync, [20]

    def full(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError) as caught:
        _join(world, tmp_path, world.features)
    assert "No space left on device; free some space and join again to go on" in str(caught.value)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(os, "fsync", plain)
    rest = Counting()
    _join(world, tmp_path, world.features, rest)
    assert not any(name.startswith("ours") for name in rest.done)


def test_a_lost_worker_is_one_line(world: World, tmp_path: Path) -> None:
    class Lost(InProcess):
        def stream(self, tasks: Sequence[Any], secrets: Secrets) -> Iterator[Any]:
            raise EngineError("a worker process died")

    with pytest.raises(EngineError):
        _join(world, tmp_path, world.features, Lost())
    assert (tmp_path / ".out.work").is_dir()  # to go on from


@pytest.mark.slow
def test_several_releases_and_the_split_are_those_of_memory(tmp_path: Path) -> None:
    worlds = [build_world(tmp_path / str(seed), rows=700, seed=seed) for seed in (1, 2)]
    names = pl.read_parquet(worlds[0].features).filter(pl.col("event") != "e5")
    features = tmp_path / "features.parquet"
    names.write_parquet(features)
    prepared = []
    for shards in ("never", str(tmp_path / "rows")):
        config = FeaturePartyConfig.model_validate(
            {
                "data": {"key": "event"},
                "join": {"directory": tmp_path / "joined", "shard_rows": 150},
                "training": {"shards": shards, "holdout": 0.3, "seed": 4},
            }
        )
        folders = [world.directory for world in worlds]
        prepared.append(prepare(folders, features, config, SECRET))
    memory, stored = prepared
    assert isinstance(memory, Prepared)
    assert isinstance(stored, PreparedShards)
    assert memory.matches == stored.matches
    assert memory.matches.matched == 2 * 699
    assert memory.release_id == stored.release_id
    np.testing.assert_array_equal(memory.problem.channel, stored.problem.channel)
    np.testing.assert_array_equal(memory.holdout, stored.holdout)
    assert 0 < stored.holdout.size == 1398 - stored.training_rows
    assert memory.keys().equals(stored.keys())
    assert memory.held_out()[0].equals(stored.held_out()[0])
    np.testing.assert_array_equal(memory.held_out()[1], stored.held_out()[1])
    trained = [memory.trained(start, start + 233) for start in (0, 233, 466)]
    for start, mask in zip((0, 233, 466), trained, strict=True):
        np.testing.assert_array_equal(stored.trained(start, start + 233), mask)
    columns = stored.joined.columns
    tables, codes = zip(*stored.training_events(columns), strict=True)
    assert pl.concat(tables).equals(memory.table[memory.training])
    np.testing.assert_array_equal(np.concatenate(codes), memory.codes[memory.training])


def test_submitted_events_are_exactly_those_of_the_features(tmp_path: Path) -> None:
    world = build_world(tmp_path, rows=600, keyed=False)
    release, features = _stored(world, tmp_path), tmp_path / "other.parquet"
    table = pl.read_parquet(world.features)
    for frame in (table.head(599), table.reverse(), table.with_columns(pl.col("event") + "?")):
        frame.write_parquet(features)
        inputs = JoinInputs((release,), features, "event", (Party(SECRET),))
        with pytest.raises(DataError, match="600 submitted events, and column 'event'"):
            join_to_shards(inputs, tmp_path / "out", sizes=SMALL)
