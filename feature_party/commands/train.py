"""``feature-party train``: a model from a release and features."""

from __future__ import annotations

import typer

from common.allocator import keep_freed_memory
from feature_party.commands.join import print_matches
from feature_party.commands.options import (
    RELEASE_AND_FEATURES,
    TRAINING,
    Quiet,
    options,
    start,
)
from feature_party.config import FeaturePartyConfig, TrueLabels


@options(*RELEASE_AND_FEATURES, "output.model", *TRAINING)
def train(config: FeaturePartyConfig, truth: TrueLabels, shown: Quiet) -> None:
    """Train a model on a fetched release and a features file; with torchrun in many processes."""
    start(together=True)
    from feature_party.pipeline.learning import Learning

    keep_freed_memory()
    stages = Learning(config, shown.quiet, truth=truth)
    facts = stages.train_together().facts
    if not stages.workers.first:
        return
    print_matches(stages.prepared.matches)
    typer.echo(
        f"objective {facts.objective}, head {facts.head or '-'}, {facts.training_rows:,} training"
        f" rows, {facts.seconds:.1f} s; model in {config.output.model}"
    )
    typer.echo("next: feature-party evaluate, or predict")
