"""``feature-party train``: a model from a release and features."""

from __future__ import annotations

from dataclasses import asdict

from common.allocator import keep_freed_memory
from feature_party.commands.options import (
    RELEASE_AND_FEATURES,
    TRAINING,
    Shown,
    options,
    start,
)
from feature_party.config import FeaturePartyConfig, TrueLabels


@options(*RELEASE_AND_FEATURES, "output.model", *TRAINING)
def train(config: FeaturePartyConfig, truth: TrueLabels, shown: Shown) -> None:
    """Train a model on a fetched release and a features file; with torchrun in many processes."""
    start(folders={"--model": config.output.model}, together=True)
    from feature_party.pipeline.learning import Learning

    keep_freed_memory()
    stages = Learning(config, shown.quiet, truth=truth)
    facts = stages.train_together().facts
    if not stages.workers.first:
        return
    matches, model = stages.prepared.matches, config.output.model
    shown.answer(
        {**asdict(matches), **facts.model_dump(mode="json"), "model": model},
        str(matches),
        f"objective {facts.objective}, head {facts.head or '-'}, {facts.training_rows:,} training"
        f" rows, {facts.seconds:.1f} s; model in {model}",
        "next: feature-party evaluate, or predict",
    )
