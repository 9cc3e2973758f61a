"""Mean labels by columns of the features, from matched events' codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from labelveil.common.errors import DataError
from labelveil.common.release.event_keys import key_text
from labelveil.feature_party.config import FeaturePartyConfig
from labelveil.feature_party.evaluation.group_means import (
    Decoded,
    GroupMean,
    grouped,
    means_of_codes,
)
from labelveil.feature_party.join.matches import MatchCounts
from labelveil.feature_party.pipeline.learning import Learning
from labelveil.feature_party.tables import FeatureFile
from labelveil.feature_party.training.events import Events


@dataclass(frozen=True)
class LabelMeans:
    """Those of one label, or of one labels party's."""

    label: str  # empty where there is one
    by: Sequence[str]
    epsilon: float
    matches: MatchCounts
    exact: bool  # whether codes are decoded without bias
    means: Sequence[GroupMean]

    @property
    def lines(self) -> list[str]:
        """What to know of them."""
        lines = [str(self.matches)]
        if not self.exact:
            lines.append(
                "warning: this randomizer does not tell all labels apart, so that means of groups"
                " whose labels are unlike all others' may be off; intervals have room for as much"
                " as it would be over all labels"
            )
        return lines + ([f"{self.label}:"] if self.label else [])

    def to_json(self) -> dict[str, Any]:
        """As the command prints it."""
        return {
            **({"name": self.label} if self.label else {}),
            "by": list(self.by),
            "epsilon": self.epsilon,
            **asdict(self.matches),
            "unbiased": self.exact,
            "groups": [mean.to_json(self.by) for mean in self.means],
        }


def means_by(
    config: FeaturePartyConfig, by: Sequence[str], control: str | None, *, quiet: bool
) -> list[LabelMeans]:
    """Mean labels of each label by the values of columns; ``DataError`` if one does not exist."""
    features = FeatureFile(config.features)
    names = features.frame.collect_schema().names()
    for name in by:
        if name not in names or name == config.key:
            columns = ", ".join(each for each in names if each != config.key)
            raise DataError(f"--by {name!r} is no column of the features; columns: {columns}")
    stages = Learning(config, quiet)
    first, *_ = stages.labels.values()
    found = first.found or features.find_schema(config.data.stated, config.key)
    meanings = {name: found.schema.meaning(name) for name in by}
    cells = _cells(first, features, by)
    groups = grouped({name: cells[name] for name in by}, meanings)
    answers = []
    for label, events in stages.labels.items():
        named = label if len(stages.labels) > 1 else ""
        whole = [(named, events, stages.manifests)]
        sources = [
            (
                f"{named} {party.name}".strip(),
                events.of(party.name),
                stages.manifests[start : start + party.releases],
            )
            for party, start in events.problem.each_source()
        ]
        for called, own, manifests in sources or whole:
            asked = [manifest.asked for manifest in manifests]
            decoded = Decoded.of(own.problem, own.all_codes().astype(np.int64), asked)
            means = means_of_codes(groups, decoded, control)
            epsilon = max(manifest.privacy.requested_epsilon for manifest in manifests)
            answers.append(LabelMeans(called, by, epsilon, own.matches, decoded.bias == 0, means))
    return answers


def _cells(events: Events, features: FeatureFile, by: Sequence[str]) -> pl.DataFrame:
    """Columns of the features, of the matched events in their order."""
    key = events.key
    parts = [
        batch.select(
            pl.Series("key", key_text(batch[key])),
            *(batch[name].alias(f"by {name}") for name in by),
        )
        for batch in features.batches([key, *by])
    ]
    keys = pl.DataFrame({"key": key_text(events.keys())})
    cells = keys.join(pl.concat(parts), on="key", how="left", maintain_order="left")
    return cells.drop("key").rename({f"by {name}": name for name in by})
