"""Two labels, and a few that are values of their own: randomized response, and no prior."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact.channel import TOTAL, FiniteChannel
from labelveil.common.randomizers import (
    LabelTerms,
    NoisyPrior,
    build_randomizer,
    decoded_prior,
    plan_message,
)
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.private_labels import randomize_labels
from tests.one_label import one_label
from tests.statistics import mean_fits

TWO, FIVE = Grid(np.array([0.0, 1.0])), Grid(np.arange(5.0))


@pytest.mark.parametrize("prior", [[1, 1], [975, 25], [0, 1]])
@pytest.mark.parametrize("loss", ["squared", "absolute", "poisson"])
def test_two_labels_are_sent_by_randomized_response(prior: list[int], loss: str) -> None:
    built = build_randomizer("auto", labels=TWO.points, prior=prior, epsilon=2.0, loss=loss)
    assert built.name == "randomized-response"
    assert built.channel.outputs.tolist() == [0, 1]
    other = build_randomizer("auto", labels=TWO.points, prior=[1, 1], epsilon=2.0)
    assert built.channel.rows == other.channel.rows


@pytest.mark.parametrize(
    ("terms", "grid", "needs"),
    [
        ({}, TWO, False),
        ({"randomizer": "randomized-response"}, TWO, False),
        ({"randomizer": "optimal-design"}, TWO, True),
        ({"options": {"points": 2}}, TWO, True),
        ({}, FIVE, True),
        ({"values": True}, FIVE, False),
        ({"values": True, "randomizer": "rr-on-bins"}, FIVE, True),
        ({"values": True}, Grid(np.arange(16.0)), False),
        ({"values": True}, Grid(np.arange(17.0)), True),
    ],
)
def test_a_prior_is_paid_for_only_where_the_channel_needs_one(
    terms: dict[str, Any], grid: Grid, needs: bool
) -> None:
    label = LabelTerms("label", grid.lower, grid.upper, grid, **terms)
    assert label.needs_prior(grid) is needs
    assert bool(plan_message([label], 10_000, 1.0).histograms) is needs
    if not needs:
        assert label.build(grid, None, 1.0, 10_000).name == "randomized-response"


def test_all_of_epsilon_goes_to_the_labels() -> None:
    for grid in (TWO, FIVE):
        even = np.full(len(grid), 200)
        made = one_label(even, grid, 1.0, seeded_entropy(0), values=True).decode(even)
        assert made.prior.guarantee.exact_epsilon == 0
        assert made.guarantee == made.labels_guarantee
        assert 1 - 1e-12 < made.guarantee.exact_epsilon <= 1


def test_codes_that_nobody_sent_are_counted_as_none() -> None:
    made = randomize_labels([0, 1], lower=0, upper=15, epsilon=1, values=range(16))
    assert made.prior.size == made.channel.outputs.size == 16
    assert made.events.counts.sum() == 2


def response(grid: Grid, epsilon: float, rows: int) -> FiniteChannel:
    even = np.full(len(grid), rows // len(grid))
    made = one_label(even, grid, epsilon, seeded_entropy(0), values=True)
    return made.channel


@pytest.mark.parametrize("grid", [TWO, FIVE])
def test_expected_codes_decode_to_the_histogram_exactly(grid: Grid) -> None:
    channel = response(grid, 1.5, 1000)
    truth = np.arange(1, len(grid) + 1) * 1000
    for y, row in enumerate(channel.rows):  # the decoded counts of TOTAL labels y, of which
        codes = np.array(row, dtype=object)  # row says how many codes there are on average
        lie, gap = channel.rows[1][0], channel.rows[0][0] - channel.rows[1][0]
        found = [Fraction(TOTAL * int(code) - TOTAL * lie, gap) for code in codes]
        assert found == [TOTAL if z == y else 0 for z in range(len(grid))]
    labels = np.repeat(np.arange(len(grid)), truth)
    draws = []
    for seed in range(200):
        codes = channel.sample(labels, seeded_entropy(seed).words("labels", 0, labels.size))
        draws.append(decoded_prior(channel, np.bincount(codes, minlength=len(grid))))
    errors = np.array([draw.noisy_counts for draw in draws]) - truth
    # a function that is centred over the cells has the stated noise, up to what p(1 − p) differs
    across = np.array([1.0, *[0.0] * (len(grid) - 2), -1.0])
    stated = draws[0].deviation * np.linalg.norm(across)
    assert mean_fits(errors @ across, 0.0, stated)
    assert abs(np.std(errors @ across) / stated - 1) < 0.35
    assert not mean_fits(errors @ across + stated, 0.0, stated)


@pytest.mark.parametrize("away", [-40.0, -2.0, 0.0, 3.0])
def test_a_rare_value_is_expected_and_not_taken_for_none(away: float) -> None:
    """Two in a hundred at ε = 0.5 are decoded to less than 0 in one release of eight."""
    rows, spread = 20_000, 290.0
    rare = round(away * spread)
    both = NoisyPrior(np.array([rows - rare, rare]), Fraction(0), rows, code_noise=2**0.5 * spread)
    shares = np.linspace(0, 1, 200_001)
    logarithms = -((rows * shares - rare) ** 2) / (2 * spread**2)
    weights = np.exp(logarithms - logarithms.max())
    expected = float(weights @ shares / weights.sum())
    if away > -30:  # from there on the density is out of double precision's reach
        assert both.probabilities[1] == pytest.approx(expected, rel=1e-3)
    assert 0 < both.probabilities[1] < (max(away, 0) + 1) * spread / rows
    assert both.probabilities.sum() == pytest.approx(1)
    turned = both.reordered(np.array([1, 0]))
    assert turned.probabilities.tolist() == both.probabilities[::-1].tolist()


def test_a_coarse_grid_has_the_most_points_or_all_whole_numbers() -> None:
    whole = LabelTerms("label", 0, 20, whole=True)
    assert whole.coarse_grid(21).points.tolist() == list(range(21))
    near_zero = [0.4 * (51 ** (j / 7) - 1) for j in range(8)]  # y/50 (51^t - 1)
    assert whole.coarse_grid(8).points.tolist() == sorted({round(point) for point in near_zero})
    far = LabelTerms("label", 5, 1000).coarse_grid(20)
    assert far.points.tolist() == np.linspace(5, 1000, 20).tolist()
    fine = LabelTerms("label", 0, 2.5).coarse_grid(20)  # of other bounds nothing is rounded
    assert fine.points.tolist() == pytest.approx([0.05 * (51 ** (j / 19) - 1) for j in range(20)])


def test_a_label_states_at_most_so_much() -> None:
    """Five knots: 14 intervals, 6 complements, 2 · 4 thresholds; and twelve rows more of facts."""
    nine = Grid(np.arange(9.0))
    assert LabelTerms("label", 0, 8).most_weights(nine, 5) == (5 + 12) * (14 + 6 + 8)
    assert LabelTerms("label", 0, 8, values=True).most_weights(nine, 5) == (9 + 12) * 9
