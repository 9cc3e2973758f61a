"""``feature-party evaluate``: the model's error on events that it was not trained on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

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
    from labelveil.feature_party.evaluation.scores import Scores
    from labelveil.feature_party.groups.saved import SavedSums
    from labelveil.feature_party.pipeline.stages import Stages
    from labelveil.feature_party.pipeline.sums import SumStages

ModelT = TypeVar("ModelT", covariant=True)


class _Trained(Protocol[ModelT]):
    """Stages of a model that is trained, of codes or of sums."""

    def load(self) -> ModelT: ...
    def train_on_truth(self, folder: Path) -> Path: ...


class Compared(Section):
    nonprivate: Path | None = setting(
        None, "Also train networks on the true labels, into this folder, to show beside."
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
    """Estimate the model's true error from privatized labels of held-out events."""
    start({"--metrics": config.output.metrics, "--report": config.output.report})
    if beside.nonprivate and beside.nonprivate_metrics:
        raise ConfigError("--nonprivate trains what --nonprivate-metrics names; give one of them")
    if beside.nonprivate and beside.nonprivate.resolve() == config.output.model.resolve():
        raise ConfigError(
            f"--nonprivate {beside.nonprivate} is the folder of the model itself, which would be"
            " lost; name another"
        )
    from labelveil.feature_party.pipeline.stages import Stages
    from labelveil.feature_party.pipeline.sums import SumStages, learns_from_sums

    keep_freed_memory()
    if learns_from_sums(config):
        given = {"--by": beside.by, "--ask": beside.ask}
        if wrong := [name for name, value in given.items() if value]:
            raise ConfigError(
                f"{' and '.join(wrong)} cannot be had of a model of sums, whose score is about all"
                " events kept: leave it out"
            )
        sums = SumStages(config, shown.quiet, truth=truth)
        model, nonprivate = _ready(sums, beside)
        show_sums(sums, model, shown, nonprivate)
        return
    stages = Stages(config, shown.quiet, truth=truth)
    models, nonprivate = _ready(stages, beside)
    scores = stages.evaluate(models, nonprivate, beside.ask, beside.by)
    show_scores(stages, scores, shown)


def _ready(stages: _Trained[ModelT], beside: Compared) -> tuple[ModelT, Path | None]:
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


def show_sums(
    stages: SumStages, model: SavedSums, shown: Json, nonprivate: Path | None = None
) -> None:
    """Score a model of sums; print how good it is, and where everything is, or its metrics."""
    output, metrics = stages.config.output, stages.evaluate(model, nonprivate)
    for warning in metrics["warnings"]:
        stages.warn(warning)
    shown.answer(
        json.loads(output.metrics.read_text(encoding="utf-8")),
        *stages.words(metrics),
        f"metrics in {output.metrics}, report {output.report}",
    )


def show_scores(stages: Stages, by_label: dict[str, Scores], shown: Json) -> None:
    """Print models' errors, and where everything is; or what is in ``metrics.json``."""
    output = stages.config.output
    lines = [str(stages.prepared.matches)]
    for label, scores in by_label.items():
        for warning in scores.warnings:
            stages.warn(stages.prefix(label) + warning)
        lines += [f"{label}:"] if len(by_label) > 1 else []
        lines += scores.summary
    metrics = json.loads(output.metrics.read_text(encoding="utf-8"))
    shown.answer(metrics, *lines, f"metrics in {output.metrics}, report {output.report}")
