"""Tasks on Spark: their failures, and the secrets that they are handed."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.engine.secret_service import KeyService, ServiceAddress, ask
from common.engine.spark import SparkEngine
from common.engine.task import EngineError, EngineSection, Secrets
from common.errors import ConfigError, LabelveilError
from tests.engines import Fails, Interpreter, SparkSession, needs_java

JOIN = bytes(range(32))


@pytest.mark.slow
@needs_java
def test_a_task_that_always_fails_is_one_line(spark: SparkSession) -> None:
    with pytest.raises(EngineError, match=r"^Spark gave up \(\w+\)[^\n]*$"):
        SparkEngine(spark.session).run([Fails()], Secrets(JOIN))


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
    monkeypatch.setattr("common.engine.spark.TELL_SECONDS", 0.001)
    found = SparkEngine(spark.session, 2).run([Interpreter()] * 5, Secrets(JOIN))
    assert found == [sys.executable] * 5
    assert re.search(r"Spark: \d of this step's \d tasks are done", capsys.readouterr().err)


_ALONE = """
import sys
from common.engine.task import EngineError, EngineSection, Secrets
from common.engine.spark import SparkEngine
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


def test_secrets_go_to_who_has_the_token() -> None:
    payload = os.urandom(100)
    with KeyService(payload, "127.0.0.1") as service:
        assert [ask(service.address) for _ in range(3)] == [payload] * 3
        wrong = ServiceAddress("127.0.0.1", service.address.port, bytes(32))
        with pytest.raises(LabelveilError, match="no secrets from the driver"):
            ask(wrong)
        with socket.create_connection(("127.0.0.1", service.address.port)) as silent:
            assert ask(service.address) == payload  # nobody waits for one who says nothing
            silent.sendall(b"x")
    assert service.address.token.hex() not in repr(service.address)
    with pytest.raises(LabelveilError, match="no secrets from the driver"):
        ask(service.address)  # it is over


def test_an_impostor_of_the_driver_is_not_believed() -> None:
    """Who answers must know the token too: the workers' noise would be an impostor's."""
    with KeyService(b"false", "127.0.0.1") as impostor:
        address = ServiceAddress("127.0.0.1", impostor.address.port, bytes(32))
        impostor._answer = _answer_anybody(impostor)  # type: ignore[method-assign]
        with pytest.raises(LabelveilError, match="no secrets from the driver"):
            ask(address)


def _answer_anybody(service: KeyService) -> Any:
    def answer(connection: socket.socket) -> None:
        with connection:
            connection.recv(64)
            connection.sendall(os.urandom(32 + 16 + 5))

    return answer
