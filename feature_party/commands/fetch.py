"""``feature-party fetch``: a release, verified."""

from __future__ import annotations

from labelveil.common.allocator import keep_freed_memory
from labelveil.feature_party.commands.options import LABELS_PARTY, OutputOptions, options, start
from labelveil.feature_party.config.sections import FeaturePartyConfig


@options(*LABELS_PARTY, "release.directory", "release.parquet")
def fetch(config: FeaturePartyConfig, shown: OutputOptions) -> None:
    start(folders={"--release": config.release.directory})
    from labelveil.feature_party.pipeline.transfer import Transfer

    keep_freed_memory()
    if config.round_shares:
        config = config.through(config.rounds_submitted, scored=True)
    fetched = Transfer(config, shown.quiet).fetch()
    documents, lines = [], []
    for release in fetched:
        manifest, rows, folder = release.manifest, release.rows, release.directory
        documents.append(
            {
                "data_set": manifest.data_set,
                "epoch": manifest.epoch,
                "rows": rows,
                "events": manifest.population.rows,
                "received": release.received,
                "seconds": release.seconds,
                "guarantee": manifest.total_guarantee.to_json(),
                "directory": folder,
                "replaced": release.replaced,
                "withdrawn": release.withdrawn,
            }
        )
        sent = "rows" if manifest.sums is None else f"sums over {manifest.population.rows:,} events"
        lines.append(
            f"{rows:,} {sent} of {manifest.data_set!r}, epoch {manifest.epoch!r}, in {folder}"
            f" ({release.received:,} received, {release.seconds:.1f} s); {manifest.total_guarantee}"
        )
        if release.replaced is not None:
            again = "can be fetched again at no cost; [labels_party] epochs keeps several"
            if release.withdrawn is not None:
                again = "was withdrawn; train again"
            lines.append(
                f"it took the place of {release.replaced[0]!r}, epoch {release.replaced[1]!r},"
                f" which {again}"
            )
    shown.answer(documents, *lines, "next: feature-party train")
