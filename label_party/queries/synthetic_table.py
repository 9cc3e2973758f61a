"""``label-party synthesize``: a private synthetic table of categories and the binned label.

Each event of the population is one record: its value of each chosen column and the bin of its
label. A value that the public list of its column lacks, and any value of an event that has none,
is "other", so that every event counts, in exactly one cell, and the number of records says nothing.
The model is ε-DP (or ρ-zCDP) for a replaced record, hence for a replaced label, which is what the
ledger charges; the table and all queries on it are post-processing.

Paid for and kept as :mod:`labelveil.label_party.store.purchase` says: asking again gives the same
bytes, free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from labelveil.common.arrays import Integers
from labelveil.common.console import progress as progress_bar
from labelveil.common.entropy import system_entropy
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.exact.rational import decimal_value
from labelveil.common.guarantees import Adjacency, Guarantee, largest_rho
from labelveil.common.mechanisms.synthesis import (
    Budget,
    ConcentratedBudget,
    Domain,
    Marginals,
    Model,
    PureBudget,
    SelectMeasureProject,
)
from labelveil.common.randomizers.grid import Grid
from labelveil.label_party.config.privacy import PrivacySection
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.columns import NONE, Column, list_digest, read_category_list
from labelveil.label_party.events.intention import Confirm, Intention, Spread, go_on
from labelveil.label_party.events.open import open_events
from labelveil.label_party.events.steps import Events
from labelveil.label_party.queries.top_k import checked_delta, document_bytes
from labelveil.label_party.store.purchase import Order, Outcome, find_outcome, pay_once
from labelveil.label_party.store.release_store import Store

FORMAT = "labelveil-synthetic/1"
OTHER = "(other)"
_STEPS = 1000


@dataclass(frozen=True)
class TableRequest:
    """What is asked for."""

    # category columns, each with the file of its public list of values
    columns: tuple[tuple[str, Path], ...]
    # ends of the label's bins, ascending, from the domain's lower to its upper bound
    edges: tuple[float, ...]
    order: int  # the table is made to agree on all sets of at most this number of columns
    delta: float | None = None  # δ where noise is Gaussian, accounted in zCDP; None for pure ε
    label: int = 0  # the label's place among those of an event


def records(document: dict[str, Any]) -> pl.DataFrame:
    """The released records: a column for each category, and where the label's bin lies."""
    cells = np.array(document["cells"], dtype=np.int64)
    codes, counts = cells[:, :-1], cells[:, -1]
    rows = np.repeat(codes, counts, axis=0)
    columns = [
        pl.Series(part["column"], part["values"]).gather(rows[:, j])
        for j, part in enumerate(document["categories"])
    ]
    edges, name = np.array(document["edges"]), document["label"]
    bins = rows[:, -1]
    return pl.DataFrame(
        [
            *columns,
            pl.Series(f"{name}_from", edges[bins]),
            pl.Series(f"{name}_to", edges[bins + 1]),
        ]
    )


def named_lists(options: list[str]) -> tuple[tuple[str, Path], ...]:
    """Read the options ``NAME=FILE``."""
    pairs = [option.partition("=") for option in options]
    for option, (name, _, file) in zip(options, pairs, strict=True):
        if not (name and file):
            raise ConfigError(
                f"--column {option!r} must be NAME=FILE, such as product=products.txt"
            )
    return tuple((name, Path(file)) for name, _, file in pairs)


def label_edges(
    bounds: tuple[float, float], bins: int, edges: list[float] | None
) -> tuple[float, ...]:
    """Ends of the label's bins: those given, or equally wide ones.

    ``ConfigError`` if they are not ascending from the domain's lower to its upper bound.
    """
    lower, upper = bounds
    if edges is None:
        return tuple(Grid.from_count(lower, upper, bins + 1).points.tolist())
    grid = Grid.from_edges(edges)
    if (grid.lower, grid.upper) != (lower, upper):
        raise ConfigError(
            f"edges run from {grid.lower:g} to {grid.upper:g} but must run from lower={lower:g} to"
            f" upper={upper:g}; set --edges"
        )
    return tuple(edges)


def synthesize(
    config: LabelPartyConfig,
    request: TableRequest,
    *,
    quiet: bool = False,
    confirm: Confirm = go_on,
) -> Outcome:
    """Make the release once, or read it back; after any refusal nothing was spent.

    ``confirm`` is called before anything is charged, unless the release exists.
    """
    lists = _lists(request, (config.data.key, *(label.column for label in config.labels)))
    label = config.labels[request.label].name
    names = (*lists, label)
    domain = Domain(names, (*(len(values) for values in lists.values()), len(request.edges) - 1))
    workload = Marginals.up_to(domain, min(request.order, len(names)))
    privacy = config.privacy
    budget = _budget(privacy, request)
    # true of replaced records, so of replaced labels, which are what this ledger counts
    guarantee = replace(
        budget.guarantee.scale(privacy.group),
        adjacency=Adjacency.REPLACE_LABEL,
        unit=privacy.privacy_unit,
    )
    # of several labels each has tables of its own
    named = names if len(config.labels) > 1 else [*lists]
    purpose = f"synthetic table of {', '.join(named)}"
    order = Order.configured(config, purpose, guarantee, _meaning(config, request, lists))
    store = Store(config.store.directory)
    paid = find_outcome(store, order)
    if paid is not None:
        return paid
    with open_events(config, _columns(lists), quiet=quiet) as events:
        table = domain.histogram(_records(events, request, lists))
        mechanism = SelectMeasureProject(workload, budget)
        confirm(
            Intention(
                (order,),
                events,
                labels={label: request.label},
                spreads=tuple(
                    Spread.from_codes(name, events.codes(name), len(values) - 1)
                    for name, values in lists.items()
                ),
                too_few=_too_few(mechanism, events.rows),
            )
        )

        def build() -> bytes:
            model, records = _fit(mechanism, table, quiet), int(table.sum())
            return _document(config, request, lists, workload, model, records, guarantee)

        return pay_once(store, order, build, events)


def _lists(request: TableRequest, taken: Sequence[str]) -> dict[str, list[str]]:
    """The public values of each column, "other" last; names of the key and of labels are taken."""
    if not request.columns:
        raise ConfigError("a table needs at least one category column; set --column NAME=FILE")
    lists: dict[str, list[str]] = {}
    for name, path in request.columns:
        if name in (*lists, *taken):
            raise ConfigError(
                f"column {name!r} must be named once, and be neither label nor key; set --column"
            )
        values = read_category_list(path, "--column").to_list()
        if OTHER in values:
            raise DataError(f"{path} lists {OTHER!r}, which stands for what is not on the list")
        lists[name] = [*values, OTHER]
    return lists


def _budget(privacy: PrivacySection, request: TableRequest) -> Budget:
    epsilon = decimal_value(privacy.epsilon)
    if request.delta is None:
        return PureBudget(epsilon / privacy.group)
    rho = largest_rho(privacy.epsilon, checked_delta(privacy, request.delta)) / privacy.group**2
    return ConcentratedBudget(Fraction(int(rho * (1 << 40)), 1 << 40))


def _meaning(
    config: LabelPartyConfig, request: TableRequest, lists: dict[str, list[str]]
) -> dict[str, Any]:
    privacy, terms = config.privacy, config.labels[request.label]
    return {
        "label": terms.name,
        "missing": terms.missing,
        "columns": {name: list_digest(values) for name, values in lists.items()},
        "edges": list(request.edges),
        "order": request.order,
        "epsilon": str(decimal_value(privacy.epsilon)),
        "delta": request.delta,
    }


def _too_few(mechanism: SelectMeasureProject, events: int) -> str | None:
    """Say so if noise covers the average count of some column; looks at public facts alone."""
    deviation = math.sqrt(mechanism.budget.variance(mechanism.single))
    each = events / max(mechanism.workload.domain.sizes)
    if deviation <= each:
        return None
    return (
        f"{events:,} events are few for this budget: noise of standard deviation {deviation:,.0f}"
        f" is more than the {each:,.3g} events of an average value"
    )


def _columns(lists: dict[str, list[str]]) -> list[Column]:
    return [Column(name, pl.Series(values[:-1]), public=True) for name, values in lists.items()]


def _records(events: Events, request: TableRequest, lists: dict[str, list[str]]) -> Integers:
    """(n, columns + 1) codes of every event of the population, in one order."""
    codes = [
        np.where(codes == NONE, len(values) - 1, codes)
        for values, codes in ((values, events.codes(name)) for name, values in lists.items())
    ]
    edges = np.array(request.edges)
    labels = np.clip(events.labels(request.label), edges[0], edges[-1])
    bins = np.minimum(np.searchsorted(edges, labels, side="right") - 1, edges.size - 2)
    return np.stack([*codes, bins], axis=1).astype(np.int64)


def _fit(mechanism: SelectMeasureProject, table: Integers, quiet: bool) -> Model:
    entropy = system_entropy()
    try:
        with progress_bar(quiet=quiet) as bar:
            task = bar.add_task("Synthesizing", total=_STEPS, note="")

            def advance(share: float) -> None:
                bar.update(task, completed=round(share * _STEPS))

            return mechanism.draw(table, entropy, advance)
    finally:
        entropy.destroy()


def _document(
    config: LabelPartyConfig,
    request: TableRequest,
    lists: dict[str, list[str]],
    workload: Marginals,
    model: Model,
    records: int,
    guarantee: Guarantee,
) -> bytes:
    domain = workload.domain
    rows, counts = np.unique(domain.rows(model.weights, records), axis=0, return_counts=True)
    return document_bytes(
        config.data,
        FORMAT,
        label=config.labels[request.label].name,
        edges=list(request.edges),
        categories=[{"column": name, "values": values} for name, values in lists.items()],
        records=records,
        cells=np.column_stack([rows, counts]).tolist(),
        measurements=[
            {
                "columns": [domain.names[j] for j in workload.sets[item.which]],
                "noisy_counts": [int(value) for value in item.values],
                "variance": item.variance,
            }
            for item in model.measured
        ],
        noise="discrete-laplace" if request.delta is None else "discrete-gaussian",
        requested={"epsilon": config.privacy.epsilon, "delta": request.delta},
        guarantee=guarantee.to_json(),
        guarantee_for_records=model.guarantee.to_json(),
    )
