"""What commands of ``feature-party`` share: their configuration, switches, and the work behind."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from common.config import Section, setting
from common.config.options import with_options
from feature_party.config import DEFAULT_CONFIG, FeaturePartyConfig, TrueLabels

if TYPE_CHECKING:
    from feature_party.pipeline import Stages

options = partial(with_options, FeaturePartyConfig, file=DEFAULT_CONFIG, optional=True)
"""Decorator: the configuration, and flags for the settings that it names."""

RELEASE_AND_FEATURES = (
    "data.features",
    "data.key",
    "keys.secret_file",
    "release.directory",
)
"""What the release is matched with, and how."""
LABELS_PARTY = ("labels_party.address", "labels_party.data_set", "labels_party.epoch")
TRAINING = (
    "training.objective",
    "training.head",
    "training.ensemble",
    "training.epochs",
    "training.seed",
    "training.device",
)


class Quiet(Section):
    quiet: bool = setting(False, "Show no progress bars.", flag="--quiet -q")


def open_stages(
    config: FeaturePartyConfig,
    *,
    quiet: bool = True,
    truth: TrueLabels | None = None,
    together: bool = False,
) -> Stages:
    """Return the work that a configuration asks for, none of it done yet.

    Parameters
    ----------
    together
        Whether several processes that torchrun started may do it.
    """
    # Threads that spin while they wait make training many times slower on a machine that does
    # anything else; read once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # torch, Polars and gRPC take seconds to import; --help must not wait for them.
    from feature_party.pipeline import Stages
    from feature_party.training.workers import refuse_torchrun

    if not together:
        refuse_torchrun()
    return Stages(config, truth or TrueLabels(), quiet)
