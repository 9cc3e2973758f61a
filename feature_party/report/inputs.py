"""What a report is made from: public facts of the release, the training run, the scored events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from common.arrays import Floats, Indices
from common.exact.channel import Codes
from common.release.manifest import Manifest
from common.release.sections import LabelSection, PriorSection, StatedRandomizer
from feature_party.evaluation.breakdown import Segment
from feature_party.evaluation.intervals import Measured
from feature_party.evaluation.scores import Scores
from feature_party.evaluation.sentences import calibration_lines
from feature_party.join.matches import MatchCounts
from feature_party.learning.several_labels import stated_of, view_of
from feature_party.model.facts import EpochLosses


@dataclass(frozen=True)
class ReleasedLabel:
    """What a release says of one of its labels.

    Attributes
    ----------
    section, stated
        The label and the randomizer that sent it, as the manifest has them.
    grid, mass
        (k,) its values, and the share of events that the released prior gives each.
    channel
        (k, d) probability of each output; of what was sent with other labels, on average over
        these as the prior has them.
    """

    section: LabelSection
    stated: StatedRandomizer
    grid: Floats
    mass: Floats
    channel: Floats
    outputs: Floats  # (d,) values that they stand for, ascending
    rank: Indices  # (d,) place of each code among them

    @classmethod
    def of(cls, manifest: Manifest, label: str = "") -> ReleasedLabel:
        """Take it from a manifest; the only label needs no name."""
        section, stated = stated_of(manifest, label)
        problem = view_of(manifest, label).problem
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
    """Everything that a report shows; whatever is None or empty is left out of the page.

    Attributes
    ----------
    matches
        Match counts of release and features, None where no join took place.
    metrics
        Errors by name, on events that were not trained on, as in ``metrics.json``.
    calibration, tenths
        Privatized labels against predictions: in sentences, and by tenths of the predictions.
    columns
        What became of each column of the features.
    importance
        What R² loses without a column.
    segments
        Events by columns that were asked for.
    release_codes, release_true_labels
        (n,) all rows of the release with their true labels, in simulations: the joint picture of
        true and randomized labels. None: the events scored are used instead.
    objective, head
        What the model was trained with.
    settings
        Section to setting to value, shown as tables.
    label, unit
        What the label is called; by default as its column is. Its unit, if it has one.
    """

    manifest: Manifest  # the release's verified manifest
    release_id: str  # SHA-256 of the manifest's bytes, hexadecimal
    matches: MatchCounts | None = None
    history: Sequence[EpochLosses] = ()  # one record an epoch
    metrics: Mapping[str, Any] = field(default_factory=dict)
    verdict: str = ""  # whether the model is better than no features, in a sentence
    fitting: str = ""  # figures that fit the label, in a sentence
    calibration: Sequence[str] = ()
    tenths: Sequence[Segment] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    importance: Mapping[str, Measured] = field(default_factory=dict)
    segments: Mapping[str, Sequence[Segment]] = field(default_factory=dict)
    predictions: Floats | None = None  # (m,) predictions for those events, in units of the label
    codes: Codes | None = None  # (m,) their privatized labels, as output indices
    true_labels: Floats | None = None  # (m,) true labels of those events, in simulations
    release_codes: Codes | None = None
    release_true_labels: Floats | None = None
    objective: str = ""
    head: str = ""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warnings: Sequence[str] = ()  # sentences that the reader must see first
    label: str = ""
    unit: str = ""
    among: str = ""  # its name in the release, if that has several

    @classmethod
    def of(
        cls, scores: Scores, label: str = "", unit: str = "", ignored: Sequence[str] = ()
    ) -> ReportInputs:
        """What a page shows of a model's scores.

        It draws one channel: of several releases the last one's, with its held-out events.

        Parameters
        ----------
        label, unit
            As configured.
        ignored
            Columns that the configuration leaves out.
        """
        events, facts, manifest = scores.events, scores.model.facts, scores.manifests[-1]
        *_, (_, shown, codes) = events.problem.by_release(scores.codes)
        columns = dict.fromkeys(scores.model.encoder.columns, "used")
        for name in scores.unseen.table.columns:
            why = "left out by the configuration" if name in ignored else "left out: all the same"
            columns.setdefault(name, "the key" if name == events.key else why)
        return cls(
            manifest=manifest,
            release_id=events.release_id,
            matches=events.matches,
            history=facts.history,
            metrics={
                name: value
                for name, value in scores.to_json().items()
                if isinstance(value, int | float | str)
            },
            verdict=scores.verdict,
            fitting="" if scores.fitting is None else scores.fitting.sentence,
            calibration=calibration_lines(scores.slope, (), scores.coverage),
            tenths=scores.tenths,
            columns=columns,
            importance=scores.importance,
            segments=scores.segments,
            predictions=scores.points[shown],
            codes=codes.astype(np.uint16),
            true_labels=None if scores.truth is None else scores.truth.labels[shown],
            objective=facts.objective,
            head=facts.head,
            settings={"training": asdict(facts.settings)},
            warnings=scores.warnings,
            label=label,
            unit=unit,
            among=scores.label,
        )

    @cached_property
    def released(self) -> ReleasedLabel:
        """What the release says of the label."""
        return ReleasedLabel.of(self.manifest, self.among)

    @property
    def prior(self) -> PriorSection:
        """The histogram that counted the label, maybe with others."""
        label = self.released.section.name
        return next(prior for prior in self.manifest.priors if label in prior.labels)

    @property
    def name(self) -> str:
        """What the label is called."""
        return self.label or self.released.section.name

    @property
    def axis(self) -> str:
        """The same with its unit, for an axis."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def simulated(self) -> bool:
        """Whether true labels are at hand."""
        return self.true_labels is not None
