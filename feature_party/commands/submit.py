"""``feature-party submit``: our keys as the population."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feature_party.commands.options import LABELS_PARTY, Quiet, open_stages, options
from feature_party.config import FeaturePartyConfig

if TYPE_CHECKING:
    from feature_party.pipeline import Stages


@options("data.features", "data.key", "keys.secret_file", *LABELS_PARTY)
def submit(config: FeaturePartyConfig, shown: Quiet) -> None:
    """Submit the features' keys as the population; harmless to repeat."""
    submit_keys(open_stages(config, quiet=shown.quiet))


def submit_keys(stages: Stages) -> None:
    """Submit, and print what was."""
    population, ending = stages.submit()
    party = stages.config.labels_party
    typer.echo(
        f"{population.rows:,} keys as the population of {party.data_set!r}, epoch"
        f" {party.epoch!r}: {ending}; SHA-256 {population.digest.hex()}"
    )
