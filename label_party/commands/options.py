"""What commands of ``label-party`` share: their configuration, and switches."""

from __future__ import annotations

from functools import partial
from typing import Any

from common.config import setting
from common.config.answers import Json
from common.config.options import with_options
from label_party.config.sections import DEFAULT_CONFIG, LabelPartyConfig

options = partial(with_options, LabelPartyConfig, file=DEFAULT_CONFIG)
"""Decorator: the configuration, and flags for the settings that it names."""


class Shown(Json):
    quiet: bool = setting(False, "No progress bar, no summary, without a terminal no warning.")

    def answer(self, document: Any, *lines: str) -> None:
        super().answer(document, *(() if self.quiet else lines))
