"""What a report is made from: public facts of the release, the training run, the scored events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from labelveil.common.arrays import Booleans, Floats, Indices
from labelveil.common.errors import printable
from labelveil.common.exact.channel import Codes
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.sections import LabelSection, StatedRandomizer
from labelveil.feature_party.evaluation.scores import Scores
from labelveil.feature_party.learning.several_labels import stated_of, view_of
from labelveil.feature_party.model.drift import ColumnDrift


@dataclass(frozen=True, eq=False)
class ReleasedLabel:
    """What a release says of one of its labels.

    Of what was sent with other labels the channel is the average over these, as the prior has them.
    """

    section: LabelSection
    stated: StatedRandomizer  # that sent it
    grid: Floats  # (k,) its values
    mass: Floats  # (k,) share of events that the released prior gives each
    channel: Floats  # (k, d) probability of each output
    outputs: Floats  # (d,) values that they stand for, ascending
    rank: Indices  # (d,) place of each code among them

    @classmethod
    def from_manifest(cls, manifest: Manifest, label: str = "") -> ReleasedLabel:
        """Take it from a manifest; the only label needs no name."""
        section, stated = stated_of(manifest, label)
        problem = view_of(manifest.message, label).problem
        mass = np.zeros(problem.values.size)
        np.add.at(mass, problem.value_of, problem.prior)
        alike = np.bincount(problem.value_of)[problem.value_of]
        within = np.where(mass[problem.value_of] > 0, problem.prior, 1 / alike)
        channel = np.zeros((mass.size, problem.outputs.size))
        np.add.at(channel, problem.value_of, within[:, None] * problem.channel)
        channel /= channel.sum(axis=1, keepdims=True)
        order = np.argsort(problem.outputs, kind="stable")
        sent = channel[:, order], problem.outputs[order], np.argsort(order)
        return cls(section, stated, problem.values, mass, *sent)

    @property
    def boundaries(self) -> Floats:
        """(k + 1,) where a picture's axis passes from each value to the next."""
        between = (self.grid[1:] + self.grid[:-1]) / 2
        return np.concatenate([self.grid[:1], between, self.grid[-1:]])

    @property
    def bin_edges(self) -> list[float]:
        """Label at which each bin starts; empty for a randomizer without bins."""
        edges = self.stated.details.get("bin_edges", [])
        return [float(edge) for edge in edges] if isinstance(edges, list) else []


@dataclass(frozen=True)
class ReportInputs:
    """What a page shows: a model's scores, and how the configuration calls the label.

    It draws one channel: of several releases that of the last one which has held-out events.
    """

    scores: Scores
    label: str = ""  # what the label is called; by default as its column is
    unit: str = ""  # its unit, if it has one
    ignored: Sequence[str] = ()  # columns that the configuration leaves out
    drift: Sequence[ColumnDrift] = ()  # how the rows predicted differ from those trained on

    @property
    def manifest(self) -> Manifest:
        """The release's verified manifest."""
        return self.scores.manifests[-1]

    @cached_property
    def _drawn(self) -> tuple[Manifest, Booleans, Codes]:
        parts = self.scores.events.problem.by_release(self.scores.codes)
        each = [*zip(self.scores.manifests, parts, strict=True)]
        held_out = [one for one in each if one[1][1].any()]
        manifest, (_, mine, codes) = (held_out or each)[-1]
        return manifest, mine, codes.astype(np.uint16)

    @property
    def shown(self) -> Manifest:
        """The last release with held-out events, whose channel and codes are drawn."""
        return self._drawn[0]

    @property
    def drawn(self) -> tuple[Booleans, Codes]:
        """Which of the events scored are that release's, and their privatized labels."""
        return self._drawn[1:]

    @property
    def true_labels(self) -> Floats | None:
        """True labels of these events, in a simulation."""
        truth = self.scores.truth
        return None if truth is None else truth.labels[self.drawn[0]]

    @cached_property
    def released(self) -> ReleasedLabel:
        """What the release says of the label."""
        return ReleasedLabel.from_manifest(self.shown, self.scores.label)

    @property
    def name(self) -> str:
        """What the label is called."""
        return printable(self.label or self.released.section.name)

    @property
    def axis(self) -> str:
        """The same with its unit, for an axis."""
        return f"{self.name} ({self.unit})" if self.unit else self.name
