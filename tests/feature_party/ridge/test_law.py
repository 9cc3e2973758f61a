"""The law of a noisy sum: against integrals, and against sums that were drawn."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.mechanisms.group_sums import (
    NO_GROUP,
    GroupQuestion,
    Lattice,
    NoisySums,
    PrivateSums,
)
from labelveil.feature_party.ridge.law import SumRows, as_normal, clipped_moments, inside_share
from tests.statistics import mean_fits

LATTICE = Lattice(-20.0, 20.0, 400)


@pytest.mark.parametrize("mean", [-9.0, -1.3, 0.0, 0.4, 30.0])
@pytest.mark.parametrize("width", [0.01, 1.0, 50.0])
def test_moments_of_what_is_clipped_are_integrals(mean: float, width: float) -> None:
    deviation = 1.7
    z = np.linspace(-12, 12, 400_001)
    weight = stats.norm.pdf(z) * (z[1] - z[0])
    clipped = np.clip(mean + deviation * z, -width, width)
    expected = weight @ clipped, weight @ clipped**2 - (weight @ clipped) ** 2
    found = clipped_moments(np.array([mean]), deviation, np.array([width]))
    assert np.concatenate(found) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    inside = inside_share(np.array([mean]), deviation, np.array([width]))
    assert inside[0] == pytest.approx(weight @ (np.abs(clipped) < width), abs=1e-4)


def test_answers_are_told_apart_in_units_of_the_label() -> None:
    """Of rows one behind the other's, and groups; a step is 1/2, and noise of 2 has its variance.

    No label is clipped whose width reaches both bounds from its offset.
    """
    lattice = Lattice(0.0, 4.0, 8)
    none = NO_GROUP
    first = GroupQuestion(lattice, np.array([1, none, 0]), np.array([4, 3]), np.array([4]))
    second = GroupQuestion(
        lattice,
        np.array([0, 0, none, 1]),
        np.array([6, 4]),
        np.array([2, 3, 4]),
        np.array([0, 2, 1, 1]),
        np.array([3, -1, 2, 2]),
    )
    answers = [
        PrivateSums(NoisySums(question, Fraction(2)), np.array(sums))
        for question, sums in ((first, [10, -3]), (second, [7, 8]))
    ]
    data = SumRows.from_answers(answers)
    assert data.rows.tolist() == [0, 2, 3, 4, 6]
    assert data.groups.tolist() == [1, 0, 2, 2, 3]
    assert data.offsets.tolist() == [2.0, 2.0, 1.0, 2.0, 1.5]
    assert data.widths.tolist() == [1.5, 2.0, 3.0, 3.0, 2.0]
    assert data.open_ended.tolist() == [False, True, True, True, False]
    assert data.weights.tolist() == [1.0, 1.0, 3.0, -1.0, 2.0]
    assert data.sums.tolist() == [5.0, -1.5, 3.5, 4.0]
    assert data.noise.tolist() == pytest.approx(
        [each**2 for answer in answers for each in answer.deviations.tolist()]
    )
    mean, variance, slope = data.moments(np.full(7, 2.5), np.full(7, 0.5))
    # of those that are not clipped: labels less their offsets, times their weights
    assert mean[1:4].tolist() == [0.5, 4.5, -0.5]
    assert variance[1:4].tolist() == [0.25, 2.25, 0.25]
    assert slope[1:4].tolist() == [1.0, 3.0, -1.0]
    # and of one that is: 0.5 … 3.5 is 4 deviations below and 2 above 2.5
    assert slope[0] == pytest.approx(stats.norm.cdf(2) - stats.norm.cdf(-4))
    inside = stats.truncnorm(-4, 2, 0.5, 0.5)
    above, below = stats.norm.sf(2), stats.norm.cdf(-4)
    first_moment = slope[0] * inside.mean() + 1.5 * (above - below)
    second_moment = slope[0] * inside.moment(2) + 1.5**2 * (above + below)
    assert mean[0] == pytest.approx(first_moment)
    assert variance[0] == pytest.approx(second_moment - first_moment**2)


@pytest.mark.slow
@pytest.mark.statistical
def test_sums_that_were_drawn_have_their_law() -> None:
    """Of two answers about different rows, with weights, offsets, and events in no group."""
    rng = np.random.default_rng(1)
    rows, draws, deviation = 60, 800, 2.0
    predictions = rng.normal(0, 3, 2 * rows)
    first = GroupQuestion.on_grid(LATTICE, np.arange(rows) % 4, 20.0, 0)
    groups = np.where(np.arange(rows) < 6, NO_GROUP, np.arange(rows) % 3)
    offsets = np.rint(predictions[rows:])
    second = GroupQuestion(
        LATTICE,
        groups,
        np.array([20, 30, 1]),
        np.unique(LATTICE.places(offsets, "offset")),
        np.unique(offsets, return_inverse=True)[1],
        rng.integers(-3, 4, rows),
    )
    noisy = [NoisySums(question, Fraction(2)) for question in (first, second)]
    sums = []
    for draw in range(draws):
        labels = predictions + deviation * rng.normal(size=2 * rows)
        places = LATTICE.round(labels, rng.integers(0, 1 << 64, 2 * rows, dtype=np.uint64))
        own = seeded_entropy(draw)
        answers = [
            PrivateSums(each, each.draw(part, own))
            for each, part in zip(noisy, np.split(places, 2), strict=True)
        ]
        sums.append(np.concatenate([answer.values for answer in answers]))
    data = SumRows.from_answers(answers)
    mean, variance, slope = data.moments(predictions, np.full(2 * rows, deviation))
    expected = data.by_group(mean)
    spread = np.sqrt(data.by_group(variance) + data.noise)
    for group in range(data.sums.size):
        drawn = np.array(sums)[:, group]
        assert mean_fits(drawn, expected[group])
        assert np.std(drawn) == pytest.approx(spread[group], rel=0.1)
        assert not mean_fits(drawn, expected[group] + spread[group] / 2)
    # the slope is the derivative of the mean
    moved = data.moments(predictions + 1e-4, np.full(2 * rows, deviation))[0]
    assert slope == pytest.approx((moved - mean) / 1e-4, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("within", "noise"), [(1.0, 0.01), (1.0, 1.0), (1.0, 30.0), (1e-3, 4.0)])
def test_a_normal_number_stands_for_a_sum_from_below(within: float, noise: float) -> None:
    """Against the density of a normal and a Laplace number's sum, by quadrature."""
    spread, size = np.sqrt(within), np.sqrt(noise / 2)
    z = np.linspace(-12, 12, 200_001)
    weights = stats.norm.pdf(z) * (z[1] - z[0])

    def density(at: Floats) -> Floats:
        return np.array([weights @ stats.laplace.pdf(x - spread * z, scale=size) for x in at])

    misses = np.sqrt(within + noise) * np.array([0.01, 0.3, 1.0, 4.0])
    every = np.concatenate([misses, -misses, 2 * misses])
    for miss in misses:
        variance, likelier = (
            float(each[0]) for each in as_normal(*np.array([[miss], [within], [noise]]))
        )
        bound = np.exp(likelier) * stats.norm.pdf(every, scale=np.sqrt(variance))
        found = density(every)
        assert (bound <= found * (1 + 1e-6)).all()
        touched = np.isclose(np.abs(every), miss)
        assert bound[touched] == pytest.approx(found[touched], rel=1e-6)


def test_a_sum_that_misses_by_nothing_tells_the_most() -> None:
    """As one of no event may, whose noise was 0: the limit of those that miss by little."""
    one = np.ones(3)
    variance, likelier = as_normal(np.array([0.0, 1e-4, 1.0]), 0.5 * one, 8 * one)
    assert np.isfinite([variance, likelier]).all()
    assert variance[0] == pytest.approx(variance[1], rel=1e-3)
    assert variance[0] < variance[2]


@pytest.mark.parametrize("unit", [1e-8, 1e8])
def test_in_other_units_the_same_is_known(unit: float) -> None:
    misses, within, noise = np.array([0.0, 0.3, 5.0]), np.full(3, 0.5), np.full(3, 8.0)
    variance, likelier = as_normal(misses, within, noise)
    other, less = as_normal(misses * unit, within * unit**2, noise * unit**2)
    np.testing.assert_allclose(other, variance * unit**2, rtol=1e-6)
    np.testing.assert_allclose(less, likelier, rtol=1e-6, atol=1e-6)


def test_of_laplace_noise_alone_a_miss_is_as_likely_as_that_says() -> None:
    """Where nothing is normal: η is r b, and at r the normal law times c is Laplace's."""
    misses, size = np.array([0.1, 1.0, 20.0]), 2.0
    variance, likelier = as_normal(misses, np.zeros(3), np.full(3, 2 * size**2))
    np.testing.assert_allclose(variance, misses * size, rtol=1e-2)
    touched = likelier + stats.norm.logpdf(misses, scale=np.sqrt(variance))
    level = stats.laplace.logpdf(misses, scale=size)
    assert (touched - level).std() < 1e-2
    none = as_normal(np.zeros(1), np.zeros(1), np.full(1, 2 * size**2))
    assert np.isfinite(none).all()
    assert none[0] > 0


def test_sums_of_next_to_no_noise_are_normal() -> None:
    """As of two steps at ε = 40: a difference of two numbers of 10¹² is less than their digits."""
    misses, within = np.array([1e-3, 0.1, 1.0, 5.0]), np.ones(4)
    for noise in (1e-5, 1e-6 / 1.01, 1e-9, 1e-12, 1e-18):
        variance, likelier = as_normal(misses, within, np.full(4, noise))
        np.testing.assert_allclose(variance, 1 + noise, rtol=1e-3)
        np.testing.assert_allclose(likelier, 0, atol=1e-3)
