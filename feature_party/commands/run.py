"""``feature-party run``: everything, from the fetch to the report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from labelveil.common.allocator import keep_freed_memory
from labelveil.common.config import setting
from labelveil.feature_party.commands.evaluate import show_scores
from labelveil.feature_party.commands.options import (
    LABELS_PARTY,
    RELEASE_AND_FEATURES,
    TRAINING,
    OutputOptions,
    options,
    start,
)
from labelveil.feature_party.commands.submit import submitted
from labelveil.feature_party.config.labels_party import LabelsPartySection
from labelveil.feature_party.config.sections import FeaturePartyConfig, TrueLabels

if TYPE_CHECKING:
    from labelveil.feature_party.client.submission import Population


class Ending(OutputOptions):
    evaluate: bool = setting(
        True, "Estimate the error and write the report, which `evaluate` does as well."
    )


@options(
    *RELEASE_AND_FEATURES,
    *LABELS_PARTY,
    *("output.model", "output.predictions", "output.metrics", "output.report"),
    *TRAINING,
)
def run(config: FeaturePartyConfig, truth: TrueLabels, shown: Ending) -> None:
    output = config.output
    start(
        {"--output": output.predictions, "--metrics": output.metrics, "--report": output.report},
        {"--release": config.release.directory, "--model": output.model},
    )
    from labelveil.feature_party.pipeline.choice import stages_of
    from labelveil.feature_party.pipeline.rounds import Rounds
    from labelveil.feature_party.pipeline.transfer import Transfer
    from labelveil.feature_party.training.trees import load_lightgbm

    def show(sent: Iterable[tuple[LabelsPartySection, Population, str]]) -> None:
        for each in sent:
            if not (shown.as_json or shown.quiet):
                print(submitted(*each)[1], flush=True)

    keep_freed_memory()
    if config.training.learner in ("auto", "trees"):
        load_lightgbm()
    rounds: Rounds[Any] | None = None
    if config.round_shares:
        stages = stages_of(config.through(len(config.round_shares)), shown.quiet, truth)
        rounds = Rounds(stages.with_config(config), stages)
        show(rounds.learn())
    else:
        transfer = Transfer(config, shown.quiet)
        if any(party.submit for party in config.labels_party):
            show([(config.only_labels_party, *transfer.submit_all())])
        transfer.fetch()  # what a release is of, is known once it is here
        stages = stages_of(config, shown.quiet, truth)
        stages.timings.update(transfer.timings)
    model = stages.final()
    if rounds is not None:
        show(rounds.score(model))
    stages.predict(model)
    if shown.evaluate:
        show_scores(stages, stages.evaluate(model), shown)
        return
    there = f"model in {output.model}, predictions in {output.predictions}"
    metrics = stages.write_metrics({})
    shown.answer(metrics, stages.learned_words, there, "next: feature-party evaluate")
