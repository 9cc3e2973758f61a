"""Options that several commands of ``feature-party`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Configuration file; default feature_party.toml."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one key; repeatable."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bars.")]
Features = Annotated[
    Path | None, typer.Option(help="Features: CSV or Parquet, or a directory of Parquet files.")
]
Key = Annotated[str | None, typer.Option(help="Column with the event's key.")]
SecretFile = Annotated[Path | None, typer.Option(help="Secret that keys are hashed with.")]
Address = Annotated[str | None, typer.Option(help="Labels party, host:port.")]
DataSet = Annotated[str | None, typer.Option(help="Name of the data set.")]
Epoch = Annotated[str | None, typer.Option(help="Epoch of the release; the latest if empty.")]
ReleaseDirectory = Annotated[
    Path | None, typer.Option("--release", help="Directory of the fetched release.")
]
ModelDirectory = Annotated[Path | None, typer.Option("--model", help="Directory of the model.")]
Objective = Annotated[str | None, typer.Option(help="auto, likelihood, debiased, raw or true.")]
Head = Annotated[str | None, typer.Option(help="auto, or the distribution's shape.")]
Ensemble = Annotated[int | None, typer.Option(help="Networks trained side by side.")]
Epochs = Annotated[int | None, typer.Option(help="Most passes over the data.")]
Seed = Annotated[int | None, typer.Option(help="Chooses splits and initial weights.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Predictions, Parquet.")]
Report = Annotated[Path | None, typer.Option(help="Report, HTML.")]
Metrics = Annotated[Path | None, typer.Option(help="Metrics, JSON.")]
TrueLabelsFile = Annotated[
    Path | None, typer.Option("--true-labels", help="File of true labels (simulations only).")
]
TrueLabel = Annotated[
    str | None, typer.Option("--true-label", help="Label column of the true labels.")
]
TrueKey = Annotated[
    str | None, typer.Option("--true-key", help="Key column of the true labels, if it differs.")
]


def data_overrides(
    features: Path | None,
    key: str | None,
    secret_file: Path | None,
    release: Path | None,
    model: Path | None,
) -> dict[str, Any]:
    """What these options override in the configuration."""
    return {
        "data.features": features,
        "data.key": key,
        "keys.secret_file": secret_file,
        "release.directory": release,
        "output.model": model,
    }


def training_overrides(
    objective: str | None,
    head: str | None,
    ensemble: int | None,
    epochs: int | None,
    seed: int | None,
    device: str | None,
) -> dict[str, Any]:
    """What these options override in the configuration."""
    return {
        "training.objective": objective,
        "training.head": head,
        "training.ensemble": ensemble,
        "training.epochs": epochs,
        "training.seed": seed,
        "training.device": device,
    }
