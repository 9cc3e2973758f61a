"""A message, whether it is about to be sent or was read: what is public of its labels.

Channels by stratum of events (:mod:`labelveil.common.randomizers.message.strata`), each over a
group of labels, and what is known of the labels beside their codes: histograms, each over a group
of labels, tables of strata, or what a question expects of them.
:mod:`labelveil.common.randomizers.message.plan` says how it is built, and
:mod:`labelveil.common.release.stated_message` how a manifest states it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from labelveil.common.arrays import Floats, Integers
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.guarantees import PureDP, Unit, compose
from labelveil.common.randomizers.cells import Group
from labelveil.common.randomizers.message.codebooks import Codebook, Codebooks
from labelveil.common.randomizers.message.strata import Strata, StratumTable
from labelveil.common.randomizers.message.terms import LabelTerms
from labelveil.common.randomizers.prior import NoisyPrior, decoded_prior, expected_prior


@dataclass(frozen=True, eq=False)
class Released:
    """What is public of the labels beside their codes, by the labels that it is about."""

    priors: Mapping[Group, NoisyPrior]  # histograms of all events, or public priors
    tables: Mapping[Group, StratumTable] = field(default_factory=dict)  # of each stratum's
    # or (S, k) whole weights of a grid's points that somebody expects of each; nobody paid for them
    expected_weights: Integers | None = None

    @classmethod
    def expected(cls, group: Group, strata: Strata, weights: Integers) -> Released:
        """What somebody expects of the labels of strata, in (S, k) weights of a grid's points."""
        pooled = expected_prior(np.asarray(strata.rows) @ _laws(weights))
        return cls({group: pooled}, expected_weights=weights)

    @property
    def laws(self) -> dict[Group, Floats]:
        """What is known of all events."""
        return {group: prior.probabilities for group, prior in self.priors.items()}

    @property
    def laws_of_strata(self) -> list[dict[Group, Floats]]:
        """What is known of each stratum's; none without strata."""
        if self.expected_weights is not None:
            (group,) = self.priors
            return [{group: law} for law in _laws(self.expected_weights)]
        laws = {group: table.laws(self.priors[group]) for group, table in self.tables.items()}
        return [
            self.laws | dict(zip(laws, of_stratum, strict=True))
            for of_stratum in zip(*laws.values(), strict=True)
        ]


def _laws(weights: Integers) -> Floats:
    """(S, k) laws of such weights."""
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Message:
    """What is public of labels that are sent together."""

    terms: tuple[LabelTerms, ...]
    """One a label."""
    codebooks: Codebooks
    """What codes mean: the channels, by stratum."""
    randomizers: tuple[tuple[str, Mapping[str, Any]], ...]
    """By what each channel was built, one stratum's after another's: its name, and what it says
    that it did."""
    released: Released
    records: int = 1
    """Of one privacy unit, whose labels may change together."""
    strata: Strata | None = None
    """None where all events are sent in the same way."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the labels."""
        return self.codebooks.names

    @property
    def codebook(self) -> Codebook:
        """What codes mean; ``ConfigError`` if events are in strata."""
        return self.codebooks.only

    @property
    def sent(self) -> list[tuple[Group, FiniteChannel, str, Mapping[str, Any]]]:
        """Every channel, one stratum's after another's: which labels it sends, by what it was
        built, and what that says."""
        books = self.codebooks.books
        pairs = chain.from_iterable(zip(b.groups, b.channels, strict=True) for b in books)
        return [(*pair, *made) for pair, made in zip(pairs, self.randomizers, strict=True)]

    @property
    def labels_guarantee(self) -> PureDP:
        """Of all codes of one privacy unit, from the channels' integers.

        An event has a stratum, whatever its labels are, so the worst one's counts.
        """
        unit = Unit.RECORD if self.records == 1 else Unit.USER
        parts = [
            compose(PureDP.of_channel(channel, unit) for channel in book.channels)
            for book in self.codebooks.books
        ]
        return max(parts, key=lambda part: part.exact_epsilon).scale(self.records)

    @property
    def guarantee(self) -> PureDP:
        """Of the whole message, these labels having paid for its histograms."""
        tables = (table.histogram for table in self.released.tables.values())
        histograms = (*self.released.priors.values(), *tables)
        paid = [each.guarantee for each in histograms if each.noisy]
        return compose([*paid, self.labels_guarantee])

    @property
    def histograms(self) -> list[tuple[Group, NoisyPrior]]:
        """All histograms of all events, and the labels that each is of, in the labels' order."""
        return sorted(self.released.priors.items(), key=lambda each: each[0].labels)

    def marginal(self, name: str) -> tuple[Floats, Floats]:
        """(k,) points of one label's grid, and their shares in the released prior."""
        place = self.names.index(name)
        group, histogram = next(each for each in self.histograms if place in each[0].labels)
        index = group.labels.index(place)
        return group.cells.grids[index].points, group.cells.marginal(histogram.probabilities, index)

    def names_of(self, group: Group) -> list[str]:
        """Names of the labels of a group."""
        return [self.names[label] for label in group.labels]

    @property
    def decodes(self) -> list[int]:
        """Which channels' codes tell the histogram of their labels, which nobody has counted."""
        known = {label for group in self.released.priors for label in group.labels}
        groups = enumerate(self.codebooks.groups)
        return [column for column, group in groups if not known.issuperset(group.labels)]

    def decode(self, counts: Integers) -> Message:
        """Fill in the histograms that codes tell, from (d,) numbers of each code.

        Their channels depend on no histogram, so they are the same in all strata.
        """
        if not self.decodes:
            return self
        priors, groups = dict(self.released.priors), self.codebooks.groups
        counted = self.codebooks.counts_by_channel(counts)
        for column in self.decodes:
            channel = self.codebooks.books[0].channels[column]
            codes = np.sum(counted[column :: len(groups)], axis=0)
            priors[groups[column]] = decoded_prior(channel, codes, self.records)
        return replace(self, released=replace(self.released, priors=priors))
