"""``feature-party means``: mean labels by columns of the features, from privatized labels."""

from __future__ import annotations

from typing import Any

from labelveil.common.config import Section, setting
from labelveil.common.errors import ConfigError
from labelveil.feature_party.commands.options import (
    RELEASE_AND_FEATURES,
    OutputOptions,
    options,
    start,
)
from labelveil.feature_party.config.sections import FeaturePartyConfig


class MeansOptions(Section):
    by: list[str] = setting(
        list,
        "Column of the features whose values are the groups; repeat it to have a group for each"
        " pair of two columns' values.",
        metavar="COLUMN",
    )
    control: str | None = setting(
        None,
        "Value of the last column that all others are compared with: the lift is how far their mean"
        " is above its.",
        metavar="VALUE",
    )


@options(*RELEASE_AND_FEATURES)
def means(config: FeaturePartyConfig, wanted: MeansOptions, shown: OutputOptions) -> None:
    if not wanted.by:
        raise ConfigError("--by is missing: name a column of the features, such as --by campaign")
    if len({*wanted.by}) < len(wanted.by):
        raise ConfigError(f"--by names {max(wanted.by, key=wanted.by.count)!r} twice; once will do")
    start()
    from labelveil.common.console import stdout
    from labelveil.feature_party.evaluation.group_means import means_table
    from labelveil.feature_party.pipeline.means import means_by

    found = means_by(config, wanted.by, wanted.control, quiet=shown.quiet)
    documents: list[dict[str, Any]] = []
    for label in found:
        if not (shown.as_json or shown.quiet):
            for line in label.lines:
                stdout.print(line, highlight=False)
            stdout.print(means_table(wanted.by, label.means))
        documents.append(label.to_json())
    if shown.as_json:
        shown.answer(documents if len(documents) > 1 else documents[0])
