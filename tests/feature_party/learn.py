"""Prepare and train by a whole configuration, as the commands do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labelveil.common.release.event_keys import read_secret
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.join.matches import JoinInputs, Party
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.training import run
from labelveil.feature_party.training.events import TrainingSetup
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.prepare import Preparation
from labelveil.feature_party.training.streamed import PreparedShards


def prepare(
    release: Path | Sequence[Path],
    features: Path,
    config: FeaturePartyConfig,
    secret: bytes | None = None,
) -> Any:
    """Matched events, in memory or in shards."""
    if secret is None:
        secret = read_secret(config.secret_of(config.only_labels_party))
    folders = (release,) if isinstance(release, Path) else tuple(release)
    inputs = JoinInputs(folders, features, config.key, (Party(secret),) * len(folders))
    (events,) = Preparation(inputs, config.training, config.join, config.engine).events().values()
    return events


def train(events: Prepared | PreparedShards, config: FeaturePartyConfig, **options: Any) -> Model:
    """Train, with all learners."""
    return run.train(events, TrainingSetup(config.training, config.data, **options))
