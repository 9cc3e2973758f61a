"""A release in memory: its rows as a table, read, verified and written as they are sent."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError, ReleaseError
from labelveil.common.exact.channel import Codes
from labelveil.common.files import PUBLIC, appearing, sync
from labelveil.common.release.blocks import encode_codes
from labelveil.common.release.folder import (
    CODES_FILE,
    KEYS_FILE,
    LABELS_FILE,
    MANIFEST_FILE,
    read_manifest,
    withdrawn_reason,
)
from labelveil.common.release.manifest import Manifest, naming_manifest
from labelveil.common.release.rows import Keys, keys_bytes, keys_column, open_rows, verify_blocks


@dataclass(frozen=True, eq=False)
class Release:
    """A verified release in memory."""

    manifest: Manifest
    manifest_bytes: bytes
    """The exact bytes that the digest and the signature are over."""
    labels: pl.DataFrame
    """One row an event: ``key`` (16 bytes, null column if the population was submitted), ``code``
    (unsigned integer), and of a release of one label ``label`` (float64, the output that the code
    stands for)."""

    @property
    def codes(self) -> Codes:
        """(n,) uint16 output indices."""
        return self.labels["code"].to_numpy().astype(np.uint16)

    def write(self, directory: Path) -> None:
        """Write it as :func:`write_release` does."""
        content, keys = self.manifest.content, b""
        if content.key_bytes:
            keys = keys_bytes(self.labels["key"]).tobytes()
        codes = encode_codes(self.codes, content.code_bytes)
        write_release(directory, self.manifest_bytes, keys, codes)

    def __getitem__(self, name: str) -> SentLabel:
        """One label alone, for a model of it."""
        if name not in self.manifest.names:
            raise ConfigError(f"label={name!r} must be one of {', '.join(self.manifest.names)}")
        return SentLabel(self, name)


@dataclass(frozen=True)
class SentLabel:
    """One label of a release."""

    release: Release
    name: str

    @property
    def codes(self) -> Codes:
        """(n,) uint16 what the channel of this label, and maybe of others, sent."""
        books = self.release.manifest.codebooks
        return books.codes_of(self.name)[self.release.codes].astype(np.uint16)


def labels_frame(manifest: Manifest, keys: bytes | Keys, codes: Codes) -> pl.DataFrame:
    """Rows of a release (or a part of it) as a table."""
    column = pl.Series([None], dtype=pl.Binary).new_from_index(0, codes.size)
    return pl.DataFrame(
        {
            "key": keys_column(keys) if manifest.content.key_bytes else column,
            "code": pl.Series(codes, dtype=pl.UInt16),
            **stands_for(manifest, codes),
        }
    )


def stands_for(manifest: Manifest, codes: Codes) -> dict[str, Floats]:
    """Columns of what codes stand for: ``label``, where that is one number; NaN beyond outputs.

    The codes of several labels are told apart by :meth:`Codebook.split`.
    """
    if len(manifest.labels) > 1:
        return {}
    each = [made.channel["outputs"] for made in manifest.randomizers]
    outputs = np.append(np.concatenate(each).astype(float), np.nan)
    return {"label": outputs[np.minimum(codes, outputs.size - 1)]}


def read_release(directory: str | Path) -> Release:
    """Read and verify a release directory, as it was fetched or as a store keeps it.

    One that its labels party has withdrawn is read, with a ``UserWarning`` that says why.

    Raises
    ------
    ReleaseError
        If a file is missing or damaged, or the rows do not give the manifest's digests.
    """
    directory = Path(directory)
    if (reason := withdrawn_reason(directory)) is not None:
        warnings.warn(f"the release in {directory} was withdrawn: {reason}", stacklevel=2)
    data = read_manifest(directory)
    with naming_manifest(directory):
        manifest = Manifest.from_bytes(data)
    manifest.check_codes()
    content, population = manifest.content, manifest.population
    rows = open_rows(directory, manifest)
    if rows.rows != population.rows:
        raise ReleaseError(f"{directory} has {rows.rows:,} rows instead of {population.rows:,}")
    keys, codes = rows.read(0, rows.rows)
    verify_blocks(keys, codes, content.blocks, content.block_rows, content.code_bytes)
    if content.key_bytes and hashlib.sha256(keys.data).hexdigest() != population.digest:
        raise ReleaseError("the keys do not give the manifest's population digest")
    if int(codes.max()) >= manifest.codebooks.outputs:
        raise ReleaseError(
            f"code {int(codes.max())} is outside the {manifest.codebooks.outputs} outputs"
        )
    return Release(manifest, data, labels_frame(manifest, keys, codes))


def read_labels(directory: Path, manifest: Manifest) -> pl.DataFrame:
    """Read a release's rows without verifying them."""
    rows = open_rows(directory, manifest)
    return labels_frame(manifest, *rows.read(0, rows.rows))


def write_release(directory: Path, manifest_bytes: bytes, keys: bytes, codes: bytes) -> None:
    """Write a release directory, so that after a crash it is complete, or has no manifest.

    Keys and codes are bytes as they are sent; ``ReleaseError`` if they cannot be written.
    """
    manifest = directory / MANIFEST_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (  # the one named last gets its name last
            appearing(manifest, mode=PUBLIC) as new_manifest,
            appearing(directory / CODES_FILE, mode=PUBLIC) as new_codes,
            appearing(directory / KEYS_FILE, mode=PUBLIC) as new_keys,
        ):
            files = (new_keys, new_codes, new_manifest)
            for file, data in zip(files, (keys, codes, manifest_bytes), strict=True):
                file.write(data)
                sync(file)
            for name in (MANIFEST_FILE, LABELS_FILE):  # older ones, which the rows contradict
                (directory / name).unlink(missing_ok=True)
        sync(directory)
    except OSError as error:
        raise ReleaseError(f"{directory} cannot be written: {error}") from error
