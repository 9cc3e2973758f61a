"""The same bytes from Spark, however it cuts and repeats the work; and no secret in what it keeps.

One session serves all tests, because starting one takes most of their time.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.engine import EngineError, EngineSection, Secrets
from common.errors import DataError, LabelveilError
from common.key_service import Address, KeyService, ask
from common.spark import SparkEngine
from label_party.external import Sizes
from tests.label_party import engines
from tests.label_party.engines import JOIN, RELEASE_KEY, Message, settings

SIZES = Sizes(slice_rows=8_000, bucket_rows=8_000, part_rows=1 << 16)

needs_java = pytest.mark.skipif(
    not (os.environ.get("JAVA_HOME") or shutil.which("java")), reason="no Java on this machine"
)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two threads that try a task up to four times, and an event log that is kept."""
    sql = pytest.importorskip("pyspark.sql")
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        # workers must import this code, not another one that is installed
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        settled = {
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": folder.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.local.dir": str(folder),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
        }
        builder = sql.SparkSession.builder.master("local[2,4]")
        for key, value in settled.items():
            builder = builder.config(key, value)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        started = builder.getOrCreate()
        started.sparkContext.setLogLevel("OFF")
        yield started, folder
        started.stop()


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    engines.write_events(folder, 90_000)
    return folder


@pytest.fixture(scope="module")
def expected(events: Path, tmp_path_factory: pytest.TempPathFactory) -> Message:
    return engines.in_memory(tmp_path_factory.mktemp("expected"), settings(events))


@needs_java
@pytest.mark.slow
def test_17_partitions(
    session: tuple[Any, Path], events: Path, expected: Message, tmp_path: Path
) -> None:
    engine = SparkEngine(session[0], 17)
    assert engines.with_engine(tmp_path, settings(events), engine, SIZES) == expected


@needs_java
def test_3_partitions_and_no_secret_in_what_spark_keeps(
    session: tuple[Any, Path], events: Path, expected: Message, tmp_path: Path
) -> None:
    engine = SparkEngine(session[0], 3)
    assert engines.with_engine(tmp_path, settings(events), engine, SIZES) == expected
    kept = b"".join(path.read_bytes() for path in session[1].rglob("*") if path.is_file())
    assert b"SparkListenerTaskEnd" in kept  # the event log is there, and readable
    for secret in (JOIN, RELEASE_KEY):
        for form in (secret, secret.hex().encode(), base64.b64encode(secret)):
            assert form not in kept


@needs_java
@pytest.mark.slow
def test_tasks_that_fail_are_repeated(
    session: tuple[Any, Path], events: Path, expected: Message, tmp_path: Path
) -> None:
    marks = tmp_path / "failed"
    marks.mkdir()
    failing = engines.Failing(SparkEngine(session[0], 3), marks)
    assert engines.with_engine(tmp_path, settings(events), failing, SIZES) == expected
    failed = {mark.name.split("-")[0] for mark in marks.iterdir()}
    assert failed == {str(step + 1) for step in range(failing.steps)}  # in every step


@needs_java
def test_a_refusal_is_not_repeated_and_stays_one_line(
    session: tuple[Any, Path], events: Path, tmp_path: Path
) -> None:
    chosen = settings(events, data__label="absent")
    with pytest.raises(DataError, match="has no column 'absent'"):
        engines.with_engine(tmp_path, chosen, SparkEngine(session[0], 2))


@needs_java
def test_a_task_that_always_fails_is_one_line(session: tuple[Any, Path]) -> None:
    with pytest.raises(EngineError, match=r"^Spark gave up \(\w+\)[^\n]*$"):
        list(SparkEngine(session[0]).run([engines.Fails()], Secrets(JOIN)))


@needs_java
def test_workers_run_this_interpreter(session: tuple[Any, Path]) -> None:
    (found,) = SparkEngine(session[0]).run([engines.Interpreter()], Secrets(JOIN))
    assert found == sys.executable


def test_without_java_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    with (
        pytest.raises(EngineError, match=r"needs Java 17"),
        SparkEngine.open(EngineSection(name="spark")),
    ):
        pass


def test_secrets_go_to_who_has_the_token() -> None:
    payload = os.urandom(100)
    with KeyService(payload, "127.0.0.1") as service:
        assert [ask(service.address) for _ in range(3)] == [payload] * 3
        stranger = Address("127.0.0.1", service.address.port, bytes(32))
        with pytest.raises(LabelveilError, match="no secrets from the driver"):
            ask(stranger)
        with socket.create_connection(("127.0.0.1", service.address.port)) as silent:
            assert ask(service.address) == payload  # nobody waits for one who says nothing
            silent.sendall(b"x")
    assert service.address.token.hex() not in repr(service.address)
    with pytest.raises(LabelveilError, match="no secrets from the driver"):
        ask(service.address)  # it is over


def test_an_impostor_of_the_driver_is_not_believed() -> None:
    """Who answers must know the token too: the workers' noise would be an impostor's."""
    with KeyService(b"false", "127.0.0.1") as impostor:
        address = Address("127.0.0.1", impostor.address.port, bytes(32))
        impostor._answer = _answer_anybody(impostor)  # type: ignore[method-assign]
        with pytest.raises(LabelveilError, match="no secrets from the driver"):
            ask(address)


def _answer_anybody(service: KeyService) -> Any:
    def answer(connection: socket.socket) -> None:
        with connection:
            connection.recv(64)
            connection.sendall(os.urandom(32 + 16 + 5))

    return answer
