"""Predictions for a features file, with what a user is told on the way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labelveil.common.config.answers import json_text
from labelveil.common.console import progress, warn
from labelveil.common.files import write_text
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.model.prediction import Predicted, Predictor, Trained, predict_file
from labelveil.feature_party.tables import scan_table


def predict(
    config: FeaturePartyConfig, model: Predictor, *, quiet: bool, trained: Trained | None = None
) -> Predicted:
    """Predict every row of the features file.

    Its key column goes with them: the configured one, or the one that the model was trained with,
    where the file has it.
    """
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
            key=config.data.key or _known_key(model, config.features),
            source=output.source,
            interval=output.interval,
            quantiles=output.quantiles,
            above=output.above,
            trained=trained,
            warn=warn,
            on_rows=lambda done, total: bar.update(task, completed=done, total=total),
        )


def write_metrics(
    path: Path, scores: Mapping[str, Any], predicted: Predicted | None, timings: Mapping[str, float]
) -> dict[str, Any]:
    """Write scores, how what was predicted differs and what took how long; returns it."""
    drift = [] if predicted is None else [column.to_json() for column in predicted.drift]
    took = {name: round(seconds, 3) for name, seconds in timings.items()}
    metrics = {**scores, "drift": drift, "timings": took}
    write_text(path, json_text(metrics) + "\n")
    return metrics


def _known_key(model: Predictor, features: Path) -> str:
    """The key column of the training, if a file has it; empty if not."""
    key = model.key
    return key if key in scan_table(features).collect_schema().names() else ""
