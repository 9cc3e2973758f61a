"""``feature-party evaluate``: the model's error on events that it was not trained on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelveil.common.allocator import keep_freed_memory
from labelveil.common.config import Section, setting
from labelveil.common.config.answers import Json
from labelveil.common.errors import ConfigError
from labelveil.feature_party.commands.options import (
    RELEASE_AND_FEATURES,
    OutputOptions,
    options,
    start,
)
from labelveil.feature_party.config.sections import FeaturePartyConfig, TrueLabels

if TYPE_CHECKING:
    from labelveil.feature_party.pipeline.choice import RunStages


class Compared(Section):
    nonprivate: Path | None = setting(
        None, "Also train a model on the true labels, into this folder, to show beside."
    )
    nonprivate_metrics: Path | None = setting(
        None, "Metrics of a model trained on true labels before, in place of --nonprivate."
    )
    by: list[str] = setting(list, "Columns of the features to compare segments by.")
    ask: list[str] = setting(
        list,
        'Ask the labels party how far the true loss is below a constant\'s: "squared" or'
        ' "absolute"; of several labels LABEL or LABEL:LOSS. Repeatable.',
        metavar="LOSS|LABEL",
    )
    wait: bool = setting(
        False,
        "Read the model only once a line comes on standard input: after the networks of"
        " --nonprivate, which learn while others still train it.",
        flag="--wait",
    )


@options(*RELEASE_AND_FEATURES, "output.model", "output.metrics", "output.report")
def evaluate(
    config: FeaturePartyConfig, truth: TrueLabels, beside: Compared, shown: OutputOptions
) -> None:
    start({"--metrics": config.output.metrics, "--report": config.output.report})
    if beside.nonprivate and beside.nonprivate_metrics:
        raise ConfigError("--nonprivate trains what --nonprivate-metrics names; give one of them")
    if beside.nonprivate and beside.nonprivate.resolve() == config.output.model.resolve():
        raise ConfigError(
            f"--nonprivate {beside.nonprivate} is the folder of the model itself, which would be"
            " lost; name another"
        )
    from labelveil.feature_party.pipeline.choice import stages_of

    keep_freed_memory()
    stages = stages_of(config, shown.quiet, truth)
    stages.check_asked(beside.ask, beside.by)
    model, nonprivate = _ready(stages, beside)
    show_scores(stages, stages.evaluate(model, nonprivate, beside.ask, beside.by), shown)


def _ready(stages: RunStages[Any], beside: Compared) -> tuple[Any, Path | None]:
    """The saved model, and the metrics of one that true labels have trained, if it is asked for."""
    from labelveil.feature_party.report import prepare_report

    model = None if beside.wait else stages.load()
    nonprivate = beside.nonprivate_metrics
    if beside.nonprivate is not None:
        nonprivate = stages.train_on_truth(beside.nonprivate)
    if model is None:
        prepare_report()  # what draws it is loaded by now, and not once somebody waits for it
        if not sys.stdin.readline():
            raise ConfigError(
                "standard input ended before a line came: --wait is for who says when the model is"
                " trained; leave it out"
            )
        model = stages.load()
    return model, nonprivate


def show_scores(stages: RunStages[Any], scores: Any, shown: Json) -> None:
    """Print how good a model is, and where everything is; or what is in ``metrics.json``."""
    output = stages.config.output
    warnings, lines = stages.summary(scores)
    for warning in warnings:
        stages.warn(warning)
    metrics = json.loads(output.metrics.read_text(encoding="utf-8"))
    where = f"metrics in {output.metrics}, report {output.report}"
    shown.answer(metrics, stages.learned_words, *lines, where)
