"""``feature-party run``: everything, from the fetch to the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labelveil.common.allocator import keep_freed_memory
from labelveil.common.config import setting
from labelveil.feature_party.commands.evaluate import check_alone, show_scores, show_sums
from labelveil.feature_party.commands.options import (
    LABELS_PARTY,
    RELEASE_AND_FEATURES,
    TRAINING,
    OutputOptions,
    options,
    start,
)
from labelveil.feature_party.commands.submit import submitted
from labelveil.feature_party.config import FeaturePartyConfig, LabelsPartySection, TrueLabels

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
    codes: Any
    codes, sums = Stages(config, shown.quiet, truth=truth), SumStages(config, shown.quiet)
    rounds: Rounds[Any] | None = None

    def show(party: LabelsPartySection, population: Population, ending: str) -> None:
        if not (shown.as_json or shown.quiet):
            print(submitted(party, population, ending)[1], flush=True)

    given = {"--no-evaluate": not shown.evaluate}
    if config.groups.asked:
        check_alone(truth, given)
    if config.rounds.shares:
        rounds = Rounds(sums if config.groups.asked else codes)
        for done in rounds.learn():
            show(*done)
        config = config.through(rounds.count)
        codes = codes if config.groups.asked else rounds.through(rounds.count)
    else:
        if any(party.submit for party in config.labels_party):
            show(config.only_labels_party, *codes.submit_all())
        codes.fetch()
    if of_sums := learns_from_sums(config):
        check_alone(truth, given)
        sums = sums.of(config)
    model = sums.trained() if of_sums else codes.train()
    for done in () if rounds is None else rounds.score(model):
        show(*done)
    if of_sums:
        sums.predict(model)
        show_sums(sums, model, shown)
        return
    codes.predict(model)
    if shown.evaluate:
        show_scores(codes, codes.evaluate(model), shown)
        return
    shown.answer(
        codes.write_metrics({}),
        str(codes.prepared.matches),
        f"model in {output.model}, predictions in {output.predictions}",
        "next: feature-party evaluate",
    )
