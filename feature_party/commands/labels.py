"""``feature-party labels``: decoded labels beside the events' keys, for any other program."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Literal

from labelveil.common.config import Section, setting
from labelveil.common.files import PARQUET_SUFFIXES
from labelveil.common.outputs import check_output
from labelveil.feature_party.commands.options import (
    RELEASE_AND_FEATURES,
    OutputOptions,
    options,
    start,
)
from labelveil.feature_party.config.sections import FeaturePartyConfig


class LabelsOptions(Section):
    output: Path = setting(
        Path("labels.parquet"), "File to write: Parquet, or CSV by its name.", flag="--output -o"
    )
    method: Literal["unbiased", "low-variance"] = setting(
        "unbiased",
        "What codes are decoded to: right on average for every label, or over all of them with the"
        " least noise.",
    )


@options(*RELEASE_AND_FEATURES)
def labels(config: FeaturePartyConfig, wanted: LabelsOptions, shown: OutputOptions) -> None:
    check_output("--output", wanted.output, (".csv", *PARQUET_SUFFIXES), makes_folder=True)
    start()
    from labelveil.feature_party.model.several_labels import label_files
    from labelveil.feature_party.notebook.files import write_labels
    from labelveil.feature_party.pipeline.learning import Learning
    from labelveil.feature_party.tables import file_of

    stages = Learning(config, shown.quiet)
    documents, lines = [], [str(stages.prepared.matches)]
    files = label_files(wanted.output, stages.labels)
    for label, events in stages.labels.items():
        for name in events.problem.names:
            own, output = events.for_source(name) if name else events, file_of(files[label], name)
            channel = write_labels(own, output, wanted.method)
            documents.append({**asdict(own.matches), "labels": output, "channel": channel})
            lines.append(f"{own.matches.matched:,} labels in {output}; the channel in {channel}")
    shown.answer(documents if len(documents) > 1 else documents[0], *lines)
