"""Tree aggregation: what is released, what it costs by enumeration, and laws of its noise."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import BudgetError, DataError, PrivacyError
from labelveil.common.guarantees import PureDP, ZeroConcentratedDP
from labelveil.common.mechanisms.continual import RunningSums, TreeNoise
from tests.statistics import fits, gaussian_mass, laplace_mass

QUIET = Fraction(1, 64)
"""Laplace noise that is 0 but for e^-64."""


def nodes_of(horizon: int) -> list[list[int]]:
    """For each number of the stream, the times at which a node with it is released, by adding 1."""
    found = []
    for place in range(horizon):
        sums = RunningSums(TreeNoise(horizon, 1, QUIET, "laplace"), 1, seeded_entropy(0))
        before: set[tuple[int, int]] = set()
        times = []
        for time in range(horizon):
            sums.add([int(time == place)])
            held = (level for level, total in sums._exact.items() if total)
            holding = {(level, (time + 1) >> level) for level in held}
            times += [time] * len(holding - before)
            before |= holding
        found.append(times)
    return found


@pytest.mark.parametrize("horizon", [1, 2, 3, 4, 7, 8, 13, 16])
def test_a_number_is_in_one_node_a_level_and_no_more(horizon: int) -> None:
    noise = TreeNoise(horizon, 1, Fraction(1), "laplace")
    counts = [len(times) for times in nodes_of(horizon)]
    assert max(counts) <= noise.levels == math.floor(math.log2(horizon)) + 1
    # the price is paid in full by some number, so that L - 1 nodes would be a false claim
    assert max(counts) == noise.levels


def test_sums_are_the_prefix_sums_of_vectors() -> None:
    stream = np.arange(-20, 19).reshape(13, 3)
    sums = RunningSums(TreeNoise(13, 50, QUIET, "laplace"), 3, seeded_entropy(1))
    found = np.array([sums.add(numbers) for numbers in stream])
    assert np.array_equal(found, np.cumsum(stream, axis=0))


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_price_of_all_sums_is_that_of_their_levels(noise: str) -> None:
    """ln of the largest likelihood ratio of all nodes of neighbouring streams, Laplace by hand."""
    made = TreeNoise(8, 3, Fraction(12), noise)  # type: ignore[arg-type]
    whole = made.guarantee
    if noise == "gaussian":
        assert isinstance(whole, ZeroConcentratedDP)
        assert whole.exact_rho == 4 * Fraction(9, 24)
        return
    assert isinstance(whole, PureDP)
    # every node with the number moves by 3, and Laplace's log ratio is 3/12 in each of 4 levels
    assert whole.exact_epsilon == 4 * Fraction(3, 12)
    worst = max(len(times) for times in nodes_of(8)) * Fraction(3, 12)
    assert worst == whole.exact_epsilon
    assert worst > made.guarantee.exact_epsilon * Fraction(3, 4)


@pytest.mark.statistical
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_nodes_have_the_stated_noise_each_their_own(noise: str) -> None:
    made = TreeNoise(7, 1, Fraction(25), noise)  # type: ignore[arg-type]
    mass = laplace_mass(25) if noise == "laplace" else gaussian_mass(25)
    size = 40_000
    sums = RunningSums(made, size, seeded_entropy(3))
    found = [sums.add(np.zeros(size, dtype=np.int64)) for _ in range(7)]
    # t = 4 is one node; t = 7 has it, and two of their own
    assert fits(found[3], mass)
    assert not fits((found[3] * 1.2).astype(np.int64), mass)
    assert fits(found[5] - found[3], mass)
    assert fits(found[6] - found[5], mass)
    assert not fits(found[6], mass)
    assert abs(np.corrcoef(found[3], found[5] - found[3])[0, 1]) < 0.05


@pytest.mark.slow
def test_a_sum_of_many_has_noise_of_few() -> None:
    made = TreeNoise(255, 1, Fraction(100))
    size = 400
    sums = RunningSums(made, size, seeded_entropy(4))
    for _ in range(255):
        found = sums.add(np.zeros(size, dtype=np.int64))
    assert np.var(found) == pytest.approx(8 * 100, rel=0.4)  # eight nodes, in place of 255 noises


def test_a_stream_ends_and_refuses_what_it_is_not_made_for() -> None:
    sums = RunningSums(TreeNoise(1, 1, Fraction(1)), 2, seeded_entropy(0))
    with pytest.raises(DataError, match="2 integers"):
        sums.add([1.0, 2.0])
    with pytest.raises(DataError, match="2 integers"):
        sums.add([1])
    sums.add([1, 2])
    with pytest.raises(BudgetError, match="had its 1 numbers"):
        sums.add([1, 2])
    for wrong in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(PrivacyError, match=r"must be (at least 1|> 0)"):
            TreeNoise(wrong[0], wrong[1], Fraction(wrong[2]))
    with pytest.raises(PrivacyError, match="laplace or gaussian"):
        TreeNoise(1, 1, Fraction(1), "uniform")  # type: ignore[arg-type]
