"""Tasks and engines that fail, for tests; and a Spark session for all of them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from labelveil.common.engine.spark import ENCRYPTION
from labelveil.common.engine.task import Engine, Secrets

needs_java = pytest.mark.skipif(
    not (os.environ.get("JAVA_HOME") or shutil.which("java")), reason="no Java on this machine"
)


@dataclass(frozen=True)
class SparkSession:
    """A session with two threads that try a task up to four times."""

    session: Any  # Spark's
    folder: Path  # of its event log and local files


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session serves all tests, because starting one takes most of their time."""
    sql = pytest.importorskip("pyspark.sql")
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        # workers must import this code, not another one that is installed
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        settings = {
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": folder.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.local.dir": str(folder),
            **dict.fromkeys(ENCRYPTION, "true"),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
        }
        builder = sql.SparkSession.builder.master("local[2,4]")
        for key, value in settings.items():
            builder = builder.config(key, value)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        started = builder.getOrCreate()
        started.sparkContext.setLogLevel("OFF")
        yield SparkSession(started, folder)
        started.stop()


@dataclass(frozen=True)
class FailsOnce:
    """A task that does its work, and then fails; the second time it does not."""

    task: Any
    failed: Path

    def run(self, secrets: Secrets) -> Any:
        result = self.task.run(secrets)
        try:
            os.close(os.open(self.failed, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return result
        raise RuntimeError("made to fail")


@dataclass
class Failing(Engine):
    """An engine some of whose tasks fail once."""

    engine: Engine
    folder: Path
    steps: int = 0

    def stream(self, tasks: Sequence[Any], secrets: Secrets) -> Iterator[Any]:
        self.steps += 1
        marks = [self.folder / f"{self.steps}-{index}" for index in range(len(tasks))]
        failing = [
            FailsOnce(task, mark) if index % 9 == 0 else task
            for index, (task, mark) in enumerate(zip(tasks, marks, strict=True))
        ]
        return self.engine.stream(failing, secrets)


@dataclass(frozen=True)
class Dies:
    """A task that takes its worker with it."""

    def run(self, secrets: Secrets) -> None:
        os._exit(9)


@dataclass(frozen=True)
class Fails:
    """A task that never works."""

    def run(self, secrets: Secrets) -> None:
        raise RuntimeError("label 3.14")


@dataclass(frozen=True)
class Interpreter:
    """Tells which Python a worker is."""

    def run(self, secrets: Secrets) -> str:
        return sys.executable
