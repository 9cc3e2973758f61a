"""``feature-party run``: everything, from the fetch to the report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from labelveil.common.allocator import keep_freed_memory
from labelveil.common.config import setting
from labelveil.feature_party.commands.evaluate import show_scores, show_sums
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
    from labelveil.feature_party.groups.saved import SavedSums
    from labelveil.feature_party.model.several_labels import LabelModels


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
    """Submit the population if so configured; fetch, join, train, predict, evaluate and report."""
    output = config.output
    start(
        {"--output": output.predictions, "--metrics": output.metrics, "--report": output.report},
        {"--release": config.release.directory, "--model": output.model},
    )
    from labelveil.feature_party.pipeline.rounds import Rounds
    from labelveil.feature_party.pipeline.stages import Stages
    from labelveil.feature_party.pipeline.sums import SumStages, learns_from_sums

    keep_freed_memory()
    codes = Stages(config, shown.quiet, truth=truth)
    sums = SumStages(config, shown.quiet, truth=truth)
    rounds: Rounds[LabelModels] | None = None
    rounds_of_sums: Rounds[SavedSums] | None = None

    def show(sent: Iterable[tuple[LabelsPartySection, Population, str]]) -> None:
        for each in sent:
            if not (shown.as_json or shown.quiet):
                print(submitted(*each)[1], flush=True)

    def unscored(metrics: dict[str, Any], *lines: str) -> None:
        there = f"model in {output.model}, predictions in {output.predictions}"
        shown.answer(metrics, *lines, there, "next: feature-party evaluate")

    if config.groups.configured:
        config = config.through(len(config.rounds.shares))
        begun, sums = sums, sums.with_config(config)
        rounds_of_sums = Rounds(begun, sums)
        show(rounds_of_sums.learn())
    elif config.rounds.shares:
        config = config.through(len(config.rounds.shares))
        first, codes = codes, codes.with_config(config)
        rounds = Rounds(first, codes)
        show(rounds.learn())
    else:
        if any(party.submit for party in config.labels_party):
            show([(config.only_labels_party, *codes.submit_all())])
        codes.fetch()
    if learns_from_sums(config):
        model = sums.trained()
        if rounds_of_sums is not None:
            show(rounds_of_sums.score(model))
        sums.predict(model)
        if shown.evaluate:
            show_sums(sums, model, shown)
        else:
            unscored(sums.write_metrics({}))
        return
    models = codes.train()
    if rounds is not None:
        show(rounds.score(models))
    codes.predict(models)
    if shown.evaluate:
        show_scores(codes, codes.evaluate(models), shown)
        return
    unscored(codes.write_metrics({}), str(codes.prepared.matches))
