"""Blocks of rows: keys and codes as bytes, and the ranges that digests are over."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labelveil.common.arrays import Integers
from labelveil.common.exact.channel import Codes

KEY_BYTES = 16
SUM_BYTES = 8


def encode_codes(codes: Codes, code_bytes: int) -> bytes:
    """Codes as little-endian unsigned integers of 1 or 2 bytes."""
    return codes.astype("<u1" if code_bytes == 1 else "<u2").tobytes()


def decode_codes(data: bytes | memoryview, code_bytes: int) -> Codes:
    """Inverse of :func:`encode_codes`, (n,) uint16."""
    return np.frombuffer(data, dtype="<u1" if code_bytes == 1 else "<u2").astype(np.uint16)


def encode_sums(sums: Integers) -> bytes:
    """Sums as little-endian signed integers of 8 bytes."""
    return sums.astype("<i8").tobytes()


def decode_sums(data: bytes | memoryview) -> Integers:
    """Inverse of :func:`encode_sums`, (n,) int64."""
    return np.frombuffer(data, dtype="<i8").astype(np.int64)


def block_ranges(rows: int, block_rows: int) -> Iterator[tuple[int, int]]:
    """(start, stop) row ranges of the blocks of a release."""
    for start in range(0, rows, block_rows):
        yield start, min(start + block_rows, rows)
