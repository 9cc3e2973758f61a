"""Blocks of rows: keys and codes as bytes, and the ranges that digests are over."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.errors import ReleaseError
from common.exact.channel import Codes

KEY_BYTES = 16


BLOCK_ROWS = 1 << 16


def encode_codes(codes: Codes, code_bytes: int) -> bytes:
    """Codes as little-endian unsigned integers of 1 or 2 bytes."""
    return codes.astype("<u1" if code_bytes == 1 else "<u2").tobytes()


def decode_codes(data: bytes | memoryview, code_bytes: int) -> Codes:
    """Inverse of :func:`encode_codes`, (n,) uint16."""
    return np.frombuffer(data, dtype="<u1" if code_bytes == 1 else "<u2").astype(np.uint16)


def block_ranges(rows: int, block_rows: int) -> Iterator[tuple[int, int]]:
    """(start, stop) row ranges of the blocks of a release."""
    for start in range(0, rows, block_rows):
        yield start, min(start + block_rows, rows)


def keys_column(keys: bytes | memoryview) -> pl.Series:
    """Cut n times 16 bytes into a binary column of n keys."""
    table = np.frombuffer(keys, dtype=np.uint8).reshape(-1, KEY_BYTES)
    return pl.Series("key", table).arr.to_list().cast(pl.Binary)


def keys_bytes(keys: pl.Series) -> NDArray[np.uint8]:
    """Inverse of :func:`keys_column`, (n, 16) uint8.

    Raises
    ------
    ReleaseError
        If a key is missing or is not 16 bytes long: two keys of 15 and 17 bytes would have the
        digest of two right ones.
    """
    if keys.null_count() or not (keys.bin.size(unit="b") == KEY_BYTES).all():
        raise ReleaseError(f"a key is not {KEY_BYTES} bytes long")
    table = keys.cast(pl.List(pl.UInt8)).list.to_array(KEY_BYTES).to_numpy()
    return np.ascontiguousarray(table, dtype=np.uint8)
