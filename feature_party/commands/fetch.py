"""``feature-party fetch``: a release, verified."""

from __future__ import annotations

import typer

from common.allocator import keep_freed_memory
from feature_party.commands.options import LABELS_PARTY, Quiet, options, start
from feature_party.config import FeaturePartyConfig


@options(*LABELS_PARTY, "release.directory", "release.parquet")
def fetch(config: FeaturePartyConfig, shown: Quiet) -> None:
    """Fetch and verify a release; goes on where an interrupted fetch stopped."""
    start()
    from feature_party.pipeline.transfer import Transfer

    keep_freed_memory()
    fetched = Transfer(config, shown.quiet).fetch()
    for one, folder in zip(fetched, config.release_folders, strict=True):
        manifest = one.manifest
        typer.echo(
            f"{one.rows:,} rows of {manifest.data_set!r}, epoch {manifest.epoch!r}, in {folder}"
            f" ({one.received:,} received, {one.seconds:.1f} s); {manifest.total_guarantee}"
        )
    typer.echo("next: feature-party train")
