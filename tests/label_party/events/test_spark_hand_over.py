"""What Spark is handed, by a stand-in that needs no Java: the same bytes, and secrets in one place.

That is the function, which it keeps in memory and encrypts wherever else it goes; tasks and results
may be written down.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from labelveil.common.engine.spark import SparkEngine
from labelveil.label_party.events.steps import Sizes
from tests.label_party import engines
from tests.label_party.engines import JOIN, RELEASE_KEY, settings

ROWS = 3_000


class Session:
    """Runs what it is handed in this process, a batch a task, and keeps what Spark may write down.

    It is session and data frame in one.
    """

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        self.rows: list[Any] = []
        self.sparkContext = SimpleNamespace(
            environment={}, master="local[2]", getConf=lambda: {}, statusTracker=None
        )

    def createDataFrame(self, rows: list[Any], schema: str) -> Session:
        self.rows = rows
        self._keep(rows)
        return self

    def repartition(self, count: int) -> Session:
        return self

    def mapInArrow(self, function: Callable[[Iterator[Any]], Iterator[Any]], schema: str) -> Any:
        tasks = [pa.RecordBatch.from_pylist([{"index": i, "task": t}]) for i, t in self.rows]
        results = [row for batch in function(iter(tasks)) for row in batch.to_pylist()]
        self._keep(results)
        return SimpleNamespace(collect=lambda: results)

    def _keep(self, handed: Any) -> None:
        self.kept.append(pickle.dumps(handed))


def test_the_same_bytes_and_no_secret_in_tasks_or_results(tmp_path: Path) -> None:
    engines.write_events(tmp_path, ROWS)
    expected = engines.in_memory(tmp_path / "memory", settings(tmp_path))
    session = Session()
    sizes = Sizes(slice_rows=1_000, bucket_rows=1_000, part_rows=1 << 16)
    made = engines.with_engine(tmp_path / "spark", settings(tmp_path), SparkEngine(session), sizes)
    assert made == expected
    kept = b"".join(session.kept)
    assert tmp_path.name.encode() in kept  # whose files tasks name
    for secret in (JOIN, RELEASE_KEY):
        for form in (secret, secret.hex().encode(), base64.b64encode(secret)):
            assert form not in kept
