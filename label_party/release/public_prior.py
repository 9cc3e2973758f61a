"""A prior that is public before the labels are looked at (``[prior] file``).

Theorem 5 of Ghazi et al., *Regression with Label Differential Privacy*, ICLR 2023, has it for
granted; Algorithm 3 there buys one. Where public knowledge gives it, nothing is spent on a
histogram: the message is ε-DP in each label whatever the file says, and a wrong one costs accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import polars.selectors as cs

from labelveil.common.csv_files import read_table
from labelveil.common.errors import DataError
from labelveil.common.randomizers.message.known_labels import KnownLabels
from labelveil.common.randomizers.message.plan import MessagePlan
from labelveil.label_party.config.sections import LabelPartyConfig


def prior_columns(names: Sequence[str]) -> list[str]:
    """What a table of labels calls them: the only one ``label``."""
    return [*names] if len(names) > 1 else ["label"]


def read_prior(path: Path, names: Sequence[str]) -> KnownLabels:
    """Read a CSV or Parquet file with a column ``weight``, and the labels'.

    ``DataError`` if it has no such columns, or they cannot be a prior.
    """
    table, names = read_table(path), prior_columns(names)
    for name in [*names, "weight"]:
        if name not in table.columns:
            raise DataError(f"{path} has no column {name}; it needs {', '.join(names)} and weight")
    try:
        labels = cs.by_name(*names)
        table = table.select(cs.by_name(*names, "weight").cast(pl.Float64)).sort(labels)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path}: labels and weight must be numbers") from error
    places = tuple(range(len(names)))
    try:
        return KnownLabels(places, table.select(labels).to_numpy(), table["weight"].to_numpy())
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def public_prior(config: LabelPartyConfig) -> KnownLabels | None:
    """The configured one; None where the labels pay for a histogram."""
    path = config.prior.file
    return None if path is None else read_prior(path, [label.name for label in config.labels])


def with_prior(
    plan: MessagePlan, config: LabelPartyConfig, prior: KnownLabels | None
) -> MessagePlan:
    """Have a plan start from a public prior, if there is one.

    ``ConfigError`` for strata that nothing would tell apart.
    """
    if prior is None:
        return plan
    priors = {group: prior.over(group) for group in plan.groups}
    return plan.knowing(priors, corrected=config.prior.corrected)
