"""Two labels, and a few that are values of their own: randomized response, and no prior."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from common.entropy import seeded_entropy
from common.exact.channel import TOTAL
from common.randomizers import Recipe, build_randomizer, decoded_prior, one_step
from common.randomizers.grid import Grid
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
    ("recipe", "grid", "needs"),
    [
        (Recipe(), TWO, False),
        (Recipe("randomized-response"), TWO, False),
        (Recipe("optimal-design"), TWO, True),
        (Recipe(options={"points": 2}), TWO, True),
        (Recipe(), FIVE, True),
        (Recipe(values=True), FIVE, False),
        (Recipe("rr-on-bins", values=True), FIVE, True),
        (Recipe(values=True), Grid(np.arange(17.0)), True),
    ],
)
def test_a_prior_is_paid_for_only_where_the_channel_needs_one(
    recipe: Recipe, grid: Grid, needs: bool
) -> None:
    assert recipe.needs_prior(grid) is needs
    assert (recipe.split(grid, 1.0, 10_000).prior > 0) is needs


def test_all_of_epsilon_goes_to_the_labels() -> None:
    for grid in (TWO, FIVE):
        randomizer = Recipe(values=True).respond(grid, 1.0, 1000)
        both = one_step(randomizer, np.full(len(grid), 200), 1.0)
        assert both.prior.guarantee.exact_epsilon == 0
        assert both.guarantee == both.labels_guarantee
        assert 1 - 1e-12 < both.guarantee.exact_epsilon <= 1


@pytest.mark.parametrize("grid", [TWO, FIVE])
def test_expected_codes_decode_to_the_histogram_exactly(grid: Grid) -> None:
    channel = Recipe(values=True).respond(grid, 1.5, 1000).channel
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


def test_codes_that_say_nothing_decode_to_an_even_histogram() -> None:
    channel = Recipe().respond(TWO, 1e-22, 10).channel
    assert decoded_prior(channel, np.array([7, 3])).noisy_counts.tolist() == [5, 5]
