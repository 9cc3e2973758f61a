"""The manifest of a release: everything about it that is public, and the check of its claims.

The manifest's own bytes are written once and never re-serialised: SHA-256 over them identifies the
release. Anyone who receives them recomputes every guarantee from the integers that they hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from common.arrays import Floats
from common.errors import ConfigError, PrivacyError, ReleaseError
from common.exact.channel import FiniteChannel
from common.exact.rational import parse_rational
from common.guarantees import Guarantee, PureDP, Unit, compose, guarantee_from_json
from common.randomizers import NoisyPrior, decoded_prior
from common.release.blocks import BLOCK_ROWS
from common.release.claims import (
    CMAC_KEYS,
    HMAC_KEYS,
    ChannelClaim,
    Count,
    Digest,
    KeyFunction,
    Name,
    PureClaim,
    Rational,
    Rows,
    SessionClaim,
)
from common.release.facts import check_details, check_options
from common.release.strict_json import parse_json

FORMAT = "labelveil-release/1"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LabelSection(_Section):
    """What is public about a label: its name, bounds, grid and the value of a missing one."""

    name: str = Field(max_length=256)
    grid: list[float]
    missing: float


class PriorSection(_Section):
    """The released histogram over the grid."""

    noisy_counts: list[Count]
    noise: Literal["discrete-laplace", "randomized-response"] = "discrete-laplace"
    """``randomized-response``: decoded from the codes, which spends nothing."""
    scale: Rational
    """Scale of the noise on each cell; 0 where the codes' own is all there is."""
    guarantee: PureClaim

    @property
    def decoded(self) -> bool:
        return self.noise == "randomized-response"


class StatedRandomizer(_Section):
    """The randomizer and its exact channel from the grid to the outputs."""

    name: str
    loss: Literal["squared", "absolute", "poisson"]
    details: dict[str, Any]
    """What its builder says that it did, and ``options``, what that was asked to do."""
    channel: ChannelClaim
    guarantee: PureClaim
    """Of all labels of one privacy unit."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_options(self.name, self.options)
        stated = {key: value for key, value in self.details.items() if key != "options"}
        check_details(self.name, stated)
        return self

    @property
    def options(self) -> dict[str, Any]:
        """What the builder was asked for."""
        options = self.details.get("options", {})
        return options if isinstance(options, dict) else {"options": options}

    @property
    def shown_options(self) -> str:
        """All of them: the one part of a manifest that can be shown, but not rebuilt."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items()) or "none"


class StatedPrivacy(_Section):
    """The claim: what one privacy unit spends by this release."""

    requested_epsilon: float = Field(gt=0)
    records_per_unit: Rows
    total: PureClaim


class PopulationSection(_Section):
    """Which events the release covers, in which order."""

    rows: Rows
    digest: Digest
    """SHA-256 over the 16-byte keys in row order, hexadecimal."""
    keys: Literal[KeyFunction, "submitted", "submitted-aes-256-cmac-128"]
    """``submitted``: rows lie as the features party's own list of keys, without keys."""

    @property
    def submitted(self) -> bool:
        return self.keys.startswith("submitted")

    @property
    def function(self) -> KeyFunction:
        """What they were hashed by."""
        return CMAC_KEYS if self.keys.endswith(CMAC_KEYS) else HMAC_KEYS


class ContentSection(_Section):
    """How the rows are laid out, and their digests."""

    code_bytes: Literal[1, 2]
    key_bytes: Literal[0, 16]
    block_rows: Rows
    blocks: list[Digest]
    digest: Digest


class InForceSection(_Section):
    """The release that paid for a prior, which later epochs use until it no longer fits."""

    epoch: Name
    manifest: Digest
    rows: Rows
    """Labels that its histogram counted."""


class SessionSection(_Section):
    """The session that a test is charged to, instead of its epoch."""

    outcome: Digest
    """SHA-256 that the ledger names the session's charge by."""
    state: SessionClaim
    """Terms, hits and calls after this test."""


class TrialSection(_Section):
    """A private test of this epoch's labels against the prior in force."""

    statistic: Literal["cdf-distance"] = "cdf-distance"
    noise: Literal["discrete-laplace"] = "discrete-laplace"
    scale: Rational
    """Scale of the noise on the statistic, in events."""
    threshold: int = Field(ge=0, le=1 << 62)
    guarantee: PureClaim
    """Of this one test, for one privacy unit."""
    session: SessionSection | None = None


class DriftSection(_Section):
    """How an epoch after the first came by its prior."""

    in_force: InForceSection
    """What the labels were tested against; the prior's origin unless they had drifted."""
    test: TrialSection | None = None
    """None once the session that pays for tests has halted: the prior stays in force."""
    drifted: bool = False
    """Whether the test hit, so that this epoch paid for a prior of its own."""


class Manifest(_Section):
    """Everything that is public about one release."""

    format: Literal["labelveil-release/1"]
    software: str = Field(pattern=r"^labelveil/[0-9A-Za-z.+-]{1,40}$")
    data_set: Name
    epoch: Name
    created: str = Field(pattern=r"^[0-9]{4}(-[0-9]{2}){2}T([0-9]{2}:){2}[0-9]{2}Z$")
    """UTC, ISO 8601, to the second."""
    label: LabelSection
    prior: PriorSection
    randomizer: StatedRandomizer
    privacy: StatedPrivacy
    population: PopulationSection
    content: ContentSection
    drift: DriftSection | None = None

    @property
    def channel(self) -> FiniteChannel:
        """The exact channel, rebuilt and validated."""
        source, channel = self._channel
        if source is not self.randomizer.channel:  # a model_copy takes cached values along
            return FiniteChannel.from_json(self.randomizer.channel)
        return channel

    @cached_property
    def _channel(self) -> tuple[ChannelClaim, FiniteChannel]:
        return self.randomizer.channel, FiniteChannel.from_json(self.randomizer.channel)

    @cached_property
    def histogram(self) -> NoisyPrior:
        """The noisy counts, with what is known about their noise."""
        if self.prior.decoded:
            even = np.full(len(self.label.grid), self.population.rows // len(self.label.grid))
            decoded = decoded_prior(self.channel, even, self.privacy.records_per_unit)
            return replace(decoded, noisy_counts=np.asarray(self.prior.noisy_counts))
        epsilon = self.prior_guarantee.exact_epsilon
        counts = np.asarray(self.prior.noisy_counts, dtype=np.int64)
        return NoisyPrior(counts, epsilon, self.prior_rows, self.privacy.records_per_unit)

    @property
    def noisy_prior(self) -> Floats:
        """(k,) released prior over the grid, estimated from the noisy counts."""
        return self.histogram.probabilities

    @property
    def prior_rows(self) -> int:
        """Labels that the prior's histogram counted: this release's, or an earlier one's."""
        borrowed = self.drift is not None and not self.drift.drifted
        return self.drift.in_force.rows if borrowed and self.drift else self.population.rows

    @property
    def prior_paid(self) -> bool:
        """Whether this release's labels paid for the prior."""
        if self.prior.decoded:
            return False
        return self.drift is None or self.drift.drifted

    @property
    def test_guarantee(self) -> PureDP | None:
        """What the test for drift spends of this release's budget; None if nothing."""
        test = None if self.drift is None else self.drift.test
        return None if test is None or test.session is not None else _pure(test.guarantee)

    @property
    def parts(self) -> list[PureDP]:
        """What this release's labels spend, one guarantee for each use of them."""
        test = self.test_guarantee
        return [
            *([] if test is None else [test]),
            *([self.prior_guarantee] if self.prior_paid else []),
            self.labels_guarantee,
        ]

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
        """Canonical JSON: sorted keys, no white space, UTF-8."""
        # a release without the section keeps the bytes, and the readers, that it always had
        left_out = {"drift"} if self.drift is None else None
        text = json.dumps(
            self.model_dump(mode="json", exclude=left_out),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        )
        return text.encode()

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """Read a manifest without believing it: its form is checked, none of its claims.

        Raises
        ------
        ReleaseError
            If it is malformed, or says anything that a manifest has no place for.
        """
        try:
            return cls.model_validate(parse_json(data), strict=True)
        except (ValidationError, PrivacyError, ConfigError) as error:
            reason = str(error)
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                reason = f"{where or 'document':.100}: {first['msg']:.300}"
            raise ReleaseError(f"the manifest is not a {FORMAT} manifest: {reason}") from error

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read a manifest and check every claim that it makes about itself.

        Raises
        ------
        ReleaseError
            If it is malformed, or if a claimed guarantee is not what its own integers give.
        """
        manifest = cls.parse(data)
        manifest.check()
        if manifest.to_bytes() != data:  # or the way in which it is written could tell something
            raise ReleaseError("the manifest is not in canonical form: sorted keys, no white space")
        return manifest

    def check(self) -> None:
        """Recompute every guarantee from the manifest's integers, exactly.

        Raises
        ------
        ReleaseError
            If a claim does not hold.
        """
        try:
            self._check()
        except PrivacyError as error:
            raise ReleaseError(f"the manifest contradicts itself: {error}") from error

    def _check(self) -> None:
        channel, k = self.channel, len(self.label.grid)
        if channel.to_json() != self.randomizer.channel or not channel.is_terse:
            raise ReleaseError("the manifest's channel is not written as channels are")
        longest = max(k, channel.outputs.size)
        for name, value in self.randomizer.details.items():
            if name != "options" and _items(value) > longest:
                raise ReleaseError(f"the randomizer's detail {name} has more than {longest} items")
        if channel.inputs.tolist() != self.label.grid:
            raise ReleaseError("the manifest's channel is not defined on the manifest's label grid")
        if len(self.prior.noisy_counts) != k:
            raise ReleaseError(
                f"the prior has {len(self.prior.noisy_counts)} cells for {k} grid points"
            )
        group = self.privacy.records_per_unit
        if group > 1 and self.labels_guarantee.unit != Unit.USER:
            raise ReleaseError(f"{group} records per unit, but a unit is one record")
        derived = PureDP.of_channel(channel, self.labels_guarantee.unit).scale(group)
        if derived != self.labels_guarantee:
            raise ReleaseError(
                f"the channel's weights give {derived}, but the manifest claims"
                f" {self.labels_guarantee} for the labels"
            )
        if self.prior.decoded:
            self._check_decoded()
        elif parse_rational(self.prior.scale) * self.prior_guarantee.exact_epsilon != 2 * group:
            raise ReleaseError(
                f"prior noise of scale {self.prior.scale} does not give"
                f" {self.prior_guarantee}: scale times epsilon must be {2 * group}"
            )
        self._check_drift(group)
        total = compose(self.parts)
        if total != self.total_guarantee:
            raise ReleaseError(f"the parts add up to {total}, not {self.total_guarantee}")
        if not total.within(PureDP.of(self.privacy.requested_epsilon, unit=total.unit)):
            raise ReleaseError(
                f"the release spends {total}, more than the {self.privacy.requested_epsilon:g}"
                " that was asked for"
            )
        if self.population.submitted != (self.content.key_bytes == 0):
            raise ReleaseError(
                f"keys of {self.content.key_bytes} bytes for {self.population.keys!r} keys;"
                " only a submitted population goes without"
            )
        self._check_layout(channel)

    def _check_decoded(self) -> None:
        if self.drift is not None or self.randomizer.name != "randomized-response":
            raise ReleaseError(
                "a histogram is decoded from the codes of randomized response, without a test for"
                f" drift, but the randomizer is {self.randomizer.name!r}"
            )
        if self.prior_guarantee.exact_epsilon or parse_rational(self.prior.scale):
            raise ReleaseError(
                f"a histogram decoded from the codes spends 0, not {self.prior_guarantee}"
            )

    def _check_drift(self, group: int) -> None:
        drift = self.drift
        if drift is None:
            return
        if drift.test is None:
            if drift.drifted:
                raise ReleaseError("the prior is said to be new after a test that was not made")
            return
        guarantee = _pure(drift.test.guarantee)
        guarantee.same_neighbours(self.labels_guarantee)
        if parse_rational(drift.test.scale) * guarantee.exact_epsilon != group:
            raise ReleaseError(
                f"test noise of scale {drift.test.scale} does not give {guarantee}: scale times"
                f" epsilon must be {group}"
            )

    def _check_layout(self, channel: FiniteChannel) -> None:
        most = max(BLOCK_ROWS, self.population.rows >> 13)
        if self.content.block_rows > most:  # a reader holds a whole block
            raise ReleaseError(f"blocks of {self.content.block_rows:,} rows, more than {most:,}")
        blocks = -(-self.population.rows // self.content.block_rows)
        if len(self.content.blocks) != blocks:
            raise ReleaseError(f"{len(self.content.blocks)} block digests for {blocks} blocks")
        if content_digest(self.content.blocks) != self.content.digest:
            raise ReleaseError("the block digests do not give the content digest")
        if self.content.code_bytes != channel.code_bytes:
            raise ReleaseError(
                f"codes of {self.content.code_bytes} bytes for {channel.outputs.size} outputs"
            )


def _items(value: Any) -> int:
    return sum(map(_items, value)) if isinstance(value, list) else 1


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


def _pure(data: PureClaim) -> PureDP:
    guarantee = guarantee_from_json(data)
    if not isinstance(guarantee, PureDP):
        raise ReleaseError(f"a {guarantee.kind} guarantee where a pure one is expected")
    return guarantee
