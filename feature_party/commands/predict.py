"""``feature-party predict``: a label for every row of a features file."""

from __future__ import annotations

from labelveil.common.config import setting
from labelveil.common.errors import DataError
from labelveil.feature_party.commands.options import OutputOptions, options, start
from labelveil.feature_party.config.sections import FeaturePartyConfig


class PredictOptions(OutputOptions):
    fail_on_drift: bool = setting(
        False,
        "End with 1, predictions written, where a column is unlike that of the training.",
        flag="--fail-on-drift",
    )


@options(
    *("data.features", "data.key", "output.model", "output.predictions"),
    *("output.source", "output.interval", "output.quantiles", "output.above"),
)
def predict(config: FeaturePartyConfig, shown: PredictOptions) -> None:
    start({"--output": config.output.predictions})
    from labelveil.feature_party.groups.saved import load_trained
    from labelveil.feature_party.pipeline.predicting import predict as predict_features

    model, output = load_trained(config.output.model), config.output.predictions
    done = predict_features(config, model, quiet=shown.quiet)
    document = {
        "rows": done.rows,
        "predictions": output,
        "drift": [c.to_json() for c in done.drift],
    }
    shown.answer(document, f"{done.rows:,} predictions in {output}")
    unlike = [repr(column.name) for column in done.drift if column.matters]
    if shown.fail_on_drift and unlike:
        raise DataError(
            f"columns of {config.features} are unlike what the model was trained on"
            f" ({', '.join(unlike)}), as said above; the predictions are in {output}"
        )
