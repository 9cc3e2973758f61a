"""AES-CMAC of a whole column at once.

CMAC (NIST SP 800-38B, RFC 4493) chains 16-byte blocks, C_j = AES(C_{j-1} ⊕ M_j), and masks the last
one with one of two subkeys, by whether it is full. A chain is sequential, its rows are not: here
block j of *every* message goes through the cipher in one call. Messages are visited longest first,
so that those with a block j are the first rows.

Costs one pass of the cipher and about four passes of memory over the padded bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

if TYPE_CHECKING:
    import polars as pl

Bytes = NDArray[np.uint8]
Blocks = NDArray[np.complex128]
"""(n,) blocks: NumPy moves 16 bytes fastest as if they were one number. Nothing is computed."""

TAG_BYTES = 16
_SLICE_ROWS = 1 << 15
"""Rows that are hashed at a time: their blocks stay in the cache from one step to the next."""


class CMAC:
    """AES-CMAC under one key of 16 or 32 secret bytes: AES-128 or AES-256."""

    def __init__(self, key: bytes) -> None:
        self._encrypt = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        full = _double(int.from_bytes(self._encrypt.update(bytes(TAG_BYTES))))
        padded = _double(full)
        # by how many bytes the last block has: what stays of it, and what is added to it
        rows = range(TAG_BYTES + 1)
        self._keep = _blocks(b"\xff" * size + bytes(TAG_BYTES - size) for size in rows)
        marks = [padded ^ (0x80 << 8 * (TAG_BYTES - 1 - size)) for size in rows[:-1]]
        self._last = _blocks(mask.to_bytes(TAG_BYTES) for mask in (*marks, full))

    def column(self, keys: pl.Series) -> Bytes:
        """(n, 16) tags of text in UTF-8, or of whole numbers in decimal digits, without nulls."""
        import polars as pl

        tags = np.empty((keys.len(), TAG_BYTES), dtype=np.uint8)
        for start in range(0, keys.len(), _SLICE_ROWS):
            part = keys.slice(start, _SLICE_ROWS).cast(pl.String)
            joined = part.str.join("").item().encode()
            lengths = part.str.len_bytes().to_numpy().astype(np.int64)
            tags[start : start + part.len()] = self.messages(joined, lengths)
        return tags

    def messages(self, joined: bytes, lengths: NDArray[np.int64]) -> Bytes:
        """(n, 16) tags of messages that lie one after the other, of (n,) lengths in bytes."""
        if int(lengths.sum()) != len(joined) or (lengths < 0).any():
            raise ValueError(
                f"lengths add up to {lengths.sum()} bytes, but there are {len(joined)}"
            )
        blocks = np.maximum(-(-lengths // TAG_BYTES), 1)  # an empty message has one, empty
        places = np.cumsum(lengths) - lengths
        last = lengths - TAG_BYTES * (blocks - 1)
        most, order = int(blocks.max(initial=1)), None
        if blocks.min(initial=most) < most:
            # of a narrow type, for which NumPy has a radix sort
            fewer = (most - blocks).astype(np.min_scalar_type(most))
            order = np.argsort(fewer, kind="stable")
            places, last = places[order], last[order]
        having = np.cumsum(np.bincount(blocks, minlength=most + 2)[::-1])[::-1]
        # the 16 bytes at every place, zeros beyond the end, without a copy
        padded = np.frombuffer(joined + bytes(TAG_BYTES), dtype=np.uint8)
        kind = np.dtype((np.void, TAG_BYTES))
        windows = np.ndarray(len(joined) + 1, kind, padded, strides=(1,))
        tags = np.zeros(lengths.size + 1, dtype=np.complex128)  # the cipher asks for a spare one
        for j in range(most):
            rows, going_on = having[j + 1], having[j + 2]
            block = windows[places[:rows] + j * TAG_BYTES].view(np.complex128)
            ends = last[going_on:rows]
            words = _words(block)
            words[going_on:] &= _words(self._keep[ends])
            words[going_on:] ^= _words(self._last[ends])
            words ^= _words(tags[:rows])
            self._encrypt.update_into(_bytes(block).data, _bytes(tags[: rows + 1]).data)
        tags = tags[:-1]
        if order is not None:
            tags[order] = tags.copy()
        return _bytes(tags).reshape(-1, TAG_BYTES)


def _double(block: int) -> int:
    """Double in GF(2^128), as RFC 4493 makes subkeys."""
    return block << 1 & (1 << 128) - 1 ^ (0x87 if block >> 127 else 0)


def _blocks(parts: Iterable[bytes]) -> Blocks:
    return np.frombuffer(b"".join(parts), dtype=np.complex128)


def _words(blocks: Blocks) -> NDArray[np.uint64]:
    return blocks.view(np.uint64).reshape(-1, 2)


def _bytes(blocks: Blocks) -> Bytes:
    return blocks.view(np.uint8)
