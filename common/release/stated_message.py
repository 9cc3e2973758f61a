"""A message in a manifest: how it is stated, read back, and what it is found to spend.

A :class:`~labelveil.common.randomizers.message.message.Message` is stated by the sections of its
strata, histograms and channels, and read from them: parties that build it and that learn from it
have the same object. What it spends is worked out again from the integers in these sections.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from pydantic import FailFast, Field, model_validator

from labelveil.common.errors import ReleaseError
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.exact.rational import decimal_value
from labelveil.common.guarantees import Guarantee, PureDP, Unit, compose, guarantee_from_json
from labelveil.common.mechanisms.group_sums.lattice import Lattice
from labelveil.common.mechanisms.group_sums.question import bits_of
from labelveil.common.randomizers import NoisyPrior
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.codebooks import Codebook, Codebooks
from labelveil.common.randomizers.message.message import Message, Released
from labelveil.common.randomizers.message.strata import (
    BINS,
    MOST_STRATA,
    Strata,
    StratumTable,
    bins_of,
)
from labelveil.common.randomizers.message.terms import MOST_LABELS
from labelveil.common.release.heading import Heading
from labelveil.common.release.sections import (
    DriftSection,
    Few,
    LabelSection,
    PriorSection,
    StatedPrivacy,
    StatedRandomizer,
    StratumSection,
    SumsSection,
)

SectionT = TypeVar("SectionT")
PriorSource = Literal["none", "question", "public", "codes", "labels", "earlier"]
"""Where what is known of labels beside their codes comes from, and who paid for it.

``labels``: these were counted, and paid; ``earlier``: an epoch's before, from which these have not
drifted. Nobody pays for what a question expects, for what was public beforehand, or for what codes
tell; sums need ``none``.
"""


def stated_message(message: Message, options: Mapping[str, Any], unit: Unit) -> dict[str, Any]:
    """Return a manifest's members that state a message: strata, priors, tables and randomizers.

    :attr:`StatedMessage.message` reads them back. ``options`` are those that its randomizers
    were built with; ``unit`` is what pays, of as many records as the message says:
    of one record each, both units have the same neighbours, and the claim names the one asked.
    """
    released, strata = message.released, message.strata
    weights, sections = released.expected_weights, []
    if strata is not None:
        laws = [[]] * len(strata.names) if weights is None else weights.tolist()
        sections = [
            StratumSection(name=name, rows=rows, law=law)
            for name, rows, law in zip(strata.names, strata.rows, laws, strict=True)
        ]
    priors = message.histograms if weights is None else []  # nobody counted what is expected
    tables = [(group, table.histogram) for group, table in released.tables.items()]

    def counted(each: Iterable[tuple[Group, NoisyPrior]]) -> list[PriorSection]:
        named = ((message.names_of(group), noisy) for group, noisy in each)
        return [PriorSection.from_histogram(names, noisy, unit) for names, noisy in named]

    return {
        "strata": sections,
        "priors": counted(priors),
        "tables": counted(tables),
        "randomizers": [
            StatedRandomizer(
                labels=message.names_of(group),
                name=name,
                details={**details, "options": options},
                channel=channel.to_json(),
                guarantee=PureDP.of_channel(channel, unit).scale(message.records).to_json(),
            )
            for group, channel, name, details in message.sent
        ],
    }


class StatedMessage(Heading):
    """What was sent of which labels, and what that spends.

    Every label is in exactly one prior and randomized by exactly one randomizer. Events in strata
    are sent by randomizers of their stratum's own: the first's codes come first. Strata that both
    parties know have a table beside each noisy prior; those that a question gathered are of one
    label, which no prior counts.

    Sums over groups are of one label, have neither priors nor randomizers, and are the rows.
    """

    labels: Few[LabelSection]
    strata: Annotated[list[StratumSection], Field(max_length=MOST_STRATA), FailFast()]
    priors: Annotated[list[PriorSection], Field(max_length=MOST_LABELS), FailFast()]
    tables: Annotated[list[PriorSection], Field(max_length=MOST_LABELS), FailFast()]
    randomizers: Annotated[
        list[StatedRandomizer], Field(max_length=MOST_STRATA * MOST_LABELS), FailFast()
    ]
    privacy: StatedPrivacy
    drift: DriftSection | None
    sums: SumsSection | None = None

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        names = self.names
        if len(set(names)) < len(names):
            raise ValueError("two labels have one name")
        if self.sums is not None:
            self._check_alone()
            return self
        sent = [[made.labels for made in stratum] for stratum in self.by_stratum]
        counted = [] if self.questioned else [[prior.labels for prior in self.priors]]
        if any(sorted(chain.from_iterable(each)) != sorted(names) for each in [*counted, *sent]):
            raise ValueError("every label must be in exactly one prior and one randomizer")
        self._check_strata()
        # before any product of grids is built: few bytes can stand for any number of cells
        lengths = {label.name: len(label.grid) for label in self.labels}
        stated = [(prior.labels, len(prior.noisy_counts)) for prior in self.priors]
        stated += [(made.labels, len(made.channel["row_of"])) for made in self.randomizers]
        for labels, size in stated:
            if (cells := math.prod(lengths[name] for name in labels)) != size:
                raise ValueError(f"{size:,} counts or rows for {cells:,} cells")
        for randomizer in self.randomizers if self.priors else ():
            if not any({*randomizer.labels} <= {*prior.labels} for prior in self.priors):
                raise ValueError("the labels of one randomizer must be counted by one prior")
        return self

    def _check_alone(self) -> None:
        beside = self.strata, self.priors, self.tables, self.randomizers, self.drift
        if any(beside):
            raise ValueError("sums go with neither codes nor a histogram")

    def _check_strata(self) -> None:
        strata, counted = self.strata, [prior.labels for prior in self.priors if prior.noisy]
        if [table.labels for table in self.tables] != (counted if strata else []):
            raise ValueError("a histogram by stratum must stand beside each noisy prior")
        if not strata:
            return
        if len(self.randomizers) % len(strata) or self.drift:
            raise ValueError("strata must have as many randomizers each, and no test for drift")
        if len({stratum.name for stratum in strata}) < len(strata):
            raise ValueError("two strata have one name")
        if sum(stratum.rows for stratum in strata) != self.population.rows:
            raise ValueError("the strata must have all rows")
        for table in self.tables:
            bins, rest = divmod(len(table.noisy_counts), len(strata))
            if rest or bins > BINS or not table.noisy:
                raise ValueError(f"a histogram by stratum must have 1 … {BINS} bins of each")
        points = len(self.labels[0].grid) if self.questioned else 0
        if any(len(s.law) != points or any(s.law) != self.questioned for s in strata):
            raise ValueError("a stratum's law must have a weight for each point, and not all 0")
        numbered = [stratum.name for stratum in strata] == list(map(str, range(len(strata))))
        if self.questioned and (len(self.labels) > 1 or self.priors or not numbered):
            raise ValueError("a question must be about one label, which no prior counts")

    @property
    def questioned(self) -> bool:
        """Whether a question gathered the strata, and says what is expected of each."""
        return bool(self.strata) and not self.tables

    @property
    def question_bits(self) -> float:
        """What a question told of each event's prediction, at most: the entropy of its strata."""
        if (sums := self.sums) is not None:
            return bits_of(sums.groups, len(sums.offsets), sums.largest_weight)
        rows = np.array([stratum.rows for stratum in self.strata if stratum.rows])
        shares = rows / self.population.rows
        return float(-shares @ np.log2(shares)) if self.questioned else 0.0

    @property
    def by_stratum(self) -> list[list[StatedRandomizer]]:
        """The randomizers of each stratum's events; of all events, without strata."""
        parts = len(self.strata) or 1
        each = len(self.randomizers) // parts
        return [self.randomizers[each * i : each * (i + 1)] for i in range(parts)]

    @property
    def lattice(self) -> Lattice:
        """Where labels, offsets and widths lie of which sums are.

        ``ReleaseError`` if a grid is stated that is no such thing.
        """
        grid = self.label.grid
        ends = min(grid, default=0.0), max(grid, default=0.0)
        lattice = Lattice(*ends, max(len(grid) - 1, 0))
        if lattice.grid.points.tolist() != grid:
            raise ReleaseError("sums must be of labels on the equally spaced points of a grid")
        return lattice

    def check_codes(self) -> None:
        """``ReleaseError`` if what is sent are not codes, for whoever knows nothing else."""
        if self.sums is not None:
            raise ReleaseError(
                f"the release of data set {self.data_set!r}, epoch {self.epoch!r}, has"
                f" {self.rows:,} sums over groups of events, and no codes: learn from it"
                " alone with feature-party train, or beside codes with labelveil.read_sums(FOLDER)"
            )

    def _only(self, sections: list[SectionT]) -> SectionT:
        if len(self.labels) > 1 or len(sections) != 1:
            raise ReleaseError(
                f"a release of {len(self.labels)} labels ({', '.join(self.names):.200}) in"
                f" {len(self.strata) or 1} strata where one is expected"
            )
        return sections[0]

    @property
    def label(self) -> LabelSection:
        """The only label; as all that follows in the singular, refused where there are several."""
        return self._only(self.labels)

    @property
    def prior(self) -> PriorSection:
        return self._only(self.priors)

    @property
    def randomizer(self) -> StatedRandomizer:
        return self._only(self.randomizers)

    @property
    def channel(self) -> FiniteChannel:
        """The exact channel, rebuilt and validated."""
        return self._only(self.channels)

    @property
    def names(self) -> list[str]:
        return [label.name for label in self.labels]

    def group(self, names: Sequence[str]) -> Group:
        """Return some labels with the cells of their grids."""
        places = tuple(map(self.names.index, names))
        grids = (Grid.from_edges(self.labels[place].grid) for place in places)
        return Group(places, Cells(tuple(grids)))

    @cached_property
    def codebooks(self) -> Codebooks:
        """What the codes mean; ``ReleaseError`` if there are none."""
        self.check_codes()
        channels, books = iter(self.channels), []
        for stratum in self.by_stratum:
            groups = tuple(self.group(stated.labels) for stated in stratum)
            own = tuple(islice(channels, len(groups)))
            books.append(Codebook(tuple(self.names), groups, own))
        return Codebooks(tuple(books))

    @cached_property
    def channels(self) -> list[FiniteChannel]:
        """The exact channels, rebuilt and validated."""
        return [
            FiniteChannel.from_json(stated.channel, self.group(stated.labels).cells.inputs)
            for stated in self.randomizers
        ]

    @cached_property
    def message(self) -> Message:
        """The message as whoever built it had it; ``ReleaseError`` if there is none."""
        codebooks, strata = self.codebooks, None
        if self.strata:
            names, rows = zip(*((each.name, each.rows) for each in self.strata), strict=True)
            strata = Strata(names, rows, np.arange(len(rows)))
        return Message(
            terms=tuple(label.terms for label in self.labels),
            codebooks=codebooks,
            randomizers=tuple((stated.name, stated.facts) for stated in self.randomizers),
            released=self._released(strata),
            records=self.privacy.records_per_unit,
            strata=strata,
        )

    def _released(self, strata: Strata | None) -> Released:
        priors = {self.group(stated.labels): self._histogram(stated) for stated in self.priors}
        if strata is None:
            return Released(priors)
        if self.questioned:
            laws = np.array([stratum.law for stratum in self.strata])
            return Released.expected(self.group(self.names), strata, laws)
        tables = {}
        for stated in self.tables:
            group, noisy = self.group(stated.labels), self._histogram(stated)
            bins = bins_of(group.cells, priors[group].probabilities)
            if noisy.noisy_counts.size != len(strata.names) * (int(bins.max()) + 1):
                raise ReleaseError("a histogram by stratum has other bins than its prior gives")
            tables[group] = StratumTable(strata, bins, noisy)
        return Released(priors, tables)

    def _histogram(self, stated: PriorSection) -> NoisyPrior:
        channel = self.channels[self._decodes(stated)] if stated.decoded else None
        cells, records = self.group(stated.labels).cells, self.privacy.records_per_unit
        return stated.histogram(cells, self.prior_rows, records, channel)

    def _decodes(self, prior: PriorSection) -> int:
        """Which randomizer's codes a decoded histogram comes from."""
        for index, stated in enumerate(self.randomizers):
            square = len(stated.channel["outputs"]) == len(stated.channel["row_of"])
            if stated.labels == prior.labels and stated.name == "randomized-response" and square:
                return index
        raise ReleaseError(
            "a histogram is decoded from the codes of randomized response, but those of"
            f" {', '.join(prior.labels):.100} are not such codes"
        )

    @property
    def prior_rows(self) -> int:
        """Labels that the prior's histogram counted: this release's, or an earlier one's."""
        drift = self.drift
        return self.population.rows if drift is None or drift.drifted else drift.in_force.rows

    @property
    def prior_source(self) -> PriorSource:
        """Where its histograms come from; of several labels', where those that are counted do."""
        if self.sums is not None:
            return "none"
        if self.questioned:
            return "question"
        if any(prior.public for prior in self.priors):
            return "public"
        if all(prior.decoded for prior in self.priors):
            return "codes"
        return "labels" if self.prior_paid else "earlier"

    @property
    def prior_paid(self) -> bool:
        """Whether this release's labels paid for the prior."""
        noisy = any(prior.noisy for prior in self.priors)  # with strata there is none
        return noisy and (self.drift is None or self.drift.drifted)

    @property
    def test_guarantee(self) -> PureDP | None:
        """What the test for drift spends of this release's budget; None if nothing."""
        return None if self.drift is None else self.drift.spent

    @property
    def guarantees(self) -> list[PureDP]:
        """What this release's labels spend, one guarantee for each use of them."""
        test = [] if self.test_guarantee is None else [self.test_guarantee]
        paid = [prior.spent for prior in self.priors if self.prior_paid and prior.noisy]
        return [*test, *paid, *(table.spent for table in self.tables), self.labels_guarantee]

    @property
    def prior_guarantee(self) -> PureDP:
        """Of all histograms."""
        nothing = PureDP.of(0, unit=self.labels_guarantee.unit)
        return compose([nothing, *(counted.spent for counted in (*self.priors, *self.tables))])

    @property
    def labels_guarantee(self) -> PureDP:
        """Of all codes of one event, which is in one stratum, whatever its labels are; or of all
        sums, of which it is in one."""
        if self.sums is not None:
            return self.sums.spent
        each = [compose(sent.spent for sent in stratum) for stratum in self.by_stratum]
        return max(each, key=lambda spent: spent.exact_epsilon)

    @property
    def total_guarantee(self) -> Guarantee:
        return guarantee_from_json(self.privacy.total)

    def check_spent(self) -> None:
        """Recompute every guarantee from the integers, exactly.

        ``ReleaseError``, ``PrivacyError`` or ``ConfigError`` if one is not what they give.
        """
        group = self.privacy.records_per_unit
        if group > 1 and self.labels_guarantee.unit != Unit.USER:
            raise ReleaseError(f"{group} records per unit, but a unit is one record")
        for randomizer, channel in zip(self.randomizers, self.channels, strict=True):
            randomizer.check(channel, group)
        for prior in (*self.priors, *self.tables):
            self._check_prior(prior)
        if (sums := self.sums) is not None:
            sums.check(self.lattice.steps, group)
            if not self.population.submitted or sums.groups > self.population.rows:
                raise ReleaseError(
                    "sums must be of a submitted population, of no more groups than it"
                )
        if self.tables:
            self.message.released.laws_of_strata  # noqa: B018  that there are some is checked
        if self.drift is not None:
            self._only(self.labels)
            self.drift.check(self.labels_guarantee, group)
        total = compose(self.guarantees)
        if total != self.total_guarantee:
            raise ReleaseError(f"the parts add up to {total}, not {self.total_guarantee}")
        requested = decimal_value(self.privacy.requested_epsilon)  # as it was written
        if not total.within(PureDP.of(requested, unit=total.unit)):
            raise ReleaseError(
                f"the release spends {total}, more than the {self.privacy.requested_epsilon:g}"
                " that was asked for"
            )

    def _check_prior(self, prior: PriorSection) -> None:
        drift, cells = self.drift is not None, len(self.group(prior.labels).cells)
        tested = prior in self.tables or drift
        prior.check(self.privacy.records_per_unit, None if tested else cells)
        if not prior.noisy and drift:
            raise ReleaseError(f"{prior.called} goes without a test for drift")
        if prior.decoded:
            self._decodes(prior)
