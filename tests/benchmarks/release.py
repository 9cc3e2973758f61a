"""Writing, reading and verifying a release."""

from __future__ import annotations

import tempfile
from pathlib import Path

from common.release.blocks import BLOCK_ROWS
from common.release.table import labels_frame, read_release, verify_rows, write_release
from tests.benchmarks.harness import Bench, Table
from tests.common.release.releases import make_release


def run(bench: Bench) -> Table:
    table = []
    for full in (1_000_000, 10_000_000):
        rows = bench.size(full)
        manifest, keys, codes = make_release(rows, points=30, block_rows=BLOCK_ROWS)
        frame = labels_frame(manifest, keys, codes)
        with tempfile.TemporaryDirectory() as name:
            directory, data = Path(name), manifest.to_bytes()
            table.append(
                [
                    rows,
                    bench.seconds(lambda m=manifest, k=keys, c=codes: labels_frame(m, k, c)),
                    bench.seconds(lambda m=manifest, f=frame: verify_rows(m, f)),
                    bench.seconds(lambda d=directory, b=data, f=frame: write_release(d, b, f)),
                    bench.seconds(lambda d=directory: read_release(d)),
                ]
            )
    return Table(
        "A release with 16-byte keys",
        ["rows", "from wire bytes [s]", "verify [s]", "write and sync [s]", "read and verify [s]"],
        table,
    )
