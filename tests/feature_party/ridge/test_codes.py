"""Codes and sums in one likelihood: what a code tells, and one model of both."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from scipy.stats import norm

import labelveil as lv
from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError, DataError

pytest.importorskip("torch", reason="the features party needs torch")

from labelveil.feature_party.notebook.sources import problem_of
from labelveil.feature_party.ridge.codes import CodeRows


def likelihood(rows: CodeRows, channel: int, code: int, mean: float, deviation: float) -> float:
    """Of a code, if its label is normal around a mean, and went to the nearest point."""
    grid = rows.grid
    edges = [-np.inf, *((grid[1:] + grid[:-1]) / 2), np.inf]
    law = [
        norm.cdf(high, mean, deviation) - norm.cdf(low, mean, deviation)
        for low, high in pairwise(edges)
    ]
    return sum(p * each[code] for p, each in zip(law, rows.channels[channel], strict=True))


def everywhere(deviation: float) -> Callable[[Floats], Floats]:
    """As labels deviate from any prediction."""
    return lambda predictions: np.full(predictions.shape, deviation)


def test_a_code_counts_as_what_its_likelihood_says_nearby() -> None:
    grid, rng = np.array([2.0, 3.0, 5.0, 6.0]), np.random.default_rng(6)
    channels = [rng.dirichlet(np.ones(outputs), 4) for outputs in (2, 3)]
    rows = CodeRows(np.arange(5), np.arange(5), grid, channels, 4.0)
    near, deviation, step = 3.5, 0.8, 1e-4  # a node: the 96th of 256 steps
    seen, variance, likelier = rows.seen(np.full(5, near), everywhere(deviation))
    for beyond, end in ((1.0, 2.0), (99.0, 6.0)):  # nothing is told nearer than at the last node
        for found, at_end in zip(
            rows.seen(np.full(5, beyond), everywhere(deviation)),
            rows.seen(np.full(5, end), everywhere(deviation)),
            strict=True,
        ):
            assert np.array_equal(found, at_end)
    for place, (channel, code) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]):

        def log(mean: float, code: int = code, channel: int = channel) -> float:
            return float(np.log(likelihood(rows, channel, code, mean, deviation)))

        score = (log(near + step) - log(near - step)) / (2 * step)
        told = 0.0
        for other in range(channels[channel].shape[1]):
            slope = (log(near + step, other) - log(near - step, other)) / (2 * step)
            told += np.exp(log(near, other)) * slope**2
        assert variance[place] == pytest.approx(1 / told, rel=1e-4)
        assert seen[place] == pytest.approx(near + score / told, rel=1e-4)
        # as a normal number it is as likely as the code
        normal = norm.logpdf(seen[place], near, variance[place] ** 0.5) + np.log(2 * np.pi) / 2
        assert likelier[place] + normal == pytest.approx(log(near), abs=1e-4)


def test_a_code_that_tells_nothing_counts_for_next_to_nothing_in_any_unit() -> None:
    for unit in (1e-3, 1.0, 1e3):
        grid, channels = unit * np.array([2.0, 3.0, 5.0]), [np.full((3, 2), 0.5)]
        rows = CodeRows(np.arange(2), np.arange(2), grid, channels, 4.0 * unit)
        seen, variance, likelier = rows.seen(np.full(2, 3.5 * unit), everywhere(0.8 * unit))
        assert np.isfinite(likelier).all()
        np.testing.assert_allclose(seen, 3.5 * unit, rtol=1e-3)
        assert (variance / unit**2 > 1e6).all()
        assert (variance / unit**2 < 1e12).all()


@pytest.mark.slow
def test_codes_are_right_on_average() -> None:
    codes = lv.randomize_labels(np.tile([0.0, 10.0], 200), lower=0, upper=10, epsilon=1)
    problem = problem_of(codes, codes.codes)
    rows = CodeRows.from_problem(problem, codes.codes, np.arange(400))
    seen, variance, _ = rows.seen(np.full(400, 5.0), everywhere(1.0))
    # whatever the channel: averaged over what labels near 5 are sent as, it is 5
    law = norm.pdf(problem.grid, 5, 1) / norm.pdf(problem.grid, 5, 1).sum()
    sent = law @ problem.channel
    first = {int(code): at for at, code in enumerate(codes.codes)}
    told = sum(sent[code] * seen[at] for code, at in first.items())
    assert sum(sent[code] for code in first) == pytest.approx(1, abs=0.02)
    assert told == pytest.approx(5, abs=0.2)
    assert (variance > 1).all()


def events(rows: int, seed: int) -> tuple[pl.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 2, rows)
    table = pl.DataFrame({"kind": np.array(["a", "b"])[kind], "x": rng.normal(size=rows)})
    return table, np.clip(20 + 60 * kind + rng.normal(0, 3, rows), 0, 100)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*do not show that any column")  # of one kind alone
def test_one_model_knows_what_sums_say_of_some_and_codes_of_others() -> None:
    table, label = events(1200, 1)
    a = (table["kind"] == "a").to_numpy()
    few = np.flatnonzero(a)[:30]  # of which codes know, too: scales are of both kinds
    summed, coded = np.setdiff1d(np.flatnonzero(a), few), np.concatenate([np.flatnonzero(~a), few])
    question = lv.ask_groups(table[summed], epsilon=8, lower=0, upper=100)
    sums = lv.group_sums(label[summed], question, epsilon=8)
    codes = lv.randomize_labels(label[coded], lower=0, upper=100, epsilon=8)
    both = lv.LabelDPRegressor().fit(table[np.concatenate([summed, coded])], [sums, codes])
    fresh, truth = events(500, 2)
    of_a = (fresh["kind"] == "a").to_numpy()
    predicted = both.predict(fresh)
    # labels have a deviation of 3, and noise of ε = 8 moves means of hundreds by less than 1
    assert abs(predicted[of_a].mean() - truth[of_a].mean()) < 10
    assert abs(predicted[~of_a].mean() - truth[~of_a].mean()) < 10
    # sums alone have never seen the others
    alone = lv.LabelDPRegressor().fit(table[summed], sums)
    assert abs(alone.predict(fresh)[~of_a].mean() - truth[~of_a].mean()) > 30
    again = lv.LabelDPRegressor().fit(table[np.concatenate([coded, summed])], [codes, sums])
    assert np.allclose(again.predict(fresh), predicted, atol=1e-6)


def test_what_does_not_belong_together_is_refused() -> None:
    table, label = events(200, 3)
    question = lv.ask_groups(table[:100], epsilon=1, lower=0, upper=100)
    sums = lv.group_sums(label[:100], question, epsilon=1)
    codes = lv.randomize_labels(label[100:], lower=0, upper=100, epsilon=1)
    with pytest.raises(DataError, match="150 rows, and the sums and codes are about 200 events"):
        lv.LabelDPRegressor().fit(table[:150], [sums, codes])
    other = lv.randomize_labels(label[100:], lower=0, upper=99, epsilon=1)
    with pytest.raises(ConfigError, match="name the same bounds for both"):
        lv.LabelDPRegressor().fit(table, [sums, other])
    with pytest.raises(ConfigError, match="use LabelDPRegressor"):
        lv.LabelDPClassifier().fit(table, [codes, sums])


def test_an_output_that_no_label_has_tells_nothing_and_spoils_nothing() -> None:
    """A channel may have one, as long as it is of all labels."""
    rows, grid = np.arange(4), np.array([0.0, 1.0, 2.0])
    channel = np.array([[0.7, 0.3], [0.5, 0.5], [0.3, 0.7]])
    more = np.insert(channel, 1, 0.0, axis=1)
    of_two = CodeRows(rows, np.array([0, 1, 1, 0]), grid, [channel], 1.0)
    of_three = CodeRows(rows, np.array([0, 2, 2, 0]), grid, [more], 1.0)
    near = np.array([0.2, 0.9, 1.6, 2.0])
    for same, other in zip(
        of_two.seen(near, everywhere(0.5)), of_three.seen(near, everywhere(0.5)), strict=True
    ):
        np.testing.assert_allclose(other, same, rtol=1e-12)
