"""Laws as textbooks have them, and what is learned from codes as it was approved."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from labelveil.common.arrays import Booleans, Floats, Indices
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers import private_prior
from labelveil.feature_party.learning.calibration import Slope, decoding_slope, slope
from labelveil.feature_party.learning.decoding import convex_targets, decoder, indicator_decoder
from labelveil.feature_party.learning.derivatives import derivatives_of
from labelveil.feature_party.learning.heads import build_head, canonical_tilts
from labelveil.feature_party.learning.law_table import LawTable
from labelveil.feature_party.learning.mixing import (
    ahead,
    choose_mixture,
    null_share,
    prior_adjustment,
)
from labelveil.feature_party.learning.names import HEAD_NAMES
from labelveil.feature_party.learning.objectives import SharedObjective, build_objective
from labelveil.feature_party.learning.problem import (
    LabelProblem,
    Leg,
    expected_given_codes,
    join_legs,
    prior_given_codes,
)
from labelveil.feature_party.learning.questions import ask, explained_by, quantized, unpaid_grid
from labelveil.feature_party.learning.several_releases import join_problems, refined, unrounded
from labelveil.feature_party.learning.sources import join_sources, own_cells, own_labels
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.learning.target_encoding import TargetEncoding, scores_of_codes
from tests.approved import approved
from tests.feature_party.worlds import thresholds_channel

torch = pytest.importorskip("torch")

KEPT = Path(__file__).with_name("approved.json")
GRID = np.arange(0.0, 20.0)
PRIOR = stats.nbinom.pmf(GRID, 3, 0.4)
RAW = 0.6 * np.sin(np.arange(8.0)).reshape(4, 2)


def problem(epsilon: float = 2.0, loss: str = "squared") -> LabelProblem:
    return LabelProblem.from_channel(thresholds_channel(GRID, epsilon), PRIOR, loss)


def classes(count: int = 3) -> LabelProblem:
    grid = np.arange(float(count))
    channel = FiniteChannel(grid, grid, randomized_response_rows(count, 1.5))
    return LabelProblem.from_channel(channel, np.arange(1.0, count + 1))


def merged() -> LabelProblem:
    """Half of whose labels are sent alike."""
    channel = thresholds_channel(GRID[::2], 2.0)
    rows = channel.probabilities
    base = LabelProblem.from_channel(channel, PRIOR[::2])
    distinct, row_of = np.unique(rows, axis=0, return_inverse=True)
    at = np.repeat(row_of.reshape(-1), 2)
    return LabelProblem(GRID, (Leg(PRIOR / PRIOR.sum(), distinct, at, base.outputs),))


SUPPORT = Support.from_problem(problem())


def law(name: str, raw: np.ndarray) -> np.ndarray:
    head = build_head(name, SUPPORT)
    return np.asarray(head.probabilities(torch.as_tensor(raw[:, : head.outputs])).numpy())


def normalised(weights: np.ndarray) -> np.ndarray:
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def test_heads_are_the_laws_of_the_textbooks() -> None:
    y, widths, prior = SUPPORT.values, SUPPORT.widths, SUPPORT.prior
    a, b = RAW[:, :1], RAW[:, 1:]
    mean = prior @ y
    variance = prior @ (y - mean) ** 2
    clamped = 8 * np.tanh(RAW / 8)
    a, b = clamped[:, :1], clamped[:, 1:]
    found = law("gaussian", RAW)
    normal = stats.norm.pdf(y, mean + a * variance**0.5, variance**0.5 * np.exp(b)) * widths
    np.testing.assert_allclose(found, normalised(normal), rtol=1e-4)
    rate = mean * np.exp(a)
    np.testing.assert_allclose(
        law("poisson", RAW), normalised(stats.poisson.pmf(y, rate) * widths), rtol=1e-3
    )
    size = mean**2 / (variance - mean) * np.exp(5 * np.tanh(RAW[:, 1:] / 5))
    negative = stats.nbinom.pmf(y, size, size / (size + rate)) * widths
    np.testing.assert_allclose(law("negative-binomial", RAW), normalised(negative), rtol=1e-3)
    shape = mean**2 / variance * np.exp(6 * np.tanh(RAW[:, 1:] / 6))
    positive = np.maximum(y, widths / 4)
    gamma = stats.gamma.pdf(positive, shape, scale=rate / shape) * widths
    np.testing.assert_allclose(law("gamma", RAW), normalised(gamma), rtol=1e-3)
    s = (y - mean) / variance**0.5
    assert np.abs(s).max() > 4  # so that it is drawn in
    s *= 4 / np.abs(s).max()
    square = s**2 - prior @ s**2
    square -= (prior @ (square * s)) / (prior @ s**2) * s
    square /= (prior @ square**2) ** 0.5
    square *= min(1.0, 4 / np.abs(square).max())
    tilted = prior * np.exp(a * s + b * square)
    np.testing.assert_allclose(law("prior-tilt", RAW), normalised(tilted), rtol=1e-3)


@pytest.mark.parametrize("name", [n for n in HEAD_NAMES if n not in ("bernoulli", "joint")])
def test_a_head_is_the_law_that_was_approved(name: str) -> None:
    head = build_head(name, SUPPORT)
    raw = np.tile(RAW, (1, SUPPORT.size))[:, : head.outputs]
    approved(KEPT, f"head {name}", {
        "outputs": head.outputs, "law": law(name, raw), "nothing": law(name, 0 * raw),
        "far": law(name, 30 * raw),
    })  # fmt: skip


@pytest.mark.parametrize("loss", ["squared", "absolute", "poisson"])
@pytest.mark.parametrize("name", ["likelihood", "debiased", "raw", "true"])
def test_an_objective_is_the_loss_that_was_approved(name: str, loss: str) -> None:
    given = problem(loss=loss)
    made = build_objective(name, given, Support.from_problem(given))
    codes = np.array([0, 5, 20, 37])
    raw = torch.as_tensor(RAW[:, : made.outputs]).float()
    targets = made.targets(codes) if name != "true" else made.value_targets(GRID[:4])  # type: ignore[attr-defined]
    moved = made.moved(3.0, 2.0)
    pairs = torch.stack([raw, raw + 0.5])[None]
    losses = torch.stack([made.loss(each, targets) for each in pairs[0]])[None]
    np.testing.assert_allclose(made.quick_loss(raw, targets), made.loss(raw, targets), atol=0.02)
    if name != "likelihood":
        np.testing.assert_allclose(
            moved.points(raw),
            3.0 * (made.kind != "poisson") + 2 * made.points(raw),
            rtol=1e-5,  # type: ignore[attr-defined]
        )
    approved(KEPT, f"objective {name} {loss}", {
        "points": made.points(raw), "far": made.points(40 * raw), "loss": made.loss(raw, targets),
        "far loss": made.loss(40 * raw, targets), "outputs": made.outputs, "cells": made.cells,
        "average": made.average_loss(pairs, targets[None], losses),
    })  # fmt: skip


def test_laws_that_share_a_network_lose_their_mean() -> None:
    given = problem()
    parts = [
        build_objective("likelihood", given, SUPPORT, head) for head in ("gaussian", "poisson")
    ]
    both = SharedObjective(parts)
    assert (both.head, both.outputs, both.cells) == ("gaussian+poisson", 3, SUPPORT.size)
    raw, codes = torch.as_tensor(np.tile(RAW, 2)[:, :3]).float(), np.array([0, 5, 20, 37])
    targets = both.targets(codes)
    first, second = raw[:, :2], raw[:, 2:]
    losses = (parts[0].loss(first, targets) + parts[1].loss(second, targets)) / 2
    np.testing.assert_allclose(both.loss(raw, targets), losses, rtol=1e-5)
    np.testing.assert_allclose(both.quick_loss(raw, targets), losses, atol=0.02)
    points = (parts[0].points(first) + parts[1].points(second)) / 2
    np.testing.assert_allclose(both.points(raw), points, rtol=1e-5)
    law_ = (parts[0].distributions(first) + parts[1].distributions(second)) / 2  # type: ignore[operator]
    np.testing.assert_allclose(both.distributions(raw), law_, rtol=1e-5)
    with pytest.raises(ConfigError, match="objective='best' must be auto or one of"):
        build_objective("best", given, SUPPORT)
    with pytest.raises(ConfigError, match="head='joint' is for labels that one channel sends"):
        build_objective("likelihood", given, SUPPORT, "joint")


@pytest.mark.parametrize("head", ["gaussian", "poisson", "mean", "softmax", "bernoulli"])
def test_tabulated_derivatives_are_slopes_of_the_exact_loss(head: str) -> None:
    given = (
        classes(2 if head == "bernoulli" else 3) if head in ("softmax", "bernoulli") else problem()
    )
    support = Support.from_problem(given)
    made: Any = build_objective("likelihood", given, support, head)
    table = derivatives_of(made)
    assert table is not None
    tabulated = table()
    codes = np.arange(4) % support.likelihood.shape[1]
    raw = np.tile(RAW, 3)[:, : made.outputs]
    losses, slopes, information = tabulated.derivatives(raw, codes)
    np.testing.assert_allclose(losses, tabulated.loss(raw, codes), rtol=1e-5)
    if head != "mean":
        laws = made.family.probabilities(torch.as_tensor(raw)).numpy()
        exact = -np.log((laws @ support.likelihood)[np.arange(4), codes])
        np.testing.assert_allclose(losses, exact, atol=0.02)
        for place in range(made.outputs):
            moved = []
            for step in (1e-3, -1e-3):
                near = raw.copy()
                near[:, place] += step
                laws = made.family.probabilities(torch.as_tensor(near)).numpy()
                moved.append(np.log(laws @ support.likelihood))
            score = (moved[0] - moved[1]) / 2e-3
            np.testing.assert_allclose(
                slopes[:, place], -score[np.arange(4), codes], rtol=0.05, atol=0.02
            )
            laws = made.family.probabilities(torch.as_tensor(raw)).numpy()
            told = np.sum(laws @ support.likelihood * score**2, axis=1)
            floor = information[:, place].min()
            np.testing.assert_allclose(
                information[:, place], np.maximum(told, floor), rtol=0.1, atol=0.02
            )
    approved(KEPT, f"derivatives {head}", {
        "loss": losses, "slopes": slopes, "information": information, "scale": tabulated.scale,
        "of a label": tabulated.of_a_label, "serves": LawTable.serves(made.family, 4096),
        "not": LawTable.serves(made.family, 4097),
    })  # fmt: skip


@pytest.mark.parametrize("cells", [64, 7, 3])
def test_a_support_is_that_of_the_problem(cells: int) -> None:
    for name, given in (("plain", problem()), ("merged", merged()), ("classes", classes())):
        support = Support.from_problem(given, cells)
        assert support.prior.sum() == pytest.approx(1)
        np.testing.assert_allclose(support.likelihood.sum(axis=1), 1, atol=1e-4)
        np.testing.assert_allclose(np.bincount(support.cell_of, support.within), 1)
        assert support.widths.sum() == pytest.approx(
            sum((given.grid[-1] - given.grid[0], *np.diff(given.grid)[[0, -1]] / 2))
        )
        approved(KEPT, f"support {name} {cells}", {
            **{field: getattr(support, field) for field in (
                "values", "cell_of", "widths", "prior", "floor", "within", "likelihood",
                "released", "low_atom", "high_atom", "heavy_tailed", "skewness", "discrete",
            )},
            "estimates": support.estimates, "alike": support.estimates.alike,
            "tilts": canonical_tilts(support.prior, support.likelihood),
        })  # fmt: skip


@pytest.mark.parametrize("ridge", [0.0, 0.01])
def test_decoders_trade_bias_for_variance(ridge: float) -> None:
    for name, given in (("plain", problem()), ("merged", merged()), ("classes", classes())):
        targets = np.stack([given.grid, given.grid**2], axis=1)
        found = decoder(given, targets, ridge)
        expected = given.channel @ found.values - targets
        np.testing.assert_allclose(found.bias, expected, atol=1e-9)
        assert found.exact == (ridge == 0 and name != "merged")
        if ridge == 0:  # right on average, whatever it is off by
            np.testing.assert_allclose(given.prior @ found.bias, 0, atol=1e-6)

        def lost(values: np.ndarray) -> float:
            bias = given.channel @ values - targets  # noqa: B023
            apart = values - given.prior @ targets  # noqa: B023
            spent = given.prior @ bias**2 + ridge * given.output_prior @ apart**2  # noqa: B023
            return float(spent.sum())

        if ridge:  # no change of a size that can be seen is better
            rng, least = np.random.default_rng(0), lost(found.values)
            moves = [0.3 * rng.normal(size=found.values.shape) for _ in range(20)]
            assert min(lost(found.values + move) for move in moves) > least
        weights = np.arange(1.0, given.grid.size + 1)
        weighed = decoder(given, given.grid, ridge, weights / weights.sum())
        approved(KEPT, f"decoder {name} {ridge}", {
            "values": found.values, "bias": found.bias, "weighed": weighed.values,
            "indicators": indicator_decoder(given).values,
        })  # fmt: skip


def test_squares_of_rounded_labels_are_told_without_what_rounding_adds() -> None:
    whole, gaps = problem(), np.array([0.0, 1.5, 3.5, 4.0])
    np.testing.assert_allclose(convex_targets(whole, np.square), GRID**2)
    halves = np.arange(4) + 0.5  # which are no whole numbers
    odd = FiniteChannel(halves, halves, randomized_response_rows(4, 1.0))
    given = LabelProblem.from_channel(odd, np.ones(4))
    np.testing.assert_allclose(convex_targets(given, np.square), halves**2 - 1 / 6)
    channel = FiniteChannel(gaps, gaps, randomized_response_rows(4, 1.0))
    given = LabelProblem.from_channel(channel, np.ones(4))
    # of y², a sixth of the squared gap on the average, half of it to either side
    each = np.diff(gaps) ** 2 / 6
    taken = [each[0], (each[0] + each[1]) / 2, (each[1] + each[2]) / 2, each[2]]
    np.testing.assert_allclose(convex_targets(given, np.square), gaps**2 - taken)
    two = LabelProblem.from_channel(
        FiniteChannel(gaps[[0, 3]], gaps[[0, 3]], randomized_response_rows(2, 1.0)), np.ones(2)
    )
    np.testing.assert_allclose(convex_targets(two, np.square), [0, 16])


def test_mixtures_are_weighed_as_approved() -> None:
    rng = np.random.default_rng(1)
    losses = 2 + 0.3 * rng.normal(size=(4, 300))
    losses[1] -= 0.05
    losses[3] -= 0.3
    found: dict[str, Any] = {}
    for effective in (10.0, 1000.0, 1e9):
        for count in (0, 1, 2):
            plain, flexible = losses[: 4 - count], losses[4 - count :]
            found[f"mixture {effective} {count}"] = np.round(
                choose_mixture(plain, flexible, effective), 5
            )
        found[f"null {effective}"] = null_share(losses[0], losses[0] + 0.01, effective)
        found[f"adjusted {effective}"] = prior_adjustment(
            np.array([0.5, 0.4, 0.1]), np.array([0.2, 0.3, 0.5]), effective
        )
    approved(KEPT, "mixing", found)


def test_a_rival_is_ahead_by_more_than_two_standard_errors_or_as_many_as_asked() -> None:
    spread = np.array([-1.0, 1.0]) / 2**0.5  # of two rows, a standard error of 1/√2
    for gain, errors, found in ((1.4, 2.0, False), (1.42, 2.0, True), (0.72, 1.0, True),
                                (0.7, 1.0, False), (-3.0, 1.0, False)):  # fmt: skip
        assert ahead(gain + spread, np.zeros(2), errors) == found
    assert not ahead(np.ones(1), np.zeros(1))


def test_slopes_are_least_squares_and_called_off_from_a_tenth_and_three_errors_on() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(3, 1, 50)
    y = 1.4 * x + rng.normal(size=50)
    found = slope(x, y)
    assert found is not None
    line = stats.linregress(x, y)
    left = y - line.slope * x - line.intercept
    centred = x - x.mean()
    assert found.value == pytest.approx(line.slope)
    assert found.error == pytest.approx(
        np.sqrt(np.sum((centred * left) ** 2)) / (centred @ centred)
    )
    assert found.interval == pytest.approx(
        (
            found.value - stats.norm.isf(0.025) * found.error,
            found.value + stats.norm.isf(0.025) * found.error,
        )
    )
    assert slope(x[:2], y[:2]) is None
    assert slope(x[:3], y[:3]) is not None
    assert slope(np.full(9, 3.0), y[:9]) is None
    cases = ((1.0999, 0.01, False), (1.11, 0.01, True), (0.89, 0.03, True), (0.89, 0.037, False),
             (1.3, 0.1, False), (1.31, 0.1, True))  # fmt: skip
    for value, error, off in cases:
        assert Slope(value, error).misspecified == off, value
    assert (
        "are too flat: labels decoded without bias rise by 1.31 ± 0.10" in Slope(1.31, 0.1).sentence
    )
    assert "are too steep" in Slope(0.7, 0.01).sentence
    given = problem()
    codes = rng.integers(0, 38, 60)
    points = rng.uniform(1, 9, 60)
    own = slope(points, decoder(given, given.grid).values[codes, 0])
    assert decoding_slope(given, codes, points) == own
    assert decoding_slope(merged(), codes % 18, points) is None


def test_categories_are_encoded_by_other_folds_alone() -> None:
    given, rng = problem(), np.random.default_rng(3)
    scores = scores_of_codes(given)
    marginal = given.output_prior
    assert marginal @ scores == pytest.approx(0, abs=1e-12)
    assert marginal @ scores**2 == pytest.approx(1)
    posterior = (given.prior * given.grid) @ given.channel / marginal
    assert np.corrcoef(scores, posterior)[0, 1] == pytest.approx(1)
    categories = np.stack([rng.integers(0, 3, 40), rng.integers(0, 5, 40)], axis=1).astype(np.int32)
    each, fold = rng.normal(size=40), np.arange(40) % 4
    encoding = TargetEncoding(categories, (3, 5), each, fold)
    for left_out in range(4):
        rows = encoding.rows(left_out)
        for row in range(0, 40, 7):
            for column, start in ((0, 0), (1, 3)):
                same = categories[:, column] == categories[row, column]
                other = same & (fold != left_out) & (fold != fold[row])
                weight = encoding.strength[start]
                expected = each[other].sum() / (other.sum() + weight)
                assert rows[row, column] == pytest.approx(expected)
    for column, start in ((0, 0), (1, 3)):
        groups = [each[categories[:, column] == value] for value in range(3 + 2 * column)]
        explained = sum(group.sum() ** 2 / group.size for group in groups if group.size) / 40
        between = explained / np.mean(each**2) - sum(group.size > 0 for group in groups) / 40
        assert encoding.strength[start] == pytest.approx(1 / max(between, 1e-4))


def test_questions_gather_like_predictions() -> None:
    given = problem()
    support = Support.from_problem(given)
    means = np.random.default_rng(4).gamma(2.0, 2.0, 500)
    laws = stats.poisson.pmf(support.values, means[:, None])
    laws /= laws.sum(axis=1, keepdims=True)
    question = ask(given, support, lambda some: np.split(laws[some], [300]), 5)
    asked = ask(given, support, lambda some: [laws[some]], 5)
    assert np.array_equal(question.strata, asked.strata)
    assert np.array_equal(question.laws, asked.laws)
    # of 9,000 events alike every third says what they are, of 50 each
    low, high, again = laws[means.argmin()], laws[means.argmax()], list[Indices]()
    many = np.concatenate([np.tile(low, (9_000, 1)), np.tile(high, (50, 1))])

    def some_of(some: Booleans | slice) -> list[Floats]:
        again.append(np.arange(len(many))[some])
        return [many[some]]

    asked = ask(given, support, some_of, 2)
    few = ask(given, support, lambda some: [np.stack([low, high])[some]], 2)
    assert np.array_equal(asked.laws, few.laws)
    assert again[0].size == len(many)
    assert np.array_equal(again[1], np.append(np.arange(0, 9_000, 3), np.arange(9_000, 9_050)))
    expected = laws @ support.values
    order = [expected[question.strata == stratum] for stratum in range(5)]
    assert all(low.max() <= high.min() for low, high in pairwise(order))
    for strata in (1, 32):
        assert len(ask(given, support, lambda some: [laws[some]], strata).laws) == strata
    for wrong in (0, 33):
        with pytest.raises(ConfigError, match=f"strata={wrong} must be 1 … 32"):
            ask(given, support, lambda some: [laws[some]], wrong)
    with pytest.raises(ConfigError, match="labels of 3 values are asked in the same way"):
        ask(classes(), Support.from_problem(classes()), lambda some: [laws[some]], 5)
    approved(KEPT, "questions", {
        "laws": question.laws, "rows": list(question.classes.rows),
        "explained": explained_by(question),
        "grid": question.grid.points, "ends": quantized(means, 5),
        "unpaid": unpaid_grid(np.linspace(0, 900, 16)).points, "chosen": unpaid_grid(GRID).points,
        "uneven": unpaid_grid(np.array([0.0, 1, 5])).points,
    })  # fmt: skip


def test_several_releases_are_one_problem() -> None:
    parts = [problem(1.0), problem(3.0)]
    both = join_problems(parts, [100, 300])
    assert [leg.share for leg in both.legs] == [0.25, 0.75]
    codes = np.array([0, 37, 38, 75])
    (first, mine, own), (second, others, theirs) = both.by_release(codes)
    assert [first.grid.size, second.grid.size] == [each.grid.size for each in both.releases]
    assert (mine.tolist(), own.tolist()) == ([True, True, False, False], [0, 37])
    assert (others.tolist(), theirs.tolist()) == ([False, False, True, True], [0, 37])
    assert [leg.release for leg in both.legs] == [0, 1]
    with pytest.raises(ConfigError, match=r"source='x' must be a labels party .* without a name"):
        both.source("x")
    approved(KEPT, "releases", {
        "prior": both.prior, "channel": both.channel, "outputs": both.outputs,
        "informativeness": both.informativeness, "deviation": both.deviation, "mean": both.mean,
        "evenness": [classes().evenness, problem().evenness],
        "alone": [part.informativeness for part in parts],
        "support": Support.from_problem(both).likelihood,
    })  # fmt: skip


def of_range(low: float, high: float, points: int, epsilon: float) -> LabelProblem:
    grid = np.linspace(low, high, points)
    return LabelProblem.from_channel(thresholds_channel(grid, epsilon), np.arange(1.0, points + 1))


@pytest.mark.parametrize("low", [0.0, -3.0])
def test_labels_of_several_parties_meet_on_one_axis(low: float) -> None:
    parts = [of_range(low, 6.0, 7, 1.0), of_range(low, 6.0, 4, 2.0), of_range(0.0, 90.0, 5, 2.0)]
    both = join_sources(parts, [100, 200, 300], ["a", "a", "b"])
    with pytest.raises(ConfigError, match=r"source='c' must be .* that was learned from: a, b"):
        both.source("c")
    if low < 0:  # of one who has such labels all are centred
        assert both.source("b")[0].location == pytest.approx(parts[2].mean)
    assert both.names == ("a", "b")
    assert [both.codes_of(name) for name in "ab"] == [range(18), range(18, 26)]
    for source, start in both.each_source():
        own = own_labels(both, source.name)
        assert own.grid[[0, -1]] == pytest.approx([low, 6.0] if source.name == "a" else [0.0, 90.0])
        assert (start, source.releases) == ((0, 2) if source.name == "a" else (2, 1))
        moved = source.location + source.scale * both.grid
        assert own.grid == pytest.approx(moved[source.first : source.last + 1])
        if low == 0.0:  # divided by their means, so that 0 stays 0
            assert source.location == 0
        else:
            assert own.mean == pytest.approx(source.location, abs=0.05 * source.scale)
        support, cells = own_cells(both, Support.from_problem(both), source.name, own)
        assert cells.sum(axis=1) == pytest.approx(np.ones(len(cells)))
        approved(KEPT, f"source {source.name} {low}", {
            "source": source, "grid": own.grid, "prior": own.prior, "channel": own.channel,
            "cells": cells, "values": support.values, "saved": own_labels(
                LabelProblem.from_json(both.to_json()), source.name).prior,
        })  # fmt: skip


def test_classes_of_several_parties_are_the_same_classes() -> None:
    both = join_sources([classes(3), classes(3)], [1, 3], ["a", "b"])
    assert both.grid.tolist() == [0, 1, 2]
    assert [(own.location, own.scale) for own, _ in both.each_source()] == [(0, 1), (0, 1)]
    assert own_labels(both, "b").grid.tolist() == [0, 1, 2]
    assert both.discrete


def test_releases_of_which_nothing_is_learned_count_alike() -> None:
    parts = [problem(1.0), problem(3.0)]
    none = join_problems(parts, [0, 0])
    assert [leg.share for leg in none.legs] == [0, 0]
    assert [[leg.share for leg in each.legs] for each in none.releases] == [[1], [1]]
    strata = join_legs(parts, [0, 0], strata=True)
    assert [leg.share for leg in strata.some_releases(0, 1).legs] == [0.5, 0.5]
    some = join_legs(parts, [1, 3], strata=True)
    assert [leg.share for leg in some.some_releases(0, 1).legs] == [0.25, 0.75]


def test_a_problem_that_does_not_fit_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file of a model may say."""
    kept = problem().to_json()
    for name in ("grid", "prior", "row_of", "outputs"):
        with pytest.raises(ValueError, match=r"probabilities for"):
            LabelProblem.from_json(kept | {name: kept[name][:-1]})
    size = len(kept["grid"]) * len(kept["outputs"])
    module = "labelveil.feature_party.learning.problem.MAX_TABLE"
    monkeypatch.setattr(module, size)
    assert LabelProblem.from_json(kept).to_json() == kept
    monkeypatch.setattr(module, size - 1)
    with pytest.raises(ValueError, match="20 × 38 probabilities"):
        LabelProblem.from_json(kept)


def test_labels_of_other_kinds_do_not_meet() -> None:
    for others, said in (
        ([classes(3), of_range(0, 6, 7, 1.0)], "3 values 0, 1, 2 under squared loss, and of 'b'"),
        ([classes(2), classes(3)], "2 values under squared loss, and of 'b', 3 values 0, 1, 2"),
        ([problem(), problem(loss="absolute")], "on a range under absolute loss, cannot be"),
    ):
        with pytest.raises(DataError, match=said):
            join_sources(others, [1, 1], ["a", "b"])
    with pytest.raises(DataError, match="labels in 0 … 6 under squared loss and in 0 … 9"):
        join_problems([of_range(0, 6, 7, 1.0), of_range(0, 9, 7, 1.0)], [1, 1])


def test_a_law_on_a_finer_grid_is_the_same_once_rounded() -> None:
    part = of_range(0.0, 6.0, 4, 1.0)
    fine = np.linspace(0, 6, 13)
    found = refined(part, fine)
    # a label between two points is sent as either, by how near it is
    at = (fine / 2).astype(int).clip(0, 2)
    share = fine / 2 - at
    mixed = (1 - share)[:, None] * part.channel[at] + share[:, None] * part.channel[at + 1]
    np.testing.assert_allclose(found.channel, mixed, atol=1e-12)
    rounded = np.zeros(4)
    np.add.at(rounded, at, found.prior * (1 - share))
    np.add.at(rounded, at + 1, found.prior * share)
    np.testing.assert_allclose(rounded, part.prior, atol=0.01)
    assert found.legs[0].ends is None
    wider = refined(part, np.linspace(-2, 10, 13))
    assert wider.legs[0].ends == (2, 8)
    assert wider.prior[:2].sum() == wider.prior[9:].sum() == 0
    np.testing.assert_allclose(wider.channel[[0, 1]], wider.channel[[2, 2]])
    assert refined(part, part.grid) is part
    approved(KEPT, "finer", {
        "prior": found.prior, "wider": wider.prior,
        "unrounded": unrounded(np.array([[0.1, 0.2, 0.3, 0.4]]), part.grid, fine),
    })  # fmt: skip


def test_a_prior_is_made_of_a_histogram_and_of_codes() -> None:
    channel = thresholds_channel(GRID, 2.0)
    truth = PRIOR / PRIOR.sum()
    labels = np.random.default_rng(3).choice(20, 4000, p=truth)
    entropy = seeded_entropy(3)
    histogram = private_prior(np.bincount(labels, minlength=20), 0.05, entropy)
    sent = channel.sample(labels, entropy.words("labels", 0, labels.size))
    counts = np.bincount(sent, minlength=38)
    found = prior_given_codes(histogram, channel.probabilities, counts)
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0

    def told(law: np.ndarray) -> float:
        return float(counts @ np.log(law @ channel.probabilities))

    assert told(found) > told(histogram.probabilities)
    none = prior_given_codes(histogram, channel.probabilities, 0 * counts)
    assert np.array_equal(none, histogram.probabilities)
    even = np.full(20, 0.05)
    moved = expected_given_codes(even, channel.probabilities, counts)
    assert told(moved) > told(even) + 10
    assert np.abs(moved - truth).sum() < np.abs(even - truth).sum() / 2
    right = expected_given_codes(truth, channel.probabilities, counts)
    assert np.array_equal(right, truth)  # which codes do not contradict
    approved(KEPT, "prior", {"found": found, "moved": moved})
