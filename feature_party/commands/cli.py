"""The command line ``feature-party``: options here, the work in :mod:`feature_party.pipeline`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.allocator import keep_freed_memory
from common.config import load_config
from common.console import program
from common.console import run as run_app
from common.errors import ConfigError
from feature_party.commands.options import (
    Address,
    Config,
    DataSet,
    Device,
    Ensemble,
    Epoch,
    Epochs,
    Features,
    Head,
    Key,
    Metrics,
    ModelDirectory,
    Objective,
    Output,
    Quiet,
    ReleaseDirectory,
    Report,
    SecretFile,
    Seed,
    Settings,
    TrueKey,
    TrueLabel,
    TrueLabelsFile,
    data_overrides,
    training_overrides,
)
from feature_party.config import TEMPLATE, FeaturePartyConfig

if TYPE_CHECKING:
    from feature_party.evaluation.scores import Scores
    from feature_party.join.matches import MatchCounts
    from feature_party.pipeline import Stages

DEFAULT_CONFIG = Path("feature_party.toml")
EXPORT_SAMPLE = 2_000
"""Rows of the features on which an exported model is compared with the original."""

app = program("Fetch privatized labels, join them with features, train, evaluate and predict.")


@app.command(epilog="Example: feature-party init --config feature_party.toml")
def init(
    config: Annotated[Path, typer.Option("--config", "-c", help="File to write.")] = DEFAULT_CONFIG,
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented configuration file."""
    if config.exists() and not force:
        raise ConfigError(f"{config} exists already; use --force to overwrite it")
    try:
        config.write_text(TEMPLATE, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{config} cannot be written: {error.strerror}") from error
    typer.echo(f"Wrote {config}; edit it, then run feature-party run")


@app.command(
    epilog="Examples: feature-party submit; feature-party submit --address labels.example:50051"
    " --data-set conversions --epoch 2024-06-01 --features clicks.parquet --key click_id"
)
def submit(
    config: Config = None,
    features: Features = None,
    key: Key = None,
    secret_file: SecretFile = None,
    address: Address = None,
    data_set: DataSet = None,
    epoch: Epoch = None,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Submit the features' keys as the population; harmless to repeat."""
    overrides = data_overrides(features, key, secret_file, None, None)
    overrides |= {
        "labels_party.address": address,
        "labels_party.data_set": data_set,
        "labels_party.epoch": epoch,
    }
    _submit(_stages(config, settings, quiet, overrides))


@app.command(
    epilog="Examples: feature-party fetch; feature-party fetch --address labels.example:50051"
    " --data-set conversions --epoch 2024-06-01"
)
def fetch(
    config: Config = None,
    address: Address = None,
    data_set: DataSet = None,
    epoch: Epoch = None,
    release: ReleaseDirectory = None,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Fetch and verify a release; goes on where an interrupted fetch stopped."""
    keep_freed_memory()
    overrides = {
        "labels_party.address": address,
        "labels_party.data_set": data_set,
        "labels_party.epoch": epoch,
        "release.directory": release,
    }
    stages = _stages(config, settings, quiet, overrides)
    fetched = stages.fetch()
    folders = stages.config.release_folders
    for one, folder in zip(fetched, folders, strict=True):
        manifest = one.manifest
        typer.echo(
            f"{one.rows:,} rows of {manifest.data_set!r}, epoch {manifest.epoch!r}, in {folder}"
            f" ({one.received:,} received, {one.seconds:.1f} s); {manifest.total_guarantee}"
        )


@app.command(
    epilog="Examples: feature-party join; feature-party join --features clicks.parquet --key"
    " click_id --out joined; feature-party join --set engine.workers=4; feature-party join --set"
    " engine.name=spark --set engine.master=spark://head:7077"
)
def join(
    config: Config = None,
    features: Features = None,
    key: Key = None,
    secret_file: SecretFile = None,
    release: ReleaseDirectory = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the shards; default joined.")] = None,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Match a fetched release with features, both of any size, into Parquet shards.

    train, evaluate and run then start from the shards, as long as neither release nor features
    change; without this command they do the same where memory is too small for both. [engine] says
    where it is computed: here, in worker processes, or on Spark. An interrupted join goes on where
    it stopped.
    """
    overrides = data_overrides(features, key, secret_file, release, None)
    stages = _stages(config, settings, quiet, overrides | {"join.directory": out})
    joined = stages.join()
    _echo_matches(joined.matches)
    count = len(joined.shards)
    shards = "1 shard" if count == 1 else f"{count:,} shards"
    typer.echo(f"{shards} in {joined.directory}; feature-party train starts from there")


@app.command(
    epilog="Examples: feature-party train; feature-party train --release release --features"
    " features.parquet --key event_id --secret-file certificates/join.key --head gaussian;"
    " torchrun --nproc_per_node 2 --no-python feature-party train"
)
def train(
    config: Config = None,
    features: Features = None,
    key: Key = None,
    secret_file: SecretFile = None,
    release: ReleaseDirectory = None,
    model: ModelDirectory = None,
    objective: Objective = None,
    head: Head = None,
    ensemble: Ensemble = None,
    epochs: Epochs = None,
    seed: Seed = None,
    device: Device = None,
    true_labels: TrueLabelsFile = None,
    true_label: TrueLabel = None,
    true_key: TrueKey = None,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Train a model on a fetched release and a features file; with torchrun in many processes."""
    keep_freed_memory()
    overrides = training_overrides(objective, head, ensemble, epochs, seed, device)
    overrides |= data_overrides(features, key, secret_file, release, model)
    stages = _stages(config, settings, quiet, overrides, (true_labels, true_label, true_key), True)
    facts = stages.train_together().facts
    if not stages.workers.first:
        return
    _echo_matches(stages.prepared.matches)
    typer.echo(
        f"objective {facts.objective}, head {facts.head or '-'}, {facts.training_rows:,} training"
        f" rows, {facts.seconds:.1f} s; model in {stages.config.output.model}"
    )


@app.command(
    epilog="Examples: feature-party evaluate; feature-party evaluate --true-labels truth.parquet"
    " --true-label amount; feature-party evaluate --ask squared"
)
def evaluate(
    config: Config = None,
    features: Features = None,
    key: Key = None,
    secret_file: SecretFile = None,
    release: ReleaseDirectory = None,
    model: ModelDirectory = None,
    metrics: Metrics = None,
    report: Report = None,
    true_labels: TrueLabelsFile = None,
    true_label: TrueLabel = None,
    true_key: TrueKey = None,
    nonprivate_metrics: Annotated[
        Path | None,
        typer.Option(help="Metrics of a model trained on true labels, to show beside."),
    ] = None,
    ask: Annotated[
        str | None,
        typer.Option(help="Ask the labels party for the true loss: squared, absolute."),
    ] = None,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Estimate the model's true error from privatized labels of held-out events."""
    if ask not in (None, "squared", "absolute"):
        raise ConfigError(f"--ask {ask!r} must be squared or absolute")
    overrides = data_overrides(features, key, secret_file, release, model)
    overrides |= {"output.metrics": metrics, "output.report": report}
    stages = _stages(config, settings, quiet, overrides, (true_labels, true_label, true_key))
    _echo_scores(stages, stages.evaluate(stages.load(), nonprivate_metrics, ask))


@app.command(
    epilog="Example: feature-party predict --model model --features new.csv -o predictions.parquet"
)
def predict(
    config: Config = None,
    features: Features = None,
    key: Key = None,
    model: ModelDirectory = None,
    output: Output = None,
    interval: Annotated[float | None, typer.Option(help="Interval's probability.")] = None,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Predict every row of a features file, however large, to Parquet."""
    overrides = data_overrides(features, key, None, None, model)
    overrides |= {"output.predictions": output, "output.interval": interval}
    stages = _stages(config, settings, quiet, overrides)
    from feature_party.model.model import Model

    rows = stages.predict(Model.load(stages.config.output.model))
    typer.echo(f"{rows:,} predictions in {stages.config.output.predictions}")


@app.command(
    epilog="Examples: feature-party export -o model.onnx; feature-party export --model model"
    " --features features.parquet -o served/model.pt2"
)
def export(
    config: Config = None,
    model: ModelDirectory = None,
    features: Annotated[
        Path | None,
        typer.Option(help="Features file, CSV or Parquet, to compare the two models on."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write: .onnx or .pt2.")
    ] = Path("model.onnx"),
    format_: Annotated[
        str, typer.Option("--format", help="auto (by the file's name), onnx or torch.")
    ] = "auto",
    settings: Settings = None,
) -> None:
    """Write the model, preprocessing included, for serving elsewhere.

    An .onnx file takes the feature columns as they are: numbers and moments as doubles (NaN where
    missing; moments in seconds since 1970-01-01 00:00), categories as text. A .pt2 file is torch's
    own; the .json beside it maps categories to numbers. Either is run and compared with the model,
    on made-up rows and on the first of the features file, before it gets its name.
    """
    stages = _stages(config, settings, True, data_overrides(features, None, None, None, model))
    from feature_party.model.export.run import export_model
    from feature_party.model.model import Model
    from feature_party.tables import scan_table

    loaded = Model.load(stages.config.output.model)
    sample = None
    if stages.config.data.features is not None:
        frame = scan_table(stages.config.data.features)
        loaded.encoder.check(frame.collect_schema().names())
        sample = frame.select(loaded.encoder.columns).head(EXPORT_SAMPLE).collect()
    exported = export_model(loaded, output, format_, sample)
    checked = "not compared: no runtime for it is installed here, see labelveil[export]"
    if exported.runtime:
        checked = f"{exported.rows:,} rows agree to {exported.difference:.1g} in {exported.runtime}"
    files = " and ".join(str(path) for path in exported.files)
    typer.echo(f"{len(exported.columns)} inputs; {checked}; in {files}")


@app.command(
    epilog="Examples: feature-party run; feature-party run --config feature_party.toml"
    " --set training.ensemble=4"
)
def run(
    config: Config = None,
    features: Features = None,
    key: Key = None,
    secret_file: SecretFile = None,
    address: Address = None,
    data_set: DataSet = None,
    epoch: Epoch = None,
    release: ReleaseDirectory = None,
    model: ModelDirectory = None,
    output: Output = None,
    metrics: Metrics = None,
    report: Report = None,
    objective: Objective = None,
    head: Head = None,
    ensemble: Ensemble = None,
    epochs: Epochs = None,
    seed: Seed = None,
    device: Device = None,
    true_labels: TrueLabelsFile = None,
    true_label: TrueLabel = None,
    true_key: TrueKey = None,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Submit the population if so configured; fetch, join, train, predict, evaluate and report."""
    keep_freed_memory()
    overrides = training_overrides(objective, head, ensemble, epochs, seed, device)
    overrides |= data_overrides(features, key, secret_file, release, model)
    overrides |= {
        "labels_party.address": address,
        "labels_party.data_set": data_set,
        "labels_party.epoch": epoch,
        "output.predictions": output,
        "output.metrics": metrics,
        "output.report": report,
    }
    stages = _stages(config, settings, quiet, overrides, (true_labels, true_label, true_key))
    if stages.config.labels_party.submit:
        _submit(stages)
    stages.fetch()
    trained = stages.train()
    stages.predict(trained)
    _echo_scores(stages, stages.evaluate(trained))


def _submit(stages: Stages) -> None:
    population, ending = stages.submit()
    party = stages.config.labels_party
    typer.echo(
        f"{population.rows:,} keys as the population of {party.data_set!r}, epoch"
        f" {party.epoch!r}: {ending}; SHA-256 {population.digest.hex()}"
    )


def _stages(
    config: Path | None,
    settings: list[str] | None,
    quiet: bool,
    overrides: dict[str, Any],
    truth: tuple[Path | None, str | None, str | None] = (None, None, None),
    together: bool = False,
) -> Stages:
    if config is None and DEFAULT_CONFIG.is_file():
        config = DEFAULT_CONFIG
    values = {
        name: str(value) if isinstance(value, Path) else value for name, value in overrides.items()
    }
    loaded = load_config(FeaturePartyConfig, config, values, settings or ())
    # Threads that spin while they wait make training many times slower on a machine that does
    # anything else; read once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # torch, Polars and gRPC take seconds to import; --help must not wait for them.
    from feature_party.pipeline import Stages, TrueLabels
    from feature_party.training.workers import refuse_torchrun

    if not together:
        refuse_torchrun()
    path, label, key = truth
    if (path is None) != (label is None):
        raise ConfigError("--true-labels FILE and --true-label COLUMN must be given together")
    labels = TrueLabels(path, label, key) if path is not None and label is not None else None
    return Stages(loaded, labels, quiet)


def _echo_matches(counts: MatchCounts) -> None:
    typer.echo(
        f"{counts.matched:,} events match, of {counts.feature_rows:,} in the features and"
        f" {counts.release_rows:,} in the release"
    )


def _echo_scores(stages: Stages, scores: Scores) -> None:
    _echo_matches(scores.events.matches)
    error = scores.squared
    interval = "" if error.low is None else f"95%: {error.low:.6g} … {error.high:.6g}, "
    typer.echo(
        f"estimated test MSE {error.value:.6g} ({interval}{error.method}), from"
        f" {scores.points.size:,} held-out events"
    )
    if scores.answer is not None:
        loss, verdict = scores.answer
        source, reach = "your estimate, not contradicted by true labels", "about "
        if verdict.from_labels:
            source, reach = "from true labels, with noise", "95%: "
        typer.echo(
            f"labels party: {loss} loss {verdict.loss:.6g} ({source};"
            f" {reach}{verdict.low:.6g} … {verdict.high:.6g}), {verdict.answers_left} answers left"
        )
    if scores.truth is not None:
        typer.echo(
            f"true test MSE {scores.truth.mse:.6g}, MAE {scores.truth.mae:.6g};"
            f" predicting the mean {scores.truth.constant_mse:.6g}"
        )
    typer.echo(f"metrics in {stages.config.output.metrics}, report {stages.config.output.report}")


def main() -> None:
    """Run the command line."""
    # gRPC's own notes on failed connections would stand beside our one line
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    run_app(app)
