"""Mean labels by group: from codes over many releases, from sums, and what cannot be told."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import polars as pl
import pytest

import labelveil as lv
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.mechanisms.group_sums import NoisySums, PrivateSums
from labelveil.common.randomizers.grid import Grid
from labelveil.feature_party.evaluation.group_means import (
    Decoded,
    GroupMean,
    grouped,
    means_of_codes,
)
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.schema_search import find_schema
from tests.feature_party.worlds import thresholds_channel
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
        decoded = Decoded.from_codes(problem, codes, [False])
        assert decoded.bias == 0
        found = means_of_codes(groups, decoded, "none")
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
