"""Stages beside their limits, and beside what one would otherwise use: the README's table."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.flight
import pyarrow.parquet
import torch

from common.entropy import seeded_entropy
from common.exact.channel import FiniteChannel, randomized_response_rows
from common.randomizers.grid import Grid
from common.release.event_keys import hash_keys
from tests.benchmarks.harness import Bench, Cell, Table
from tests.benchmarks.scale import stages
from tests.benchmarks.training import World

_OUTPUTS = 10

_FLIGHT = """
import sys
import pyarrow.flight as flight, pyarrow.parquet as parquet

class Server(flight.FlightServerBase):
    def do_get(self, context, ticket):
        return flight.RecordBatchStream(parquet.read_table(sys.argv[1], columns=["id", "x0"]))

server = Server("grpc://127.0.0.1:0")
print(server.port, flush=True)
server.serve()
"""

Work = Callable[[], object]


def run(bench: Bench) -> Table:
    rows = bench.size(1_000_000)
    lines = [_keys(bench, rows), _labels(bench, rows), _fetch(bench, rows), _train(bench, rows)]
    return Table(
        f"Stages beside their limits and beside what else there is, {rows:,} rows",
        ["stage", "M rows/s", "limit", "M rows/s", "ours / limit", "otherwise", "M rows/s"],
        lines,
        "Rows by processor time, the least of the repetitions, taken in turn, on one thread; of"
        " fetching, the receiver's. OpenDP is called for ten thousand labels, one at a time.",
    )


def _line(
    bench: Bench, name: str, limit: str, otherwise: str, *works: tuple[Work | None, float]
) -> list[Cell]:
    """Ours, the limit and what else there is, each with the rows that it works on."""
    least = [float("inf")] * len(works)
    for _ in range(bench.repeat + 1):
        for place, (work, _) in enumerate(works):
            if work is not None:
                begun = time.process_time()
                work()
                least[place] = min(least[place], time.process_time() - begun)
    ours, best, other = (
        rows / seconds / 1e6 if work else None
        for (work, rows), seconds in zip(works, least, strict=True)
    )
    assert ours
    assert best
    return [name, ours, limit, best, ours / best, otherwise, other]


def _keys(bench: Bench, rows: int) -> list[Cell]:
    secret, entropy = bytes(range(32)), seeded_entropy(0)
    keys = pl.Series("key", np.arange(rows, dtype=np.int64) * 1_000_003).cast(pl.String)
    return _line(
        bench,
        "hash keys",
        "AES-256 alone",
        "HMAC-SHA256, a loop",
        (lambda: hash_keys(keys, secret), rows),
        (lambda: entropy.words("limit", 0, 2 * rows), rows),  # 16 bytes each
        (lambda: hash_keys(keys, secret, "hmac-sha256-128"), rows),
    )


def _labels(bench: Bench, rows: int) -> list[Cell]:
    entropy, points = seeded_entropy(0), np.arange(float(_OUTPUTS))
    grid = Grid(points)
    channel = FiniteChannel(points, points, randomized_response_rows(_OUTPUTS, 1.0))
    values = np.random.default_rng(0).uniform(0, _OUTPUTS - 1, rows)

    def randomize() -> None:
        rounded = grid.round(values, entropy.words("rounding", 0, rows))
        channel.sample(rounded, entropy.words("labels", 0, rows))

    def words() -> None:
        for stream in ("rounding", "labels"):
            entropy.words(stream, 0, rows)

    few = min(rows, 10_000)
    return _line(
        bench,
        f"randomize labels, {_OUTPUTS} outputs",
        "their random words",
        "OpenDP, a label at a time",
        (randomize, rows),
        (words, rows),
        (_opendp(values[:few]), few),
    )


def _opendp(values: np.ndarray) -> Work | None:
    try:
        from opendp.measurements import make_randomized_response
        from opendp.mod import enable_features
    except ImportError:
        return None
    enable_features("contrib")
    share = np.e / (np.e + _OUTPUTS - 1)
    randomize = make_randomized_response(categories=list(range(_OUTPUTS)), prob=share)
    labels = values.round().astype(int).tolist()
    return lambda: [randomize(label) for label in labels]


def _fetch(bench: Bench, rows: int) -> list[Cell]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stages.data(folder, rows)
        stages.release(folder, rows)

        def fetch() -> None:
            shutil.rmtree(folder / "fetched", ignore_errors=True)
            stages.fetch(folder, rows)

        with _flight(folder / "features.parquet") as copy:
            return _line(
                bench,
                "fetch, verified",
                "TCP, both ends, to the disk",
                "Arrow Flight to Parquet, unverified",
                (fetch, rows),
                (lambda: stages.tcp(folder, rows), rows),
                (lambda: copy(folder / "copied.parquet"), rows),
            )


@contextmanager
def _flight(table: Path) -> Iterator[Callable[[Path], None]]:
    """Serve a table from another process; yields what copies two of its columns to a file."""
    command = [sys.executable, "-c", _FLIGHT, str(table)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            client = pa.flight.connect(f"grpc://127.0.0.1:{int(server.stdout.readline())}")

            def copy(to: Path) -> None:
                pa.parquet.write_table(client.do_get(pa.flight.Ticket(b"")).read_all(), to)

            yield copy
        finally:
            server.terminate()


def _train(bench: Bench, rows: int) -> list[Cell]:
    torch.set_num_threads(1)
    world = World(max(rows // 5, 10_000), 16)
    return _line(
        bench,
        "train, an epoch of 4 networks",
        "a torch loop over batches in memory",
        "torch's DataLoader",
        (world.fitter()[0], world.training_rows),
        (world.bare(), world.training_rows),
        (world.loader(0.1), world.training_rows / 10),
    )
