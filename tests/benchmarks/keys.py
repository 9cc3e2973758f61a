"""Hashing event keys, beside the cipher alone."""

from __future__ import annotations

import numpy as np
import polars as pl
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from common.release.event_keys import hash_keys
from tests.benchmarks.harness import Bench, Table


def run(bench: Bench) -> Table:
    size, secret = bench.size(1_000_000), bytes(range(32))
    numbers = pl.Series("key", np.arange(size, dtype=np.int64) * 1_000_003)
    text = numbers.cast(pl.String)
    columns = {
        "integers": numbers,
        "40 characters": text.str.zfill(40),
        "6 to 65 characters": text.str.zfill(6) + pl.Series(["x" * (i % 60) for i in range(size)]),
    }
    table = []
    for name, column in columns.items():
        seconds = bench.seconds(lambda c=column: hash_keys(c, secret))
        table.append([name, seconds, size / seconds / 1e6])
    encrypt = Cipher(algorithms.AES(secret), modes.ECB()).encryptor().update
    blocks = bytes(16 * size)
    seconds = bench.seconds(lambda: encrypt(blocks))
    table.append(["AES-256, one block each", seconds, size / seconds / 1e6])
    return Table(f"{size:,} event keys", ["keys", "seconds", "M keys/s"], table)
