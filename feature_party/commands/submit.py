"""``feature-party submit``: our keys as the population, and what a model asks about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelveil.common.config import setting
from labelveil.common.errors import ConfigError
from labelveil.common.files import file_errors
from labelveil.feature_party.commands.options import LABELS_PARTY, OutputOptions, options, start
from labelveil.feature_party.config.labels_party import LabelsPartySection
from labelveil.feature_party.config.sections import FeaturePartyConfig

if TYPE_CHECKING:
    from labelveil.feature_party.client.submission import Population


class SubmitOptions(OutputOptions):
    ask: bool = setting(
        False,
        "Also ask what the model in --model has left open about these events, of a labels party"
        " that takes questions. It learns roughly what the model predicts of each.",
        flag="--ask",
    )
    question: Path | None = setting(
        None,
        "File of a question about these events, of `labelveil.write_question`: sums over groups of"
        " them, say.",
        flag="--question",
    )


@options(
    "data.features",
    "data.key",
    "keys.secret_file",
    *LABELS_PARTY,
    "output.model",
    "release.directory",
)
def submit(config: FeaturePartyConfig, wanted: SubmitOptions) -> None:
    start()
    if wanted.question is not None and (wanted.ask or config.round_shares):
        other = "--ask" if wanted.ask else f"[rounds] shares={config.round_shares}"
        raise ConfigError(
            f"--question {wanted.question} and {other} exclude each other: events are asked one"
            " question; leave one of them out"
        )
    if config.round_shares:
        from labelveil.feature_party.pipeline.choice import stages_of
        from labelveil.feature_party.pipeline.rounds import Rounds

        wanted.answer(*submitted(*Rounds(stages_of(config, wanted.quiet)).submit_next()))
        return
    from labelveil.feature_party.pipeline.transfer import Transfer

    stages, question = Transfer(config, wanted.quiet), b""
    if wanted.ask:
        from labelveil.feature_party.groups.saved import is_of_sums
        from labelveil.feature_party.model.several_labels import LabelModels
        from labelveil.feature_party.pipeline.rounds import question_of

        if is_of_sums(config.output.model):
            raise ConfigError(
                f"--ask is for models of codes, and that in {config.output.model} has learned from"
                " sums: set [groups] and [rounds], or ask by lv.ask_groups and --question"
            )
        question = question_of(LabelModels.load(config.output.model), config)
    elif wanted.question is not None:
        with file_errors(ConfigError, f"{wanted.question} cannot be read", "; name --question"):
            question = wanted.question.read_bytes()
    wanted.answer(*submitted(config.only_labels_party, *stages.submit_all(question)))


def submitted(
    party: LabelsPartySection, population: Population, ending: str
) -> tuple[dict[str, Any], str]:
    """What was submitted, as JSON values and in a line."""
    digest, asked = population.digest.hex(), bool(population.question)
    document = {
        "data_set": party.data_set,
        "epoch": party.epoch,
        "rows": population.rows,
        "sha256": digest,
        "asked": asked,
        "ending": ending,
    }
    if not population.rows:
        return document, f"nothing to submit: {ending}"
    return document, (
        f"{population.rows:,} keys{' with a question' if asked else ''} as the population of"
        f" {party.data_set!r}, epoch {party.epoch!r}: {ending}; SHA-256 {digest}"
    )
