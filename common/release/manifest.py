"""The manifest of a release: everything about it that is public, and the check of its claims.

The manifest's own bytes are written once and never re-serialised: SHA-256 over them identifies the
release. Anyone who receives them recomputes every guarantee from the integers that they hold.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

import numpy as np
from pydantic import FailFast, Field, ValidationError, model_validator

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError, PrivacyError, ReleaseError
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.exact.rational import decimal_value
from labelveil.common.formats import RELEASE, known_software
from labelveil.common.guarantees import Guarantee, PureDP, Unit, compose, guarantee_from_json
from labelveil.common.mechanisms.group_sums.lattice import Lattice
from labelveil.common.mechanisms.group_sums.question import bits_of
from labelveil.common.randomizers import NoisyPrior, decoded_prior
from labelveil.common.randomizers.cells import Cells, Codebook, Group
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.codebooks import Codebooks
from labelveil.common.randomizers.message.message import Released
from labelveil.common.randomizers.message.strata import (
    BINS,
    MOST_STRATA,
    Strata,
    StratumTable,
    bins_of,
)
from labelveil.common.randomizers.message.terms import MOST_LABELS
from labelveil.common.release.blocks import SUM_BYTES
from labelveil.common.release.claims import Name
from labelveil.common.release.folder import MANIFEST_FILE, read_manifest
from labelveil.common.release.limits import block_rows_for
from labelveil.common.release.sections import (
    ContentSection,
    DriftSection,
    Few,
    LabelSection,
    ManifestSection,
    PopulationSection,
    PriorSection,
    StatedPrivacy,
    StatedRandomizer,
    StratumSection,
    SumsSection,
)
from labelveil.common.release.strict_json import parse_json

FORMAT: Final = "labelveil-release/3"

SectionT = TypeVar("SectionT")


class OlderForm(ReleaseError):
    """A manifest of format 1 in a form that is read no more."""


class Manifest(ManifestSection):
    """Everything that is public about one release.

    Every label is in exactly one prior and randomized by exactly one randomizer. Events in strata
    are sent by randomizers of their stratum's own: the first's codes come first. Strata that both
    parties know have a table beside each noisy prior; those that a question gathered are of one
    label, which no prior counts.

    A release of sums over groups is of one label, has neither priors nor randomizers, and its rows
    are the sums.

    Format 2 is as 3, but has no sums. Format 1 is as 2, but says neither
    ``population.secret_check`` nor anything ``optional``.
    """

    format: Literal["labelveil-release/1", "labelveil-release/2", "labelveil-release/3"]
    software: str = Field(pattern=r"^labelveil/[0-9A-Za-z.+-]{1,40}$")
    data_set: Name
    epoch: Name
    labels: Few[LabelSection]
    strata: Annotated[list[StratumSection], Field(max_length=MOST_STRATA), FailFast()]
    priors: Annotated[list[PriorSection], Field(max_length=MOST_LABELS), FailFast()]
    tables: Annotated[list[PriorSection], Field(max_length=MOST_LABELS), FailFast()]
    randomizers: Annotated[
        list[StatedRandomizer], Field(max_length=MOST_STRATA * MOST_LABELS), FailFast()
    ]
    privacy: StatedPrivacy
    population: PopulationSection
    content: ContentSection
    drift: DriftSection | None
    sums: SumsSection | None = None
    optional: dict[str, Any] = Field(default_factory=dict)
    """What a later version says besides, and a reader may skip: all of it is unknown here."""

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        number = RELEASE.number_of(self.format) or 0
        if number < 3 and self.sums:
            raise ValueError("formats 1 and 2 have no sums")
        first = number == 1
        if first and (self.population.secret_check or self.optional):
            raise ValueError("format 1 says neither secret_check nor anything optional")
        if not first and self.population.secret_check is None:
            raise ValueError("population.secret_check is missing")
        return self

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
        shares = rows / max(rows.sum(), 1)
        return float(-shares @ np.log2(shares)) if self.questioned else 0.0

    @property
    def by_stratum(self) -> list[list[StatedRandomizer]]:
        """The randomizers of each stratum's events; of all events, without strata."""
        parts = len(self.strata) or 1
        each = len(self.randomizers) // parts
        return [self.randomizers[each * i : each * (i + 1)] for i in range(parts)]

    @property
    def rows(self) -> int:
        """Rows that are sent: a code for each event, or a sum for each group."""
        return self.content.rows or self.population.rows

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

    def marginal(self, name: str) -> tuple[Floats, Floats]:
        """(k,) points of one label's grid, and their shares in the released prior."""
        place = self.names.index(name)
        group, histogram = next(each for each in self.known if place in each[0].labels)
        index = group.labels.index(place)
        return group.cells.grids[index].points, group.cells.marginal(histogram.probabilities, index)

    def group(self, names: Sequence[str]) -> Group:
        """Return some labels with the cells of their grids."""
        places = tuple(map(self.names.index, names))
        grids = (Grid.from_edges(self.labels[place].grid) for place in places)
        return Group(places, Cells(tuple(grids)))

    @property
    def codebook(self) -> Codebook:
        """What the codes mean, where there are no strata."""
        return self.codebooks.only

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

    @property
    def classes(self) -> Strata:
        """The strata, by their names."""
        names = tuple(stratum.name for stratum in self.strata)
        rows = tuple(stratum.rows for stratum in self.strata)
        return Strata(names, rows, np.arange(len(rows)))

    @cached_property
    def released(self) -> Released:
        """What is public of the labels besides the codes; ``ReleaseError`` if there are none."""
        self.check_codes()
        if self.questioned:
            laws = np.array([stratum.law for stratum in self.strata])
            return Released.expected(self.group(self.names), self.classes, laws)
        groups = [self.group(prior.labels) for prior in self.priors]
        priors, tables = dict(zip(groups, self.histograms, strict=True)), {}
        for stated in self.tables:
            group = self.group(stated.labels)
            bins = bins_of(group.cells, priors[group].probabilities)
            noisy = self._histogram(stated)
            if noisy.noisy_counts.size != len(self.strata) * (int(bins.max()) + 1):
                raise ReleaseError("a histogram by stratum has other bins than its prior gives")
            tables[group] = StratumTable(self.classes, bins, noisy)
        return Released(priors, tables)

    @property
    def known(self) -> list[tuple[Group, NoisyPrior]]:
        """What is known of the labels of all events, by the labels that it is of."""
        return list(self.released.priors.items())

    @cached_property
    def histograms(self) -> list[NoisyPrior]:
        """The noisy counts of every prior, with what is known about their noise."""
        return list(map(self._histogram, self.priors))

    def _histogram(self, prior: PriorSection) -> NoisyPrior:
        counts = np.asarray(prior.noisy_counts, dtype=np.int64)
        group = self.privacy.records_per_unit
        if prior.public:
            total = int(counts.sum())
            return NoisyPrior(counts, Fraction(0), total, group, decoded=0.0)
        if prior.noisy:
            epsilon = prior.spent.exact_epsilon
            cells = self.group(prior.labels).cells
            shape = cells.shape if len(prior.labels) > 1 and len(cells) == counts.size else ()
            start = np.asarray(prior.start, dtype=np.int64) if prior.start else None
            return NoisyPrior(counts, epsilon, self.prior_rows, group, shape=shape, start=start)
        even = np.full(counts.size, self.population.rows // counts.size)
        decoded = decoded_prior(self.channels[self._decodes(prior)], even, group)
        return replace(decoded, noisy_counts=counts)

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
    def prior_paid(self) -> bool:
        """Whether this release's labels paid for the prior."""
        noisy = any(prior.noisy for prior in self.priors)  # with strata there is none
        return noisy and (self.drift is None or self.drift.drifted)

    @property
    def test_guarantee(self) -> PureDP | None:
        """What the test for drift spends of this release's budget; None if nothing."""
        test = None if self.drift is None else self.drift.test
        return None if test is None or test.session is not None else test.spent

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
        each = (counted.spent for counted in (*self.priors, *self.tables))
        return reduce(PureDP.compose, each, nothing)

    @property
    def labels_guarantee(self) -> PureDP:
        """Of all codes of one event, which is in one stratum, whatever its labels are; or of all
        sums, of which it is in one."""
        if self.sums is not None:
            return self.sums.spent
        each = [reduce(PureDP.compose, (s.spent for s in stratum)) for stratum in self.by_stratum]
        return max(each, key=lambda spent: spent.exact_epsilon)

    @property
    def total_guarantee(self) -> Guarantee:
        return guarantee_from_json(self.privacy.total)

    def to_bytes(self) -> bytes:
        """Canonical JSON: sorted keys, no white space, UTF-8; no member for what is not said."""
        document = self.model_dump(mode="json")
        for name in ("optional", "sums"):
            if not document[name]:
                del document[name]
        if self.content.rows is None:
            del document["content"]["rows"]
        if self.population.secret_check is None:
            del document["population"]["secret_check"]
        text = json.dumps(
            document,
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        )
        return text.encode()

    @classmethod
    def parse(cls, data: bytes, reader: str = "") -> Manifest:
        """Read a manifest without believing it: its form is checked, none of its claims.

        ``reader`` is who reads, for a line that says who must update.

        ``ReleaseError`` if it says anything that a manifest has no place for, or in a format that
        is not read here.
        """
        document = parse_json(data)
        stated = document.get("format") if type(document) is dict else None
        made_by = document.get("software") if type(document) is dict else None
        update = f"{reader} must update labelveil" if reader else "update labelveil here"
        number = RELEASE.check(stated, "the manifest", ReleaseError, update=update, made_by=made_by)
        try:
            return cls.model_validate(document, strict=True)
        except (ValidationError, PrivacyError, ConfigError) as error:
            if isinstance(error, ValidationError):  # whose text shows all that it is about
                first = error.errors(include_input=False, include_context=False)[0]
                where = ".".join(str(part) for part in first["loc"])
                reason = f"{where or 'document':.100}: {first['msg']:.300}"
            else:
                reason = str(error)
            text = f"the manifest is not a {stated} manifest: {reason}"
            if number == 1:
                raise OlderForm(
                    f"{text}; format 1 had several forms, of which the last is read here; the"
                    f" version that made it reads it: {known_software(made_by) or 'an older one'}"
                ) from error
            raise ReleaseError(text) from error

    @classmethod
    def from_bytes(cls, data: bytes, reader: str = "") -> Manifest:
        """Read a manifest and check every claim that it makes about itself.

        ``reader`` as of :meth:`parse`.

        ``ReleaseError`` if it is malformed, or a guarantee is not what its own integers give.
        """
        manifest = cls.parse(data, reader)
        manifest.check()
        if manifest.to_bytes() != data:  # or the way in which it is written could tell something
            raise ReleaseError("the manifest is not in canonical form: sorted keys, no white space")
        return manifest

    def check(self) -> None:
        """Recompute every guarantee from the manifest's integers, exactly."""
        try:
            self._check()
        except (PrivacyError, ConfigError) as error:
            raise ReleaseError(f"the manifest contradicts itself: {error}") from error

    def _check(self) -> None:
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
            self.released.laws_of_strata  # noqa: B018  that there are some is checked on the way
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
        if self.population.submitted != (self.content.key_bytes == 0):
            raise ReleaseError(
                f"keys of {self.content.key_bytes} bytes for {self.population.keys!r} keys;"
                " only a submitted population goes without"
            )
        self._check_layout()

    def _check_prior(self, prior: PriorSection) -> None:
        drift, cells = self.drift is not None, len(self.group(prior.labels).cells)
        tested = prior in self.tables or drift
        prior.check(self.privacy.records_per_unit, None if tested else cells)
        if not prior.noisy and drift:
            raise ReleaseError(f"{prior.called} goes without a test for drift")
        if prior.decoded:
            self._decodes(prior)

    def _check_layout(self) -> None:
        most = block_rows_for(self.rows)
        if self.content.block_rows > most:  # a reader holds a whole block
            raise ReleaseError(f"blocks of {self.content.block_rows:,} rows, more than {most:,}")
        blocks = -(-self.rows // self.content.block_rows)
        if len(self.content.blocks) != blocks:
            raise ReleaseError(f"{len(self.content.blocks)} block digests for {blocks} blocks")
        if content_digest(self.content.blocks) != self.content.digest:
            raise ReleaseError("the block digests do not give the content digest")
        sums, width = self.sums, self.content.code_bytes
        if (groups := None if sums is None else sums.groups) != self.content.rows:
            raise ReleaseError(f"{self.content.rows} rows for {groups} sums")
        if sums is not None and width != SUM_BYTES:
            raise ReleaseError(f"sums of {width} bytes must have {SUM_BYTES}")
        if sums is None and width != self.codebooks.code_bytes:
            raise ReleaseError(f"codes of {width} bytes for {self.codebooks.outputs} outputs")


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


@lru_cache(maxsize=16)
def manifest_of(data: bytes) -> Manifest:
    """Read a manifest as :meth:`Manifest.from_bytes`, but the same bytes once: what was estimated
    from its histograms is kept with it. Nobody changes it."""
    return Manifest.from_bytes(data)


def manifest_in(folder: Path) -> Manifest:
    """Read the manifest of a folder with a complete release; its file is named in what is wrong."""
    with naming_manifest(folder):
        return manifest_of(read_manifest(folder))


@contextmanager
def naming_manifest(folder: Path) -> Iterator[None]:
    """Name the file of a manifest that is read in what is wrong with it, and say what to do."""
    path = folder / MANIFEST_FILE
    try:
        yield
    except ReleaseError as error:
        # what reading said of files stays, and so does an older form, which is not damaged
        if type(error) is not ReleaseError or str(folder) in str(error):
            raise
        raise ReleaseError(f"{path}: {error}; fetch the release again if it is damaged") from error
