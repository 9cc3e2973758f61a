"""Means that a law's tail alone bears are taken back towards what trees say of such events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers.message.terms import LabelTerms
from labelveil.feature_party.config.sections import DataSection, TrainingSection
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.model.reach import Reach
from labelveil.feature_party.training.events import TrainingSetup
from labelveil.feature_party.training.holdout import draw_holdout
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.run import train
from tests.one_label import one_label

ROWS = 12_000


def skewed() -> Support:
    grid = np.arange(21.0)
    channel = FiniteChannel(grid, grid, randomized_response_rows(21, 1.0))
    return Support.from_problem(LabelProblem.from_channel(channel, np.exp(-grid / 3)))


def around(support: Support, means: np.ndarray) -> torch.Tensor:
    """(n, m) distributions with these means, each of two cells."""
    low = np.searchsorted(support.values, means, side="right") - 1
    low = np.minimum(low, support.size - 2)
    share = (means - support.values[low]) / np.diff(support.values)[low]
    laws = np.zeros((means.size, support.size))
    laws[np.arange(means.size), low] = 1 - share
    laws[np.arange(means.size), low + 1] = share
    return torch.as_tensor(laws)


def test_what_is_beyond_three_times_the_trees_is_taken_off_by_share() -> None:
    support = skewed()
    mean = float(support.prior @ support.values)
    slack = 0.5 * float(np.sqrt(support.prior @ (support.values - mean) ** 2))
    levels, shares = np.array([5.0, 10.0, 15.0]), np.array([0.1, 0.5, 0.9])
    reach = Reach(support, 3.0, levels, shares)
    means = np.array([1.0, 6.0, 12.0, 18.0, 18.0, 18.0])
    trees = np.array([0.5, 5.0, 3.0, 4.0, 1.0, 17.0])
    given = around(support, means)
    found = reach(given, around(support, trees)).numpy()
    assert found.sum(axis=1) == pytest.approx(1)
    assert found.min() >= 0
    expected = []
    for f, t in zip(means, trees, strict=True):
        most = mean + 3 * max(t - mean, 0) + slack
        share = float(np.interp(f, levels, shares))
        expected.append(f if f <= most else f - share * (f - most))
    assert found @ support.values == pytest.approx(expected)
    assert expected[-2] < 6 < expected[-1] == 18
    assert np.array_equal(found[[0, 1, 5]], given.numpy()[[0, 1, 5]])


def test_the_fewer_labels_are_predicted_as_high_the_more_is_taken_off() -> None:
    support = skewed()
    means = np.linspace(0.5, 15, 4096)
    trees = np.where(means > 14.8, 3.0, means)
    few, many = (Reach.from_means(support, means, trees, worth) for worth in (50.0, 50_000.0))
    assert few is not None
    assert many is not None
    assert few.shares[-1] > 0.99
    assert np.all(np.diff(few.shares.numpy()) > 0)
    half = few.levels[np.abs(few.shares.numpy() - 0.5).argmin()]
    assert np.mean(means > half.item()) == pytest.approx(10 / 50, abs=0.06)
    assert many.shares[-3] < few.shares[-3] / 5
    again = Reach.from_json(support, few.to_json())
    assert torch.equal(again.levels, few.levels)
    assert torch.equal(again.shares, few.shares)
    assert again.times == few.times == pytest.approx(3.0)
    flat = 2.5 + 0.5 * (means - 2.5)
    steeper = Reach.from_means(support, means, np.where(means > 14.8, 3.0, flat), 50.0)
    assert steeper is not None
    assert 5 < steeper.times < 7.5  # trees are half as steep where many events are
    assert (
        Reach.from_means(support, means, means, 50.0) is None
    )  # where trees agree there is no limit
    assert (
        Reach.from_means(support, means, np.full(means.size, 3.0), 50.0) is None
    )  # or know nothing
    low = np.linspace(0.1, 1.0, 64)  # nobody says that any label is above the prior's mean
    assert Reach.from_means(support, low, low, 50.0) is None


@pytest.mark.parametrize(
    ("times", "levels", "shares", "message"),
    [
        (3.0, [], [], "0 levels"),
        (3.0, [1.0, 1.0], [0.1, 0.2], "do not ascend"),
        (3.0, [1.0, float("nan")], [0.1, 0.2], "do not ascend"),
        (3.0, [1.0], [0.1, 0.2], "with 2 shares"),
        (3.0, [1.0], [1.0 + 1e-9], "shares up to 1"),
        (3.0, [1.0], [-1e-9], "shares up to -1e-09"),
        (float("nan"), [1.0], [0.5], "times as far as trees"),
        (float("inf"), [1.0], [0.5], "times as far as trees"),
        (1 - 1e-9, [1.0], [0.5], "times as far as trees"),
    ],
)
def test_a_damaged_one_is_refused(
    times: float, levels: list[float], shares: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Reach.from_json(skewed(), {"times": times, "levels": levels, "shares": shares})


def test_one_that_is_as_flat_as_may_be_is_read() -> None:
    data = {"times": 1.0, "levels": [1.0, 2.0], "shares": [0.0, 1.0]}
    assert Reach.from_json(skewed(), data).to_json() == data


def baskets() -> pl.DataFrame:
    """Sales rise with the quantity on the shelf, but for the few baskets with a coupon, whose
    quantities are in the thousands."""
    rng = np.random.default_rng(7)
    product, appeal = rng.integers(0, 40, ROWS), rng.normal(0, 0.6, 40)
    price, shelf = np.exp(rng.normal(1.2, 0.5, ROWS)), np.exp(rng.normal(3, 0.5, ROWS))
    feature, coupon = rng.random(ROWS) < 0.12, rng.random(ROWS) < 0.008
    many = np.round(np.exp(rng.normal(7.6, 0.5, ROWS)))
    quantity = np.where(coupon, many, np.ceil(np.exp(rng.normal(0.6, 1.1, ROWS))))
    mean = np.exp(-0.4 + 0.6 * appeal[product] - 0.3 * (np.log(price) - 1.2) + 0.4 * feature)
    mean *= np.minimum(quantity, 80) ** 0.95
    mean = np.where(coupon, 9 * np.exp(0.3 * appeal[product]), mean)
    sales = np.clip(rng.poisson(mean * rng.gamma(5, 1 / 5, ROWS)), 0, 100)
    discount = np.where(coupon, quantity * price / 5, rng.exponential(0.3, ROWS))
    return pl.DataFrame(
        {
            "product": [f"p{number}" for number in product],
            "price": price.round(2),
            "shelf": shelf.round(),
            "feature": feature.astype(int),
            "quantity": quantity,
            "value": (quantity * price).round(2),
            "discount": discount.round(2),
            "sales": sales.astype(float),
        }
    )


@pytest.mark.slow
def test_a_few_extreme_events_are_not_predicted_far_above_all_others(tmp_path: Path) -> None:
    """Of releases at ε = 1 some have a mixture that predicts 40 to 50 where labels are about 10."""
    table = baskets()
    labels, events = table["sales"].to_numpy(), table.drop("sales").with_columns(id=np.arange(ROWS))
    terms, seed = LabelTerms("sales", 0, 100, whole=True), 3
    grid, entropy = terms.own_grid(ROWS, 1.0), seeded_entropy(seed)
    places = grid.round(labels, entropy.words("rounding", 0, ROWS))
    both = one_label(np.bincount(places, minlength=len(grid)), grid, 1.0, entropy)
    channel = both.channel
    problem = LabelProblem.from_channel(channel, both.prior.probabilities)
    codes = channel.sample(places, entropy.words("labels", 0, ROWS))
    holdout = draw_holdout(ROWS, 0.2, seed)
    prepared = Prepared.of_table(events, codes, problem, holdout, "id")
    setup = TrainingSetup(TrainingSection(seed=seed), DataSection(key="id"))
    model = train(prepared, setup)
    kept, truth = events[holdout], labels[holdout]
    coupon = (kept["quantity"] > 300).to_numpy()
    found, without = (
        one.predict(kept)["prediction"].to_numpy() for one in (model, replace(model, reach=None))
    )
    assert found[coupon].mean() < 0.85 * without[coupon].mean()
    assert np.mean((found - truth) ** 2) < 0.95 * np.mean((without - truth) ** 2)
    assert found[~coupon].mean() > 0.9 * without[~coupon].mean()
    model.save(tmp_path)
    assert Model.load(tmp_path).predict(kept).equals(model.predict(kept))
