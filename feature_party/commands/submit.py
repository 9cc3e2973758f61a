"""``feature-party submit``: our keys as the population."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feature_party.commands.options import LABELS_PARTY, Quiet, options, start
from feature_party.config import FeaturePartyConfig

if TYPE_CHECKING:
    from feature_party.pipeline.transfer import Transfer


@options("data.features", "data.key", "keys.secret_file", *LABELS_PARTY)
def submit(config: FeaturePartyConfig, shown: Quiet) -> None:
    """Submit the features' keys as the population; harmless to repeat."""
    start()
    from feature_party.pipeline.transfer import Transfer

    submit_keys(Transfer(config, shown.quiet))


def submit_keys(stages: Transfer) -> None:
    """Submit, and print what was."""
    population, ending = stages.submit()
    party = stages.config.labels_party
    typer.echo(
        f"{population.rows:,} keys as the population of {party.data_set!r}, epoch"
        f" {party.epoch!r}: {ending}; SHA-256 {population.digest.hex()}"
    )
