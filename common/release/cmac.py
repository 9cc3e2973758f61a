"""AES-CMAC of a whole column at once.

CMAC (NIST SP 800-38B, RFC 4493) chains 16-byte blocks, C_j = AES(C_{j-1} ⊕ M_j), and masks the last
one with one of two subkeys, by whether it is full. A chain is sequential, its rows are not: here
block j of *every* message goes through the cipher in one call. Messages are visited longest first,
so that those with a block j are the first so many rows.

Costs one pass of the cipher and about four passes of memory over the padded bytes.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Halves = NDArray[np.uint64]
"""(n, 2): blocks of 16 bytes as two words."""

TAG_BYTES = 16
_SLICE_ROWS = 1 << 15
"""Rows that are hashed at a time: their blocks stay in the cache from one step to the next."""


class CMAC:
    """AES-CMAC under one key.

    Parameters
    ----------
    key
        16 or 32 secret bytes: AES-128 or AES-256.
    """

    def __init__(self, key: bytes) -> None:
        self._encrypt = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        full = _double(int.from_bytes(self._encrypt.update(bytes(TAG_BYTES))))
        padded = _double(full)
        # by how many bytes the last block has: what stays of it, and what is added to it
        rows = range(TAG_BYTES + 1)
        self._keep = _words([b"\xff" * size + bytes(TAG_BYTES - size) for size in rows])
        marks = [padded ^ (0x80 << 8 * (TAG_BYTES - 1 - size)) for size in rows[:-1]]
        self._last = _words([mask.to_bytes(TAG_BYTES) for mask in (*marks, full)])

    def column(self, texts: pl.Series) -> Bytes:
        """Return the tags of a column of strings without nulls, (n, 16), each of its UTF-8."""
        tags = np.empty((texts.len(), TAG_BYTES), dtype=np.uint8)
        for start in range(0, texts.len(), _SLICE_ROWS):
            part = texts.slice(start, _SLICE_ROWS)
            lengths = part.str.len_bytes().to_numpy().astype(np.int64)
            joined = part.str.join("").item().encode()
            tags[start : start + part.len()] = self.messages(joined, lengths)
        return tags

    def messages(self, joined: bytes, lengths: NDArray[np.int64]) -> Bytes:
        """Return the tags of messages that lie one after the other, (n, 16).

        Parameters
        ----------
        joined
            All messages' bytes.
        lengths
            (n,) bytes of each; they add up to those of ``joined``.
        """
        if int(lengths.sum()) != len(joined) or (lengths < 0).any():
            raise ValueError(
                f"lengths add up to {lengths.sum()} bytes, but there are {len(joined)}"
            )
        blocks = np.maximum(-(-lengths // TAG_BYTES), 1)  # an empty message has one, empty
        starts = np.cumsum(lengths) - lengths
        order = None
        if blocks.size and blocks.min() != blocks.max():
            order = np.argsort(-blocks, kind="stable")
            lengths, starts, blocks = lengths[order], starts[order], blocks[order]
        windows = _windows(joined)
        state = np.zeros((lengths.size, 2), dtype=np.uint64)
        having = lengths.size
        for j in range(int(blocks.max(initial=0))):
            having = int(np.searchsorted(-blocks[:having], -j, side="left"))  # more blocks than j
            block = windows[starts[:having] + j * TAG_BYTES].view(np.uint64).reshape(having, 2)
            # those that end here are the last of them, since longer ones come first
            going_on = int(np.searchsorted(-blocks[:having], -(j + 1), side="left"))
            ends = lengths[going_on:having] - j * TAG_BYTES
            block[going_on:] &= self._keep[ends]
            block[going_on:] ^= self._last[ends]
            block ^= state[:having]
            chained = self._encrypt.update(memoryview(block).cast("B"))
            state[:having] = np.frombuffer(chained, dtype=np.uint64).reshape(having, 2)
        tags = state.view(np.uint8).reshape(-1, TAG_BYTES)
        if order is None:
            return tags
        found = np.empty_like(tags)
        found[order] = tags
        return found


def _windows(joined: bytes) -> NDArray[np.void]:
    """Return the 16 bytes at every place, zeros beyond the end, without copying them."""
    padded = np.frombuffer(joined + bytes(TAG_BYTES), dtype=np.uint8)
    return np.ndarray(len(joined) + 1, np.dtype((np.void, TAG_BYTES)), padded, strides=(1,))


def _double(block: int) -> int:
    """Double in GF(2^128), as RFC 4493 makes subkeys."""
    return block << 1 & (1 << 128) - 1 ^ (0x87 if block >> 127 else 0)


def _words(blocks: list[bytes]) -> Halves:
    return np.frombuffer(b"".join(blocks), dtype=np.uint64).reshape(-1, 2)
