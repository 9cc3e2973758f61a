"""The same shards from Spark, however it cuts and repeats the work; no secret in what it keeps."""

from __future__ import annotations

import base64
from pathlib import Path

import polars as pl
import pytest

from labelveil.common.engine.spark import SparkEngine
from labelveil.common.engine.task import Engine
from labelveil.common.errors import DataError
from labelveil.feature_party.join.matches import JoinInputs, Party
from labelveil.feature_party.join.on_disk import JoinSizes, join_to_shards
from tests.engines import Failing, SparkSession, needs_java
from tests.feature_party.worlds import SECRET, World

pytestmark = [needs_java, pytest.mark.slow]

SIZES = JoinSizes(slice_rows=200, bucket_rows=400)


def _join(
    world: World, folder: Path, engine: Engine | None, features: Path | None = None
) -> list[bytes]:
    release = folder / "stored"
    world.release.write(release)
    joined = join_to_shards(
        JoinInputs((release,), features or world.features, "event", (Party(SECRET),)),
        folder / "out",
        engine=engine,
        sizes=SIZES,
    )
    return [path.read_bytes() for path in joined.shards]


def test_3_and_17_partitions_and_no_secret_in_what_spark_keeps(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    expected = _join(world, tmp_path / "here", None)
    assert len(expected) == 8
    for partitions in (3, 17):
        engine = SparkEngine(spark.session, partitions)
        assert _join(world, tmp_path / str(partitions), engine) == expected
    kept = b"".join(path.read_bytes() for path in spark.folder.rglob("*") if path.is_file())
    assert b"SparkListenerTaskEnd" in kept  # the event log is there, and readable
    for form in (SECRET, SECRET.hex().encode(), base64.b64encode(SECRET)):
        assert form not in kept


def test_tasks_that_fail_are_repeated(spark: SparkSession, world: World, tmp_path: Path) -> None:
    expected = _join(world, tmp_path / "here", None)
    marks = tmp_path / "failed"
    marks.mkdir()
    failing = Failing(SparkEngine(spark.session, 3), marks)
    assert _join(world, tmp_path / "spark", failing) == expected
    failed = {mark.name.split("-")[0] for mark in marks.iterdir()}
    assert failed == {"1", "2", "3", "4"}  # in every step


def test_a_refusal_is_not_repeated_and_leaves_nothing(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    table = pl.read_parquet(world.features)
    twice = tmp_path / "twice.parquet"
    pl.concat([table, table.head(3)]).write_parquet(twice)
    with pytest.raises(DataError, match=r"^3 rows repeat a key [^\n]*$"):
        _join(world, tmp_path, SparkEngine(spark.session, 3), twice)
    assert not list(tmp_path.glob("*out*"))
