"""Protobuf messages that went wrong: mutations of good ones, and bytes that never were one."""

from __future__ import annotations

import random
from collections.abc import Callable

NEGATIVE = b"\xff" * 9 + b"\x01"
"""-1, or 2^64 - 1, as a varint."""
ENDLESS = b"\xff" * 11
"""A varint longer than any may be."""
FOUR_GB = b"\xff\xff\xff\xff\x0f"
"""2^32 - 1 as a varint."""

Mutation = Callable[[random.Random, bytes], bytes]


def _flip(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(chance.randint(1, 4)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _insert(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.randbytes(chance.randint(1, 40)) + data[at:]


def _repeat(chance: random.Random, data: bytes) -> bytes:
    start = chance.randrange(len(data) + 1)
    return data + data[start:] * chance.randint(1, 20)


def _drop(chance: random.Random, data: bytes) -> bytes:
    start = chance.randrange(len(data) + 1)
    return data[:start] + data[start + chance.randint(1, 8) :]


def _claim(chance: random.Random, data: bytes) -> bytes:
    """A field of some type whose value is negative, endless, or 4 GB long."""
    tag = bytes([chance.randrange(1, 8) << 3 | chance.randrange(6)])
    field = tag + chance.choice([NEGATIVE, ENDLESS, FOUR_GB, FOUR_GB + data])
    return chance.choice([field, data + field, field + data])


def _nest(chance: random.Random, data: bytes) -> bytes:
    """Groups within groups, or messages within messages."""
    depth = chance.randint(1, 3000)
    return chance.choice([b"\x0b", b"\x0a\x7f", b"\x0c"]) * depth + data


def _garbage(chance: random.Random, data: bytes) -> bytes:
    return chance.randbytes(chance.randint(0, 300))


def _large(chance: random.Random, data: bytes) -> bytes:
    """A known or unknown field of many bytes."""
    size = chance.randint(1 << 14, 1 << 16)
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    return data + bytes([chance.randrange(1, 16) << 3 | 2]) + length + chance.randbytes(size)


MUTATIONS: tuple[Mutation, ...] = (
    _flip, _cut, _insert, _repeat, _drop, _claim, _nest, _garbage, _large,
)  # fmt: skip
_WEIGHTS = (6, 4, 4, 3, 4, 6, 1, 3, 0.1)


def mutate(chance: random.Random, data: bytes) -> bytes:
    """Return bytes that a broken or hostile client might send in place of some good ones."""
    for mutation in chance.choices(MUTATIONS, _WEIGHTS, k=chance.randint(1, 3)):
        data = mutation(chance, data)
    return data
