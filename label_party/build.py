"""Build one message: completed labels in, randomized codes and a manifest out.

Raw labels reach three things here and nothing else: the rounding onto the grid, the histogram that
is released with noise, and the codes. Everything in the manifest is public, or computed from the
noisy histogram.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from common.entropy import Entropy
from common.errors import PrivacyError
from common.grid import Grid
from common.guarantees import PureDP, compose
from common.randomizers import TwoStep, second_step, two_step
from common.randomizers.base import ROUNDING_STREAM
from common.release import (
    BLOCK_ROWS,
    FORMAT,
    KEY_BYTES,
    ContentSection,
    LabelSection,
    Manifest,
    PopulationSection,
    PriorSection,
    PrivacySection,
    RandomizerSection,
    block_digest,
    block_ranges,
    content_digest,
    encode_codes,
)
from label_party.config import LabelPartyConfig, decimal_value
from label_party.population import Completed

if TYPE_CHECKING:
    from label_party.drift import InForce, Trial

Progress = Callable[[int], None]


class RowWriter(Protocol):
    """Where the rows go, in order."""

    def write_rows(self, keys: bytes, codes: bytes) -> None: ...


@dataclass(frozen=True)
class Built:
    """A finished message, its rows being with the writer already.

    Attributes
    ----------
    manifest
        Everything public about it.
    manifest_bytes
        The manifest as it will be served, for ever.
    clipped
        Labels outside the domain. A fact about raw labels: it never leaves the labels party.
    """

    manifest: Manifest
    manifest_bytes: bytes
    clipped: int


def build(
    completed: Completed,
    config: LabelPartyConfig,
    entropy: Entropy,
    writer: RowWriter,
    progress: Progress = lambda rows: None,
    in_force: InForce | None = None,
) -> Built:
    """Randomize every label and describe how.

    Parameters
    ----------
    completed
        One label for each event, in row order.
    config
        Domain, privacy and randomizer; file paths are not looked at.
    entropy
        :func:`common.entropy.system_entropy`, to be destroyed by the caller afterwards.
    writer
        Receives keys and codes block by block.
    progress
        Called with the number of rows randomized since the last call.
    in_force
        A prior that earlier records paid for; a new one is paid for only if a private test says
        that the labels have drifted from it. None: pay for one.

    Raises
    ------
    PrivacyError
        If the entropy is repeatable, or the parts would spend more than was asked for.
    """
    if not entropy.secure:
        raise PrivacyError("a release needs system_entropy(); seeded entropy is for tests alone")
    rows = completed.labels.size
    privacy = config.privacy
    grid = config.domain.build(rows, privacy.epsilon)
    epsilon = _at_most(decimal_value(privacy.epsilon))
    asked: dict[str, Any] = {
        "randomizer": config.randomizer.name,
        "loss": config.randomizer.loss,
        "options": config.randomizer.options,
        "group": privacy.group,
    }
    trial = None
    if in_force is not None:
        indices, counts = _round(completed.labels, in_force.grid, entropy)
        trial = in_force.tried(counts, entropy)
        asked["spent"] = trial.spent
    if in_force is not None and trial is not None and not trial.section.drifted:
        grid = in_force.grid
        two = second_step(in_force.prior, grid, epsilon, rows, **asked)
    else:
        indices, counts = _round(completed.labels, grid, entropy)
        share = privacy.prior_share
        two = two_step(counts, grid, epsilon, entropy, prior_share=share, **asked)
    content, population = _randomize(completed, indices, two, entropy, writer, progress)
    manifest = _manifest(config, grid, two, content, population, trial)
    if not manifest.total_guarantee.within(privacy.charge):
        raise PrivacyError(
            f"the message would spend {manifest.total_guarantee}, more than {privacy.charge}"
        )
    data = manifest.to_bytes()
    Manifest.from_bytes(data)  # what the features party will check, checked before it is served
    return Built(manifest, data, grid.outside(completed.labels))


def _round(
    labels: NDArray[np.float64], grid: Grid, entropy: Entropy
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Clip and round labels; return grid indices and how many labels lie on each point."""
    indices = np.empty(labels.size, dtype=np.int32)
    counts = np.zeros(len(grid), dtype=np.int64)
    for start, stop in block_ranges(labels.size, BLOCK_ROWS):
        words = entropy.words(ROUNDING_STREAM, start, stop - start)
        indices[start:stop] = grid.round(labels[start:stop], words)
        counts += np.bincount(indices[start:stop], minlength=len(grid))
    return indices, counts


def _randomize(
    completed: Completed,
    indices: NDArray[np.int32],
    two: TwoStep,
    entropy: Entropy,
    writer: RowWriter,
    progress: Progress,
) -> tuple[ContentSection, PopulationSection]:
    channel = two.randomizer.channel
    blocks = []
    population = hashlib.sha256()
    for start, stop in block_ranges(indices.size, BLOCK_ROWS):
        codes = encode_codes(
            two.randomizer.randomize_indices(indices[start:stop], entropy, start),
            channel.code_bytes,
        )
        keys = completed.keys[start:stop].tobytes()
        population.update(keys)
        sent = b"" if completed.submitted else keys
        writer.write_rows(sent, codes)
        blocks.append(block_digest(sent, codes))
        progress(stop - start)
    content = ContentSection(
        code_bytes=2 if channel.code_bytes == 2 else 1,
        key_bytes=0 if completed.submitted else KEY_BYTES,
        block_rows=BLOCK_ROWS,
        blocks=blocks,
        digest=content_digest(blocks),
    )
    return content, PopulationSection(
        rows=indices.size,
        digest=population.hexdigest(),
        keys="submitted" if completed.submitted else "hmac-sha256-128",
    )


def _manifest(
    config: LabelPartyConfig,
    grid: Grid,
    two: TwoStep,
    content: ContentSection,
    population: PopulationSection,
    trial: Trial | None,
) -> Manifest:
    # with one record per user both units have the same neighbours; the claim names the unit asked
    unit = config.privacy.privacy_unit
    prior: PureDP = replace(two.prior.guarantee, unit=unit)
    labels: PureDP = replace(two.labels_guarantee, unit=unit)
    parts = [*([prior] if two.prior_paid else []), labels]
    if trial is not None and trial.charged is not None:
        parts.insert(0, trial.charged)
    return Manifest(
        format=FORMAT,
        software=software(),
        data_set=config.data.data_set,
        epoch=config.data.epoch,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        label=LabelSection(
            name=config.data.label, grid=grid.points.tolist(), missing=config.missing_value
        ),
        prior=PriorSection(
            noisy_counts=two.prior.noisy_counts.tolist(),
            scale=str(two.prior.scale),
            guarantee=prior.to_json(),
        ),
        randomizer=RandomizerSection(
            name=two.randomizer.name,
            loss=two.randomizer.loss.name,
            # whoever rebuilds the channel from the noisy prior needs the builder's options
            details={**two.randomizer.details, "options": config.randomizer.options},
            channel=two.randomizer.channel.to_json(),
            guarantee=labels.to_json(),
        ),
        privacy=PrivacySection(
            requested_epsilon=config.privacy.epsilon,
            records_per_unit=two.group,
            total=compose(parts).to_json(),
        ),
        population=population,
        content=content,
        drift=None if trial is None else trial.section,
    )


def software() -> str:
    """Name and version of this software, as releases and the ledger record it."""
    try:
        return f"labelveil/{version('labelveil')}"
    except PackageNotFoundError:
        return "labelveil/unknown"


def _at_most(value: Fraction) -> float:
    """Return the largest float that does not exceed a rational number."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else float(np.nextafter(nearest, 0.0))
