"""Build one message: completed labels in, randomized codes and a manifest out.

Raw labels reach three things here and nothing else: the rounding onto the grid, the histogram that
is released with noise, and the codes. Everything in the manifest is public, or computed from the
noisy histogram.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

import numpy as np

from common.arrays import Integers
from common.entropy import Entropy
from common.errors import PrivacyError
from common.exact.rational import decimal_value
from common.guarantees import PureDP, compose
from common.randomizers import NoisyPrior, second_step, two_step
from common.randomizers.cells import Cells, Codebook, Group
from common.randomizers.several import Several, build_several, from_priors
from common.release.blocks import KEY_BYTES, decode_codes
from common.release.claims import CMAC_KEYS, HMAC_KEYS, KeyFunction
from common.release.manifest import FORMAT, SEVERAL, Manifest, content_digest
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
    epsilon = _at_most(decimal_value(privacy.epsilon))
    made, drift = _made(events, config, epsilon, in_force, entropy)
    codes = _Codes(writer, made.codebook)
    told = any(prior is None for _, prior in made.priors)
    receiver = codes if told else writer
    content, population = _randomize(events, made.codebook, entropy, receiver, progress)
    if told:
        made = made.decode(codes.of_channels())
    manifest = _manifest(config, made, content, population, drift)
    if not manifest.total_guarantee.within(privacy.charge):
        raise PrivacyError(
            f"the message would spend {manifest.total_guarantee}, more than {privacy.charge}"
        )
    data = manifest.to_bytes()
    Manifest.from_bytes(data)  # what the features party will check, checked before it is served
    return Built(manifest, data)


def _made(
    events: Events,
    config: LabelPartyConfig,
    epsilon: float,
    in_force: InForce | None,
    entropy: Entropy,
) -> tuple[Several, DriftOutcome | None]:
    """Pay for priors, or test whether the one in force still fits; build the channels."""

    def count(groups: Sequence[Group]) -> list[Integers]:
        return events.count(groups, entropy)

    privacy, rows = config.privacy, events.rows
    if in_force is None or not _needs_prior(config, rows):
        made = build_several(
            count,
            config.terms,
            rows,
            epsilon,
            entropy,
            division=privacy.division,
            group=privacy.group,
            prior_share=privacy.prior_share,
        )
        return made, None
    alone = Group((0,), Cells((in_force.grid,)))
    drift = in_force.test_for_drift(count([alone])[0], entropy)
    recipe = replace(config.recipe, spent=drift.spent)
    if drift.section.drifted:
        alone = Group((0,), Cells((config.only_label.domain.build(rows, privacy.epsilon),)))
        two = two_step(count([alone])[0], alone.cells.grids[0], epsilon, entropy, recipe)
    else:
        two = second_step(in_force.prior, in_force.grid, epsilon, rows, recipe)
    names = (config.only_label.name,)
    return Several(names, ((alone, two.prior),), ((alone, two.randomizer),), two.group), drift


def check_division(config: LabelPartyConfig, rows: int) -> None:
    """Raise ``ConfigError`` for labels that one message cannot carry; nothing is read or spent."""

    def pay(asked: Sequence[tuple[Group, Fraction]]) -> list[NoisyPrior]:
        raise _Enough

    with suppress(_Enough):
        from_priors(
            pay, config.terms, rows, config.privacy.epsilon, division=config.privacy.division
        )


class _Enough(Exception):
    """The rest of a plan follows from what would have been paid for."""


def _needs_prior(config: LabelPartyConfig, rows: int) -> bool:
    grid = config.only_label.domain.build(rows, config.privacy.epsilon)
    return config.recipe.needs_prior(grid)


class _Codes:
    """A writer that counts the codes on their way."""

    def __init__(self, writer: RowWriter, codebook: Codebook) -> None:
        self._writer, self._codebook = writer, codebook
        self._counts = np.zeros(codebook.outputs, dtype=np.int64)

    def write_rows(self, keys: bytes | memoryview, codes: bytes) -> None:
        self._count(codes)
        self._writer.write_rows(keys, codes)

    def adopt(self, keys: Path, codes: Path) -> None:
        self._count(codes.read_bytes())
        self._writer.adopt(keys, codes)

    def _count(self, codes: bytes) -> None:
        found = decode_codes(codes, self._codebook.code_bytes)
        self._counts += np.bincount(found, minlength=self._counts.size)

    def of_channels(self) -> list[Integers]:
        """How many codes there are of each, by channel."""
        table = self._counts.reshape(self._codebook.radices)
        every = range(table.ndim)
        return [table.sum(axis=tuple(j for j in every if j != i)) for i in every]


def _randomize(
    events: Events, codebook: Codebook, entropy: Entropy, writer: RowWriter, progress: Progress
) -> tuple[ContentSection, PopulationSection]:
    block_rows = block_rows_for(events.rows)
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
    made: Several,
    content: ContentSection,
    population: PopulationSection,
    drift: DriftOutcome | None,
) -> Manifest:
    # with one record per user both units have the same neighbours; the claim names the unit asked
    unit, book = config.privacy.privacy_unit, made.codebook
    parts = [] if drift is None or drift.charged is None else [drift.charged]
    priors, randomizers = [], []
    for group, prior in made.priors:
        if prior is None:
            raise ValueError("codes are not counted yet")
        guarantee: PureDP = replace(prior.guarantee, unit=unit)
        if prior.decoded is None and (drift is None or drift.section.drifted):
            parts.append(guarantee)
        stated = PriorSection(
            labels=[made.names[label] for label in group.labels],
            noisy_counts=prior.noisy_counts.tolist(),
            noise="discrete-laplace" if prior.decoded is None else "randomized-response",
            scale=str(prior.scale),
            guarantee=guarantee.to_json(),
        )
        priors.append(stated)
    for group, randomizer in made.channels:
        guarantee = PureDP.of_channel(randomizer.channel, unit).scale(made.records)
        parts.append(guarantee)
        chosen = StatedRandomizer(
            labels=[made.names[label] for label in group.labels],
            name=randomizer.name,
            # anyone who rebuilds the channel from the noisy prior needs the builder's options
            details={**randomizer.details, "options": config.randomizer.options},
            channel=randomizer.channel.to_json(),
            guarantee=guarantee.to_json(),
        )
        randomizers.append(chosen)
    return Manifest(
        format=FORMAT if len(made.names) == 1 else SEVERAL,
        software=software(),
        data_set=config.data.data_set,
        epoch=config.data.epoch,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        labels=[
            LabelSection(
                name=one.name,
                grid=grid.points.tolist(),
                missing=one.missing,
                loss=one.loss,
                weight=one.weight,
                asked=one.domain.fixed is not None,
            )
            for one, grid in zip(config.labels, book.cells.grids, strict=True)
        ],
        priors=priors,
        randomizers=randomizers,
        privacy=StatedPrivacy(
            requested_epsilon=config.privacy.epsilon,
            division=config.privacy.division,
            records_per_unit=made.records,
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
