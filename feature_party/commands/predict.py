"""``feature-party predict``: a label for every row of a features file."""

from __future__ import annotations

import typer

from feature_party.commands.options import Quiet, options, start
from feature_party.config import FeaturePartyConfig


@options(
    "data.features",
    "data.key",
    "output.model",
    "output.predictions",
    "output.interval",
    "output.quantiles",
    "output.above",
)
def predict(config: FeaturePartyConfig, shown: Quiet) -> None:
    """Predict every row of a features file, however large, to Parquet or CSV."""
    start()
    from feature_party.model.model import Model
    from feature_party.pipeline.learning import Learning

    rows = Learning(config, shown.quiet).predict(Model.load(config.output.model))
    typer.echo(f"{rows:,} predictions in {config.output.predictions}")
