"""What commands of ``feature-party`` share: their configuration, switches, and how they start."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from labelveil.common.config import setting
from labelveil.common.config.answers import Json
from labelveil.common.config.options import with_options
from labelveil.common.outputs import check_folder, check_output
from labelveil.feature_party.config.sections import DEFAULT_CONFIG, FeaturePartyConfig
from labelveil.feature_party.torchrun import refuse_torchrun

options = partial(with_options, FeaturePartyConfig, file=DEFAULT_CONFIG, optional=True)
"""Decorator: the configuration, and flags for the settings that it names."""

RELEASE_AND_FEATURES = ("data.features", "data.key", "keys.secret_file", "release.directory")
"""What the release is matched with, and how."""
LABELS_PARTY = ("labels_party.address", "labels_party.data_set", "labels_party.epoch")
TRAINING = tuple(
    f"training.{key}" for key in ("objective", "head", "ensemble", "epochs", "seed", "device")
)


NO_PATHS: Mapping[str, Path] = MappingProxyType({})


class OutputOptions(Json):
    quiet: bool = setting(False, "No progress bars, no summary.", flag="--quiet")

    def answer(self, document: Any, *lines: str) -> None:
        super().answer(document, *(() if self.quiet else lines))


def start(
    files: Mapping[str, Path] = NO_PATHS,
    folders: Mapping[str, Path] = NO_PATHS,
    *,
    torchrun: bool = False,
) -> None:
    """Make sure that this process may do the work, before libraries are imported that do it.

    ``files`` and ``folders`` are what will be written, by the option that names it: whether they
    can be is tried, and nothing is left. ``torchrun`` says that several processes which it
    started may. ``ConfigError`` if something cannot be written.
    """
    for option, path in files.items():
        check_output(option, path, makes_folder=True)
    for option, path in folders.items():
        check_folder(option, path)
    if not torchrun:
        refuse_torchrun()
