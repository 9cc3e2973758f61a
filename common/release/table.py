"""A release's rows as a table: from their wire bytes, to and from Parquet, verified."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.arrays import Floats
from common.errors import ConfigError, ReleaseError
from common.exact.channel import Codes
from common.files import PUBLIC, appearing, sync
from common.release.blocks import decode_codes
from common.release.folder import LABELS_FILE, MANIFEST_FILE, read_manifest
from common.release.manifest import Manifest
from common.release.rows import WireRows, keys_bytes, keys_column, open_rows, verify_blocks

_SCHEMA = {"key": pl.Binary, "code": pl.UInt16}


@dataclass(frozen=True)
class Release:
    """A verified release in memory.

    Attributes
    ----------
    manifest
        Its manifest.
    manifest_bytes
        The exact bytes that the digest and the signature are over.
    labels
        One row an event: ``key`` (16 bytes, null column if the population was submitted), ``code``
        (unsigned integer), and of a release of one label ``label`` (float64, the output that the
        code stands for).
    """

    manifest: Manifest
    manifest_bytes: bytes
    labels: pl.DataFrame

    @property
    def codes(self) -> Codes:
        """(n,) uint16 output indices."""
        return self.labels["code"].to_numpy().astype(np.uint16)

    def __getitem__(self, name: str) -> SentLabel:
        """One label alone, for a model of it."""
        if name not in self.manifest.names:
            raise ConfigError(f"label={name!r} must be one of {', '.join(self.manifest.names)}")
        return SentLabel(self, name)


@dataclass(frozen=True)
class SentLabel:
    """One label of a release.

    Attributes
    ----------
    release
        With all its labels.
    name
        The label's.
    """

    release: Release
    name: str

    @property
    def codes(self) -> Codes:
        """(n,) uint16 what the channel of this label, and maybe of others, sent."""
        book = self.release.manifest.codebook
        return book.split(self.release.codes)[:, book.for_label(self.name).column]


def labels_frame(manifest: Manifest, keys: bytes, codes: bytes) -> pl.DataFrame:
    """Rows of a release (or a part of it) as a table, from their wire bytes."""
    decoded = decode_codes(codes, manifest.content.code_bytes)
    _check_codes(manifest, decoded)
    if len(keys) != decoded.size * manifest.content.key_bytes:
        raise ReleaseError(f"{len(keys):,} bytes of keys for {decoded.size:,} rows")
    column = pl.Series([None], dtype=pl.Binary).new_from_index(0, decoded.size)
    if manifest.content.key_bytes:
        column = keys_column(keys)
    return pl.DataFrame(
        {
            "key": column,
            "code": pl.Series(decoded, dtype=pl.UInt16),
            **stands_for(manifest, decoded),
        }
    )


def stands_for(manifest: Manifest, codes: Codes) -> dict[str, Floats]:
    """Columns of what codes stand for: ``label``, where that is one number; NaN beyond outputs.

    The codes of several labels are told apart by :meth:`Codebook.split`.
    """
    if len(manifest.labels) > 1:
        return {}
    outputs = np.append(np.asarray(manifest.randomizer.channel["outputs"], dtype=float), np.nan)
    return {"label": outputs[np.minimum(codes, outputs.size - 1)]}


def _check_codes(manifest: Manifest, codes: Codes) -> None:
    outputs = manifest.codebook.outputs
    if codes.size and int(codes.max()) >= outputs:
        raise ReleaseError(f"code {int(codes.max())} is outside the {outputs} outputs")


def read_release(directory: str | Path) -> Release:
    """Read and verify a release directory, as it was fetched or as a store keeps it.

    Raises
    ------
    ReleaseError
        If a file is missing or damaged, or the rows do not give the manifest's digests.
    """
    directory = Path(directory)
    data = read_manifest(directory)
    manifest = Manifest.from_bytes(data)
    labels = read_labels(directory, manifest)
    verify_rows(manifest, labels)
    return Release(manifest, data, labels)


def read_labels(directory: Path, manifest: Manifest) -> pl.DataFrame:
    """Read a release's rows, fetched or stored, without verifying them.

    Raises
    ------
    ReleaseError
        If files of keys and codes are not of the same rows; or the labels file is no Parquet file,
        has other columns than a labels file, or too many rows: it is asked before anything is
        decoded, for a few bytes can stand for any number of rows.
    """
    if isinstance(found := open_rows(directory, manifest), WireRows):
        return _table(manifest, found)
    path = found.path
    try:
        file = pl.scan_parquet(path)
        _check_columns(manifest, file.collect_schema())
        rows = file.select(pl.len()).collect().item()
        if rows > manifest.population.rows:
            raise ReleaseError(f"{path}: {rows:,} rows instead of {manifest.population.rows:,}")
        labels = file.collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        reason = " ".join(str(error).split())
        raise ReleaseError(f"{path} cannot be read as Parquet: {reason:.300}") from error
    _check_complete(labels)
    return labels


def _table(manifest: Manifest, rows: WireRows) -> pl.DataFrame:
    """Read rows as they were sent."""
    keys, codes = rows.read(0, rows.rows)
    column = pl.Series([None], dtype=pl.Binary).new_from_index(0, rows.rows)
    return pl.DataFrame(
        {
            "key": keys_column(keys) if rows.key_bytes else column,
            "code": pl.Series(codes, dtype=pl.UInt16),
            **stands_for(manifest, codes),
        }
    )


def _check_columns(manifest: Manifest, schema: Mapping[str, object]) -> None:
    label = {"label": pl.Float64} if len(manifest.labels) == 1 else {}
    if dict(schema) != _SCHEMA | label:
        raise ReleaseError(
            f"columns {dict(schema)!s:.300} instead of a binary key, a UInt16 code"
            + (" and a label" if label else "")
        )


def _check_complete(labels: pl.DataFrame) -> None:
    if any(labels[name].null_count() for name in labels.columns if name != "key"):
        raise ReleaseError("a code or label is missing")


def verify_rows(manifest: Manifest, labels: pl.DataFrame) -> None:
    """Check a release's rows against its manifest's count, block digests and population digest."""
    if labels.height != manifest.population.rows:
        raise ReleaseError(f"{labels.height:,} rows instead of {manifest.population.rows:,}")
    _check_columns(manifest, labels.schema)
    _check_complete(labels)
    keyed = manifest.content.key_bytes > 0
    if not keyed and labels["key"].null_count() != labels.height:
        raise ReleaseError("keys in a release whose population was submitted; it has none")
    table = keys_bytes(labels["key"]) if keyed else np.empty((labels.height, 0), dtype=np.uint8)
    codes = labels["code"].to_numpy()
    _verify_digests(manifest, table, codes)
    _check_codes(manifest, codes)
    for name, values in stands_for(manifest, codes).items():
        if not np.array_equal(labels[name].to_numpy(), values):
            raise ReleaseError("the label column is not what the codes stand for")


def _verify_digests(manifest: Manifest, keys: NDArray[np.uint8], codes: Codes) -> None:
    content = manifest.content
    verify_blocks(keys, codes, content.blocks, content.block_rows, content.code_bytes)
    if content.key_bytes and hashlib.sha256(keys.data).hexdigest() != manifest.population.digest:
        raise ReleaseError("the keys do not give the manifest's population digest")


def write_release(directory: Path, manifest_bytes: bytes, labels: pl.DataFrame) -> None:
    """Write a release directory, so that after a crash it is complete, or has no manifest.

    Raises
    ------
    ReleaseError
        If the directory cannot be written.
    """
    manifest = directory / MANIFEST_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (  # the one named last gets its name last
            appearing(manifest, mode=PUBLIC) as new_manifest,
            appearing(directory / LABELS_FILE, mode=PUBLIC) as new_rows,
        ):
            labels.write_parquet(new_rows, compression="zstd")
            new_manifest.write(manifest_bytes)
            sync(new_rows)
            sync(new_manifest)
            manifest.unlink(missing_ok=True)  # an older one, which the new rows would contradict
        sync(directory)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ReleaseError(f"{directory} cannot be written: {error}") from error
