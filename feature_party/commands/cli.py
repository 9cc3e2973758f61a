"""The command line ``feature-party``: its commands, each a module that is imported when called."""

from __future__ import annotations

import os

from labelveil.common.command_line import Command, program, run

app = program(
    "Fetch privatized labels, join them with features, train, evaluate and predict.",
    {
        "init": Command(
            "labelveil.feature_party.commands.init:init",
            "Write a commented configuration file.",
            "Examples: feature-party init; feature-party init --features clicks.parquet --key"
            " click_id --data-set conversions",
            details=(
                "Below [data.columns] it says what the cells of text columns are, where the "
                "features are there. With --address it asks the labels party, once certificates "
                "are there."
            ),
        ),
        "doctor": Command(
            "labelveil.feature_party.commands.doctor:doctor",
            "Check features, keys, certificates, address and release; change nothing.",
            "Example: feature-party doctor",
        ),
        "submit": Command(
            "labelveil.feature_party.commands.submit:submit",
            "Submit the features' keys as the population; harmless to repeat.",
            "Examples: feature-party submit; feature-party submit --address labels.example:50051"
            " --data-set conversions --epoch 2024-06-01 --features clicks.parquet --key click_id",
            kept="submitting is harmless to repeat; run it again",
            details=(
                "With [rounds] it is the events of the next round, about which the model asks "
                "that was trained on the rounds before."
            ),
        ),
        "fetch": Command(
            "labelveil.feature_party.commands.fetch:fetch",
            "Fetch and verify a release; goes on where an interrupted fetch stopped.",
            "Examples: feature-party fetch; feature-party fetch --address labels.example:50051"
            " --data-set conversions --epoch 2024-06-01",
            kept="what has arrived is kept, run it again to go on",
        ),
        "join": Command(
            "labelveil.feature_party.commands.join:join",
            "Match a fetched release with features, both of any size, into Parquet shards.",
            "Examples: feature-party join; feature-party join --features clicks.parquet --key"
            " click_id --out joined; feature-party join --set engine.workers=4; feature-party join"
            " --set engine.name=spark --set engine.master=spark://head:7077",
            kept="finished parts are kept, run it again to go on",
            details=(
                "train, evaluate and run then start from the shards, as long as neither release "
                "nor features change; without this command they do the same where memory is too "
                "small for both. [engine] says where it is computed: here, in worker processes, "
                "or on Spark. An interrupted join goes on where it stopped."
            ),
        ),
        "train": Command(
            "labelveil.feature_party.commands.train:train",
            "Train a model on a fetched release and a features file; with torchrun in many"
            " processes.",
            "Examples: feature-party train; feature-party train --release release --features"
            " features.parquet --key event_id --secret-file certificates/join.key --head gaussian;"
            " torchrun --nproc_per_node 2 --no-python feature-party train",
            kept="checkpoints are kept beside the model, run it again to go on",
        ),
        "labels": Command(
            "labelveil.feature_party.commands.labels:labels",
            "Write code, decoded label and weight of every matched event, for any other program.",
            "Examples: feature-party labels -o labels.csv; feature-party labels --method"
            " low-variance -o labels.parquet",
            details=(
                "Beside it a .json file says what was sent how: the labels' grid, their released "
                "prior and the probability of each code given each label, for a likelihood of "
                "your own. Of several labels, or labels parties, there are two such files for "
                "each, which end in its name."
            ),
        ),
        "means": Command(
            "labelveil.feature_party.commands.means:means",
            "Tell mean labels by columns of the features, with intervals; no model is needed.",
            "Examples: feature-party means --by campaign; feature-party means --by campaign --by"
            " device --json; feature-party means --by arm --control no_ad",
            details=(
                "Each matched event's privatized label is decoded to a number that is right on "
                "average, whatever the label is; sums of the groups are right but for their "
                "noise. The 95% intervals hold for all groups together, and so do those of the "
                "lifts."
            ),
        ),
        "evaluate": Command(
            "labelveil.feature_party.commands.evaluate:evaluate",
            "Estimate the model's true error from privatized labels of held-out events.",
            "Examples: feature-party evaluate; feature-party evaluate --true-labels truth.parquet"
            " --true-label amount; feature-party evaluate --ask squared",
        ),
        "predict": Command(
            "labelveil.feature_party.commands.predict:predict",
            "Predict every row of a features file, however large, to Parquet or CSV.",
            "Example: feature-party predict --model model --features new.csv -o"
            " predictions.parquet",
        ),
        "export": Command(
            "labelveil.feature_party.commands.export:export",
            "Write the model, preprocessing included, for serving elsewhere.",
            "Examples: feature-party export -o model.onnx; feature-party export --model model"
            " --features features.parquet -o served/model.pt2",
            details=(
                "An .onnx file takes the feature columns as they are: numbers and moments as "
                "doubles (NaN where missing; moments in seconds since 1970-01-01 00:00), "
                "categories as text. A .pt2 file is torch's own; the .json beside it maps "
                "categories to numbers. Inputs are told apart by their places: which columns they "
                "are stands in the .onnx file's metadata, or in the .json. Either is run and "
                "compared with the model, on made-up rows and on the first of the features file, "
                "before it gets its name."
            ),
        ),
        "run": Command(
            "labelveil.feature_party.commands.run:run",
            "Submit the population if so configured; fetch, join, train, predict, evaluate and"
            " report.",
            "Examples: feature-party run; feature-party run --config feature_party.toml"
            " --set training.ensemble=4",
            kept="what was fetched, joined and trained is kept, run it again to go on",
        ),
    },
)


def main() -> None:
    # gRPC's own notes on failed connections would stand beside our one line
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    run(app)
