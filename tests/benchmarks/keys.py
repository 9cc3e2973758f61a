"""Hashing event keys with HMAC-SHA256."""

from __future__ import annotations

import numpy as np
import polars as pl

from common.release.event_keys import hash_keys
from tests.benchmarks.harness import Bench, Table


def run(bench: Bench) -> Table:
    size, secret = bench.size(1_000_000), bytes(range(32))
    numbers = pl.Series("key", np.arange(size, dtype=np.int64) * 1_000_003)
    columns = {"integers": numbers, "40 characters": numbers.cast(pl.String).str.zfill(40)}
    table = []
    for name, column in columns.items():
        seconds = bench.seconds(lambda c=column: hash_keys(c, secret))
        table.append([name, seconds, size / seconds / 1e6])
    return Table(f"{size:,} event keys", ["keys", "seconds", "M keys/s"], table)
