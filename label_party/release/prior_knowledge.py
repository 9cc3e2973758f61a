"""What a plan assumes about labels: a prior that was released, that is public, or that is uniform.

Never, unless asked for with a warning, the labels themselves, for a choice made by looking at them
leaks them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError, DataError, ReleaseError
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.message.known_labels import KnownLabels
from labelveil.common.release.folder import withdrawn_reason
from labelveil.common.release.manifest import Manifest
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.open import open_events
from labelveil.label_party.release.public_prior import prior_columns, read_prior

LEAK_WARNING = (
    "this table is computed from the raw labels: a choice made by it depends on them beyond what"
    " epsilon states, so neither the table nor the choice may leave the labels party"
)


@dataclass(frozen=True)
class PriorKnowledge:
    """What a plan assumes about the labels."""

    # every label in one; labels of different ones are taken to be independent. Empty for uniform
    # labels.
    known: tuple[KnownLabels, ...]
    rows: int  # number of events
    source: str  # in words, for the table's caption
    leaks: bool = False  # whether it comes from raw labels

    def over(self, group: Group) -> Floats:
        """(k,) prior over cells: every value is split between its neighbours without bias."""
        if not self.known:
            return np.full(len(group.cells), 1.0 / len(group.cells))
        grids = dict(zip(group.labels, group.cells.grids, strict=True))
        order: list[int] = []
        table = np.ones(())
        for part in self.known:
            some = tuple(label for label in part.labels if label in grids)
            if some:
                cells = Cells(tuple(grids[label] for label in some))
                known = part.over(Group(some, cells)).reshape(cells.shape)
                table = np.multiply.outer(table, known)
                order += some
        return np.asarray(table.transpose([order.index(label) for label in group.labels])).ravel()


def choose_knowledge(
    config: LabelPartyConfig,
    release: Path | None,
    table: Path | None,
    raw_labels: bool,
    rows: int,
) -> PriorKnowledge:
    """Pick the one source of the prior that was asked for; with none, the configured one.

    Without that nothing is assumed.

    ``ConfigError`` if more than one source is named.
    """
    if sum([release is not None, table is not None, raw_labels]) > 1:
        raise ConfigError(
            "a plan has one prior; give one of --prior-release, --prior-file and --raw-labels"
        )
    names = [label.name for label in config.labels]
    if release is not None:
        return from_manifest(release, names)
    if table is not None:
        return from_table(table, rows, names)
    if raw_labels:
        return from_raw_labels(config)
    configured = config.prior.file
    return from_domain(rows) if configured is None else from_table(configured, rows, names)


def from_manifest(path: Path, wanted: list[str]) -> PriorKnowledge:
    """Use the noisy priors of a release: they are public already, so planning with them is free."""
    source = path / "manifest.json" if path.is_dir() else path
    try:
        manifest = Manifest.from_bytes(source.read_bytes())
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror}") from error
    except ReleaseError as error:
        raise ReleaseError(f"{source}: {error}") from error
    if len(wanted) == len(manifest.names) == 1:
        wanted = manifest.names  # the only label, whatever it was called
    for name in wanted:
        if name not in manifest.names:
            raise ConfigError(
                f"{source} has no label {name!r:.60}; its labels are {', '.join(manifest.names)}"
            )
    parts = []
    for group, histogram in manifest.message.histograms:
        counted = [manifest.names[label] for label in group.labels]
        columns = [place for place, name in enumerate(counted) if name in wanted]
        if columns:
            labels = tuple(wanted.index(counted[place]) for place in columns)
            values = group.cells.points[:, columns]
            parts.append(KnownLabels(labels, values, histogram.probabilities))
    about = f"the released prior of {manifest.data_set!r}, epoch {manifest.epoch!r}"
    if (reason := withdrawn_reason(source.parent)) is not None:
        about += f", which was withdrawn ({reason})"
    return PriorKnowledge(tuple(parts), manifest.population.rows, about)


def from_table(path: Path, rows: int, names: list[str]) -> PriorKnowledge:
    """Use public knowledge, of a file as :func:`read_prior` takes it."""
    return PriorKnowledge((read_prior(path, names),), rows, f"the prior in {path}")


def from_domain(rows: int) -> PriorKnowledge:
    """Assume nothing: uniform over the domain."""
    return PriorKnowledge((), rows, "a uniform prior (nothing is known about the labels)")


def from_raw_labels(config: LabelPartyConfig) -> PriorKnowledge:
    """Use the labels themselves. The result is for the labels party's eyes; it leaks if used."""
    names, rows = prior_columns([label.name for label in config.labels]), 0
    by_label = cs.by_name(*names)
    lower, upper = np.transpose([label.bounds for label in config.labels])
    counted = pl.DataFrame(schema={**dict.fromkeys(names, pl.Float64), "weight": pl.UInt64})
    with open_events(config, quiet=True) as events:
        for _, labels in events.keys_and_labels():
            # as a release takes them: what lies outside counts at the end it is nearest to
            part = pl.DataFrame(np.clip(labels, lower, upper), schema=names)
            more = part.group_by(by_label).agg(pl.len().cast(pl.UInt64).alias("weight"))
            counted = pl.concat([counted, more]).group_by(by_label).agg(pl.col("weight").sum())
            rows += len(labels)
    counted = counted.sort(by_label)
    weights = counted["weight"].to_numpy().astype(np.float64)
    known = KnownLabels(tuple(range(len(names))), counted.select(by_label).to_numpy(), weights)
    return PriorKnowledge((known,), rows, "the raw labels", leaks=True)
