"""Mean labels by group: from codes over many releases, from sums, and what cannot be told."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console

import labelveil as lv
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.mechanisms.group_sums import (
    NO_GROUP,
    GroupQuestion,
    Lattice,
    NoisySums,
    PrivateSums,
)
from labelveil.common.randomizers.grid import Grid
from labelveil.feature_party.evaluation.code_means import GroupCodes
from labelveil.feature_party.evaluation.group_means import (
    GroupMean,
    grouped,
    means_of_codes,
    means_of_sums,
    means_table,
)
from labelveil.feature_party.evaluation.intervals import Measured
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.schema_search import find_schema
from tests.feature_party.worlds import thresholds_channel
from tests.refusals import check_refused
from tests.statistics import binomial_range

ARMS = ("ad", "ad", "ad", "none", "test")
MEANS = {"ad": 2.4, "none": 1.6, "test": 1.6}


def table(rows: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "arm": [ARMS[i % 5] for i in range(rows)],
            "device": [("phone", "desk")[i % 2] for i in range(rows)],
        }
    )


def groups_of(features: pl.DataFrame, *by: str) -> list[tuple[tuple[str, ...], np.ndarray]]:
    schema = find_schema([features], features.height).schema
    return grouped({name: features[name] for name in by}, {n: schema.meaning(n) for n in by})


def test_groups_are_the_values_and_pairs_of_values() -> None:
    features = table(1000).with_columns(
        pl.Series("x", np.arange(1000.0)),
        pl.Series("shop", [f"shop {i % 150}" for i in range(1000)]),
    )
    arms = dict(groups_of(features, "arm"))
    assert {name: rows.size for name, rows in arms.items()} == {
        ("ad",): 600, ("none",): 200, ("test",): 200,
    }  # fmt: skip
    both = dict(groups_of(features, "arm", "device"))
    assert len(both) == 6
    phone = (features["arm"] == "none") & (features["device"] == "phone")
    assert both["none", "phone"].tolist() == np.flatnonzero(phone.to_numpy()).tolist()
    # a value of six events is a group, and of a number there are five ranges
    assert len(groups_of(features, "shop")) == 150
    assert sum(rows.size for _, rows in groups_of(features, "x", "arm")) == 1000
    assert len(groups_of(features, "x")) == 5


@pytest.mark.parametrize("cells", [[True, False, None], ["TRUE", "false", ""]])
def test_true_and_false_are_called_so(cells: list[Any]) -> None:
    groups = groups_of(pl.DataFrame({"insured": cells * 7}), "insured")
    assert {name: rows[0] for (name,), rows in groups} == {"true": 0, "false": 1, "missing": 2}


@pytest.mark.statistical
def test_means_of_codes_are_right_and_their_intervals_hold_together() -> None:
    """Over 300 releases of 1,000 events: intervals a third as wide would miss in most of them."""
    rng, features = np.random.default_rng(0), table(1000)
    grid = Grid(np.linspace(0, 4, 9))
    channel = thresholds_channel(grid.points, 1.0)
    problem = LabelProblem.from_channel(channel, np.ones(9))  # whatever prior codes are decoded by
    groups = groups_of(features, "arm")
    missed = narrow = missed_lifts = 0
    total = np.zeros(3)
    for run in range(300):
        entropy = seeded_entropy(run)
        mean = np.array([MEANS[arm] for arm in features["arm"]])
        labels = np.clip(mean + rng.uniform(-1, 1, 1000), 0, 4)
        places = grid.round(labels, entropy.words("rounding", 0, 1000))
        codes = channel.sample(places, entropy.words("labels", 0, 1000)).astype(np.int64)
        found = means_of_codes(groups, GroupCodes.from_codes(problem, codes, [False]), "none")
        total += [each.mean.value for each in found]
        missed += any(_misses(each, 1.0) for each in found)
        narrow += any(_misses(each, 1 / 3) for each in found)
        lifts = {each.values: each.lift for each in found}
        assert lifts["none",] is None
        for arm, lift in (("ad", 0.8), ("test", 0.0)):
            one = lifts[arm,]
            assert one is not None
            missed_lifts += not one.low <= lift <= one.high
    _, high = binomial_range(300, 0.05, 1e-7)
    assert missed <= high < narrow
    assert missed_lifts <= 2 * high
    # 300 means, each off by about .2 to .35: five standard errors
    assert total / 300 == pytest.approx([MEANS[group[0]] for group, _ in groups], abs=0.1)


def _misses(group: GroupMean, width: float) -> bool:
    true, found = MEANS[group.values[0]], group.mean
    return not (
        found.value - width * (found.value - found.low)
        <= true
        <= found.value + width * (found.high - found.value)
    )


@pytest.mark.slow
@pytest.mark.statistical
def test_means_of_sums_are_those_of_the_events_but_for_the_noise() -> None:
    """300 answers: intervals hold together with .95, and twins of half the width do not."""
    features, rng = table(1000), np.random.default_rng(1)
    labels = np.array([MEANS[arm] for arm in features["arm"]]) + rng.uniform(-1, 1, 1000)
    asked = lv.ask_means(features, ["device", "arm"], lower=0, upper=4)
    assert asked.question.half_widths.size == 6
    true = (
        features.with_columns(y=pl.Series(labels))
        .group_by("device", "arm")
        .agg(pl.col("y").mean(), pl.len())
    )
    missed, narrow, missed_lifts = 0, 0, 0
    noisy = NoisySums(asked.question, Fraction(1, 10))
    for run in range(300):
        words = rng.integers(0, 1 << 64, 1000, dtype=np.uint64)
        places = asked.question.lattice.round(labels, words)
        answer = PrivateSums(noisy, noisy.draw(places, seeded_entropy(run)))
        found = asked.means(answer, control="none").join(true, on=["device", "arm"])
        assert found["events"].to_list() == found["len"].to_list()
        # what clips an interval to the bounds moves its middle, and no end beyond the truth
        inside = found.select((pl.col("y") - 1e-3).is_between("mean_low", "mean_high"))
        missed += not inside.to_series().all()
        half = (pl.col("mean_high") - pl.col("mean_low")) / 4
        near = found.select((pl.col("y") - pl.col("mean")).abs() <= half)
        narrow += not near.to_series().all()
        base = {row["device"]: row["y"] for row in found.to_dicts() if row["arm"] == "none"}
        for row in found.to_dicts():
            if row["arm"] == "none":
                assert row["lift"] is None
                continue
            apart = row["y"] - base[row["device"]]
            missed_lifts += not row["lift_low"] - 1e-3 <= apart <= row["lift_high"] + 1e-3
    _, high = binomial_range(300, 0.05, 1e-7)
    assert missed <= high < narrow
    assert 0 < missed_lifts <= high


def test_what_cannot_be_asked_is_said() -> None:
    features = table(10)
    with pytest.raises(DataError, match="by='shop' is no column of X; columns: arm, device"):
        lv.ask_means(features, "shop", lower=0, upper=4)
    with pytest.raises(DataError, match="at least one event"):
        lv.ask_means(features[:0], "arm", lower=0, upper=4)
    with pytest.raises(DataError, match="X has no names of columns"):
        lv.ask_means(np.zeros((3, 2)), "arm", lower=0, upper=4)
    asked = lv.ask_means(features, "arm", lower=0, upper=4)
    other = lv.ask_means(features, "device", lower=0, upper=4)
    sums = lv.group_sums(np.zeros(10), asked.question, epsilon=1)
    with pytest.raises(ConfigError, match="answers another question"):
        other.means(sums)
    with pytest.raises(DataError, match="control 'x' is none of the values ad, none, test"):
        asked.means(sums, control="x")
    assert asked.means(sums).columns == ["arm", "events", "mean", "mean_low", "mean_high"]


LABELS = np.array([0.5, 2.5, -1.0, 3.0, 1.0, 0.0, 2.0, 2.5])
"""Of events of which the sixth is not asked about."""
NAMED = [
    (("desk", "ad"), np.array([0, 3, 4])),
    (("desk", "none"), np.array([2, 7])),
    (("phone", "test"), np.array([5])),
    (("phone", "ad"), np.array([1, 6])),  # which has no control to be compared with
]


def asked_in_parts(**changes: Any) -> GroupQuestion:
    """Sums of parts of these groups, of two levels of offsets; the fourth is of no event."""
    return replace(
        GroupQuestion(
            Lattice(-1.0, 3.0, 800),
            np.array([4, 0, 1, 2, 4, NO_GROUP, 0, 1]),
            np.full(5, 600),
            np.array([200, 600]),
            np.array([0, 1, 0, 1, 1, 0, 0, 0]),
        ),
        **changes,
    )


def test_means_of_sums_are_those_of_all_parts_of_a_group() -> None:
    question = asked_in_parts()
    places = np.rint((LABELS + 1) * 200).astype(np.int64)
    noise = np.array([0, 0, 0, 77, 0])  # of no event
    answer = PrivateSums(NoisySums(question, Fraction(20)), question.sums(places) + noise)
    found = {mean.values: mean for mean in means_of_sums(NAMED, answer, "none")}
    assert [(each.events, each.mean.value) for each in found.values()] == [
        (3, pytest.approx(4.5 / 3)),
        (2, pytest.approx(1.5 / 2)),
        (2, pytest.approx(4.5 / 2)),
    ]
    one = 4 / 20  # a label moves its sum by four at most; Laplace noise, but for its whole steps
    treated, control, alone = found.values()
    assert control.mean.high - 0.75 == pytest.approx(one / 2 * np.log(3 / 0.05), rel=1e-3)
    assert alone.mean.high == pytest.approx(2.25 + one / 2 * np.log(3 / 0.05), rel=1e-3)
    # of two equal Laplace noises (1 + t/2) exp(-t) lies beyond t of their scale
    both = (1.5 - treated.mean.low) / (one / 3)
    assert (1 + both / 2) * np.exp(-both) == pytest.approx(0.05 / 3, rel=1e-2)
    assert (control.lift, alone.lift) == (None, None)
    assert treated.lift is not None
    assert treated.lift.value == pytest.approx(0.75)
    drawn = np.random.default_rng(0).laplace(size=(3, 200_000)) * [[one / 3], [one / 3], [one / 2]]
    off = np.abs(drawn.sum(axis=0)) > treated.lift.high - 0.75
    assert off.mean() == pytest.approx(0.05, abs=0.0025)  # five standard errors


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"half_widths": np.array([600, 599, 600, 1, 600])}, "weighed, squared or clipped labels"),
        ({"weights": np.ones(8, np.int64)}, "weighed, squared or clipped labels"),
        ({"squares": 1}, "weighed, squared or clipped labels"),
        ({"groups": np.array([4, 0, 1, 2, 1, NO_GROUP, 0, 1])}, "hold several values of these"),
    ],
)
def test_sums_that_tell_no_means_are_refused(changes: dict[str, Any], said: str) -> None:
    question = asked_in_parts(**changes)
    answer = PrivateSums(NoisySums(question, Fraction(20)), np.zeros(5, np.int64))
    check_refused(lambda: means_of_sums(NAMED, answer), ConfigError, said)


def test_a_table_has_lifts_where_there_are_any() -> None:
    lift = Measured(0.75, -1.0, 2.0)
    first = GroupMean(("desk", "ad"), 1234, Measured(1.5, 1.0, 2.0), lift)
    other = GroupMean(("desk", "none"), 7, Measured(0.75, 0.5, 1.0))

    def shown(*means: GroupMean) -> list[list[str]]:
        console = Console(width=90)
        with console.capture() as captured:
            console.print(means_table(["device", "arm"], means))
        return [line.split() for line in captured.get().splitlines()]

    heads = ["device", "arm", "events", "mean", "95%"]
    cells = ["desk", "ad", "1,234", "1.5", "1", "…", "2"]
    others = ["desk", "none", "7", "0.75", "0.5", "…", "1"]
    assert shown(other) == [heads, others]
    assert shown(first, other) == [
        [*heads, "lift", "95%"],
        [*cells, "0.75", "−1", "…", "2"],
        others,
    ]


def test_a_name_is_shown_whole_however_long_or_odd() -> None:
    names = ["spring_2026_display_europe_mobile_a", "spring_2026_display_europe_mobile_b", "a\nb"]
    means = [GroupMean((name,), 9, Measured(1.5, 1.0, 2.0)) for name in names]
    console = Console(width=40)
    with console.capture() as captured:
        console.print(means_table(["campaign"], means))
    column = "".join(line.split()[0] for line in captured.get().splitlines())
    assert column == "campaign" + "".join(names[:2]) + r"a\nb"


@pytest.mark.parametrize(("arms", "said"), [(10, "a8, a9"), (11, "a7, a8, …")])
def test_ten_values_of_a_control_are_named(arms: int, said: str) -> None:
    groups = [((f"a{i}",), np.array([i])) for i in range(arms)]
    problem = LabelProblem.from_channel(thresholds_channel(np.arange(3.0), 1.0), np.ones(3))
    codes = GroupCodes.from_codes(problem, np.zeros(arms, np.int64), [False])
    check_refused(
        lambda: means_of_codes(groups, codes, "b"), DataError, f"^control 'b' is .*, {said}$"
    )
