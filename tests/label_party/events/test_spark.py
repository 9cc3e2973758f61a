"""The same bytes from Spark, however it cuts and repeats work; and no secret in what it keeps."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from labelveil.common.engine.spark import SparkEngine
from labelveil.common.errors import DataError
from labelveil.label_party.events.steps import Sizes
from tests.engines import Failing, SparkSession, needs_java
from tests.label_party import engines
from tests.label_party.engines import JOIN, RELEASE_KEY, Message, settings

pytestmark = [needs_java, pytest.mark.slow]

SIZES = Sizes(slice_rows=8_000, bucket_rows=8_000, part_rows=1 << 16)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    engines.write_events(folder, 40_000)
    return folder


@pytest.fixture(scope="module")
def expected(events: Path, tmp_path_factory: pytest.TempPathFactory) -> Message:
    return engines.in_memory(tmp_path_factory.mktemp("expected"), settings(events))


def test_17_partitions(
    spark: SparkSession, events: Path, expected: Message, tmp_path: Path
) -> None:
    engine = SparkEngine(spark.session, 17)
    assert engines.with_engine(tmp_path, settings(events), engine, SIZES) == expected


def test_3_partitions_and_no_secret_in_what_spark_keeps(
    spark: SparkSession, events: Path, expected: Message, tmp_path: Path
) -> None:
    engine = SparkEngine(spark.session, 3)
    assert engines.with_engine(tmp_path, settings(events), engine, SIZES) == expected
    kept = b"".join(path.read_bytes() for path in spark.folder.rglob("*") if path.is_file())
    assert b"SparkListenerTaskEnd" in kept  # the event log is there, and readable
    for secret in (JOIN, RELEASE_KEY):
        for form in (secret, secret.hex().encode(), base64.b64encode(secret)):
            assert form not in kept


def test_tasks_that_fail_are_repeated(
    spark: SparkSession, events: Path, expected: Message, tmp_path: Path
) -> None:
    marks = tmp_path / "failed"
    marks.mkdir()
    failing = Failing(SparkEngine(spark.session, 3), marks)
    assert engines.with_engine(tmp_path, settings(events), failing, SIZES) == expected
    failed = {mark.name.split("-")[0] for mark in marks.iterdir()}
    assert failed == {str(step + 1) for step in range(failing.steps)}  # in every step


def test_a_refusal_is_not_repeated_and_stays_one_line(
    spark: SparkSession, events: Path, tmp_path: Path
) -> None:
    chosen = settings(events, data__label="absent")
    with pytest.raises(DataError, match="has no column 'absent'"):
        engines.with_engine(tmp_path, chosen, SparkEngine(spark.session, 2))
