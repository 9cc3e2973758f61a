"""``feature-party evaluate``: the model's error on events that it was not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from common.config import Section, setting
from feature_party.commands.join import print_matches
from feature_party.commands.options import (
    RELEASE_AND_FEATURES,
    Quiet,
    options,
    start,
)
from feature_party.config import FeaturePartyConfig, OutputSection, TrueLabels

if TYPE_CHECKING:
    from feature_party.evaluation.scores import Scores


class Compared(Section):
    nonprivate_metrics: Path | None = setting(
        None, "Metrics of a model trained on true labels, to show beside."
    )
    by: list[str] = setting(list, "Columns of the features to compare segments by.")
    ask: Literal["squared", "absolute"] | None = setting(
        None, "Ask the labels party how far the true loss is below a constant's."
    )
    as_json: bool = setting(False, "Print the metrics, JSON, and nothing else.", flag="--json")


@options(*RELEASE_AND_FEATURES, "output.model", "output.metrics", "output.report")
def evaluate(config: FeaturePartyConfig, truth: TrueLabels, beside: Compared, shown: Quiet) -> None:
    """Estimate the model's true error from privatized labels of held-out events."""
    start()
    from feature_party.pipeline.stages import Stages

    stages = Stages(config, shown.quiet, truth=truth)
    scores = stages.evaluate(stages.load(), beside.nonprivate_metrics, beside.ask, beside.by)
    if beside.as_json:
        print(config.output.metrics.read_text(encoding="utf-8"), end="")
        return
    print_scores(scores, config.output)


def print_scores(scores: Scores, output: OutputSection) -> None:
    """Print a model's errors, and where everything is."""
    from feature_party.evaluation.fitting import true_sentence

    print_matches(scores.events.matches)
    for line in scores.summary:
        typer.echo(line)
    if scores.answer is not None:
        loss, verdict = scores.answer
        whole = verdict.terms.constant_loss
        typer.echo(
            f"labels party, from true labels: the {loss} error is"
            f" {verdict.gain / whole:.3g} (95%: {verdict.low / whole:.3g} …"
            f" {verdict.high / whole:.3g}) of the constant's {whole:.6g} below it;"
            f" {verdict.answers_left} answers left"
        )
    if scores.truth is not None:
        typer.echo(
            f"true test MSE {scores.truth.mse:.6g}, MAE {scores.truth.mae:.6g};"
            f" predicting the mean {scores.truth.constant_mse:.6g}"
        )
        if scores.truth.fitting:
            typer.echo(true_sentence(scores.truth.fitting))
    typer.echo(f"metrics in {output.metrics}, report {output.report}")
