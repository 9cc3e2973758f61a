"""Every stage of a message, each in a process of its own, beside its physical limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.benchmarks import scale_stages
from tests.benchmarks.harness import Bench, Cell, Table

SIZES = (1_000_000, 10_000_000)

STAGES = [
    ("release", "1 process", "release_kernel"),
    ("release_workers", "2 workers", "release_kernel"),
    ("fetch", "over TLS, verified, to Parquet", "tcp"),
    ("join", "verify, match, shards", "join_kernel"),
]
LIMITS = {
    "release_kernel": "read, HMAC, round, AES, sample, write, sync",
    "tcp": "the same bytes over TCP and to the disk",
    "join_kernel": "read, HMAC, write",
}


def run(bench: Bench) -> Table:
    sizes = bench.rows or tuple(bench.size(rows) for rows in SIZES)
    measured = [_measure(rows) for rows in sizes]
    table: list[list[Cell]] = []
    for stage, note, limit in STAGES:
        for index, rows in enumerate(sizes):
            found, bare = measured[index][stage], measured[index][limit]
            before = measured[index - 1][stage] if index else None
            growth = None
            if before is not None:
                growth = found["seconds"] / before["seconds"] / (rows / sizes[index - 1])
            table.append(
                [
                    f"{stage.partition('_')[0]}, {note}",
                    rows,
                    found["seconds"],
                    rows / found["seconds"],
                    found["cpu"],
                    found["peak"] / 1e6,
                    LIMITS[limit],
                    bare["seconds"],
                    found["seconds"] / bare["seconds"],
                    found["cpu"] / bare["cpu"],
                    growth,
                ]
            )
    for index, rows in enumerate(sizes):
        peak = measured[index]["fetch"]["server_peak"] / 1e6
        table.append(["serve, the same fetch", rows, *[None] * 3, peak, "", *[None] * 4])
    columns = ["stage", "rows", "seconds", "rows/s", "CPU [s]", "peak [MB]", "limit, same run"]
    return Table(
        f"Stages of a message, {datetime.now(UTC):%Y-%m-%d}",
        [*columns, "limit [s]", "ratio", "ratio of CPU", "growth"],
        table,
        "Half of the events have labels; the population is a file. Peak memory is the largest"
        " resident set of any one process. Growth is that of the time over that of the rows since"
        " the size before: 1 is linear. On a busy machine only the CPU's ratio says much."
        " The release's limit is one process; so is the join's.",
    )


def _measure(rows: int) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="labelveil-bench-") as name:
        folder = Path(name)
        order = ["data", *dict.fromkeys([limit for _, _, limit in STAGES[:1]])]
        order += ["release", "release_workers", "fetch", "tcp", "join_kernel", "join"]
        return {stage: _stage(stage, folder, rows) for stage in order}


def _stage(stage: str, folder: Path, rows: int) -> dict[str, Any]:
    """Run a stage in a fresh process, which reports its time and memory."""
    done = subprocess.run(
        [sys.executable, "-m", scale_stages.__name__, stage, str(folder), str(rows)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"stage {stage} with {rows:,} rows failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
