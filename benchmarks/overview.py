"""Every stage beside its limit, and beside what one would otherwise use: the README's table."""

from __future__ import annotations

import hmac
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.flight
import pyarrow.parquet
import torch

from benchmarks.harness import Bench, Cell, Table
from benchmarks.scale import features, stages
from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers.grid import Grid
from labelveil.common.release.event_keys import hash_keys

_OUTPUTS = 10
_FEW = 10_000
"""Labels that OpenDP is called for, one at a time."""
_SECRET = bytes(range(32))

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

Work = Callable[[], Any]
"""Something to measure; what it returns may tell the processor time of a part of it, ``cpu``."""


def run(bench: Bench) -> Table:
    rows = bench.size(1_000_000)
    torch.set_num_threads(1)
    before = os.getloadavg()[0]
    lines = [_keys(bench, rows), _labels(bench, rows)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stages.data(folder, rows)
        stored = (_release, _fetch, _join, _encode, _train)  # each works on what the last one left
        lines += [line(bench, folder, rows) for line in stored]
    return Table(
        f"Stages beside their limits and beside what else there is, {rows:,} rows",
        ["stage", "M rows/s", "limit", "M rows/s", "ours / limit", "otherwise", "M rows/s"],
        lines,
        f"Rows by processor time, the median of {bench.repeat} repetitions, taken in turn, on one"
        " thread; of fetching, the receiver's. Half of the events have labels, the features have"
        f" four numbers. OpenDP is called for {_FEW:,} labels, one at a time. The machine's load"
        f" was {before:.1f} when this began and {os.getloadavg()[0]:.1f} when it ended.",
    )


def _line(
    bench: Bench, name: str, limit: str, otherwise: str, *works: tuple[Work | None, float]
) -> list[Cell]:
    """Ours, the limit and what else there is, each with the rows that it works on."""
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(bench.repeat + 1):
        for times, (work, _) in zip(taken, works, strict=True):
            if work is not None:
                begun = time.process_time()
                told = work()
                used = time.process_time() - begun
                times.append(told["cpu"] if isinstance(told, dict) else used)
    ours, best, other = (
        rows / statistics.median(times[1:]) / 1e6 if times else None
        for (_, rows), times in zip(works, taken, strict=True)
    )
    assert ours
    assert best
    return [name, ours, limit, best, ours / best, otherwise, other]


def _keys(bench: Bench, rows: int) -> list[Cell]:
    entropy = seeded_entropy(0)
    keys = pl.Series("key", np.arange(rows, dtype=np.int64) * 1_000_003).cast(pl.String)
    return _line(
        bench,
        "hash keys",
        "AES-256 alone",
        "HMAC-SHA256, a Python loop",
        (lambda: hash_keys(keys, _SECRET), rows),
        (lambda: entropy.words("limit", 0, 2 * rows), rows),  # 16 bytes each
        (lambda: _hmac(keys), rows),
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

    return _line(
        bench,
        f"randomize labels, {_OUTPUTS} outputs",
        "their random words",
        "OpenDP, a label at a time",
        (randomize, rows),
        (words, rows),
        (_opendp(values[:_FEW], _OUTPUTS), min(rows, _FEW)),
    )


def _release(bench: Bench, folder: Path, rows: int) -> list[Cell]:
    listed, labels = (pl.read_parquet(folder / f"{n}.parquet") for n in ("population", "labels"))
    few = min(rows, _FEW)
    respond = _opendp(labels["y"].to_numpy()[:few].clip(0, 100), stages.GRID.size)

    def release() -> None:
        shutil.rmtree(folder / "store", ignore_errors=True)
        stages.release(folder, rows)

    def loop() -> None:
        assert respond
        for keys in (listed["id"][:few], labels["id"][: few // 2]):
            _hmac(keys)
        respond()

    return _line(
        bench,
        "release, 101 outputs",
        "its kernels and its files alone",
        "those two loops",
        (release, rows),
        (lambda: stages.release_kernel(folder, rows), rows),
        (loop if respond else None, few),
    )


def _fetch(bench: Bench, folder: Path, rows: int) -> list[Cell]:
    def fetch() -> dict[str, Any]:
        shutil.rmtree(folder / "fetched", ignore_errors=True)
        return stages.fetch(folder, rows)

    with _flight(folder / "features.parquet") as copy:
        return _line(
            bench,
            "fetch and verify",
            "TCP, both ends, to the disk",
            "Arrow Flight to Parquet, unverified",
            (fetch, rows),
            (lambda: stages.tcp(folder, rows), rows),
            (lambda: copy(folder / "copied.parquet"), rows),
        )


def _join(bench: Bench, folder: Path, rows: int) -> list[Cell]:
    keys = pl.read_parquet(folder / "population.parquet")["id"]
    codes = pl.DataFrame({"key": _hmac(keys), "code": np.zeros(rows, np.uint8)})

    def join() -> None:
        shutil.rmtree(folder / "joined", ignore_errors=True)
        features.join(folder, rows)

    def in_memory() -> None:
        table = pl.read_parquet(folder / "features.parquet")
        hashed = table.with_columns(key=pl.Series(_hmac(table["id"])))
        hashed.join(codes, on="key", how="left").write_parquet(folder / "one.parquet")

    return _line(
        bench,
        "join, into shards",
        "read, hash, write",
        "that HMAC loop, and Polars in memory",
        (join, rows),
        (lambda: features.join_kernel(folder, rows), rows),
        (in_memory, rows),
    )


def _encode(bench: Bench, folder: Path, rows: int) -> list[Cell]:
    return _line(
        bench,
        "encode for training",
        "read, write",
        "scikit-learn's StandardScaler, in memory",
        (lambda: features.encode(folder, rows), rows),
        (lambda: features.encode_kernel(folder, rows), rows),
        (_scaler(folder), rows),
    )


def _train(bench: Bench, folder: Path, rows: int) -> list[Cell]:
    kept = features.training_rows(folder)
    return _line(
        bench,
        "train four networks from shards, an epoch",
        "a torch loop over batches in memory",
        "torch's DataLoader",
        (lambda: features.train(folder, rows), kept),
        (lambda: features.train_kernel(folder, rows), kept),
        (lambda: features.train_loader(folder, rows), kept),
    )


def _hmac(keys: pl.Series) -> list[bytes]:
    return [hmac.digest(_SECRET, key.encode(), "sha256")[:16] for key in keys]


def _opendp(values: np.ndarray, outputs: int) -> Work | None:
    try:
        from opendp.measurements import make_randomized_response
        from opendp.mod import enable_features
    except ImportError:
        return None
    enable_features("contrib")
    share = np.e / (np.e + outputs - 1)
    randomize = make_randomized_response(categories=list(range(outputs)), prob=share)
    labels = values.round().astype(int).tolist()
    return lambda: [randomize(label) for label in labels]


def _scaler(folder: Path) -> Work | None:
    try:
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        return None

    def scale() -> None:
        table = pl.read_parquet(sorted((folder / "joined").glob("*.parquet")))
        numbers = table.select("^x.*$").to_numpy()
        np.save(folder / "scaled.npy", StandardScaler().fit_transform(numbers))

    return scale


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
