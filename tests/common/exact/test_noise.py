"""Discrete noise: exact by enumeration where that can be done, and by its law elsewhere."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from labelveil.common.arrays import Booleans, Integers, Words
from labelveil.common.entropy import WordSource, seeded_entropy
from labelveil.common.exact import noise
from tests.effort import one_in
from tests.statistics import DRAWS, binomial_range, fits, gaussian_mass, laplace_mass, mean_fits


class _Undecided(Exception):
    """The sampler asks for one more choice than its script holds."""

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights


class _Script(WordSource):
    """Stands in for a word source: a sampler of one value makes the choices that are written."""

    def __init__(self, choices: tuple[int, ...]) -> None:
        self.choices = list(choices)

    def choose(self, weights: list[float]) -> int:
        if not self.choices:
            raise _Undecided(weights)
        return self.choices.pop(0)

    def uniform_below(self, bound: int, size: int, _: WordSource) -> Integers:
        return np.array([self.choose([1 / bound] * bound) for _ in range(size)], dtype=np.int64)

    def coins(self, numerators: Integers, denominator: int, _: WordSource) -> Booleans:
        heads = [math.exp(-n / denominator) for n in numerators.tolist()]
        return np.array([self.choose([1 - p, p]) for p in heads], dtype=np.bool_)


def enumerate_law(
    draw: Callable[[_Script], int], unexplored: float
) -> tuple[dict[int, float], float]:
    """Follow the likeliest choices of a sampler until little probability is unexplored.

    Returns
    -------
    For each outcome the probability of the explored paths to it; the probability left unexplored.
    """
    law: dict[int, float] = defaultdict(float)
    queue: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
    left = 1.0
    while queue and left > unexplored:
        negative, choices = heapq.heappop(queue)
        try:
            law[draw(_Script(choices))] -= negative
            left += negative
        except _Undecided as undecided:
            for choice, share in enumerate(undecided.weights):
                if share > 0:
                    heapq.heappush(queue, (negative * share, (*choices, choice)))
    return law, left + 1e-12


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(1, 3), Fraction(1, 2), Fraction(1)])
def test_a_unit_coin_is_exact(exponent: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(script: _Script) -> int:
        monkeypatch.setattr(noise, "uniform_below", script.uniform_below)
        numerators = np.array([exponent.numerator])
        return int(noise._bernoulli_exp_unit(numerators, exponent.denominator, script)[0])

    law, left = enumerate_law(draw, 0.01)
    assert law[1] <= math.exp(-exponent) <= law[1] + left


@pytest.mark.parametrize("exponent", [Fraction(5, 2), Fraction(3), Fraction(1, 5)])
def test_any_coin_is_a_product_of_unit_coins(
    exponent: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(script: _Script) -> int:
        monkeypatch.setattr(noise, "_bernoulli_exp_unit", script.coins)
        numerators = np.array([exponent.numerator])
        return int(noise.bernoulli_exp(numerators, exponent.denominator, script)[0])

    law, _ = enumerate_law(draw, 0.0)
    assert law[1] == pytest.approx(math.exp(-exponent), rel=1e-12)


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(3, 2), Fraction(1, 2), Fraction(7, 3)])
def test_discrete_laplace_is_exact(scale: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    again = 1 << 20  # stands for every value of a second round, whose law is that of the first

    class Restart(Exception):
        pass

    def draw(script: _Script) -> int:
        rounds = 0

        def uniform_below(bound: int, size: int, source: WordSource) -> Integers:
            nonlocal rounds
            rounds += bound == scale.numerator
            if rounds > 1:
                raise Restart
            return script.uniform_below(bound, size, source)

        monkeypatch.setattr(noise, "uniform_below", uniform_below)
        monkeypatch.setattr(noise, "_bernoulli_exp_unit", script.coins)
        try:
            return int(noise.discrete_laplace(scale, 1, script)[0])
        except Restart:
            return again

    law, left = enumerate_law(draw, 1e-5)
    kept = 1 - law[again]
    mass = laplace_mass(float(scale))(np.arange(-5, 6))
    for value, exact in zip(range(-5, 6), mass.tolist(), strict=True):
        assert law[value] / kept <= exact + 1e-12
        assert exact <= law[value] / kept + 10 * left


@pytest.mark.statistical
@pytest.mark.parametrize("scale", [Fraction(1, 7), Fraction(1, 2), Fraction(2), Fraction(101, 3)])
def test_discrete_laplace_law(scale: Fraction) -> None:
    sample = noise.discrete_laplace(scale, DRAWS, seeded_entropy(1).source("laplace"))
    assert fits(sample, laplace_mass(float(scale)))
    assert not fits(sample, laplace_mass(float(scale) * 1.3))
    assert not fits(sample, laplace_mass(float(scale) / 1.3))


@pytest.mark.statistical
@pytest.mark.parametrize(
    "variance", one_in(2, [Fraction(1, 4), Fraction(400), Fraction(7, 3), Fraction(1)])
)
def test_discrete_gaussian_law(variance: Fraction) -> None:
    sample = noise.discrete_gaussian(variance, DRAWS, seeded_entropy(2).source("gaussian"))
    assert fits(sample, gaussian_mass(float(variance)))
    assert not fits(sample, gaussian_mass(float(variance) * 1.3**2))
    assert not fits(sample, gaussian_mass(float(variance) / 1.3**2))


@pytest.mark.parametrize(
    ("draw", "taken", "refused"),
    [
        (noise.discrete_laplace, Fraction(1 << 48), Fraction((1 << 48) + 1)),
        (noise.discrete_laplace, Fraction(1, 1 << 48), Fraction(1, (1 << 48) + 1)),
        (noise.discrete_gaussian, Fraction(1 << 32), Fraction((1 << 44) + 1, 1 << 12)),
        (noise.discrete_gaussian, Fraction(1, 1 << 12), Fraction(1, (1 << 12) + 1)),
    ],
)
def test_scales_and_variances_are_taken_up_to_their_limits(
    draw: Any, taken: Fraction, refused: Fraction
) -> None:
    source = seeded_entropy(1).source("s")
    assert draw(taken, 3, source).shape == (3,)
    with pytest.raises(ValueError, match="round it"):
        draw(refused, 3, source)


@pytest.mark.statistical
def test_the_largest_scales_stay_inside_64_bits() -> None:
    source = seeded_entropy(3).source("s")
    scale = Fraction((1 << 48) - 1, 3)
    sample = noise.discrete_laplace(scale, 20_000, source)
    # |z| is exponential up to 1/scale: its mean and its deviation are its scale
    sizes = np.abs(sample) / float(scale)
    assert mean_fits(sizes, 1, 1)
    assert not mean_fits(1.1 * sizes, 1, 1)
    low, high = binomial_range(sample.size, 0.5)
    assert low <= (sample > 0).sum() <= high
    variance = Fraction(1 << 32)
    squares = noise.discrete_gaussian(variance, 1000, source) ** 2 / float(variance)
    assert mean_fits(squares, 1, math.sqrt(2))
    assert not mean_fits(squares / 2, 1, math.sqrt(2))


@pytest.mark.parametrize(
    "scale", [Fraction(0), Fraction(-1), Fraction(1 << 49), Fraction(1, 1 << 70)]
)
def test_impossible_laplace_scales_are_refused(scale: Fraction) -> None:
    with pytest.raises(ValueError, match="scale="):
        noise.discrete_laplace(scale, 1, seeded_entropy(0).source("s"))


@pytest.mark.parametrize("variance", [Fraction(0), Fraction((1 << 32) + 1), Fraction(1, 1 << 13)])
def test_impossible_variances_are_refused(variance: Fraction) -> None:
    with pytest.raises(ValueError, match="variance="):
        noise.discrete_gaussian(variance, 1, seeded_entropy(0).source("s"))


def test_impossible_exponents_are_refused() -> None:
    source = seeded_entropy(0).source("s")
    for numerator, denominator in ((-1, 2), (1, 0), (1, 1 << 49)):
        with pytest.raises(ValueError, match="numerators"):
            noise.bernoulli_exp(np.array([numerator]), denominator, source)


class _Given(WordSource):
    """Gives the words of a list, in order."""

    def __init__(self, words: list[int]) -> None:
        self.words = words

    def take(self, count: int) -> Words:
        taken, self.words = self.words[:count], self.words[count:]
        return np.array(taken, dtype=np.uint64)


def test_uniform_below_rejects_exactly_the_incomplete_last_round() -> None:
    limit = 2**64 - 2**64 % 3
    source = _Given([limit - 1, limit, 2**64 - 1, limit, limit - 1, 5])
    assert noise.uniform_below(3, 2, source).tolist() == [(limit - 1) % 3] * 2
    assert source.words == [5]
    assert noise.uniform_below(1 << 62, 1, _Given([2**64 - 1])).tolist() == [(1 << 62) - 1]
    for bound in (0, -1, (1 << 62) + 1):
        with pytest.raises(ValueError, match="bound="):
            noise.uniform_below(bound, 1, source)


def test_a_rational_coin_compares_every_binary_digit() -> None:
    third = Fraction(1, 3)
    digit = 2**64 // 3
    flips = noise._bernoulli_fraction(third, 3, _Given([digit - 1, digit, digit + 1, digit - 1]))
    assert flips.tolist() == [True, True, False]  # the tie is decided by the next 64 digits
    assert not noise._bernoulli_fraction(Fraction(1, 2), 1, _Given([1 << 63]))[0]
    assert noise._bernoulli_fraction(Fraction(1, 2), 1, _Given([(1 << 63) - 1]))[0]


def test_seeded_noise_is_frozen() -> None:
    source = seeded_entropy(0).source("frozen")
    assert noise.discrete_laplace(Fraction(5), 8, source).tolist() == [
        -1,
        -10,
        -5,
        -5,
        -2,
        -14,
        -4,
        10,
    ]
    assert noise.discrete_gaussian(Fraction(9), 8, source).tolist() == [-1, -1, 0, 0, 2, 2, 0, 2]


def test_every_entry_has_the_bound_and_the_scale_of_its_own() -> None:
    bounds = [3, 1 << 62, 5, 7]
    limits = [2**64 - 2**64 % bound for bound in bounds]
    # the last word that each takes; then, where the first is one too large, the next one for it
    taken = noise.uniform_below(np.array(bounds), 4, _Given([end - 1 for end in limits]))
    assert taken.tolist() == [bound - 1 for bound in bounds]
    given = _Given([limits[0], 11, limits[2], limits[3] - 1, 10, limits[2], 9])
    assert noise.uniform_below(np.array(bounds), 4, given).tolist() == [10 % 3, 11, 9 % 5, 6]
    assert given.words == []
    with pytest.raises(ValueError, match="bound="):
        noise.uniform_below(np.array([1, 0]), 2, _Given([1, 1]))
    same = noise.discrete_laplace_each(np.full(500, 100), 7, seeded_entropy(5).source("s"))
    one = noise.discrete_laplace(Fraction(100, 7), 500, seeded_entropy(5).source("s"))
    assert same.tolist() == one.tolist()
    largest = np.array([1, 1 << 48])  # scales of 2⁻⁴⁸, whose noise is 0, and of 1
    assert noise.discrete_laplace_each(largest, 1 << 48, seeded_entropy(5).source("s"))[0] == 0
    for numerators, denominator in (
        ([1, 0], 1),
        ([1, (1 << 48) + 1], 1),
        ([1], 0),
        ([1], (1 << 48) + 1),
    ):
        with pytest.raises(ValueError, match="round scales first"):
            noise.discrete_laplace_each(np.array(numerators), denominator, _Given([]))


def test_what_is_drawn_is_whole_beyond_what_doubles_hold() -> None:
    """At the largest scale, with the word's remainder and 33 heads in a row: of chance 1e-15."""
    largest = (1 << 48) - 1  # the remainder, and what accepts it
    heads, tails, positive = [0, 0, 1], [0, 1], [0]
    given = _Given([largest, largest, *33 * heads, *tails, *positive])
    assert noise.discrete_laplace(Fraction(1 << 48), 1, given).tolist() == [(34 << 48) - 1]
    assert given.words == []
