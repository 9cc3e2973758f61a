"""Run tasks on a Spark cluster, through ``mapInArrow``.

Tasks are rows of a DataFrame: which Parquet rows to read, and where to write; Spark decides where
and how often they run. Labels, features and hashed keys never enter Spark: workers read and
exchange files on a file system that driver and workers see under the same paths. A task that fails,
is lost with its machine or runs twice writes the same bytes under the same name.

A release's key and the join secret go with the function that runs the tasks, which Spark hands from
memory to memory, and to disk where memory is short: so its own authentication and encryption are
required (:data:`ENCRYPTION`) and checked before anything is handed out. Anyone who can read an
executor's memory, or change the code that it runs, can read them, and must be trusted as the party
is that runs it. What Spark keeps, its event log and the pages of its user interface, has paths and
row ranges at most.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from labelveil.common.console import stderr
from labelveil.common.engine.task import Engine, EngineError, EngineSection, ResultT, Secrets, Task
from labelveil.common.errors import LabelveilError
from labelveil.common.extras import install_command

_TASKS = "index long, task binary"
_RESULTS = "index long, result binary"


ENCRYPTION = ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled")
"""Settings that must be true: who may join, what travels, and what lies on disk."""
TELL_SECONDS = 10.0
"""Between two notes of how far Spark is."""

_without_warnings = partial(warnings.catch_warnings, action="ignore", category=FutureWarning)
"""Keeps to ourselves what PySpark thinks of the versions of other packages."""


@dataclass(frozen=True)
class SparkEngine(Engine):
    """Runs tasks in a Spark session of the classic (not the Connect) kind."""

    session: Any
    partitions: int = 0  # that the tasks of one step are spread over; 0: as many as there are tasks
    log: IO[bytes] | None = None  # where Spark writes what it has to say, if that is known

    @classmethod
    @contextmanager
    def open(cls, config: EngineSection) -> Iterator[SparkEngine]:
        """Use the running session, or start one and stop it at the end.

        ``EngineError`` if PySpark or Java is missing, or no session can be had.
        """
        try:
            from pyspark.sql import SparkSession
        except ImportError:
            raise EngineError(
                f"[engine] name='spark' needs PySpark; {install_command('spark')}"
            ) from None
        if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
            raise EngineError(
                "[engine] name='spark' needs Java 17 or newer; install it, or set JAVA_HOME"
            )
        # or workers would run whatever "python3" is on their path
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        running = SparkSession.getActiveSession()
        if running is not None:
            _check_encryption(running)
            yield cls(running, config.partitions)
            return
        builder = SparkSession.builder.appName("labelveil")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        for name in ENCRYPTION:
            builder = builder.config(name, "true")
        if config.master is not None:
            builder = builder.master(config.master)
        with tempfile.NamedTemporaryFile(prefix="labelveil-spark-", suffix=".log") as log:
            try:
                with _errors_to(log), _without_warnings():
                    session = builder.getOrCreate()
                    session.sparkContext.setLogLevel("ERROR")
            except Exception as error:
                raise EngineError(
                    f"no Spark session with [engine] master={config.master!r}:"
                    f" {type(error).__name__}; check the master's address, Java, and that"
                    f" spark.authenticate.secret is the cluster's; Spark's log is {_kept(log)}"
                ) from None
            try:
                _check_encryption(session)
                yield cls(session, config.partitions, log)
            finally:
                session.stop()

    def stream(self, tasks: Sequence[Task[ResultT]], secrets: Secrets) -> Iterator[ResultT]:
        if not tasks:
            return
        context = self.session.sparkContext
        # or workers would look for our packages in whatever folder they are started in first
        context.environment["PYTHONSAFEPATH"] = "1"
        rows = [(index, bytearray(pickle.dumps(task))) for index, task in enumerate(tasks)]
        try:
            with _without_warnings():
                frame = self.session.createDataFrame(rows, _TASKS)
                spread = frame.repartition(min(self.partitions or len(rows), len(rows)))
                done = spread.mapInArrow(partial(run_batches, secrets), _RESULTS)
                collected = self._collect(done)
        except Exception as error:
            # Spark's own message holds a worker's whole traceback
            where = "its executors' logs say why"
            if self.log is not None:
                where = f"{_kept(self.log)} and its executors' logs say why"
            raise EngineError(f"Spark gave up ({type(error).__name__}); {where}") from None
        results = {row["index"]: pickle.loads(row["result"]) for row in collected}
        for index in range(len(tasks)):
            if isinstance(results[index], LabelveilError):
                raise results[index]
            yield results[index]

    def _collect(self, frame: Any) -> list[Any]:
        """Wait for the results, and tell now and then how many tasks are done."""
        context = self.session.sparkContext
        with ThreadPoolExecutor(1) as waiting:
            collected = waiting.submit(frame.collect)
            try:
                while not wait([collected], TELL_SECONDS).done:
                    tracker = context.statusTracker()
                    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                    total = sum(stage.numTasks for stage in stages if stage)
                    done = sum(stage.numCompletedTasks for stage in stages if stage)
                    stderr.print(f"Spark: {done:,} of this step's {total:,} tasks are done")
            except BaseException:
                context.cancelAllJobs()
                raise
            return list(collected.result())


def _check_encryption(session: Any) -> None:
    """Raise ``EngineError`` where secrets would travel, or lie on a disk, in the clear."""
    settings = session.sparkContext.getConf()
    lacking = [name for name in ENCRYPTION if settings.get(name, "false").lower() != "true"]
    if lacking:
        raise EngineError(
            f"the Spark session has {' and '.join(lacking)} not set to true, and workers are handed"
            " secrets; set that where the session is started, before it is"
        )


@contextmanager
def _errors_to(log: IO[bytes]) -> Iterator[None]:
    """Have processes that are started meanwhile write their errors into a file, not beside ours."""
    sys.stderr.flush()
    ours = os.dup(2)
    try:
        os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def _kept(log: IO[bytes]) -> str:
    """Name of a copy of the log that stays."""
    descriptor, name = tempfile.mkstemp(prefix="labelveil-spark-", suffix=".log")
    with os.fdopen(descriptor, "wb") as file:
        file.write(Path(log.name).read_bytes())
    return name


def run_batches(secrets: Secrets, batches: Iterator[Any]) -> Iterator[Any]:
    """Run the tasks of some Arrow record batches, in a worker.

    A refusal is a result, so that it is not tried again; any other failure is Spark's to repeat.
    """
    import pyarrow as pa

    schema = pa.schema([("index", pa.int64()), ("result", pa.binary())])
    for batch in batches:
        for row in batch.to_pylist():
            task: Task[Any] = pickle.loads(row["task"])
            try:
                result = task.run(secrets)
            except LabelveilError as error:
                result = error
            answer = {"index": row["index"], "result": pickle.dumps(result)}
            yield pa.RecordBatch.from_pylist([answer], schema)
