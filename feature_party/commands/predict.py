"""``feature-party predict``: a label for every row of a features file."""

from __future__ import annotations

from feature_party.commands.options import Shown, options, start
from feature_party.config import FeaturePartyConfig


@options(
    *("data.features", "data.key", "output.model", "output.predictions"),
    *("output.source", "output.interval", "output.quantiles", "output.above"),
)
def predict(config: FeaturePartyConfig, shown: Shown) -> None:
    """Predict every row of a features file, however large, to Parquet or CSV."""
    start({"--output": config.output.predictions})
    from feature_party.model.several_labels import LabelModels
    from feature_party.pipeline.predicting import predict as predict_features

    rows = predict_features(config, LabelModels.load(config.output.model), quiet=shown.quiet)
    output = config.output.predictions
    shown.answer({"rows": rows, "predictions": output}, f"{rows:,} predictions in {output}")
