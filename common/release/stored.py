"""The rows of a release as a labels party's store keeps them: the bytes that it sends, in parts.

keys.bin, codes.bin                   the first part; no key has a byte if the features party
                                      submitted the population
keys-000001.bin, codes-000001.bin     the next one, and so on
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from common.errors import ReleaseError
from common.release.blocks import decode_codes, keys_column
from common.release.manifest import Manifest

KEYS_FILE = "keys.bin"
CODES_FILE = "codes.bin"


def part_paths(folder: Path, part: int) -> tuple[Path, Path]:
    """Files of a part's keys and codes."""
    if part == 0:
        return folder / KEYS_FILE, folder / CODES_FILE
    return folder / f"keys-{part:06}.bin", folder / f"codes-{part:06}.bin"


def read_stored_labels(folder: Path, manifest: Manifest) -> pl.DataFrame:
    """Read a stored release's rows as a labels file has them, without verifying them.

    A code beyond the outputs stands for NaN.

    Raises
    ------
    ReleaseError
        If a file cannot be read, keys and codes are not of the same rows, or those are too many.
    """
    content, most = manifest.content, manifest.population.rows
    parts: list[tuple[Path, Path]] = []
    while (paths := part_paths(folder, len(parts)))[1].is_file():
        parts.append(paths)
    try:
        sizes = [sum(path.stat().st_size for path in files) for files in zip(*parts, strict=True)]
        rows = sizes[1] // content.code_bytes
        if rows > most or sizes != [rows * content.key_bytes, rows * content.code_bytes]:
            raise ReleaseError(
                f"{folder} has {sizes[0]:,} bytes of keys and {sizes[1]:,} of codes; its manifest"
                f" says {most:,} rows of {content.key_bytes} and {content.code_bytes} bytes"
            )
        keys, data = (
            b"".join(path.read_bytes() for path in files) for files in zip(*parts, strict=True)
        )
    except OSError as error:
        raise ReleaseError(f"{folder} cannot be read: {error.strerror}") from error
    codes = decode_codes(data, content.code_bytes)
    outputs = np.append(np.asarray(manifest.randomizer.channel["outputs"], dtype=float), np.nan)
    column = pl.Series([None], dtype=pl.Binary).new_from_index(0, rows)
    return pl.DataFrame(
        {
            "key": keys_column(keys) if content.key_bytes else column,
            "code": pl.Series(codes, dtype=pl.UInt16),
            "label": outputs[np.minimum(codes, outputs.size - 1)],
        }
    )
