"""Build one message: completed labels in, randomized codes and a manifest out.

Raw labels reach three things here and nothing else: the rounding onto the grid, the histogram that
is released with noise, and the codes. Everything in the manifest is public, or computed from the
noisy histogram.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from common.arrays import Integers
from common.entropy import Entropy
from common.errors import PrivacyError
from common.exact.rational import decimal_value
from common.guarantees import PureDP, compose
from common.randomizers import Randomizer, Recipe, TwoStep, one_step, second_step, two_step
from common.randomizers.cells import Cells, Codebook, Group
from common.randomizers.grid import Grid
from common.release.blocks import KEY_BYTES
from common.release.claims import CMAC_KEYS, HMAC_KEYS, KeyFunction
from common.release.manifest import FORMAT, Manifest, content_digest
from common.release.sections import (
    ContentSection,
    LabelSection,
    PopulationSection,
    PriorSection,
    StatedPrivacy,
    StatedRandomizer,
)
from common.version import software
from label_party.config.sections import LabelPartyConfig
from label_party.events.row_ranges import RowWriter, block_rows_for

if TYPE_CHECKING:
    from label_party.release.drift import DriftOutcome, InForce

Progress = Callable[[int], None]

_SUBMITTED: Final[Mapping[KeyFunction, Literal["submitted", "submitted-aes-256-cmac-128"]]] = {
    CMAC_KEYS: "submitted-aes-256-cmac-128",
    HMAC_KEYS: "submitted",
}


class Events(Protocol):
    """Completed labels of each event, in row order, wherever they lie."""

    @property
    def rows(self) -> int: ...
    @property
    def submitted(self) -> bool: ...
    @property
    def function(self) -> KeyFunction: ...
    def count(self, groups: Sequence[Group], entropy: Entropy) -> list[Integers]: ...
    def randomize(
        self,
        codebook: Codebook,
        entropy: Entropy,
        writer: RowWriter,
        block_rows: int,
        progress: Progress,
    ) -> tuple[list[str], str]: ...


@dataclass(frozen=True)
class Built:
    """A finished message, its rows being with the writer already.

    Attributes
    ----------
    manifest
        Everything public about it.
    manifest_bytes
        The manifest as it will be served, forever.
    """

    manifest: Manifest
    manifest_bytes: bytes


def build(
    events: Events,
    config: LabelPartyConfig,
    entropy: Entropy,
    writer: RowWriter,
    progress: Progress = lambda rows: None,
    in_force: InForce | None = None,
) -> Built:
    """Randomize every label and describe how.

    Parameters
    ----------
    events
        One label for each event, in row order.
    config
        Domain, privacy and randomizer; file paths are not looked at.
    entropy
        :func:`common.entropy.system_entropy`, to be destroyed by the caller afterwards.
    writer
        Receives keys and codes.
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
    privacy = config.privacy
    grid = config.only_label.domain.build(events.rows, privacy.epsilon)
    epsilon = _at_most(decimal_value(privacy.epsilon))
    recipe, drift = config.recipe, None
    if recipe.needs_prior(grid):
        two, drift = _with_prior(events, grid, epsilon, recipe, in_force, entropy)
        content, population = _randomize(events, config, two.randomizer, entropy, writer, progress)
    else:
        codes = _Codes(writer, len(grid))
        randomizer = recipe.respond(grid, epsilon, events.rows)
        content, population = _randomize(events, config, randomizer, entropy, codes, progress)
        two = one_step(randomizer, codes.counts, epsilon, privacy.group)
    manifest = _manifest(config, two, content, population, drift)
    if not manifest.total_guarantee.within(privacy.charge):
        raise PrivacyError(
            f"the message would spend {manifest.total_guarantee}, more than {privacy.charge}"
        )
    data = manifest.to_bytes()
    Manifest.from_bytes(data)  # what the features party will check, checked before it is served
    return Built(manifest, data)


def _with_prior(
    events: Events,
    grid: Grid,
    epsilon: float,
    recipe: Recipe,
    in_force: InForce | None,
    entropy: Entropy,
) -> tuple[TwoStep, DriftOutcome | None]:
    """Pay for a prior, or test whether the one in force still fits."""
    drift = None
    if in_force is not None:
        (counts,) = events.count([_alone(in_force.grid)], entropy)
        drift = in_force.test_for_drift(counts, entropy)
        recipe = replace(recipe, spent=drift.spent)
        if not drift.section.drifted:
            two = second_step(in_force.prior, in_force.grid, epsilon, events.rows, recipe)
            return two, drift
    (counts,) = events.count([_alone(grid)], entropy)
    return two_step(counts, grid, epsilon, entropy, recipe), drift


def _alone(grid: Grid) -> Group:
    return Group((0,), Cells((grid,)))


class _Codes:
    """A writer that counts the codes, of one byte each, on their way."""

    def __init__(self, writer: RowWriter, outputs: int) -> None:
        self._writer = writer
        self.counts = np.zeros(outputs, dtype=np.int64)

    def write_rows(self, keys: bytes, codes: bytes) -> None:
        self._count(np.frombuffer(codes, np.uint8))
        self._writer.write_rows(keys, codes)

    def adopt(self, keys: Path, codes: Path) -> None:
        self._count(np.fromfile(codes, np.uint8))
        self._writer.adopt(keys, codes)

    def _count(self, codes: NDArray[np.uint8]) -> None:
        self.counts += np.bincount(codes, minlength=self.counts.size)


def _randomize(
    events: Events,
    config: LabelPartyConfig,
    randomizer: Randomizer,
    entropy: Entropy,
    writer: RowWriter,
    progress: Progress,
) -> tuple[ContentSection, PopulationSection]:
    channel = randomizer.channel
    block_rows = block_rows_for(events.rows)
    codebook = Codebook((config.only_label.name,), (_alone(Grid(channel.inputs)),), (channel,))
    blocks, population = events.randomize(codebook, entropy, writer, block_rows, progress)
    content = ContentSection(
        code_bytes=2 if codebook.code_bytes == 2 else 1,
        key_bytes=0 if events.submitted else KEY_BYTES,
        block_rows=block_rows,
        blocks=blocks,
        digest=content_digest(blocks),
    )
    return content, PopulationSection(
        rows=events.rows,
        digest=population,
        keys=_SUBMITTED[events.function] if events.submitted else events.function,
    )


def _manifest(
    config: LabelPartyConfig,
    two: TwoStep,
    content: ContentSection,
    population: PopulationSection,
    drift: DriftOutcome | None,
) -> Manifest:
    # with one record per user both units have the same neighbours; the claim names the unit asked
    unit, terms = config.privacy.privacy_unit, config.only_label
    prior: PureDP = replace(two.prior.guarantee, unit=unit)
    labels: PureDP = replace(two.labels_guarantee, unit=unit)
    parts = [*([prior] if two.prior_paid else []), labels]
    if drift is not None and drift.charged is not None:
        parts.insert(0, drift.charged)
    return Manifest(
        format=FORMAT,
        software=software(),
        data_set=config.data.data_set,
        epoch=config.data.epoch,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        labels=[
            LabelSection(
                name=terms.name,
                grid=two.randomizer.channel.inputs.tolist(),
                missing=terms.missing,
                loss=two.randomizer.loss.name,
            )
        ],
        priors=[
            PriorSection(
                labels=[terms.name],
                noisy_counts=two.prior.noisy_counts.tolist(),
                noise="discrete-laplace" if two.prior.decoded is None else "randomized-response",
                scale=str(two.prior.scale),
                guarantee=prior.to_json(),
            )
        ],
        randomizers=[
            StatedRandomizer(
                labels=[terms.name],
                name=two.randomizer.name,
                # anyone who rebuilds the channel from the noisy prior needs the builder's options
                details={**two.randomizer.details, "options": config.randomizer.options},
                channel=two.randomizer.channel.to_json(),
                guarantee=labels.to_json(),
            )
        ],
        privacy=StatedPrivacy(
            requested_epsilon=config.privacy.epsilon,
            records_per_unit=two.group,
            total=compose(parts).to_json(),
        ),
        population=population,
        content=content,
        drift=None if drift is None else drift.section,
    )


def _at_most(value: Fraction) -> float:
    """Return the largest float that does not exceed a rational number."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else float(np.nextafter(nearest, 0.0))
