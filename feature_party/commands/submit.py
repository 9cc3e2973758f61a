"""``feature-party submit``: our keys as the population."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from feature_party.commands.options import LABELS_PARTY, Shown, options, start
from feature_party.config import FeaturePartyConfig

if TYPE_CHECKING:
    from feature_party.pipeline.transfer import Transfer


@options("data.features", "data.key", "keys.secret_file", *LABELS_PARTY)
def submit(config: FeaturePartyConfig, shown: Shown) -> None:
    """Submit the features' keys as the population; harmless to repeat."""
    start()
    from feature_party.pipeline.transfer import Transfer

    shown.answer(*submit_keys(Transfer(config, shown.quiet)))


def submit_keys(stages: Transfer) -> tuple[dict[str, Any], str]:
    """Submit; returns what was, as JSON values and in a line."""
    population, ending = stages.submit()
    party, digest = stages.config.only_labels_party, population.digest.hex()
    document = {
        "data_set": party.data_set,
        "epoch": party.epoch,
        "rows": population.rows,
        "sha256": digest,
        "ending": ending,
    }
    return document, (
        f"{population.rows:,} keys as the population of {party.data_set!r}, epoch"
        f" {party.epoch!r}: {ending}; SHA-256 {digest}"
    )
