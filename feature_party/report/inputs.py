"""What a report is made from: public facts of the release, the training run, the scored events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.arrays import Floats
from common.exact.channel import Codes
from common.release.manifest import Manifest
from feature_party.join.matches import MatchCounts


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
        One mapping an epoch: ``epoch``, ``train_loss`` and, if there was a validation share,
        ``validation_loss``.
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
    history: Sequence[Mapping[str, float | None]] = ()
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

    @property
    def simulated(self) -> bool:
        """Whether true labels are at hand."""
        return self.true_labels is not None
