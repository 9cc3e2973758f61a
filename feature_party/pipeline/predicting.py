"""Predictions for a features file, with what a user is told on the way."""

from __future__ import annotations

from common.console import progress, warn
from feature_party.config import FeaturePartyConfig
from feature_party.model.prediction import Trained, predict_file
from feature_party.model.several_labels import LabelModels


def predict(
    config: FeaturePartyConfig, model: LabelModels, *, quiet: bool, trained: Trained | None = None
) -> int:
    """Predict every row of the features file; return how many there are."""
    output = config.output
    if (output.quantiles or output.above) and not model.has_distributions:
        warn(
            "the model predicts points alone, without quantiles and probabilities; train with"
            " objective = likelihood"
        )
    with progress(quiet=quiet) as bar:
        task = bar.add_task("predict", total=None, note="rows")
        return predict_file(
            model,
            config.features,
            output.predictions,
            key=config.data.key,
            source=output.source,
            interval=output.interval,
            quantiles=output.quantiles,
            above=output.above,
            trained=trained,
            warn=warn,
            on_rows=lambda done, total: bar.update(task, completed=done, total=total),
        )
