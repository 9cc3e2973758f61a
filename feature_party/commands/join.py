"""``feature-party join``: release and features, matched on disk."""

from __future__ import annotations

from dataclasses import asdict

from labelveil.common.allocator import keep_freed_memory
from labelveil.feature_party.commands.options import (
    RELEASE_AND_FEATURES,
    OutputOptions,
    options,
    start,
)
from labelveil.feature_party.config.sections import FeaturePartyConfig


@options(*RELEASE_AND_FEATURES, "join.directory")
def join(config: FeaturePartyConfig, shown: OutputOptions) -> None:
    start(folders={"--out": config.join.directory})
    from labelveil.feature_party.pipeline.learning import Learning

    keep_freed_memory()
    joined = Learning(config, shown.quiet).join()
    count = len(joined.shards)
    shards = "1 shard" if count == 1 else f"{count:,} shards"
    shown.answer(
        {**asdict(joined.matches), "shards": count, "directory": joined.directory},
        str(joined.matches),
        f"{shards} in {joined.directory}; feature-party train starts from there",
    )
