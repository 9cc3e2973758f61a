"""The sections of a manifest, each of which says one thing, and checks what it says of itself.

Their form is checked when they are read; ``check`` works out again what they say is spent.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, Literal, Self, TypeVar, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from labelveil.common.errors import ReleaseError
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.exact.rational import parse_rational
from labelveil.common.guarantees import PureDP, Unit, guarantee_from_json
from labelveil.common.mechanisms.group_sums import NoisySums
from labelveil.common.mechanisms.group_sums.lattice import MOST_STEPS
from labelveil.common.mechanisms.group_sums.question import MOST_LEVELS, NO_GROUP
from labelveil.common.mechanisms.group_sums.question import MOST_WEIGHT as MOST_GROUP_WEIGHT
from labelveil.common.randomizers import NoisyPrior, decoded_prior
from labelveil.common.randomizers.cells import Cells
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.strata import MOST_WEIGHT
from labelveil.common.randomizers.message.terms import MOST_LABELS, LabelTerms
from labelveil.common.release.claims import (
    SUBMITTED_KEYS,
    ChannelClaim,
    Check,
    Count,
    Digest,
    Items,
    Name,
    PureClaim,
    Rational,
    Rows,
    SessionClaim,
)
from labelveil.common.release.facts import check_details, check_options, items
from labelveil.common.release.limits import ROWS

MOST_LETTERS = 256
"""Of a label's name, or a stratum's."""

ItemT = TypeVar("ItemT")
Few = Annotated[list[ItemT], Field(min_length=1, max_length=MOST_LABELS), FailFast()]
"""At most one for each label."""


class ManifestSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LabelSection(ManifestSection):
    """What is public about a label: its name, bounds, grid and the value of a missing one."""

    name: str = Field(max_length=MOST_LETTERS)
    grid: Items[float]
    missing: float
    loss: Literal["squared", "absolute", "poisson"]
    weight: float = Field(gt=0)
    """What its error counts for beside the other labels'."""
    asked: bool
    """Whether the labels party named the grid; else it follows from bounds, rows and ε, or is that
    of a question about groups."""

    @property
    def terms(self) -> LabelTerms:
        """What a message says of it; ``ConfigError`` if its grid is none."""
        grid = Grid.from_edges(self.grid)
        return LabelTerms(self.name, grid.lower, grid.upper, grid, self.loss, self.weight)


class StratumSection(ManifestSection):
    """Events of a public class, or that a question gathered: sent by channels of their own."""

    name: str = Field(max_length=MOST_LETTERS)
    """Of the class; of what a question gathered its number."""
    rows: int = Field(ge=0, le=ROWS)
    law: Items[Annotated[int, Field(ge=0, le=MOST_WEIGHT)]]
    """What a question expects of their labels: weights of the grid's points, for which nobody paid.
    Of a class, whose labels are counted, none."""


class SpendingSection(ManifestSection):
    """What spends of the budget of one privacy unit."""

    guarantee: PureClaim

    @property
    def spent(self) -> PureDP:
        return cast(PureDP, guarantee_from_json(self.guarantee))  # as the form of the claim says


class PriorSection(SpendingSection):
    """The released histogram over the grid of a label, or over the cells of several.

    Or, of a message in strata, over stratum × bin of these (:class:`StratumTable
    <labelveil.common.randomizers.message.strata.StratumTable>`), a stratum's counts together.
    """

    labels: Few[str]
    """Names of the labels that it counts, together; the last one's grid runs fastest."""
    noisy_counts: Items[Count]
    noise: Literal["discrete-laplace", "randomized-response", "public"]
    """``randomized-response``: decoded from the codes, which spends nothing. ``public``: weights
    that were known before any label was looked at; nobody was counted, or paid."""
    scale: Rational
    """Scale of the noise on each cell; 0 where the codes' own is all there is."""
    start: Items[Annotated[int, Field(ge=0, le=MOST_WEIGHT)]]
    """Weights of the cells in a public prior that the noisy counts correct; none without one."""

    @classmethod
    def from_histogram(cls, labels: list[str], histogram: NoisyPrior, unit: Unit) -> Self:
        """State a histogram of some labels, for which such a unit pays."""
        free = "public" if histogram.public else "randomized-response"
        return cls(
            labels=labels,
            noisy_counts=histogram.noisy_counts.tolist(),
            noise="discrete-laplace" if histogram.noisy else free,
            scale=str(histogram.scale),
            start=[] if histogram.start is None else histogram.start.tolist(),
            guarantee=replace(histogram.guarantee, unit=unit).to_json(),
        )

    def histogram(
        self, cells: Cells, rows: int, records: int, channel: FiniteChannel | None
    ) -> NoisyPrior:
        """Return it with what is known about its noise.

        It is of n ``rows``, of ``records`` records a unit; ``channel`` sent the codes that it is
        decoded from, None where it is not.
        """
        counts = np.asarray(self.noisy_counts, dtype=np.int64)
        if self.public:
            return NoisyPrior(counts, Fraction(0), int(counts.sum()), records, code_noise=0.0)
        if channel is not None:
            even = np.full(counts.size, rows // counts.size)
            return replace(decoded_prior(channel, even, records), noisy_counts=counts)
        epsilon = self.spent.exact_epsilon
        shape = cells.shape if len(self.labels) > 1 and len(cells) == counts.size else ()
        start = np.asarray(self.start, dtype=np.int64) if self.start else None
        return NoisyPrior(counts, epsilon, rows, records, shape=shape, start=start)

    @property
    def noisy(self) -> bool:
        """Whether labels were counted, and paid for it."""
        return self.noise == "discrete-laplace"

    @property
    def decoded(self) -> bool:
        return self.noise == "randomized-response"

    @property
    def public(self) -> bool:
        """Whether nobody's labels were counted: all that is stated was known beforehand."""
        return self.noise == "public"

    @property
    def called(self) -> str:
        """What it is called where it spends nothing."""
        return "a public prior" if self.public else "a histogram decoded from the codes"

    def check(self, records: int, cells: int | None) -> None:
        """``ReleaseError`` if its noise, of ``records`` records a unit, does not give what it says
        it spends, or weights are none over ``cells`` cells; None where none may start it."""
        spent, scale = self.spent, parse_rational(self.scale)
        if self.start and (not self.noisy or len(self.start) != cells):
            raise ReleaseError("a public prior must have a weight for each cell that is counted")
        if self.start and not any(self.start):
            raise ReleaseError("a public prior must have weights that are not all 0")
        if self.noisy:
            if scale * spent.exact_epsilon != 2 * records:
                raise ReleaseError(
                    f"prior noise of scale {self.scale} does not give {spent}: scale times epsilon"
                    f" must be {2 * records}"
                )
            return
        if spent.exact_epsilon or scale:
            raise ReleaseError(f"{self.called} spends 0, not {spent}")
        counts = self.noisy_counts
        if self.public and (not 0 < sum(counts) <= 2 * MOST_WEIGHT or min(counts) < 0):
            raise ReleaseError("a public prior must have weights >= 0, not all of them 0")


class StatedRandomizer(SpendingSection):
    """The randomizer and its exact channel from the grid, or the cells, to the outputs.

    Its guarantee is of all labels of one privacy unit.
    """

    labels: Few[str]
    """Names of the labels whose grid or cells it randomizes."""
    name: str
    details: dict[str, Any]
    """What its builder says that it did, and ``options``, what that was asked to do."""
    channel: ChannelClaim

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_options(self.name, self.options)
        check_details(self.name, self.facts)
        return self

    @property
    def facts(self) -> dict[str, Any]:
        """What its builder says that it did."""
        return {name: value for name, value in self.details.items() if name != "options"}

    @property
    def options(self) -> dict[str, Any]:
        """What the builder was asked for."""
        options = self.details.get("options", {})
        return options if isinstance(options, dict) else {"options": options}

    @property
    def shown_options(self) -> str:
        """All of them: the one part of a manifest that can be shown, but not rebuilt."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items()) or "none"

    def check(self, channel: FiniteChannel, records: int) -> None:
        """``ReleaseError`` if its channel, of ``records`` records a unit, does not give what it
        says it spends."""
        if channel.to_json() != self.channel:
            raise ReleaseError("the manifest's channel is not written as channels are")
        longest = max(channel.inputs.size, channel.outputs.size)
        for name, value in self.facts.items():
            if items(value) > longest:
                raise ReleaseError(f"the randomizer's detail {name} has more than {longest} items")
        derived = PureDP.of_channel(channel, self.spent.unit).scale(records)
        if derived != self.spent:
            raise ReleaseError(
                f"the channel's weights give {derived}, but the manifest claims {self.spent} for"
                " the labels"
            )


class WidthSection(ManifestSection):
    """Groups whose labels are clipped to one width, in steps of the label's grid."""

    half_width: int = Field(ge=1, le=MOST_STEPS)
    squares: bool
    """Whether they are asked for squares of what is clipped, in steps²."""
    groups: int = Field(ge=1, lt=NO_GROUP)
    """How many these are."""
    scale: Rational
    """Scale of the noise on each of their sums, in steps, or steps²."""


class SumsSection(SpendingSection):
    """Noisy sums over the groups of a question, which are the rows of the release.

    Sum g is of ``w clip(y - o, -h, h)``, or of ``w clip(y - o, -h, h)²``, over the events of group
    g, in steps of the label's grid: labels y are placed on its points. Group, offset o and weight w
    of each event, and the half-width h of each group, are in the question, which the features party
    has.
    """

    question: Digest
    """SHA-256 of the question as it was submitted."""
    groups: int = Field(ge=1, lt=NO_GROUP)
    offsets: Annotated[
        list[Annotated[int, Field(ge=0, le=MOST_STEPS)]],
        Field(min_length=1, max_length=MOST_LEVELS),
        FailFast(),
    ]
    """Places of the levels on the grid, as the question lists them."""
    largest_weight: int = Field(ge=0, le=MOST_GROUP_WEIGHT)
    """max |w|; 0 where no weights were said, and all are 1."""
    noise: Literal["discrete-laplace"]
    widths: Annotated[
        list[WidthSection], Field(min_length=1, max_length=2 * MOST_STEPS), FailFast()
    ]
    """Of sums, ascending, and then of squares; every group is in one."""

    @classmethod
    def from_sums(cls, noisy: NoisySums, digest: str) -> Self:
        """State the noise on the sums that a question asks for, whose bytes have this SHA-256."""
        question = noisy.question
        return cls(
            question=digest,
            groups=question.half_widths.size,
            offsets=question.offsets.tolist(),
            largest_weight=0 if question.weights is None else question.largest_weight,
            noise="discrete-laplace",
            widths=[
                WidthSection(half_width=width, squares=squares, groups=groups, scale=str(scale))
                for (width, squares, groups), scale in noisy.widths
            ],
            guarantee=noisy.guarantee.to_json(),
        )

    def check(self, steps: int, records: int) -> None:
        """``ReleaseError`` if what one label may tell, by how much it moves a sum in scales of its
        noise, is not what is said to be spent: of labels on ``steps`` steps, with ``records``
        records a unit."""
        weight = max(self.largest_weight, 1)
        ways = [(stated.squares, stated.half_width) for stated in self.widths]
        if sorted(set(ways)) != ways or max(width for _, width in ways) > steps:
            raise ReleaseError(f"half-widths of sums must be 1 … {steps:,} steps, ascending")
        if max(self.offsets) > steps:
            raise ReleaseError(f"offsets of sums must be 0 … {steps:,} steps")
        if sum(stated.groups for stated in self.widths) != self.groups:
            raise ReleaseError("every group must have one half-width")
        worst = Fraction(0)
        for stated in self.widths:
            scale, width = parse_rational(stated.scale), stated.half_width
            if not scale:
                raise ReleaseError("sums must have noise")
            moved = width**2 if stated.squares else min(2 * width, steps)
            worst = max(worst, moved * weight / scale)
        derived = PureDP.of(worst, unit=self.spent.unit).scale(records)
        if derived != self.spent:
            raise ReleaseError(
                f"the noise on the sums gives {derived}, but the manifest claims {self.spent}"
            )


class StatedPrivacy(ManifestSection):
    """The claim: what one privacy unit spends by this release."""

    requested_epsilon: float = Field(gt=0)
    division: Literal["auto", "split", "joint"]
    """How ε was to be divided among several labels."""
    records_per_unit: Rows
    total: PureClaim


class PopulationSection(ManifestSection):
    """Which events the release covers, in which order."""

    rows: Rows
    digest: Digest
    """SHA-256 over the 16-byte keys in row order, hexadecimal."""
    keys: Literal["aes-256-cmac-128", "submitted"]
    """``submitted``: rows lie as the features party's own list of keys, without keys."""
    secret_check: Check | None = None
    """By which the secret is recognised that keys were hashed under; format 1 does not say it."""

    @property
    def submitted(self) -> bool:
        return self.keys == SUBMITTED_KEYS


class ContentSection(ManifestSection):
    """How the rows are laid out, and their digests."""

    code_bytes: Literal[1, 2, 8]
    """Of a code; 8 of a sum, a signed whole number."""
    rows: Rows | None = None
    """How many these are, where they are sums; of codes there is one for each event."""
    key_bytes: Literal[0, 16]
    block_rows: Rows
    blocks: Items[Digest]
    digest: Digest


class InForceSection(ManifestSection):
    """The release that paid for a prior, which later epochs use until it no longer fits."""

    epoch: Name
    manifest: Digest
    rows: Rows
    """Labels that its histogram counted."""


class SessionSection(ManifestSection):
    """The session that a test is charged to, instead of its epoch."""

    outcome: Digest
    """SHA-256 that the ledger names the session's charge by."""
    state: SessionClaim
    """Terms, hits and calls after this test."""


class TrialSection(SpendingSection):
    """A private test of this epoch's labels against the prior in force."""

    statistic: Literal["cdf-distance"] = "cdf-distance"
    noise: Literal["discrete-laplace"] = "discrete-laplace"
    scale: Rational
    """Scale of the noise on the statistic, in events."""
    threshold: int = Field(ge=0, le=1 << 62)
    session: SessionSection | None = None


class DriftSection(ManifestSection):
    """How an epoch after the first came by its prior."""

    in_force: InForceSection
    """What the labels were tested against; the prior's origin unless they had drifted."""
    test: TrialSection | None = None
    """None once the session that pays for tests has halted: the prior stays in force."""
    drifted: bool = False
    """Whether the test hit, so that this epoch paid for a prior of its own."""

    @property
    def spent(self) -> PureDP | None:
        """What the test spends of this epoch's budget; None if nothing."""
        return None if self.test is None or self.test.session is not None else self.test.spent

    def check(self, labels: PureDP, records: int) -> None:
        """``ReleaseError`` if the test's noise, of ``records`` records a unit, does not give what
        it says it spends; ``PrivacyError`` if that is of other neighbours than the labels'."""
        if self.test is None:
            if self.drifted:
                raise ReleaseError("the prior is said to be new after a test that was not made")
            return
        guarantee = self.test.spent
        guarantee.same_neighbours(labels)
        if parse_rational(self.test.scale) * guarantee.exact_epsilon != records:
            raise ReleaseError(
                f"test noise of scale {self.test.scale} does not give {guarantee}: scale times"
                f" epsilon must be {records}"
            )
