"""What commands of ``label-party`` share: their configuration, and switches."""

from __future__ import annotations

from functools import partial

from common.config import Section, setting
from common.config.options import with_options
from label_party.config.sections import DEFAULT_CONFIG, LabelPartyConfig

options = partial(with_options, LabelPartyConfig, file=DEFAULT_CONFIG)
"""Decorator: the configuration, and flags for the settings that it names."""


class Quiet(Section):
    quiet: bool = setting(False, "No progress bar, no summary, without a terminal no warning.")


class Json(Section):
    as_json: bool = setting(False, "Print JSON, not a table.", flag="--json")
