"""The message: a manifest of everything public, and one code (with its key) for every event.

A release is immutable. Its content is a sequence of rows, a 16-byte key (absent where the features
party submitted the population) and a code of one or two little-endian bytes. It is cut into blocks
of ``block_rows`` rows; a block's digest is SHA-256 over its keys followed by its codes, and the
content's digest is SHA-256 over all block digests, so that blocks can be verified one by one as
they arrive and computed in parallel. The manifest holds those digests; the release is identified by
SHA-256 over the manifest's own bytes, which are written once and never re-serialised.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.channel import Codes, FiniteChannel
from common.errors import ReleaseError
from common.guarantees import Guarantee, PureDP, compose, guarantee_from_json
from common.randomizers import NoisyPrior

FORMAT = "labelveil-release/1"
KEY_BYTES = 16
BLOCK_ROWS = 1 << 16
MANIFEST_FILE = "manifest.json"
LABELS_FILE = "labels.parquet"
SIGNATURE_FILE = "manifest.sig"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LabelSection(_Section):
    """What is public about a label: its name, bounds, grid and the value of a missing one."""

    name: str
    grid: list[float]
    missing: float


class PriorSection(_Section):
    """The released histogram over the grid."""

    noisy_counts: list[int]
    noise: Literal["discrete-laplace"] = "discrete-laplace"
    scale: str
    """Scale of the noise on each cell, a rational number."""
    guarantee: dict[str, Any]


class RandomizerSection(_Section):
    """The randomizer and its exact channel from the grid to the outputs."""

    name: str
    loss: str
    details: dict[str, Any]
    channel: dict[str, Any]
    guarantee: dict[str, Any]
    """Of all labels of one privacy unit."""


class PrivacySection(_Section):
    """The claim: what one privacy unit spends by this release."""

    requested_epsilon: float
    records_per_unit: int = Field(ge=1)
    total: dict[str, Any]


class PopulationSection(_Section):
    """Which events the release covers, in which order."""

    rows: int = Field(ge=1)
    digest: str
    """SHA-256 over the 16-byte keys in row order, hexadecimal."""
    keys: Literal["hmac-sha256-128", "submitted"]
    """``submitted``: rows are in the order of the features party's own key list, without keys."""


class ContentSection(_Section):
    """How the rows are laid out, and their digests."""

    code_bytes: Literal[1, 2]
    key_bytes: Literal[0, 16]
    block_rows: int = Field(ge=1)
    blocks: list[str]
    digest: str


class Manifest(_Section):
    """Everything that is public about one release."""

    format: Literal["labelveil-release/1"]
    software: str
    data_set: str
    epoch: str
    created: str
    """UTC, ISO 8601, to the second."""
    label: LabelSection
    prior: PriorSection
    randomizer: RandomizerSection
    privacy: PrivacySection
    population: PopulationSection
    content: ContentSection

    @property
    def channel(self) -> FiniteChannel:
        """The exact channel, rebuilt and validated."""
        return FiniteChannel.from_json(self.randomizer.channel)

    @property
    def noisy_prior(self) -> NDArray[np.float64]:
        """(k,) released prior over the grid: clipped at 0, normalised."""
        guarantee = self.prior_guarantee
        counts = np.asarray(self.prior.noisy_counts, dtype=np.int64)
        return NoisyPrior(counts, guarantee.exact_epsilon).probabilities

    @property
    def prior_guarantee(self) -> PureDP:
        return _pure(self.prior.guarantee)

    @property
    def labels_guarantee(self) -> PureDP:
        return _pure(self.randomizer.guarantee)

    @property
    def total_guarantee(self) -> Guarantee:
        return guarantee_from_json(self.privacy.total)

    def to_bytes(self) -> bytes:
        """Canonical JSON: sorted keys, no white space beyond line breaks' absence, UTF-8."""
        data = self.model_dump(mode="json")
        return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Parse a manifest and check every claim that it makes about itself.

        Raises
        ------
        ReleaseError
            If it is malformed, or if a claimed guarantee is not what its own integers give.
        """
        try:
            manifest = cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ReleaseError(
                f"the manifest is not a {FORMAT} manifest: {where or 'document'}: {first['msg']}"
            ) from error
        manifest.check()
        return manifest

    def check(self) -> None:
        """Recompute every guarantee from the manifest's integers, exactly."""
        channel, k = self.channel, len(self.label.grid)
        if channel.inputs.tolist() != self.label.grid:
            raise ReleaseError("the manifest's channel is not defined on the manifest's label grid")
        if len(self.prior.noisy_counts) != k:
            raise ReleaseError(
                f"the prior has {len(self.prior.noisy_counts)} cells for {k} grid points"
            )
        group = self.privacy.records_per_unit
        derived = PureDP.of_channel(channel, self.labels_guarantee.unit).scale(group)
        if derived != self.labels_guarantee:
            raise ReleaseError(
                f"the channel's weights give {derived}, but the manifest claims"
                f" {self.labels_guarantee} for the labels"
            )
        if Fraction(self.prior.scale) * self.prior_guarantee.exact_epsilon != 2 * group:
            raise ReleaseError(
                f"prior noise of scale {self.prior.scale} does not give"
                f" {self.prior_guarantee}: scale times epsilon must be {2 * group}"
            )
        total = compose([self.prior_guarantee, self.labels_guarantee])
        if total != self.total_guarantee:
            raise ReleaseError(f"the parts add up to {total}, not {self.total_guarantee}")
        blocks = -(-self.population.rows // self.content.block_rows)
        if len(self.content.blocks) != blocks:
            raise ReleaseError(f"{len(self.content.blocks)} block digests for {blocks} blocks")
        if content_digest(self.content.blocks) != self.content.digest:
            raise ReleaseError("the block digests do not give the content digest")
        if self.content.code_bytes != channel.code_bytes:
            raise ReleaseError(
                f"codes of {self.content.code_bytes} bytes for {channel.outputs.size} outputs"
            )


def manifest_digest(data: bytes) -> str:
    """SHA-256 of a manifest's bytes, hexadecimal: the identity of a release."""
    return hashlib.sha256(data).hexdigest()


def content_digest(blocks: Iterable[str]) -> str:
    """SHA-256 over the block digests, hexadecimal."""
    return hashlib.sha256(b"".join(bytes.fromhex(block) for block in blocks)).hexdigest()


def block_digest(keys: bytes | memoryview, codes: bytes | memoryview) -> str:
    """SHA-256 over one block's keys followed by its codes, hexadecimal."""
    digest = hashlib.sha256(keys)
    digest.update(codes)
    return digest.hexdigest()


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
        (unsigned integer), ``label`` (float64, the output that the code stands for).
    """

    manifest: Manifest
    manifest_bytes: bytes
    labels: pl.DataFrame

    @property
    def codes(self) -> Codes:
        """(n,) uint16 output indices."""
        return self.labels["code"].to_numpy().astype(np.uint16)


def labels_frame(manifest: Manifest, keys: bytes, codes: bytes) -> pl.DataFrame:
    """Rows of a release (or a part of it) as a table, from their wire bytes."""
    outputs = manifest.channel.outputs
    decoded = decode_codes(codes, manifest.content.code_bytes)
    if decoded.size and int(decoded.max()) >= outputs.size:
        raise ReleaseError(f"code {int(decoded.max())} is outside the {outputs.size} outputs")
    column: list[bytes | None] = [None] * decoded.size
    if manifest.content.key_bytes:
        column = [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
    return pl.DataFrame(
        {
            "key": pl.Series(column, dtype=pl.Binary),
            "code": pl.Series(decoded, dtype=pl.UInt16),
            "label": pl.Series(outputs[decoded], dtype=pl.Float64),
        }
    )


def read_release(directory: Path) -> Release:
    """Read and verify a release directory: ``manifest.json`` and ``labels.parquet``.

    Raises
    ------
    ReleaseError
        If a file is missing or damaged, or the rows do not give the manifest's digests.
    """
    manifest_path, labels_path = directory / MANIFEST_FILE, directory / LABELS_FILE
    for path in (manifest_path, labels_path):
        if not path.is_file():
            raise ReleaseError(f"{path} is missing; {directory} is not a complete release")
    data = manifest_path.read_bytes()
    manifest = Manifest.from_bytes(data)
    try:
        labels = pl.read_parquet(labels_path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ReleaseError(f"{labels_path} cannot be read as Parquet: {error}") from error
    verify_rows(manifest, labels)
    return Release(manifest, data, labels)


def verify_rows(manifest: Manifest, labels: pl.DataFrame) -> None:
    """Check a release's rows against its manifest's count, block digests and population digest."""
    if labels.height != manifest.population.rows:
        raise ReleaseError(f"{labels.height:,} rows instead of {manifest.population.rows:,}")
    codes = labels["code"].to_numpy().astype(np.uint16)
    keyed = manifest.content.key_bytes > 0
    population = hashlib.sha256()
    ranges = block_ranges(labels.height, manifest.content.block_rows)
    for index, (start, stop) in enumerate(ranges):
        keys = b"".join(labels["key"][start:stop].to_list()) if keyed else b""
        population.update(keys)
        part = encode_codes(codes[start:stop], manifest.content.code_bytes)
        if block_digest(keys, part) != manifest.content.blocks[index]:
            raise ReleaseError(
                f"rows {start:,} to {stop:,} do not match the manifest's digest; fetch again"
            )
    if keyed and population.hexdigest() != manifest.population.digest:
        raise ReleaseError("the keys do not give the manifest's population digest")
    outputs = manifest.channel.outputs
    if not np.array_equal(labels["label"].to_numpy(), outputs[codes]):
        raise ReleaseError("the label column is not what the codes stand for")


def write_release(directory: Path, manifest_bytes: bytes, labels: pl.DataFrame) -> None:
    """Write a release directory; the manifest comes last, so a partial one is recognisable."""
    directory.mkdir(parents=True, exist_ok=True)
    labels.write_parquet(directory / LABELS_FILE, compression="zstd")
    (directory / MANIFEST_FILE).write_bytes(manifest_bytes)


def _pure(data: dict[str, Any]) -> PureDP:
    guarantee = guarantee_from_json(data)
    if not isinstance(guarantee, PureDP):
        raise ReleaseError(f"a {guarantee.kind} guarantee where a pure one is expected")
    return guarantee
