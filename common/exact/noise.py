"""Exact discrete noise, vectorised: discrete Laplace and discrete Gaussian.

Every probability is a rational number and every comparison is made between integers, so that the
distribution is the stated one and not a floating-point approximation of it (Mironov 2012 shows
what the approximation leaks). The samplers are Algorithms 1 to 3 of Canonne, Kamath and Steinke,
*The Discrete Gaussian for Differential Privacy*, NeurIPS 2020, run on whole arrays: each step draws
for all entries that are still undecided.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from labelveil.common.arrays import Booleans, Indices, Integers
from labelveil.common.entropy import WordSource

_WORD = 1 << 64
_LAST_WORD = np.uint64(_WORD - 1)
_MAX_BOUND = 1 << 62
_MAX_TERM = 1 << 48
_GAUSSIAN_DENOMINATOR_BITS = 12


def uniform_below(bound: int | Integers, size: int, source: WordSource) -> Integers:
    """Draw (size,) uniform integers on 0 … bound - 1 <= 2**62 - 1, exactly, by rejection.

    The bound is one for all, or (size,) of them.

    Raises
    ------
    ValueError
        If a bound is outside 1 … 2**62.
    """
    if isinstance(bound, np.ndarray):
        least, most = int(bound.min()), int(bound.max())
    else:
        least = most = bound
    if not 1 <= least <= most <= _MAX_BOUND:
        raise ValueError(f"bound={bound} must lie in 1 … 2**62")
    # a number costs a tenth of what an array of one does
    bounds = bound.astype(np.uint64) if isinstance(bound, np.ndarray) else np.uint64(bound)
    # the last word of the last whole run of 0 … bound - 1: 2**64 - 1 - (2**64 mod bound)
    last = _LAST_WORD - (_LAST_WORD % bounds + np.uint64(1)) % bounds
    words = source.take(size)
    (rejected,) = (words > last).nonzero()
    if rejected.size:
        words = words.copy()
    while rejected.size:
        words[rejected] = source.take(rejected.size)
        rejected = rejected[words[rejected] > np.broadcast_to(last, words.shape)[rejected]]
    return (words % bounds).astype(np.int64)


def _of(numbers: int | Integers, places: Indices) -> int | Integers:
    """Those at some places, or the one that all share."""
    return numbers[places] if isinstance(numbers, np.ndarray) else numbers


def bernoulli_exp(
    numerators: Integers | NDArray[np.object_], denominator: int, source: WordSource
) -> Booleans:
    """Flip coins that show heads with probability exp(-numerator / denominator), exactly.

    Algorithm 1 of Canonne, Kamath and Steinke (2020). The (n,) numerators are >= 0, int64 or Python
    integers of any size; the denominator that they share is 1 … 2**48.
    """
    heads = np.ones(numerators.shape, dtype=np.bool_)
    if not 1 <= denominator <= _MAX_TERM or numerators.min() < 0:
        raise ValueError(f"numerators must be >= 0 and denominator={denominator} in 1 … 2**48")
    whole = numerators // denominator
    alive = np.flatnonzero(whole > 0)
    flipped = np.zeros_like(whole)
    while alive.size:  # exp(-whole) is a product of `whole` coins of probability exp(-1)
        ones = np.full(alive.size, denominator, dtype=np.int64)
        keep = _bernoulli_exp_unit(ones, denominator, source)
        heads[alive[~keep]] = False
        alive = alive[keep]
        flipped[alive] += 1
        alive = alive[flipped[alive] < whole[alive]]
    undecided = np.flatnonzero(heads)
    rest = (numerators[undecided] % denominator).astype(np.int64)
    heads[undecided] = _bernoulli_exp_unit(rest, denominator, source)
    return heads


def _bernoulli_exp_unit(
    numerators: Integers, denominator: int | Integers, source: WordSource
) -> Booleans:
    """As :func:`bernoulli_exp` for 0 <= numerator <= denominator: one for all, or (n,) of them."""

    def toss(left: Indices, k: int) -> Booleans:
        drawn = uniform_below(_of(denominator, left) * k, left.size, source)
        return np.asarray(drawn < numerators[left])

    return _alternating(numerators.size, toss)


def _alternating(size: int, toss: Callable[[Indices, int], Booleans]) -> Booleans:
    """Toss coins of chances x, x/2, x/3, … to the first tails: an odd one has chance exp(-x).

    ``toss`` gets the entries that are still undecided, and the number k of their coin.
    """
    odd = np.ones(size, dtype=np.bool_)
    active, k = np.arange(size), 1
    while active.size:
        active = active[toss(active, k)]
        k += 1
        odd[active] = k % 2 == 1
    return odd


def discrete_laplace(scale: Fraction, size: int, source: WordSource) -> Integers:
    """Draw from the discrete Laplace law, P(z) ∝ exp(-|z| / scale), z an integer.

    Algorithm 2 of Canonne, Kamath and Steinke (2020), for a scale > 0 whose numerator and
    denominator are at most 2**48.

    Raises
    ------
    ValueError
        If the scale is not in that range.
    """
    if scale <= 0:
        raise ValueError(f"scale={scale} must be > 0")
    t, s = scale.numerator, scale.denominator
    if max(t, s) > _MAX_TERM:
        raise ValueError(
            f"scale={scale} has a numerator or denominator above 2**48; round it first"
        )
    return _laplace(t, s, size, source)


def discrete_laplace_each(numerators: Integers, denominator: int, source: WordSource) -> Integers:
    """Draw once from the discrete Laplace law of each of (n,) scales, numerator / denominator.

    All of them lie in 1 … 2**48.
    """
    least, most = int(numerators.min()), int(numerators.max())
    if not (1 <= least <= most <= _MAX_TERM and 1 <= denominator <= _MAX_TERM):
        raise ValueError(
            f"numerators from {least} to {most}, and denominator={denominator}, must lie in 1 …"
            " 2**48; round scales first"
        )
    return _laplace(numerators, denominator, numerators.size, source)


def _laplace(scaled: int | Integers, s: int, size: int, source: WordSource) -> Integers:
    """Algorithm 2 of Canonne, Kamath and Steinke (2020) for the scale t/s of each entry."""
    result = np.zeros(size, dtype=np.int64)
    active = np.arange(size)
    while active.size:
        t = _of(scaled, active)
        remainder = uniform_below(t, active.size, source)
        accepted = _bernoulli_exp_unit(remainder, t, source)  # remainder < t
        magnitude = (remainder + t * _geometric(active.size, source)) // s
        negative = uniform_below(2, active.size, source).astype(np.bool_)
        done = accepted & ~(negative & (magnitude == 0))  # zero would be counted twice
        result[active[done]] = np.where(negative, -magnitude, magnitude)[done]
        active = active[~done]
    return result


def _geometric(size: int, source: WordSource) -> Integers:
    """Draw P(v) ∝ exp(-v), v = 0, 1, …"""
    count = np.zeros(size, dtype=np.int64)
    active = np.arange(size)
    while active.size:
        active = active[_bernoulli_exp_unit(np.ones_like(active), 1, source)]
        count[active] += 1
    return count


def discrete_gaussian(variance: Fraction, size: int, source: WordSource) -> Integers:
    """Draw from the discrete Gaussian law, P(z) ∝ exp(-z² / (2 variance)), z an integer.

    Algorithm 3 of Canonne, Kamath and Steinke (2020). For sensitivity-1 counts it is
    1/(2 variance)-zCDP. The variance's denominator must be at most 2**12 and its root at most
    2**16, so that every comparison stays in 64-bit integers.

    Raises
    ------
    ValueError
        If the variance is not in that range.
    """
    if variance <= 0:
        raise ValueError(f"variance={variance} must be > 0")
    if variance.denominator > 1 << _GAUSSIAN_DENOMINATOR_BITS or variance > 1 << 32:
        raise ValueError(
            f"variance={variance} must be at most 2**32 with a denominator of at most 2**12;"
            " round it up to a multiple of 1/4096"
        )
    a, b = variance.numerator, variance.denominator
    t = isqrt(a // b) + 1  # floor(σ) + 1
    denominator = 2 * a * b * t * t
    result = np.zeros(size, dtype=np.int64)
    active = np.arange(size)
    while active.size:
        candidate = discrete_laplace(Fraction(t), active.size, source)
        magnitudes, where = np.unique(np.abs(candidate), return_inverse=True)
        accepted = np.zeros(active.size, dtype=np.bool_)
        # heads with probability exp(-(|z| - σ²/t)² / (2σ²)): the numerator may pass 64 bits, so it
        # is formed with Python integers, once for each magnitude
        for index, value in enumerate(magnitudes.tolist()):
            members = np.flatnonzero(where == index)
            exponent = Fraction((value * t * b - a) ** 2, denominator)
            accepted[members] = _coins_exp(exponent, members.size, source)
        result[active[accepted]] = candidate[accepted]
        active = active[~accepted]
    return result


def _coins_exp(exponent: Fraction, size: int, source: WordSource) -> Booleans:
    """Flip ``size`` coins that all show heads with probability exp(-exponent)."""
    heads = np.ones(size, dtype=np.bool_)
    whole, rest = divmod(exponent, 1)
    for _ in range(int(whole)):
        undecided = np.flatnonzero(heads)
        if not undecided.size:
            return heads
        heads[undecided] = _bernoulli_exp_unit(np.ones_like(undecided), 1, source)
    undecided = np.flatnonzero(heads)
    heads[undecided] = _alternating(
        undecided.size, lambda left, k: _bernoulli_fraction(rest / k, left.size, source)
    )
    return heads


def _bernoulli_fraction(probability: Fraction, size: int, source: WordSource) -> Booleans:
    """Flip coins of a rational probability < 1: compare binary digits 64 at a time, lazily."""
    heads = np.zeros(size, dtype=np.bool_)
    active = np.arange(size)
    rest = probability
    while active.size and rest > 0:
        digit, rest = divmod(rest * _WORD, 1)
        words = source.take(active.size)
        heads[active[words < np.uint64(int(digit))]] = True
        active = active[words == np.uint64(int(digit))]
    return heads
