"""``feature-party join``: release and features, matched on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feature_party.commands.options import RELEASE_AND_FEATURES, Quiet, options, start
from feature_party.config import FeaturePartyConfig

if TYPE_CHECKING:
    from feature_party.join.matches import MatchCounts


@options(*RELEASE_AND_FEATURES, "join.directory")
def join(config: FeaturePartyConfig, shown: Quiet) -> None:
    """Match a fetched release with features, both of any size, into Parquet shards.

    train, evaluate and run then start from the shards, as long as neither release nor features
    change; without this command they do the same where memory is too small for both. [engine] says
    where it is computed: here, in worker processes, or on Spark. An interrupted join goes on where
    it stopped.
    """
    start()
    from feature_party.pipeline.learning import Learning

    joined = Learning(config, shown.quiet).join()
    print_matches(joined.matches)
    count = len(joined.shards)
    shards = "1 shard" if count == 1 else f"{count:,} shards"
    typer.echo(f"{shards} in {joined.directory}; feature-party train starts from there")


def print_matches(counts: MatchCounts) -> None:
    """Print how many events both sides know."""
    typer.echo(
        f"{counts.matched:,} events match, of {counts.feature_rows:,} in the features and"
        f" {counts.release_rows:,} in the release"
    )
