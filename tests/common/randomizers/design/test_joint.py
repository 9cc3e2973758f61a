"""One channel for several labels: mixtures of partitions, their criterion and their optimum."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import ndtri

from labelveil.common.arrays import Floats
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.randomizers import build_randomizer
from labelveil.common.randomizers.cells import Cells
from labelveil.common.randomizers.design import conditionals
from labelveil.common.randomizers.design.conditionals import (
    _basis,
    effective_rows,
    joint_conditionals,
    plausible_conditionals,
)
from labelveil.common.randomizers.design.joint import Targets, build_joint_design
from labelveil.common.randomizers.design.mixture import best_mixture
from labelveil.common.randomizers.design.optimal_design import decoding_values, optimal_design
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.losses import ABSOLUTE, SQUARED
from labelveil.common.randomizers.message.division import allocate
from labelveil.common.randomizers.message.terms import LabelTerms
from tests.effort import one_in

BINARY = Grid.from_edges([0.0, 1.0])
AMOUNT = Grid.from_log(0.0, 100.0, 24, 5.0)
BOTH = Cells((BINARY, AMOUNT))


def correlated(cells: Cells = BOTH) -> Floats:
    """The larger the amount, the likelier the first label; small amounts are the most."""
    places = cells.indices(np.arange(len(cells))) / (np.array(cells.shape) - 1)
    weights = np.exp(-2 * places.sum(axis=1) - 4 * (places[:, 0] - places[:, -1]) ** 2)
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
def test_over_one_label_it_meets_the_linear_program(epsilon: float) -> None:
    prior = np.exp(-AMOUNT.points / 20)
    family = plausible_conditionals(AMOUNT.points, prior / prior.sum(), SQUARED).tempered()
    effective = effective_rows(20_000)
    boost = float(exp_lower_bound(epsilon)) - 1
    mixture = best_mixture([family], boost, effective)
    found = family.excess_error(mixture.channel(boost), effective)
    best = optimal_design(family, epsilon, effective)
    assert mixture.gap <= 0.005
    assert best.excess_error * (1 - best.gap) * 0.99 <= found <= best.excess_error * 1.01


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_over_few_cells_it_meets_the_best_of_all_channels(epsilon: float) -> None:
    cells = Cells((BINARY, BINARY))
    families = joint_conditionals(cells, np.array([0.5, 0.1, 0.1, 0.3]), [SQUARED, SQUARED])
    boost = float(exp_lower_bound(epsilon)) - 1
    sets = [[(code >> y) & 1 for y in range(4)] for code in range(1, 15)]  # every set of cells
    columns = 1 + boost * np.array(sets, dtype=float).T

    def lost(channel: Floats) -> float:
        return sum(family.excess_error(channel, 300.0) for family in families)

    start = np.full(14, 1.0)
    best = minimize(
        lambda masses: lost(columns * np.maximum(masses, 1e-12)),
        start / (columns @ start).mean(),
        method="SLSQP",
        bounds=[(0, None)] * 14,
        constraints={"type": "eq", "fun": lambda masses: columns @ masses - 1},
        options={"maxiter": 500, "ftol": 1e-12},
    )
    mixture = best_mixture(families, boost, 300.0)
    assert lost(mixture.channel(boost)) <= best.fun * 1.01
    if epsilon < 3:  # with much ε it is randomized response over all cells
        alone = type(mixture)(mixture.partitions[:1], np.ones(1), 0.0)
        assert lost(alone.channel(boost)) > best.fun * 1.05


def test_the_first_label_of_one_is_the_family_of_one() -> None:
    prior = np.exp(-AMOUNT.points / 20)
    (joint,) = joint_conditionals(Cells((AMOUNT,)), prior, [ABSOLUTE])
    alone = plausible_conditionals(AMOUNT.points, prior, ABSOLUTE)
    assert np.array_equal(joint.scores, alone.scores)
    assert np.array_equal(joint.gradients, alone.gradients)


def test_a_cell_is_rounded_to_knots_without_bias_in_each_label() -> None:
    grids = Grid.from_step(0, 40, 1), Grid.from_edges([0.0, 1.0, 5.0])
    prior = np.random.default_rng(2).random(123)
    targets = Targets.for_cells(Cells(grids), prior, ["squared"] * 2, [1.0, 1.0], 10_000)
    first, second = (grid.points for grid in targets.cells.grids)
    assert (first.size, second.size) == (32, 3)
    for knots, labels in (
        (np.repeat(first, 3), np.repeat(grids[0].points, 3)),
        (np.tile(second, 32), np.tile(grids[1].points, 41)),
    ):
        assert targets.rounding @ knots == pytest.approx(labels)
        assert targets.prior @ knots == pytest.approx(prior @ labels / prior.sum())


def test_features_explain_the_share_asked_for_on_average_over_the_labels() -> None:
    prior = correlated()
    families = joint_conditionals(BOTH, prior, [SQUARED, SQUARED], 0.25)
    shares = []
    for j, family in enumerate(families):
        values = BOTH.points[:, j]
        variance = prior @ (values - prior @ values) ** 2
        shares.append(np.var(family.distributions @ values) / variance)
    assert np.mean(shares) == pytest.approx(0.25, rel=1e-3)


def test_tilts_halve_with_their_order_and_pairs_are_as_large_as_second_ones() -> None:
    """Of laws that lie around the prior, by regression of their logarithms on the tilts."""
    cells = Cells((BINARY, Grid.from_edges([0.0, 1.0, 3.0, 8.0]), Grid.from_edges([1.0, 2.0, 5.0])))
    prior = correlated(cells)
    family = joint_conditionals(cells, prior, [SQUARED] * 3, 0.2)[0]
    basis, shape = _basis(cells, prior)
    assert shape.tolist() == [1, 1, 0.5, 0.25, 1, 0.5, 0.5, 0.5, 0.5]
    at = cells.indices(np.arange(len(cells)))
    for place, (first, second) in zip((6, 7, 8), ((0, 1), (0, 4), (1, 4)), strict=True):
        assert basis[:, place] == pytest.approx(basis[:, first] * basis[:, second])
    for j, columns in enumerate(([0], [1, 2, 3], [4, 5])):  # each label's are its own, orthonormal
        own = cells.marginal(prior, j)
        for column in columns:
            values = [set(basis[at[:, j] == i, column].round(9)) for i in range(own.size)]
            assert max(map(len, values)) == 1
        together = basis[:, columns].T @ (prior[:, None] * basis[:, columns])
        assert together == pytest.approx(np.eye(len(columns)), abs=1e-6)
    ones = np.ones((len(cells), 1))
    away = np.log(family.distributions / prior).T
    sizes = np.linalg.lstsq(np.hstack([ones, basis]), away, rcond=None)[0][1:].std(axis=1)
    assert sizes / sizes[0] == pytest.approx(shape, rel=0.2)


def test_a_targets_gradient_is_that_of_its_own_mean() -> None:
    """Whatever the other label is: differences of the tilted laws say the same."""
    families = joint_conditionals(BOTH, correlated(), [SQUARED, SQUARED])
    first = families[0]
    for j, family in enumerate(families):
        for draw in range(3):
            q, scores = first.distributions[draw], first.scores[draw]
            for i in range(scores.shape[1]):
                moved = q * np.exp(1e-6 * scores[:, i] / q)
                change = (moved / moved.sum() - q) @ BOTH.points[:, j] / 1e-6
                assert family.gradients[draw, i] == pytest.approx(change, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("cells", "epsilon"),
    one_in(
        2,
        [
            (BOTH, 4.0),
            (Cells((AMOUNT, Grid.from_count(1, 5, 5))), 1.0),
            (Cells((BINARY, BINARY, Grid.from_count(0, 9, 10))), 0.5),
        ],
    ),
)
def test_the_channel_is_exactly_private_and_decodes_every_label_in_every_cell(
    cells: Cells, epsilon: float
) -> None:
    prior, m = correlated(cells), len(cells.grids)
    built = build_joint_design(cells, prior, epsilon, ["squared"] * m, [1.0] * m, 20_000)
    rows = built.channel.weights
    worst = max(Fraction(max(column), min(column)) for column in zip(*rows, strict=True))
    assert worst == built.channel.ratio <= exp_lower_bound(epsilon)
    assert built.channel.epsilon > 0.99 * epsilon
    assert built.details["optimality_gap"] <= 0.01
    for j, grid in enumerate(cells.grids):
        values = cells.points[:, j]
        decoded = built.channel.probabilities @ decoding_values(
            built.channel.probabilities, values, prior
        )
        assert np.abs(decoded - values).max() < 1e-6 * (grid.upper - grid.lower)


def _product(targets: Targets, cells: Cells, channels: list[FiniteChannel]) -> Floats:
    """Both codes of cells, each from its own label; these grids are their own knots."""
    one, two = (
        channel.probabilities[column]
        for channel, column in zip(channels, cells.indices(np.arange(len(cells))).T, strict=True)
    )
    return (one[:, :, None] * two[:, None, :]).reshape(len(cells), -1)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_on_correlated_labels_one_channel_beats_one_a_label(epsilon: float) -> None:
    """However ε is divided among the two, and for the sum as for each label at equal halves."""
    prior, losses = correlated(), ["squared", "squared"]
    targets = Targets.for_cells(BOTH, prior, losses, [1.0, 1.0], 20_000)
    built = build_joint_design(BOTH, prior, epsilon, losses, [1.0, 1.0], 20_000)
    joint = built.channel.probabilities
    for share in (0.25, 0.5, 0.75):
        own = [
            build_randomizer(
                "auto", labels=g.points, prior=BOTH.marginal(prior, j), epsilon=e, rows=20_000
            ).channel
            for j, (g, e) in enumerate(
                zip(BOTH.grids, (epsilon * share, epsilon * (1 - share)), strict=True)
            )
        ]
        both = _product(targets, BOTH, own)
        assert targets.lost(joint) < 0.95 * targets.lost(both)
        if share == 0.5:
            pairs = zip(targets.excess_errors(joint), targets.excess_errors(both), strict=True)
            assert all(a < b for a, b in pairs)


@pytest.mark.slow
def test_a_label_that_counts_more_loses_less() -> None:
    prior, losses = correlated(), ["squared", "absolute"]
    targets = Targets.for_cells(BOTH, prior, losses, [1.0, 1.0], 20_000)
    lost = []
    for weights in ([1.0, 10.0], [10.0, 1.0]):
        channel = build_joint_design(BOTH, prior, 1.0, losses, weights, 20_000).channel
        lost.append(
            [
                family.excess_error(channel.probabilities, targets.effective)
                for family in targets.families
            ]
        )
    assert lost[1][0] < 0.9 * lost[0][0]
    assert lost[0][1] < 0.9 * lost[1][1]


def test_criteria_agree_whatever_way_the_information_is_summed() -> None:
    targets = Targets.for_cells(BOTH, correlated(), ["squared", "absolute"], [1.0, 2.0], 20_000)
    nothing = np.ones((len(targets.cells), 1))
    assert targets.lost(nothing) == pytest.approx(3.0)
    truth = np.eye(len(targets.cells))
    expected = [family.excess_error(truth, targets.effective) for family in targets.plain]
    assert targets.excess_errors(truth) == pytest.approx(expected)


@pytest.mark.parametrize(("epsilon", "most", "slack"), [(2.0, 0.3, 1e-5), (4.0, 0.2, 3e-4)])
def test_around_the_thresholds_no_other_weights_of_the_partitions_lose_less(
    epsilon: float, most: float, slack: float
) -> None:
    """Nor do they get more than their share of the events."""
    cells = Cells((BINARY, Grid(np.arange(4.0))))
    prior = np.array([8.0, 4, 2, 1, 1, 1, 2, 3]) / 22
    given = cells, prior, epsilon, ["squared", "absolute"], [1.0, 2.0], 5000
    built = build_joint_design(*given)
    rows, share = built.channel.probabilities, built.details["threshold_share"]
    partitions, thresholds = rows[:, :-8], rows[:, -8:]  # 2 (2 - 1) + 2 (4 - 1)
    assert thresholds.sum(axis=1) == pytest.approx(share)
    targets = Targets.for_cells(cells, prior, *given[3:])
    _, of_column = np.unique(partitions.min(axis=0).round(12), return_inverse=True)
    count = of_column.max() + 1
    weights = np.bincount(of_column, weights=partitions[0])
    assert weights.sum() == pytest.approx(1 - share)
    assert count > 1

    def lost(others: Floats) -> float:
        return targets.lost(np.hstack([partitions * (others / weights)[of_column], thresholds]))

    least = lost(weights)
    for one, other in itertools.permutations(range(count), 2):
        moved = weights.copy()
        moved[other] += 0.3 * moved[one]
        moved[one] *= 0.7
        assert lost(moved) >= least * (1 - slack)
    assert built.details["predicted_excess_errors"] == pytest.approx(targets.excess_errors(rows))
    boost = np.expm1(epsilon)
    alone = best_mixture(targets.families, boost, targets.effective)
    best, nothing = (targets.lost(each) for each in (alone.channel(boost), np.ones((8, 1))))
    assert least - best <= 0.0501 * min(best, nothing - best)
    assert share <= most  # at the larger ε thresholds cost more


def terms(*weights: float) -> list[LabelTerms]:
    """Of labels that count for so much each; their grids are given apart."""
    return [LabelTerms("label", 0, 1, weight=weight) for weight in weights]


@pytest.mark.slow
def test_epsilon_is_divided_as_every_division_compared_says() -> None:
    grids = [BINARY, AMOUNT]
    priors = [np.array([0.9, 0.1]), np.exp(-AMOUNT.points / 20)]
    priors = [prior / prior.sum() for prior in priors]
    shares = allocate(terms(1.0, 1.0), grids, priors, 2.0, 20_000)
    assert sum(shares) == 1
    assert min(shares) >= Fraction(1, 4)
    effective, sums = effective_rows(20_000), {}
    for part in range(3, 10):
        total = 0.0
        for grid, prior, parts in zip(grids, priors, (part, 12 - part), strict=True):
            family = plausible_conditionals(grid.points, prior, SQUARED).tempered()
            boost = float(np.expm1(2.0 * parts / 12))
            channel = best_mixture([family], boost, effective).channel(boost)
            nothing = np.ones((len(grid), 1))
            total += family.excess_error(channel, effective) / family.excess_error(
                nothing, effective
            )
        sums[part] = total
    best = min(sums, key=lambda part: sums[part])
    assert abs(shares[0] * 12 - best) <= 1  # those look at 12 knots of the 24 points


@pytest.mark.slow
def test_labels_alike_share_alike_and_weight_counts() -> None:
    mass = np.exp(-AMOUNT.points / 20)
    prior = [mass / mass.sum()] * 3
    for m, weights in ((3, 1.0), (2, 5.0)):
        weighed = terms(weights, *[1.0] * (m - 1))
        shares = allocate(weighed, [AMOUNT] * m, prior[:m], 2.0, 20_000)
        assert sum(shares) == 1
        if weights == 1.0:
            assert max(shares) - min(shares) <= Fraction(1, 12)
        else:
            assert shares[0] > max(shares[1:])


def test_a_label_of_two_equally_likely_values_is_told_by_randomized_response() -> None:
    """Whatever the last digits of its scores are: a cell goes to the bin of its middle."""
    family = plausible_conditionals(BINARY.points, np.array([0.5, 0.5]), SQUARED).tempered()
    mixture = best_mixture([family], float(np.expm1(1.0)), effective_rows(20_000))
    assert mixture.partitions.tolist() == [[0, 1]]
    even = [np.full(len(grid), 1 / len(grid)) for grid in (BINARY, AMOUNT)]
    shares = allocate(terms(5.0, 1.0), [BINARY, AMOUNT], even, 1.0, 20_000)
    assert shares[0] > shares[1]


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_directions_are_spread_as_normal_numbers_are(dimensions: int) -> None:
    points = conditionals._normal_points(dimensions, 400)
    assert points.shape == (400, dimensions)
    np.testing.assert_allclose(np.cov(points.T), np.eye(dimensions), atol=0.1)
    for share in (0.1, 0.5, 0.9):
        np.testing.assert_allclose((points < ndtri(share)).mean(axis=0), share, atol=0.02)
