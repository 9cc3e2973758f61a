"""The table of all stages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Bench, Cell, Table
from benchmarks.scale import features, process, stages

SIZES = (1_000_000, 10_000_000)

COLUMNS = [
    "stage", "rows", "seconds", "rows/s", "CPU [s]", "of it user [s]", "peak [MB]",
    "limit, same run", "limit [s]", "limit, CPU [s]", "ratio", "ratio of CPU",
    "growth", "growth of CPU", "growth of user CPU",
]  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """A function of ``stages`` or ``features``, and the one that is its limit, if it is none."""

    name: str
    title: str
    limit: str = ""
    most: int = 1 << 62  # rows beyond which it is left out


STAGES = [
    Stage("release", "release", "release_kernel"),
    Stage("release_workers", "release, 2 workers", "release_kernel"),
    Stage("serve", "serve, over TLS", "tcp"),
    Stage("fetch", "fetch, verified", "tcp"),
    Stage("join", "join, verified, into shards", "join_kernel"),
    Stage("encode", "encode, into training shards", "encode_kernel", 20_000_000),
    Stage("train", "train from shards, an epoch", "train_kernel", 20_000_000),
    Stage("release_kernel", "bare: read, CMAC, round, AES, sample, write, sync"),
    Stage("aes", "bare: AES words, two a row"),
    Stage("disk", "bare: disk copy of the release, synced"),
    Stage("tcp", "bare: the release over raw TCP, to the disk"),
    Stage("join_kernel", "bare: read, CMAC, write"),
    Stage("encode_kernel", "bare: read, write", "", 20_000_000),
    Stage("train_kernel", "bare: torch loop", "", 20_000_000),
]
ORDER = [
    "data", "release_kernel", "aes", "release", "release_workers", "disk", "fetch", "tcp",
    "join_kernel", "join", "encode_kernel", "encode", "train", "train_kernel",
]  # fmt: skip
"""In which they run: a limit right beside what is measured against it, an input before its use."""


def measure(bench: Bench) -> Table:
    sizes = bench.rows or tuple(bench.size(rows) for rows in SIZES)
    measured = {rows: _measure(rows) for rows in sizes}
    titles = {stage.name: stage.title for stage in STAGES}
    table: list[list[Cell]] = []
    for stage in STAGES:
        sized = [rows for rows in sizes if stage.name in measured[rows]]
        for index, rows in enumerate(sized):
            found, beside = measured[rows][stage.name], None
            if stage.limit:
                beside = measured[rows][stage.limit]
            three = [(size, measured[size][stage.name]) for size in sized[max(0, index - 2) :][:3]]
            table.append(
                [
                    stage.title,
                    rows,
                    found["seconds"],
                    rows / found["seconds"],
                    found["cpu"],
                    found["user"],
                    found["peak"] / 1e6,
                    titles[stage.limit].removeprefix("bare: ") if beside else "",
                    beside["seconds"] if beside else None,
                    beside["cpu"] if beside else None,
                    found["seconds"] / beside["seconds"] if beside else None,
                    found["cpu"] / beside["cpu"] if beside else None,
                    *(_growth(three, which) for which in ("seconds", "cpu", "user")),
                ]
            )
    return Table(
        "Stages of a message, from a million rows on",
        COLUMNS,
        table,
        "Half of the events have labels; the population is a file; the features have four numbers."
        " Every stage runs in a process of its own. Peak memory is the largest of any one"
        " process, what it maps of files left out. Growth, from the third size on, is the time of"
        " a further row between the last two sizes over that between the two before: 1 is linear,"
        " and what starting up costs is left out. Ratios are to the limit at the same size. On a"
        " machine that does other things, CPU time says more than seconds; what the kernel uses of"
        " it depends on where its pages come from: user CPU leaves it out. Limits run in one"
        " process; serve is the server's side of the fetch, and its seconds are the fetch's.",
    )


def _growth(three: list[tuple[int, dict[str, Any]]], which: str) -> float | None:
    """Time of a further row between the last two of three sizes, over that between the first."""
    if len(three) < 3:
        return None
    (a, first), (b, second), (c, third) = three
    before = (second[which] - first[which]) / (b - a)
    if before <= 0:  # too little to be counted in ticks of the clock
        return None
    return float((third[which] - second[which]) / (c - b) / before)


def _measure(rows: int) -> dict[str, dict[str, Any]]:
    most = {stage.name: stage.most for stage in STAGES}
    found = {}
    with tempfile.TemporaryDirectory(prefix="labelveil-bench-") as name:
        for stage in ORDER:
            if rows > most.get(stage, rows):
                continue
            found[stage] = _run(stage, Path(name), rows)
            rounded = {
                key: round(value, 1) for key, value in found[stage].items() if key != "serve"
            }
            print(f"{rows:,} rows, {stage}: {rounded}", file=sys.stderr, flush=True)
    found["serve"] = found["fetch"]["serve"]
    return found


def _run(stage: str, folder: Path, rows: int) -> dict[str, Any]:
    """Run a stage in a fresh process, which reports its time and memory."""
    module = features if hasattr(features, stage) else stages
    done = subprocess.run(
        [sys.executable, "-m", process.__name__, module.__name__, stage, str(folder), str(rows)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"stage {stage} with {rows:,} rows failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
