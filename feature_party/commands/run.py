"""``feature-party run``: everything, from the fetch to the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelveil.common.allocator import keep_freed_memory
from labelveil.common.config import setting
from labelveil.feature_party.commands.evaluate import show_scores
from labelveil.feature_party.commands.options import (
    LABELS_PARTY,
    RELEASE_AND_FEATURES,
    TRAINING,
    Shown,
    options,
    start,
)
from labelveil.feature_party.commands.submit import submitted
from labelveil.feature_party.config import FeaturePartyConfig, LabelsPartySection, TrueLabels

if TYPE_CHECKING:
    from labelveil.feature_party.client.submission import Population


class Ending(Shown):
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
    """Submit the population if so configured; fetch, join, train, predict, evaluate and report."""
    output = config.output
    start(
        {"--output": output.predictions, "--metrics": output.metrics, "--report": output.report},
        {"--release": config.release.directory, "--model": output.model},
    )
    from labelveil.feature_party.pipeline.stages import Stages

    keep_freed_memory()
    stages = Stages(config, shown.quiet, truth=truth)

    def show(party: LabelsPartySection, population: Population, ending: str) -> None:
        if not (shown.as_json or shown.quiet):
            print(submitted(party, population, ending)[1], flush=True)

    if config.rounds.shares:
        from labelveil.feature_party.pipeline.rounds import Rounds

        rounds = Rounds(stages)
        for done in rounds.learn():
            show(*done)
        stages = rounds.through(rounds.count)
    else:
        if any(party.submit for party in config.labels_party):
            show(config.only_labels_party, *stages.submit_all())
        stages.fetch()
    model = stages.train()
    stages.predict(model)
    if shown.evaluate:
        show_scores(stages, stages.evaluate(model), shown)
        return
    shown.answer(
        stages.write_metrics({}),
        str(stages.prepared.matches),
        f"model in {output.model}, predictions in {output.predictions}",
        "next: feature-party evaluate",
    )
