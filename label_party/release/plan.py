"""``label-party plan``: compare randomizers before anything is spent.

The comparison looks at the label domain, the number of events, ε and a prior. The prior is one that
was released already, one that the operator knows from public sources, or uniform: never, unless
asked for with a warning, the labels themselves, for a choice made by looking at them leaks them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import polars as pl

from common.arrays import Floats
from common.csv_files import read_table
from common.errors import ConfigError, DataError, ReleaseError
from common.randomizers.design.assessment import Assessment, Assessor
from common.randomizers.design.conditionals import EXPLAINED
from common.randomizers.design.knots import interpolation
from common.randomizers.grid import Grid
from common.randomizers.two_step import RESPONSE
from common.release.blocks import block_ranges
from common.release.manifest import Manifest
from label_party.config.sections import LabelPartyConfig
from label_party.events.open import open_events
from label_party.events.submitted import Populations
from label_party.release.plan_divisions import plan_divisions
from label_party.store.release_store import Store

_USUAL_ROWS = 20_000
_USELESS = 0.1

LEAK_WARNING = (
    "this table is computed from the raw labels: a choice made by it depends on them beyond what"
    " epsilon states, so neither the table nor the choice may leave the labels party"
)


_VALUES_AT_ONCE = 1 << 12


@dataclass(frozen=True)
class PriorKnowledge:
    """What a plan assumes about the labels.

    Attributes
    ----------
    values, weights
        (j,) label values, ascending, and their weights >= 0; None for uniform over the domain.
    rows
        Number of events.
    source
        In words, for the table's caption.
    leaks
        Whether it comes from raw labels.
    """

    values: Floats | None
    weights: Floats | None
    rows: int
    source: str
    leaks: bool = False

    def over(self, grid: Grid) -> Floats:
        """(k,) prior over a grid: every value is split between its neighbours without bias."""
        if self.values is None or self.weights is None:
            return np.full(len(grid), 1.0 / len(grid))
        inside = np.clip(self.values, grid.lower, grid.upper)
        prior = np.zeros(len(grid))
        for low, high in block_ranges(inside.size, _VALUES_AT_ONCE):
            prior += self.weights[low:high] @ interpolation(inside[low:high], grid.points)
        return np.asarray(prior / prior.sum())


@dataclass(frozen=True)
class PlanRow:
    """One candidate at one ε; errors in the units of the loss. ``auto`` marks the default."""

    epsilon: float
    epsilon_prior: float
    epsilon_labels: float
    assessment: Assessment
    auto: bool

    def to_json(self) -> dict[str, object]:
        """Return a flat record."""
        facts = asdict(self.assessment)
        facts["randomizer"] = facts.pop("name")
        facts["realised_epsilon"] = facts.pop("epsilon")
        return {
            "epsilon": self.epsilon,
            "epsilon_prior": self.epsilon_prior,
            "epsilon_labels": self.epsilon_labels,
            "auto": self.auto,
            **facts,
        }


@dataclass(frozen=True)
class Plan:
    """All candidates, by ε and predicted error; what the errors are to be compared with."""

    rows: list[PlanRow]
    knowledge: PriorKnowledge
    loss: str
    unfit: dict[str, str]
    constant_error: float
    true_label_error: float
    explained: float


def make_plan(
    config: LabelPartyConfig,
    knowledge: PriorKnowledge,
    epsilons: Sequence[float],
    on_epsilon: Callable[[float], None] = lambda epsilon: None,
    names: Sequence[str] | None = None,
    explained: float = EXPLAINED,
) -> Plan:
    """Judge every randomizer, or those named, at every ε.

    Parameters
    ----------
    config
        Domain, privacy unit and loss are taken from it.
    knowledge
        The prior and the number of events.
    epsilons
        Whole budgets, prior included, each in 0 … 40.
    on_epsilon
        Progress: called when everything at an ε has been judged.
    explained
        Share of the variance of the label's normal score that features are taken to explain,
        in 0 … 1.
    """
    rows: list[PlanRow] = []
    unfit: dict[str, str] = {}
    constant = true_labels = float("nan")
    for epsilon in sorted(epsilons):
        grid = config.only_label.domain.build(knowledge.rows, epsilon)
        split = config.recipe.split(grid, epsilon, knowledge.rows)
        each = float(split.labels / config.privacy.group)
        prior = knowledge.over(grid)
        assessor = Assessor(grid.points, prior, knowledge.rows, config.only_label.loss, explained)
        auto = RESPONSE if len(grid) == 2 else "optimal-design"
        assessments, unfit = assessor.compare(each, names)
        rows += [
            PlanRow(
                epsilon,
                float(split.prior),
                float(split.labels),
                assessment,
                assessment.name == auto,
            )
            for assessment in assessments
        ]
        constant, true_labels = assessor.forecast.constant, assessor.forecast.with_true_labels
        on_epsilon(epsilon)
    return Plan(rows, knowledge, config.only_label.loss, unfit, constant, true_labels, explained)


def too_few_events(config: LabelPartyConfig, rows: int) -> str | None:
    """Say so if the configured release is predicted to be worth next to nothing.

    The prediction looks at no label, so to act on it tells nobody anything about them.
    """
    epsilon, gains = config.privacy.epsilon, _gains(config, rows)
    few = {name: f"{gain:.1%}" for name, gain in gains.items() if gain < _USELESS}
    if not few:
        return None
    each = [f"{gain} for {name!r:.60}" if name else gain for name, gain in few.items()]
    return (
        f"{rows:,} events are few for epsilon={epsilon:g}: a model is predicted to gain"
        f" {' and '.join(each)} of what true labels would over a constant (label-party plan"
        f" --rows {rows})"
    )


def _gains(config: LabelPartyConfig, rows: int) -> dict[str, float]:
    """What a model of each label gains, as a share of what true labels would; one has no name."""
    epsilon = config.privacy.epsilon
    if len(config.labels) == 1:
        plan = make_plan(config, from_domain(rows), [epsilon], names=[config.randomizer.name])
        possible = plan.constant_error - plan.true_label_error
        if not plan.rows:
            return {}
        return {"": (plan.constant_error - plan.rows[0].assessment.predicted_error) / possible}
    privacy, found = config.privacy, dict[str, float]()
    # a channel of each label's own is judged at once, and what is enough for that is for any
    for over_cells in (False, privacy.division != "split"):
        divisions = plan_divisions(
            config.terms,
            rows,
            [epsilon],
            group=privacy.group,
            prior_share=privacy.prior_share,
            over_cells=over_cells,
        )
        taken = [row for row in divisions.rows if row.taken_by(privacy.division)]
        found = divisions.gains((taken or divisions.rows)[0])
        if min(found.values()) >= _USELESS:
            break
    return found


def choose_knowledge(
    config: LabelPartyConfig,
    release: Path | None,
    table: Path | None,
    raw_labels: bool,
    rows: int,
) -> PriorKnowledge:
    """Pick the one source of the prior that was asked for; with none, assume nothing.

    Raises
    ------
    ConfigError
        If more than one source is named.
    """
    if sum([release is not None, table is not None, raw_labels]) > 1:
        raise ConfigError(
            "a plan has one prior; give one of --prior-release, --prior-file and --raw-labels"
        )
    if release is not None:
        return from_manifest(release)
    if table is not None:
        return from_table(table, rows)
    return from_raw_labels(config) if raw_labels else from_domain(rows)


def planned_rows(config: LabelPartyConfig, rows: int | None) -> int:
    """Return the number of events to plan for: as asked, as submitted, or a usual number."""
    if rows is not None:
        return rows
    data = config.data
    found = None
    if data.submitted:
        found = Populations(Store(config.store.directory)).current(data.data_set, data.epoch)
    return _USUAL_ROWS if found is None else found.rows


def from_manifest(path: Path) -> PriorKnowledge:
    """Use the noisy prior of a release: it is public already, so planning with it is free."""
    source = path / "manifest.json" if path.is_dir() else path
    try:
        manifest = Manifest.from_bytes(source.read_bytes())
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror}") from error
    except ReleaseError as error:
        raise ReleaseError(f"{source}: {error}") from error
    return PriorKnowledge(
        np.asarray(manifest.label.grid),
        manifest.noisy_prior,
        manifest.population.rows,
        f"the released prior of {manifest.data_set!r}, epoch {manifest.epoch!r}",
    )


def from_table(path: Path, rows: int) -> PriorKnowledge:
    """Use public knowledge: a CSV or Parquet file with the columns ``label`` and ``weight``."""
    table = read_table(path)
    missing = {"label", "weight"} - set(table.columns)
    if missing:
        raise DataError(f"{path} has no column {sorted(missing)[0]!r}; it needs label and weight")
    try:
        table = table.select(pl.col("label", "weight").cast(pl.Float64)).sort("label")
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path}: label and weight must be numbers") from error
    values, weights = table["label"].to_numpy(), table["weight"].to_numpy()
    if not (np.isfinite(values).all() and np.isfinite(weights).all() and weights.min() >= 0):
        raise DataError(f"{path}: labels must be finite and weights finite and >= 0")
    if weights.sum() <= 0:
        raise DataError(f"{path}: the weights are all zero; at least one must be positive")
    return PriorKnowledge(values, weights, rows, f"the prior in {path}")


def from_domain(rows: int) -> PriorKnowledge:
    """Assume nothing: uniform over the domain."""
    return PriorKnowledge(None, None, rows, "a uniform prior (nothing is known about the labels)")


def from_raw_labels(config: LabelPartyConfig) -> PriorKnowledge:
    """Use the labels themselves. The result is for the labels party's eyes; it leaks if used."""
    counted, rows = pl.DataFrame(schema={"label": pl.Float64, "count": pl.UInt64}), 0
    lower, upper = config.only_label.bounds
    with open_events(config, quiet=True) as events:
        for _, labels in events.parts():
            # as a release takes them: what lies outside counts at the end it is nearest to
            more = pl.Series("label", np.clip(labels[:, 0], lower, upper)).value_counts()
            both = pl.concat([counted, more.with_columns(pl.col("count").cast(pl.UInt64))])
            counted = both.group_by("label").agg(pl.col("count").sum())
            rows += len(labels)
    counted = counted.sort("label")
    values, counts = counted["label"].to_numpy(), counted["count"].to_numpy()
    return PriorKnowledge(values, counts.astype(np.float64), rows, "the raw labels", leaks=True)
