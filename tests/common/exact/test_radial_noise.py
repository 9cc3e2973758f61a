"""Radial noise: its law, its exact rounding, and twins that must be distinguished."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from labelveil.common.arrays import Floats
from labelveil.common.entropy import WordSource, seeded_entropy
from labelveil.common.exact.radial_noise import _Outwards, gaussian_vector, radial_laplace
from tests.effort import EXHAUSTIVE, effort, one_in
from tests.statistics import binomial_range, counts_fit, follows


def _draws(size: int, count: int, scale: Fraction, seed: int) -> Floats:
    source = seeded_entropy(seed).source("radial")
    rows = [radial_laplace(np.zeros(size), scale, -20, source) for _ in range(count)]
    return np.array(rows, dtype=np.float64) / 2**20


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("size", "count"),
    one_in(3, [(1, effort(400, 1500)), (2, effort(400, 1000)), (7, effort(200, 500))]),
)
def test_norms_are_gamma_and_directions_uniform(size: int, count: int) -> None:
    noise = _draws(size, count, Fraction(3), size)
    norms = np.linalg.norm(noise, axis=1)
    assert follows(norms, stats.gamma(size, scale=3).cdf)
    far = 1.4 if EXHAUSTIVE else 1.7
    for wrong in (far, 1 / far):
        assert not follows(wrong * norms, stats.gamma(size, scale=3).cdf)
    # the square of a coordinate of a uniform direction is Beta(1/2, (d - 1)/2)
    shares = (noise / norms[:, None]) ** 2
    if size > 1:
        law = stats.beta(0.5, (size - 1) / 2).cdf
        assert all(follows(shares[:, i], law) for i in range(size))
        assert not follows(np.sqrt(shares[:, 0]), law)
    positive = int((noise > 0).sum())
    low, high = binomial_range(noise.size, 0.5)
    assert low <= positive <= high


@pytest.mark.statistical
def test_one_dimension_is_the_rounded_laplace_law() -> None:
    source = seeded_entropy(4).source("radial")
    centre = np.array([0.25])
    sample = np.array(
        [radial_laplace(centre, Fraction(1), 0, source)[0] for _ in range(effort(1000, 3000))]
    )

    def expected(scale: float) -> Floats:
        edges = np.concatenate([[-np.inf], np.arange(-3.5, 4), [np.inf]])
        return np.diff(stats.laplace(0.25, scale).cdf(edges))

    observed = np.bincount(np.clip(sample, -4, 4).astype(np.int64) + 4, minlength=9)
    assert counts_fit(observed, expected(1.0))
    assert not counts_fit(observed, expected(1.3 if EXHAUSTIVE else 1.6))


@pytest.mark.statistical
@pytest.mark.parametrize("size", [1, 4])
def test_gaussian_coordinates_are_normal_and_independent(size: int) -> None:
    source = seeded_entropy(7).source("gaussian")
    centre = np.full(size, 0.5)
    rows = [
        gaussian_vector(centre, Fraction(3), -20, source) for _ in range(effort(800, 2400) // size)
    ]
    noise = np.array(rows, dtype=np.float64) / 2**20 - 0.5
    assert follows(noise.ravel(), stats.norm(scale=3).cdf)
    far = 1.5 if EXHAUSTIVE else 2
    for wrong in (far, 1 / far):
        assert not follows(wrong * noise.ravel(), stats.norm(scale=3).cdf)
    squares = np.sum(noise**2, axis=1) / 9
    assert follows(squares, stats.chi2(size).cdf)
    assert not follows((2 if EXHAUSTIVE else 4) * squares, stats.chi2(size).cdf)


@pytest.mark.parametrize("noise", [radial_laplace, gaussian_vector])
def test_a_finer_grid_only_adds_digits_of_the_same_ideal_vector(
    noise: Callable[..., NDArray[np.object_]],
) -> None:
    """A rounding error anywhere would show in a hundred further digits."""
    centre = np.array([0.3, -1.5, 2.0**-30])
    grids = [-4, -100, -400, -900]
    found = [
        noise(centre, Fraction(1, 3), grid, seeded_entropy(5).source("radial")) for grid in grids
    ]
    exact = [Fraction(value) * Fraction(2) ** grids[-1] for value in found[-1]]
    for grid, values in zip(grids[:-1], found, strict=False):
        for value, ideal in zip(values, exact, strict=True):
            pitch = Fraction(2) ** grid
            # within half a pitch of the ideal value, which the finest grid knows to 2^-901
            assert abs(Fraction(value) * pitch - ideal) <= pitch / 2 + Fraction(2) ** grids[-1]


class Given:
    """Words that are given, and then those of a source."""

    def __init__(self, *first: int) -> None:
        self._first, self._source = list(first), seeded_entropy(6).source("radial")

    def take(self, count: int) -> NDArray[np.uint64]:
        given = [self._first.pop(0) for _ in range(min(count, len(self._first)))]
        more = self._source.take(count - len(given)) if count > len(given) else []
        return np.array([*given, *more], dtype=np.uint64)


HALF, LAST = 1 << 63, (1 << 64) - 1
CUT = divmod(math.isqrt((1 << 256) - (1 << 254)), 1 << 64)
"""Words of a number whose square and a quarter make almost 1."""


@pytest.mark.parametrize(
    "first",
    [
        (),
        # numbers of which more words have to be drawn than of others, as they begin with zeros
        (0, 0, HALF, 5),
        (HALF, 1, HALF, 2, HALF, 3, 0, 0, HALF, 4),
        (HALF, 1, HALF, 2, HALF, 3, HALF, 4, 0, 0, HALF, 5),
        # a point whose square the circle cuts, so that more words decide: outside, or inside
        (*range(1, 7), HALF, 0, *CUT, 0, LAST),
        (*range(1, 7), HALF, 0, *CUT, 0, 0),
    ],
)
def test_the_ideal_vector_follows_from_its_words(first: tuple[int, ...]) -> None:
    """The interval arithmetic against the same formula in floats."""
    words = Given(*first)
    source = cast(WordSource, Given(*first))
    found = radial_laplace(np.zeros(3), Fraction(2), -40, source).astype(np.float64) / 2**40

    def more(number: Fraction, count: int) -> Fraction:
        return number + Fraction(int(words.take(1)[0]), 1 << (64 * (count + 1)))

    def uniform() -> tuple[Fraction, int]:
        number, count = Fraction(0), 0
        while not number:
            number, count = more(more(number, count), count + 1), count + 2
        return number, count

    norm = -sum(math.log(uniform()[0]) for _ in range(3))
    normals: list[float] = []
    while len(normals) < 4:
        (v, of_v), (w, of_w) = uniform(), uniform()
        while of_v != of_w:  # until of both the same digits are known
            if of_v < of_w:
                v, of_v = more(v, of_v), of_v + 1
            else:
                w, of_w = more(w, of_w), of_w + 1
        while (
            v**2 + w**2 < 1 < (v + (step := Fraction(1, 1 << (64 * of_v)))) ** 2 + (w + step) ** 2
        ):
            v, w, of_v = more(v, of_v), more(w, of_v), of_v + 1
        total = float(v * v + w * w)
        if v**2 + w**2 < 1:
            factor = math.sqrt(-2 * math.log(total) / total)
            normals += [float(v) * factor, float(w) * factor]
    signs = [1 - 2 * int(word & np.uint64(1)) for word in words.take(3)]
    direction = np.array(normals[:3]) * signs
    expected = 2 * norm * direction / np.linalg.norm(direction)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("centre", "scale"),
    [
        ([0.0], Fraction(0)),
        ([0.0], Fraction(-1)),
        ([], Fraction(1)),
        ([math.nan], Fraction(1)),
        ([[0.0]], Fraction(1)),
    ],
)
def test_impossible_inputs_are_refused(centre: list[Any], scale: Fraction) -> None:
    with pytest.raises(ValueError, match="must be"):
        radial_laplace(np.array(centre), scale, 0, seeded_entropy(0).source("radial"))
    with pytest.raises(ValueError, match="must be"):
        gaussian_vector(np.array(centre), scale, 0, seeded_entropy(0).source("gaussian"))


@pytest.mark.parametrize("digits", [2, 3, 7])
def test_bounds_of_few_digits_are_outwards(digits: int) -> None:
    arithmetic, exact = _Outwards(digits), Context(prec=60)

    def holds(found: tuple[Decimal, Decimal], *ends: Decimal) -> None:
        assert found[0] <= min(ends)
        assert max(ends) <= found[1]

    for n, m in product(range(1, 12), repeat=2):
        low, high = sorted([Fraction(n, 13), Fraction(m, 13)])
        a, b = (
            exact.divide(Decimal(end.numerator), Decimal(end.denominator)) for end in (low, high)
        )
        holds(arithmetic.ratio(low, high), a, b)
        holds(arithmetic.minus_log(low, high), -exact.ln(a), -exact.ln(b))
        holds(arithmetic.root((a, b)), exact.sqrt(a), exact.sqrt(b))
        holds(arithmetic.times((a, b), (b, b)), exact.multiply(a, b), exact.multiply(b, b))
        holds(arithmetic.over((a, b), (a, b)), exact.divide(a, b), exact.divide(b, a))
        holds(arithmetic.total([(a, b)] * 3), exact.multiply(3, a), exact.multiply(3, b))


def test_bounds_hold_all_that_the_digits_so_far_leave_and_no_more() -> None:
    """Of a square of the disc: its corners have the ends, and no point of it lies beyond."""
    arithmetic, radius = _Outwards(30), lambda s: math.sqrt(-2 * math.log(s) / s)
    for n, k in [
        (n, k) for n in range(1, 7) for k in range(1, 7) if (n + 1) ** 2 + (k + 1) ** 2 <= 64
    ]:
        near, far = (n * n + k * k) / 64, ((n + 1) ** 2 + (k + 1) ** 2) / 64
        for at, (low, high) in zip((n, k), arithmetic.normals((n, 3), (k, 3)), strict=True):
            assert float(low) == pytest.approx(at / 8 * radius(far), abs=1e-12)
            assert float(high) == pytest.approx((at + 1) / 8 * radius(near), abs=1e-12)
