"""What a report is made from: public facts of the release, the training run, the scored events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from common.arrays import Floats
from common.exact.channel import Codes
from common.release.manifest import Manifest
from feature_party.evaluation.scores import Scores
from feature_party.join.matches import MatchCounts
from feature_party.learning.decoding import decoder
from feature_party.model.facts import EpochLosses


@dataclass(frozen=True)
class ReportInputs:
    """Everything that a report shows; whatever is None or empty is left out of the page.

    Attributes
    ----------
    manifest
        The release's verified manifest.
    release_id
        SHA-256 of the manifest's bytes, hexadecimal.
    matches
        Match counts of release and features, None where no join took place.
    history
        One record an epoch.
    metrics
        Errors by name, on events that were not trained on. ``estimated_mse``,
        ``estimated_mse_low`` and ``estimated_mse_high`` (from privatized labels, 95% interval);
        in a simulation also ``test_mse``, ``test_mae``, ``constant_mse`` and ``nonprivate_mse``.
    predictions
        (m,) predictions for those events, in units of the label.
    codes
        (m,) their privatized labels, as output indices.
    decoded_outputs
        (d,) value that each output is decoded to, so that its mean is the label's (or comes
        closest); None leaves out what rests on it.
    decoding_exact
        Whether that mean is the label's for every label.
    true_labels
        (m,) true labels of those events, in simulations.
    release_codes, release_true_labels
        (n,) all rows of the release with their true labels, in simulations: the joint picture of
        true and randomized labels. None: the events scored are used instead.
    objective, head
        What the model was trained with.
    settings
        Section to setting to value, shown as tables.
    warnings
        Sentences that the reader must see first.
    """

    manifest: Manifest
    release_id: str
    matches: MatchCounts | None = None
    history: Sequence[EpochLosses] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    predictions: Floats | None = None
    codes: Codes | None = None
    decoded_outputs: Floats | None = None
    decoding_exact: bool = True
    true_labels: Floats | None = None
    release_codes: Codes | None = None
    release_true_labels: Floats | None = None
    objective: str = ""
    head: str = ""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    @classmethod
    def of(cls, scores: Scores) -> ReportInputs:
        """What a page shows of a model's scores.

        It draws one channel: of several releases the last one's, with its held-out events.
        """
        events, facts, manifest = scores.events, scores.facts, scores.manifests[-1]
        *earlier, (problem, shown, codes) = events.problem.by_release(scores.codes)
        warnings = list(scores.warnings)
        if earlier:
            warnings.append(
                f"one model of {1 + len(earlier)} epochs: errors are about all of them, pictures"
                f" about the {codes.size:,} held-out events of epoch {manifest.epoch}"
            )
        decoding = decoder(problem, problem.grid)
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
            predictions=scores.points[shown],
            codes=codes.astype(np.uint16),
            decoded_outputs=decoding.values[:, 0],
            decoding_exact=decoding.exact,
            true_labels=None if scores.truth is None else scores.truth.labels[shown],
            objective=facts.objective,
            head=facts.head,
            settings={"training": asdict(facts.settings)},
            warnings=warnings,
        )

    @property
    def simulated(self) -> bool:
        """Whether true labels are at hand."""
        return self.true_labels is not None
