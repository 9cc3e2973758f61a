"""``feature-party train``: a model from a release and features."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from labelveil.common.allocator import keep_freed_memory
from labelveil.feature_party.commands.options import (
    RELEASE_AND_FEATURES,
    TRAINING,
    OutputOptions,
    options,
    start,
)
from labelveil.feature_party.config.sections import FeaturePartyConfig, TrueLabels
from labelveil.feature_party.torchrun import refuse_torchrun

if TYPE_CHECKING:
    from labelveil.feature_party.pipeline.sums_learning import SumLearning


@options(*RELEASE_AND_FEATURES, "output.model", *TRAINING)
def train(config: FeaturePartyConfig, truth: TrueLabels, shown: OutputOptions) -> None:
    start(folders={"--model": config.output.model}, torchrun=True)
    from labelveil.feature_party.pipeline.choice import learns_from_sums
    from labelveil.feature_party.pipeline.learning import Learning
    from labelveil.feature_party.pipeline.sums_learning import SumLearning
    from labelveil.feature_party.training.trees import load_lightgbm

    keep_freed_memory()
    if config.training.learner in ("auto", "trees"):
        load_lightgbm()
    if learns_from_sums(config):
        refuse_torchrun()
        _train_on_sums(SumLearning(config, shown.quiet), shown)
        return
    stages = Learning(config, shown.quiet, truth=truth)
    models = stages.train_together().by_label
    if not stages.workers.first:
        return
    matches, model = stages.prepared.matches, config.output.model
    facts = {label: trained.facts for label, trained in models.items()}
    labels = [{"name": label, **own.model_dump(mode="json")} for label, own in facts.items()]
    document = {"labels": labels} if len(labels) > 1 else labels[0]
    shown.answer(
        {**asdict(matches), **document, "model": model},
        str(matches),
        *(
            f"{stages.prefix(label)}objective {own.objective}, head {own.head or '-'},"
            f" {own.training_rows:,} training rows, {own.seconds:.1f} s; model in {model}"
            for label, own in facts.items()
        ),
        _next(config),
    )


def _next(config: FeaturePartyConfig) -> str:
    """What to do with a model: to ask by it, as long as rounds are left."""
    from labelveil.common.release.folder import is_complete

    last = len(config.round_shares)
    if last and not is_complete(config.round_folder(last)):
        return "next: feature-party submit, for the next round"
    return "next: feature-party evaluate, or predict"


def _train_on_sums(stages: SumLearning, shown: OutputOptions) -> None:
    learned, model = stages.train(), stages.config.output.model
    facts, ridges = learned.facts, learned.model.ridges
    sums = sum(each.answer.sums.size for each in stages.learned_from)
    shown.answer(
        {**asdict(facts), "sums": sums, "model": model},
        f"{sums:,} sums over {facts.events:,} events, {len(ridges)} ridges; model in {model}",
        _next(stages.config),
    )
