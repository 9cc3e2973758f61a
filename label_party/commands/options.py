"""What commands of ``label-party`` share: flags for their configuration, and switches."""

from __future__ import annotations

from functools import partial
from typing import Any

from labelveil.common.config import setting
from labelveil.common.config.answers import Json
from labelveil.common.config.options import with_options
from labelveil.label_party.config.sections import DEFAULT_CONFIG, LabelPartyConfig
from labelveil.label_party.store.receipt import remembered, with_receipt

options = partial(with_options, LabelPartyConfig, file=DEFAULT_CONFIG, around=with_receipt)
"""Decorator: the configuration, and flags for the settings that it names."""

restoring_options = partial(with_options, LabelPartyConfig, file=DEFAULT_CONFIG, around=remembered)
"""The same for a command that is there for a store that is gone."""

OF_AN_ANSWER = (
    *("data.labels", "data.population", "data.data_set", "data.epoch"),
    *("privacy.epsilon", "privacy.total_epsilon", "keys.secret_file", "store.directory"),
)
"""Settings that a command has flags for which buys an answer."""


class OutputOptions(Json):
    quiet: bool = setting(False, "No progress bar, no summary, without a terminal no warning.")

    def answer(self, document: Any, *lines: str) -> None:
        super().answer(document, *(() if self.quiet else lines))
