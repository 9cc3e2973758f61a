"""The command line ``feature-party``: a module for each command."""

from __future__ import annotations

import os

from common.console import program
from common.console import run as run_app
from feature_party.commands.evaluate import evaluate
from feature_party.commands.export import export
from feature_party.commands.fetch import fetch
from feature_party.commands.init import init
from feature_party.commands.join import join
from feature_party.commands.predict import predict
from feature_party.commands.run import run
from feature_party.commands.submit import submit
from feature_party.commands.train import train

app = program("Fetch privatized labels, join them with features, train, evaluate and predict.")
app.command(
    epilog="Examples: feature-party init; feature-party init --features clicks.parquet --key"
    " click_id --data-set conversions"
)(init)
app.command(
    epilog="Examples: feature-party submit; feature-party submit --address labels.example:50051"
    " --data-set conversions --epoch 2024-06-01 --features clicks.parquet --key click_id"
)(submit)
app.command(
    epilog="Examples: feature-party fetch; feature-party fetch --address labels.example:50051"
    " --data-set conversions --epoch 2024-06-01"
)(fetch)
app.command(
    epilog="Examples: feature-party join; feature-party join --features clicks.parquet --key"
    " click_id --out joined; feature-party join --set engine.workers=4; feature-party join --set"
    " engine.name=spark --set engine.master=spark://head:7077"
)(join)
app.command(
    epilog="Examples: feature-party train; feature-party train --release release --features"
    " features.parquet --key event_id --secret-file certificates/join.key --head gaussian;"
    " torchrun --nproc_per_node 2 --no-python feature-party train"
)(train)
app.command(
    epilog="Examples: feature-party evaluate; feature-party evaluate --true-labels truth.parquet"
    " --true-label amount; feature-party evaluate --ask squared"
)(evaluate)
app.command(
    epilog="Example: feature-party predict --model model --features new.csv -o predictions.parquet"
)(predict)
app.command(
    epilog="Examples: feature-party export -o model.onnx; feature-party export --model model"
    " --features features.parquet -o served/model.pt2"
)(export)
app.command(
    epilog="Examples: feature-party run; feature-party run --config feature_party.toml"
    " --set training.ensemble=4"
)(run)


def main() -> None:
    """Run the command line."""
    # gRPC's own notes on failed connections would stand beside our one line
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    run_app(app)
