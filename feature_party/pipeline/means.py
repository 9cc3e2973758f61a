"""Mean labels by columns of the features, from matched events' codes or from sums."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from labelveil.common.errors import ConfigError, DataError, not_none
from labelveil.common.release.event_keys import key_text
from labelveil.common.release.sums import read_sums
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.evaluation.code_means import GroupCodes
from labelveil.feature_party.evaluation.group_means import (
    GroupMean,
    grouped,
    means_of_codes,
    means_of_sums,
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
    matches: MatchCounts | None  # of codes with events; sums are of events that we submitted
    exact: bool  # whether all labels are told apart
    means: Sequence[GroupMean]

    @property
    def lines(self) -> list[str]:
        """What to know of them."""
        events = sum(mean.events for mean in self.means)
        lines = [str(self.matches or f"sums over {events:,} events, whose own means these are")]
        if not self.exact:
            lines.append(
                "warning: this randomizer does not tell all labels apart, so that means of groups"
                " whose labels are unlike all others' may be further off than their intervals say"
            )
        return lines + ([f"{self.label}:"] if self.label else [])

    def to_json(self) -> dict[str, Any]:
        """As the command prints it."""
        return {
            **({"name": self.label} if self.label else {}),
            "by": list(self.by),
            "epsilon": self.epsilon,
            "told_by": "codes" if self.matches else "sums",
            **(asdict(self.matches) if self.matches else {}),
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
    if any(manifest.sums for manifest in stages.manifests):
        return [_of_sums(stages, features, by, control)]
    found = not_none(stages.prepared.found)
    meanings = {name: found.schema.meaning(name) for name in by}
    table, answers = _columns(features, config.key, by), []
    for label, events in stages.labels.items():
        named = label if len(stages.labels) > 1 else ""
        whole = [(named, events, stages.manifests)]
        sources = [
            (
                f"{named} {party.name}".strip(),
                events.for_source(party.name),
                stages.manifests[start : start + party.releases],
            )
            for party, start in events.problem.each_source()
        ]
        for called, own, manifests in sources or whole:
            asked = [manifest.questioned for manifest in manifests]
            cells = _cells(own, table)
            groups = grouped({name: cells[f"by {name}"] for name in by}, meanings)
            codes = GroupCodes.from_codes(own.problem, own.all_codes(), asked)
            means = means_of_codes(groups, codes, control)
            epsilon = max(manifest.privacy.requested_epsilon for manifest in manifests)
            answers.append(LabelMeans(called, by, epsilon, own.matches, codes.exact, means))
    return answers


def _of_sums(
    stages: Learning, features: FeatureFile, by: Sequence[str], control: str | None
) -> LabelMeans:
    """Those of the events that a release of sums is about, which we submitted."""
    config = stages.config
    if len(config.release_folders) > 1:
        raise ConfigError(
            f"means are of the sums of one release, and there are {len(config.release_folders)};"
            " set [labels_party] epoch to one of them"
        )
    stages.check_withdrawn()
    cells = pl.concat(features.batches([config.key, *by]))
    found = features.find_schema(config.data.stated, config.key).schema
    (folder,), secret = config.release_folders, config.secret_of(config.only_labels_party)
    with warnings.catch_warnings():  # of a withdrawal, which was warned of
        warnings.simplefilter("ignore", UserWarning)
        sums = read_sums(folder, cells[config.key], secret)
    groups = grouped({n: cells[n] for n in by}, {n: found.meaning(n) for n in by})
    means = means_of_sums(groups, sums, control)
    (manifest,) = stages.manifests
    return LabelMeans("", by, manifest.privacy.requested_epsilon, None, True, means)


def _columns(features: FeatureFile, key: str, by: Sequence[str]) -> pl.DataFrame:
    """Columns of all features, with the text of each key."""
    parts = [
        batch.select(
            pl.Series("key", key_text(batch[key])),
            *(batch[name].alias(f"by {name}") for name in by),
        )
        for batch in features.batches([key, *by])
    ]
    return pl.concat(parts)


def _cells(events: Events, table: pl.DataFrame) -> pl.DataFrame:
    """These columns, of the matched events in their order."""
    keys = pl.DataFrame({"key": key_text(events.keys())})
    return keys.join(table, on="key", how="left", maintain_order="left")
