"""A release's rows on disk, as they are sent: any of them at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from labelveil.common.errors import ReleaseError
from labelveil.common.exact.channel import Codes
from labelveil.common.files import file_errors
from labelveil.common.release.blocks import KEY_BYTES, block_ranges, decode_codes, encode_codes
from labelveil.common.release.folder import part_paths
from labelveil.common.release.manifest import Manifest, block_digest

if TYPE_CHECKING:
    import polars as pl

Keys = NDArray[np.uint8]
"""(n, 16) keys, or (n, 0) where the population was submitted."""


def keys_column(keys: bytes | memoryview | Keys) -> pl.Series:
    """Cut n times 16 bytes into a binary column of n keys."""
    import polars as pl

    table = np.frombuffer(keys, dtype=np.uint8).reshape(-1, KEY_BYTES)
    return pl.Series("key", table).arr.to_list().cast(pl.Binary)


def keys_bytes(keys: pl.Series) -> Keys:
    """Inverse of :func:`keys_column`, (n, 16) uint8; ``ReleaseError`` if a key is missing."""
    import polars as pl

    # two keys of 15 and 17 bytes would have the digest of two right ones
    if keys.null_count() or not (keys.bin.size(unit="b") == KEY_BYTES).all():
        raise ReleaseError(f"a key is not {KEY_BYTES} bytes long")
    table = keys.cast(pl.List(pl.UInt8)).list.to_array(KEY_BYTES).to_numpy()
    return np.ascontiguousarray(table, dtype=np.uint8)


@dataclass(frozen=True)
class WireRows:
    """Rows as they are sent: files of keys and of codes, each pair with its number of rows."""

    files: tuple[tuple[Path, Path, int], ...]
    key_bytes: int  # of a key; 0 without keys
    code_bytes: int

    @property
    def rows(self) -> int:
        return sum(rows for _, _, rows in self.files)

    def read(self, start: int, stop: int) -> tuple[Keys, Codes]:
        """(n, key_bytes) keys and (n,) codes of rows ``start`` … ``stop``, not verified."""
        keys, codes = self.read_bytes(start, stop)
        decoded = decode_codes(codes, self.code_bytes)
        table = np.frombuffer(keys, dtype=np.uint8)
        return table.reshape(decoded.size, self.key_bytes), decoded

    def read_bytes(self, start: int, stop: int) -> tuple[bytes, bytes]:
        """Keys and codes of these rows as they are sent."""
        keys, codes = [b""], [b""]
        firsts = accumulate((rows for _, _, rows in self.files), initial=0)
        for (key_file, code_file, rows), first in zip(self.files, firsts, strict=False):
            low, high = max(start - first, 0), min(stop - first, rows)
            if low < high:
                keys.append(_part(key_file, low, high, self.key_bytes))
                codes.append(_part(code_file, low, high, self.code_bytes))
        sent = b"".join(codes)
        if len(sent) != (stop - start) * self.code_bytes:
            raise ReleaseError(f"rows {start:,} to {stop:,} are not all on the disk; fetch again")
        return b"".join(keys), sent


def _part(path: Path, low: int, high: int, width: int) -> bytes:
    if not width:
        return b""
    with file_errors(ReleaseError, f"{path} cannot be read"), path.open("rb") as file:
        file.seek(low * width)
        data = file.read((high - low) * width)
    if len(data) != (high - low) * width:
        raise ReleaseError(f"{path} is shorter than it was; fetch again")
    return data


def read_keys(path: Path, start: int, stop: int) -> Keys:
    """(n, 16) keys ``start`` … ``stop`` of a file; ``ReleaseError`` if it ends too early."""
    return np.frombuffer(_part(path, start, stop, KEY_BYTES), dtype=np.uint8).reshape(-1, KEY_BYTES)


def open_rows(folder: Path, manifest: Manifest) -> WireRows:
    """Find a release's rows without reading them.

    ``ReleaseError`` if files of keys and codes are not of the same rows, or those are too many.
    """
    content, most = manifest.content, manifest.rows
    parts: list[tuple[Path, Path, int]] = []
    keys = codes = 0
    while (paths := part_paths(folder, len(parts)))[1].is_file():
        sizes = []
        for path in paths:
            with file_errors(ReleaseError, f"{path} cannot be read"):
                sizes.append(path.stat().st_size)
        keys, codes = keys + sizes[0], codes + sizes[1]
        parts.append((*paths, sizes[1] // content.code_bytes))
    rows = sum(count for _, _, count in parts)
    if rows > most or (keys, codes) != (rows * content.key_bytes, rows * content.code_bytes):
        raise ReleaseError(
            f"{folder} has {keys:,} bytes of keys and {codes:,} of codes; its manifest says"
            f" {most:,} rows of {content.key_bytes} and {content.code_bytes} bytes"
        )
    return WireRows(tuple(parts), content.key_bytes, content.code_bytes)


def verify_blocks(
    keys: Keys,
    codes: Codes,
    blocks: Sequence[str],
    block_rows: int,
    code_bytes: int,
    first: int = 0,
) -> None:
    """Compare rows with their blocks' digests; ``first`` is the number of the first row."""
    for (start, stop), digest in zip(block_ranges(codes.size, block_rows), blocks, strict=True):
        sent = encode_codes(codes[start:stop], code_bytes)
        if block_digest(keys[start:stop].data, sent) != digest:
            raise ReleaseError(
                f"rows {first + start:,} to {first + stop:,} do not match the manifest's digest;"
                " fetch again"
            )
