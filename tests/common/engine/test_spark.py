"""Tasks on Spark: their failures, and the secrets that they are handed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from labelveil.common.engine.spark import ENCRYPTION, SparkEngine
from labelveil.common.engine.task import EngineError, EngineSection, Secrets
from labelveil.common.errors import ConfigError, DataError
from tests.engines import Interpreter, SparkSession, needs_java

JOIN = bytes(range(32))


@pytest.mark.slow
@needs_java
def test_workers_run_this_interpreter(spark: SparkSession) -> None:
    (found,) = SparkEngine(spark.session).run([Interpreter()], Secrets(JOIN))
    assert found == sys.executable


@pytest.mark.slow
@needs_java
def test_how_far_it_is_is_told_now_and_then(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labelveil.common.engine.spark.TELL_SECONDS", 0.001)
    found = SparkEngine(spark.session, 2).run([Interpreter()] * 5, Secrets(JOIN))
    assert found == [sys.executable] * 5
    assert re.search(r"Spark: \d of this step's \d tasks are done", capsys.readouterr().err)


_ALONE = """
import sys
from labelveil.common.engine.task import EngineError, EngineSection, Secrets
from labelveil.common.engine.spark import ENCRYPTION, SparkEngine
from tests.engines import Fails, Interpreter

with SparkEngine.open(EngineSection(name="spark", master="local[1]")) as engine:
    print(*engine.run([Interpreter()], Secrets(bytes(32))))
    try:
        engine.run([Fails()], Secrets(bytes(32)))
    except EngineError as error:
        print(error)
"""


@needs_java
@pytest.mark.slow
def test_what_java_says_goes_to_a_log_that_a_failure_names(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    ended = subprocess.run(
        [sys.executable, "-c", _ALONE],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    shown = [line for line in ended.stderr.splitlines() if not line.startswith("Spark: ")]
    assert shown == []
    interpreter, failed = ended.stdout.splitlines()
    assert interpreter == sys.executable
    (log,) = tmp_path.glob("labelveil-spark-*.log")
    assert re.match(r"Spark gave up \(\w+\)", failed)
    assert f"; {log} and its executors' logs say why" in failed
    assert log.stat().st_mode & 0o777 == 0o600
    assert "RuntimeError: label 3.14" in log.read_text()  # of its owner alone


def test_what_has_no_effect_is_refused_but_not_the_default_that_a_file_names() -> None:
    assert EngineSection(name="spark", workers=1, partitions=3).partitions == 3
    with pytest.raises(ConfigError, match="workers has no effect when name='spark'; remove it"):
        EngineSection(name="spark", workers=2)
    with pytest.raises(ConfigError, match="master has no effect when name='local'"):
        EngineSection(master="local[2]")


def test_without_java_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    with (
        pytest.raises(EngineError, match=r"needs Java 17"),
        SparkEngine.open(EngineSection(name="spark")),
    ):
        pass


@pytest.mark.parametrize("lacking", ENCRYPTION)
def test_a_session_that_encrypts_not_everything_is_refused(
    lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a session that somebody else started: ours has all of it."""
    sql = pytest.importorskip("pyspark.sql")
    settings = dict.fromkeys(ENCRYPTION, "true") | {lacking: "false"}
    running = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: settings))
    monkeypatch.setattr(sql.SparkSession, "getActiveSession", lambda: running)
    monkeypatch.setenv("JAVA_HOME", "/somewhere")
    section = EngineSection(name="spark", partitions=3)
    with (
        pytest.raises(EngineError, match=rf"^the Spark session has {lacking} not set to true"),
        SparkEngine.open(section),
    ):
        pass
    settings[lacking] = "true"
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # so that it is put back
    monkeypatch.delenv("PYSPARK_PYTHON")
    with SparkEngine.open(section) as engine:
        assert engine == SparkEngine(running, 3)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "another")
    with SparkEngine.open(section):
        assert os.environ["PYSPARK_PYTHON"] == "another"


def test_secrets_do_not_show() -> None:
    assert JOIN.hex() not in repr(Secrets(JOIN))
    assert repr(Secrets(JOIN)) == "Secrets(…)"


@dataclass
class InThisProcess:
    """A session that runs what it is given at once, and is done when it was asked how far it is."""

    environment: dict[str, str] = field(default_factory=dict)
    spread: list[int] = field(default_factory=list)
    asked: threading.Event = field(default_factory=threading.Event)
    cancelled: bool = False

    @property
    def sparkContext(self) -> Any:
        return self

    def createDataFrame(self, rows: list[tuple[int, bytearray]], schema: str) -> Any:
        self.rows = [{"index": index, "task": bytes(task)} for index, task in rows]
        return self

    def repartition(self, count: int) -> Any:
        self.spread.append(count)
        return self

    def mapInArrow(self, work: Callable[..., Any], schema: str) -> Any:
        self.work = work
        return self

    def collect(self) -> list[dict[str, Any]]:
        self.asked.wait(10)
        batches = self.work(iter([pa.RecordBatch.from_pylist(self.rows[::-1])]))
        return [row for batch in batches for row in batch.to_pylist()]

    def statusTracker(self) -> Any:
        self.asked.set()
        stages = {1: SimpleNamespace(numTasks=4, numCompletedTasks=3), 2: None}
        return SimpleNamespace(getActiveStageIds=lambda: [*stages], getStageInfo=stages.get)

    def cancelAllJobs(self) -> None:
        self.cancelled = True
        self.asked.set()  # a job that is cancelled is waited for no longer


@dataclass(frozen=True)
class Says:
    """A number; of none a refusal, and of a text a mistake."""

    what: Any

    def run(self, secrets: Secrets) -> int:
        if self.what is None:
            raise DataError("no rows")
        return int(self.what) + secrets.join[1]


def test_results_come_in_the_order_of_tasks_and_refusals_are_raised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labelveil.common.engine.spark.TELL_SECONDS", 0.001)

    def started(partitions: int, *tasks: Any) -> tuple[InThisProcess, Iterator[int]]:
        session = InThisProcess()
        engine = SparkEngine(session, partitions)
        return session, engine.stream([Says(task) for task in tasks], Secrets(JOIN))

    for partitions, spread in ((0, 3), (2, 2), (9, 3)):
        session, results = started(partitions, 5, 6, 7)
        assert list(results) == [6, 7, 8]
        assert session.spread == [spread]
        assert session.environment == {"PYTHONSAFEPATH": "1"}
        assert "Spark: 3 of this step's 4 tasks are done" in capsys.readouterr().err
    assert list(started(0)[1]) == []
    _, results = started(0, 5, None, 7)
    assert next(results) == 6
    with pytest.raises(DataError, match="no rows"):
        next(results)
    _, results = started(0, "mistake")
    with pytest.raises(EngineError, match=r"^Spark gave up \(ValueError\); its executors' logs"):
        next(results)
    session, _ = started(0)
    monkeypatch.setattr(session, "statusTracker", session.createDataFrame)
    session.work = lambda batches: []
    with pytest.raises(TypeError):
        SparkEngine(session)._collect(session)
    assert session.cancelled
