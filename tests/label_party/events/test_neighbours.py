"""A table of neighbours: for every purchase, what one record or user changes, and what is charged.

Worlds x purchases. A world has one unit's rows in many variants, each the neighbour of each other;
they go through the real reader, and what noise is added to is compared exactly, noise apart. The
loss of a purchase is what its noise makes of that difference; the ledger is charged for at least as
much.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil import label_party
from labelveil.common.arrays import Integers
from labelveil.common.entropy import seeded_entropy
from labelveil.common.mechanisms.paired_gain import PairedGain
from labelveil.common.mechanisms.selection import Ranking
from labelveil.common.mechanisms.selection.leaders import Leaders, StableLeaders
from labelveil.common.randomizers.base import ROUNDING_STREAM
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.grid import Grid
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.open import open_events
from labelveil.label_party.queries import synthetic_table, top_k
from labelveil.label_party.queries.evaluation import Evaluation
from labelveil.label_party.store.release_store import Store
from tests.label_party.conftest import Party
from tests.one_label import OneLabel, one_label

Row = tuple[str, float | None, str | None, str]
"""Key, label, kind and day of a row of labels."""

TODAY, LATER = "2024-06-01", "2024-06-02"
KINDS = ["v", "w", "x", "y"]
EVENTS = {"e0": "ann", "e1": "ann", "e2": "ann", "e3": "bob"}
"""Whose each event is. Where days count, e2 is of another."""


def row(key: str, label: float | None = 5.0, kind: str | None = "x", day: str = TODAY) -> Row:
    return key, label, kind, day


@dataclass(frozen=True)
class World:
    """Rows that stay, and what one unit's rows may be in their place."""

    name: str
    rest: list[Row]
    variants: list[list[Row]]
    settings: dict[str, Any] = field(default_factory=dict)
    own_keys: bool = False
    free: bool = False  # whether nothing may change at all


OTHERS = [row("e0", 0.0, "x"), row("e2", 10.0, "y"), row("e3", 5.0, "v")]
USER = {"privacy__unit": "user", "privacy__user": "person", "privacy__max_records_per_user": 2}
ONE = [row("e1", label, kind) for label in (0.0, 10.0, None) for kind in ("x", "y", "sofa", None)]


def repeated() -> list[list[Row]]:
    """Rows of one event: one, ten, of one kind or of all, with labels or without."""
    many = [[row("e1", label, kind) for kind in KINDS] for label in (1.0, 10.0)]
    pairs = [[row("e1", 5.0, a), row("e1", 5.0, b)] for a, b in product(["x", "y", None], repeat=2)]
    ten = [row("e1", 10.0, kind) for kind in KINDS * 2 + ["x", "y"]]
    return [[], [row("e1")], *many, *pairs, ten, [row("e1", None, "y")] * 10, ten[::-1]]


def of_one_user(events: tuple[str, ...], most: int) -> list[list[Row]]:
    """Rows of all of a user's events, none to two each."""
    options = [[], [("0", "x")], [("10", "y")], [("10", "v"), ("10", "w")]]
    found = []
    for chosen in product(options, repeat=len(events)):
        rows = [
            row(e, float(v), k) for e, some in zip(events, chosen, strict=True) for v, k in some
        ]
        found.append(rows)
    return found[:: max(1, len(found) // most)]


def worlds() -> Iterator[World]:
    yield World("one event's label", OTHERS, [[], *([one] for one in ONE)])
    for rule in ("sum", "mean", "last"):
        summed = {"data__duplicates": rule}
        yield World(f"several rows an event, {rule}", OTHERS, repeated(), summed)
        yield World(
            f"own keys, {rule}",
            OTHERS,
            [some for some in repeated() if some],
            summed,
            own_keys=True,
        )
        mine = of_one_user(("e0", "e1", "e2"), 16)
        yield World(f"one user's rows, {rule}", OTHERS[-1:], mine, USER | summed)
    options = [(0.0, "x"), (10.0, "y"), (10.0, "w"), (None, None)]
    mine = [
        [row(key, *one) for key, one in zip(("e0", "e1", "e2"), chosen, strict=True)]
        for chosen in product(options, repeat=3)
    ]
    yield World("one user's own keys", OTHERS[-1:], mine[::3], USER, own_keys=True)
    days = {"data__date": "day", "data__epoch": TODAY, "data__duplicates": "sum"}
    spread = [[row("e1", 10.0, "y", day)] for day in (TODAY, LATER)]
    spread += [[row("e1", 10.0, "y", TODAY), row("e1", 10.0, "w", LATER)], [], [row("e1")] * 3]
    yield World("several days", OTHERS, spread, days)
    elsewhere = [
        [row("e2", label, kind, LATER)] * times
        for label, kind, times in product((0.0, 9.0), "xy", (1, 3))
    ]
    yield World("another day", [OTHERS[0], OTHERS[2]], [[], *elsewhere], days, free=True)
    others = [
        [row(f"s{i}", 10.0, "y") for i in range(some)] * times
        for some, times in ((1, 1), (5, 1), (1, 9))
    ]
    yield World("keys outside the population", OTHERS, [[], *others], free=True)


WORLDS = list(worlds())


def write(party: Party, world: World, variant: list[Row]) -> LabelPartyConfig:
    """The party's files in one variant of a world."""
    rows = [*world.rest, *variant]
    names = ("key", "label", "kind", "day")
    columns: dict[str, Any] = {n: [r[i] for r in rows] for i, n in enumerate(names)}
    people = [EVENTS.get(key, "eve") for key in columns["key"]]
    party.write_labels({"key": columns.pop("key"), "person": people} | columns)
    days = [LATER if key == "e2" else TODAY for key in EVENTS]
    party.write_population({"key": list(EVENTS), "person": list(EVENTS.values()), "day": days})
    settings = {"domain__grid": "step", "domain__step": 5, **world.settings}
    config = party.config(**settings)
    if not world.own_keys:
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"population": None})})


Measure = Callable[[LabelPartyConfig], Any]
"""What noise is added to, exactly."""
Loss = Callable[[LabelPartyConfig, Any, Any], Fraction | float]
"""The privacy loss between two of them, as a share of what is charged."""


def the_prior(config: LabelPartyConfig) -> Integers:
    group = Group((0,), Cells((config.terms[0].own_grid(len(EVENTS), 1.0),)))
    with open_events(config, quiet=True) as events:
        return events.count([group], seeded_entropy(0))[0]


@cache
def released(counts: tuple[int, ...], epsilon: float, group: int) -> OneLabel:
    """From one draw of the prior."""
    grid = Grid(np.arange(0.0, 11.0, 5.0))
    return one_label(
        np.array(counts), grid, epsilon, seeded_entropy(1), "randomized-response", records=group
    )


def two_steps(config: LabelPartyConfig, counts: Integers) -> OneLabel:
    return released(tuple(counts.tolist()), config.privacy.epsilon, config.privacy.group)


def prior_loss(config: LabelPartyConfig, one: Integers, other: Integers) -> Fraction:
    split = two_steps(config, one)
    return int(np.abs(one - other).sum()) / split.prior.scale / split.prior.exact_epsilon


def the_labels(config: LabelPartyConfig) -> Integers:
    grid = config.terms[0].own_grid(len(EVENTS), 1.0)
    with open_events(config, quiet=True) as events:
        (labels,) = (labels for _, labels in events.keys_and_labels())
    return grid.round(labels[:, 0], seeded_entropy(0).words(ROUNDING_STREAM, 0, len(labels)))


def labels_loss(config: LabelPartyConfig, one: Integers, other: Integers) -> float:
    """Exact: the rows that differ, through the channel of one draw of the prior."""
    grid = config.terms[0].own_grid(len(EVENTS), 1.0)
    two = two_steps(config, np.bincount(one, minlength=len(grid)))
    chances = two.channel.probabilities
    ratios = np.abs(np.log(chances[one] / chances[other])).max(axis=1)
    return float(ratios.sum()) / two.labels_guarantee.epsilon


def leading(k: int | None, delta: float | None = None) -> top_k.TopKRequest:
    return top_k.TopKRequest("kind", k, 3, Path("kinds.txt"), None, delta)


def the_counts(config: LabelPartyConfig) -> Integers:
    kinds = pl.Series(KINDS)
    user = top_k._user(config.privacy, leading(2))
    with open_events(config, top_k._columns("kind", user, kinds), quiet=True) as events:
        return top_k._counts("kind", user, len(kinds), events)


def counts_loss(config: LabelPartyConfig, one: Integers, other: Integers) -> Fraction:
    """Names and counts of any k, however chosen."""
    losses = []
    for k in range(1, len(KINDS) + 1):
        leaders = top_k._mechanism(config.privacy, leading(k))
        assert isinstance(leaders, Leaders)
        _, rate, scale = leaders.split(k)
        moved = np.sort(np.abs(one - other))[::-1]
        losses.append(2 * k * rate * int(moved[0]) + int(moved[:k].sum()) / scale)
    return max(losses) / config.privacy.charge.exact_epsilon


def stable_loss(config: LabelPartyConfig, one: Integers, other: Integers) -> Fraction:
    """Gaps between sorted counts, and two counts, over what the mechanism takes them to move."""
    privacy = config.privacy.model_copy(update={"total_delta": 1e-5})
    gaps = [Ranking(counts).padded_gaps(3) for counts in (one, other)]
    moved, losses = int(np.abs(gaps[0] - gaps[1]).max()), [Fraction(0)]
    for k in (None, 2):
        leaders = top_k._mechanism(privacy, leading(k, 1e-6))
        assert isinstance(leaders, StableLeaders)
        losses.append(Fraction(moved, leaders.mechanism(3).step))
    # filling up to k draws by counts: two of them move apart by what gaps move by, at most
    apart = int((one - other).max() - (one - other).min())
    return max(*losses, Fraction(apart, leaders.mechanism(3).step))


def the_table(config: LabelPartyConfig) -> Integers:
    request = synthetic_table.TableRequest((), (0.0, 4.0, 8.0, 10.0), 2)
    lists = {"kind": [*KINDS, synthetic_table.OTHER]}
    with open_events(config, synthetic_table._columns(lists), quiet=True) as events:
        codes = synthetic_table._records(events, request, lists)
    return np.histogramdd(codes, bins=(range(6), range(4)))[0].astype(np.int64)


def table_loss(config: LabelPartyConfig, one: Integers, other: Integers) -> Fraction:
    """A marginal measured with a whole budget: L1 over its noise's scale."""
    request = synthetic_table.TableRequest((), (0.0, 4.0, 8.0, 10.0), 2)
    budget = synthetic_table._budget(config.privacy, request)
    moved = int(np.abs(one - other).sum())
    return moved * budget.total / 2 / config.privacy.charge.exact_epsilon


PREDICTIONS = [np.array(some) for some in ([0.0] * 4, [10.0] * 4, [5.0, np.nan, 0.0, 10.0])]


GAIN = PairedGain.of_prior(np.linspace(0, 10, 11), np.full(11, 1 / 11), "squared", 20.0)


def the_sums(config: LabelPartyConfig) -> list[int]:
    with open_events(config, quiet=True) as events:
        (labels,) = (labels[:, 0] for _, labels in events.keys_and_labels())
    sums = []
    for some in PREDICTIONS:
        asked = ~np.isnan(some[: labels.size])
        sums.append(int(GAIN.differences(some[: labels.size][asked], labels[asked]).sum()))
    return sums


def sums_loss(config: LabelPartyConfig, one: list[int], other: list[int]) -> Fraction:
    """The worst of these questions, each answer's share of the charge being one in m."""
    mechanism = Evaluation(config, Store(config.store.directory)).mechanism
    spans = [GAIN.span(some[~np.isnan(some)]) for some in PREDICTIONS]
    moved = zip(one, other, spans, strict=True)
    worst = max(abs(a - b) / mechanism.scale(span) for a, b, span in moved)
    return mechanism.most * worst / mechanism.guarantee.exact_epsilon


PURCHASES: dict[str, tuple[Measure, Loss]] = {
    "a release's prior": (the_prior, prior_loss),
    "a release's labels": (the_labels, labels_loss),
    "top-k counts": (the_counts, counts_loss),
    "stable top-k": (the_counts, stable_loss),
    "a synthetic table": (the_table, table_loss),
    "an evaluation": (the_sums, sums_loss),
}


def worst(party: Party, world: World, purchases: Sequence[tuple[Measure, Loss]]) -> list[float]:
    """The largest loss of each purchase between any two neighbours, as a share of the charge."""
    config, found = None, []
    for variant in world.variants:
        config = write(party, world, variant)
        known = {measure: measure(config) for measure in dict.fromkeys(m for m, _ in purchases)}
        found.append([known[measure] for measure, _ in purchases])
    assert config is not None
    shares = []
    for measured, (_, loss) in zip(zip(*found, strict=True), purchases, strict=True):
        distinct = {repr(np.asarray(one).tolist()): one for one in measured}.values()
        losses = (float(loss(config, a, b)) for a, b in pairs(distinct))
        shares.append(max(losses, default=0.0))
    return shares


def pairs(found: Any) -> Iterator[tuple[Any, Any]]:
    for one, other in combinations(found, 2):
        yield one, other
        yield other, one


@pytest.mark.parametrize(
    "world",
    [
        # what rules make of many rows "several rows an event" sees for each
        pytest.param(
            world,
            id=world.name,
            marks=[pytest.mark.slow] * world.name.startswith(("own keys, m", "one user's rows, m")),
        )
        for world in WORLDS
    ],
)
def test_no_neighbour_changes_more_than_is_charged(party: Party, world: World) -> None:
    shares = dict(zip(PURCHASES, worst(party, world, [*PURCHASES.values()]), strict=True))
    for purchase, share in shares.items():
        assert share <= 1 + 1e-9, purchase
        if world.free:
            assert share == 0, purchase
        if world == WORLDS[0]:  # else the table would not see what is charged for half of it
            assert share > (0.4 if purchase == "stable top-k" else 0.99), purchase


@pytest.mark.slow
def test_the_table_sees_a_reader_of_its_own(party: Party) -> None:
    """Counting rows, not events, and of all days, as top-k once did."""

    def rows_at_hand(config: LabelPartyConfig) -> Integers:
        kinds = pl.read_csv(party.folder / "labels.csv").select("key", "kind").unique()["kind"]
        return np.array([(kinds == kind).sum() for kind in KINDS])

    reader = rows_at_hand, counts_loss
    seen = {world.name: worst(party, world, [reader])[0] for world in WORLDS}
    assert seen["several rows an event, sum"] > 1
    assert seen["another day"] > 0
    assert seen["keys outside the population"] > 1
    assert seen["one event's label"] <= 1


IMPORTS = re.compile(r"label_party\.sources\.tables import ([^()\n]+|\([^)]*\))")


def test_nothing_else_reads_rows() -> None:
    """Anyone who needs an epoch's events asks the reader; a watch may ask which days there are,
    and init what is declared of a column."""
    package = Path(label_party.__file__).parent
    schema = {"days_of", "KEY", "columns_of", "declared_type"}
    for path in sorted(package.rglob("*.py")):
        room = path.relative_to(package).parts[0]
        imports = IMPORTS.findall(path.read_text())
        names = {name for some in imports for name in re.findall(r"\w+", some)}
        assert room in ("events", "sources") or names <= schema, path
