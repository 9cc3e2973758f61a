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
    """Tell mean labels by columns of the features, with intervals; no model is needed.

    Each matched event's privatized label is decoded to a number that is right on average, whatever
    the label is; sums of the groups are right but for their noise. The 95% intervals hold for all
    groups together, and so do those of the lifts.
    """
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
