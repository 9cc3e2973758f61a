"""Exact draws from ``P(i) ∝ w_i exp(rate · score_i)``, however many candidates there are.

This is the exponential mechanism, and at the same time the argmax of scores plus Gumbel noise of
scale 1/rate. The weights are irrational, so a uniform number is drawn digit by digit and compared
with *intervals* around the cumulative weights: double precision with a proven error decides almost
always; where the number falls inside an interval, the weights are computed again with more digits
until it does not. The outcome is the one that infinite precision would give, so the law is exactly
the stated one. Candidates of equal score share one weight, so a million of them cost one sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

import numpy as np

from common.arrays import Integers
from common.entropy import WordSource
from common.exact.noise import bernoulli_exp, uniform_below

_WORD = 1 << 64
_FLOAT_ERROR = 1e-9
"""Of a cumulative share in double precision.

A weight has relative error below 2e-13 (its exponent is at least -745 and exact to 2^-52 of itself;
weights below e^-745 become 0, which is an absolute error), a sum of at most 2^20 of them 2.4e-10.
"""
_MAX_LEVELS = 1 << 20
_LEAST_EXPONENT = -745.0


def exponential_choice(
    scores: Integers,
    rate: Fraction,
    source: WordSource,
    weights: Sequence[int] | Sequence[Fraction] | Integers | None = None,
) -> int:
    """Draw index i with probability ∝ ``weights[i] exp(rate · scores[i])``, exactly.

    Parameters
    ----------
    scores
        (n,) integers.
    rate
        Rational >= 0.
    source
        Where the random words come from.
    weights
        (n,) rationals > 0; the default is 1 for all.
    """
    if weights is not None:
        return _draw(scores, [Fraction(weight) for weight in weights], rate, source)
    levels, counts = np.unique(scores, return_counts=True)
    level = levels[_draw(levels, counts.tolist(), rate, source)]
    members = np.flatnonzero(scores == level)
    return int(members[uniform_below(int(members.size), 1, source)[0]])


def exponential_peeling(
    scores: Integers, rate: Fraction, draws: int, source: WordSource
) -> Integers:
    """Draw ``draws`` distinct indices, one exponential choice after another, exactly.

    The same law as the ``draws`` largest of scores plus Gumbel noise, in order (Durfee and Rogers
    2019, Lemma 4.2).

    Parameters
    ----------
    scores
        (n,) integers.
    rate
        Rational >= 0.
    draws
        0 <= draws <= n.
    source
        Where the random words come from.

    Returns
    -------
    (draws,) indices in the order of drawing.
    """
    order = np.argsort(scores, kind="stable")
    levels, starts, counts = np.unique(scores[order], return_index=True, return_counts=True)
    counts = counts.astype(np.int64)
    chosen = np.empty(draws, dtype=np.int64)
    for j in range(draws):
        alive = np.flatnonzero(counts)
        level = int(alive[_draw(levels[alive], counts[alive].tolist(), rate, source)])
        start, count = int(starts[level]), int(counts[level])
        pick = start + int(uniform_below(count, 1, source)[0])
        chosen[j] = order[pick]
        order[pick] = order[start + count - 1]
        counts[level] -= 1
    return chosen


def permute_and_flip(scores: Integers, rate: Fraction, source: WordSource) -> int:
    """Draw the argmax of scores plus *exponential* noise of scale 1/rate, exactly.

    Permute-and-flip: in random order flip a coin of probability ``exp(rate (score − max))`` for
    each candidate and take the first that shows heads (McKenna and Sheldon 2020; the equivalence is
    Ding et al. 2021, Theorem 5). The first head of a random order is a uniform one of all heads, so
    all coins may be flipped at once.

    Parameters
    ----------
    scores
        (n,) integers whose spread times the rate's numerator is below 2^62.
    rate
        Rational >= 0, denominator at most 2^48.
    source
        Where the random words come from.
    """
    behind = int(scores.max()) - scores
    if int(behind.max()) * rate.numerator >= 1 << 62:
        raise ValueError(f"rate={rate} has too large a numerator for these scores; round it")
    heads = np.flatnonzero(bernoulli_exp(behind * rate.numerator, rate.denominator, source))
    return int(heads[uniform_below(int(heads.size), 1, source)[0]])


def _draw(
    scores: Integers,
    weights: Sequence[Fraction],
    rate: Fraction,
    source: WordSource,
) -> int:
    """Draw one of few weighted levels: exactly, fast, and with more digits where needed."""
    if scores.size > _MAX_LEVELS:
        raise ValueError(f"{scores.size} distinct scores are above {_MAX_LEVELS}")
    digits = int(source.take(1)[0])
    behind = scores - int(scores.max())
    exponents = behind.astype(np.float64) * float(rate)
    masses = np.array([float(weight) for weight in weights]) * np.exp(
        np.maximum(exponents, _LEAST_EXPONENT)
    )
    masses[exponents < _LEAST_EXPONENT] = 0.0
    cumulative = np.cumsum(masses)
    cumulative /= cumulative[-1]
    low, high = digits / _WORD - _FLOAT_ERROR, (digits + 1) / _WORD + _FLOAT_ERROR
    first = int(np.searchsorted(cumulative, low, side="right"))
    if first < scores.size and (high <= cumulative[first] or first == scores.size - 1):
        return first
    exact = [Fraction(weight) for weight in weights]
    return _draw_slowly(behind.tolist(), exact, rate, digits, source)


def _draw_slowly(
    behind: Sequence[int],
    weights: Sequence[Fraction],
    rate: Fraction,
    digits: int,
    source: WordSource,
) -> int:
    """Decide by interval arithmetic on decimal numbers, with ever more digits."""
    bits, precision = 64, 40
    while True:
        lows, highs = _cumulative_bounds(behind, weights, rate, precision)
        # U lies in [digits, digits + 1) / 2^bits; compare U · total with the cumulative weights
        for i in range(len(behind)):
            certain_above = i == 0 or digits * lows[-1] >= highs[i - 1] * (1 << bits)
            certain_below = (digits + 1) * highs[-1] <= lows[i] * (1 << bits)
            if certain_above and (certain_below or i == len(behind) - 1):
                return i
            if not certain_above:
                break
        digits = digits * _WORD + int(source.take(1)[0])
        bits, precision = bits + 64, precision + 24


def _cumulative_bounds(
    behind: Sequence[int],
    weights: Sequence[Fraction],
    rate: Fraction,
    precision: int,
) -> tuple[list[Fraction], list[Fraction]]:
    """Rational lower and upper bounds of the cumulative weights."""
    down = Context(prec=precision, rounding=ROUND_FLOOR, Emin=-(10**9), Emax=10**9)
    up = Context(prec=precision, rounding=ROUND_CEILING, Emin=-(10**9), Emax=10**9)
    low, high = Fraction(0), Fraction(0)
    lows, highs = [], []
    for distance, weight in zip(behind, weights, strict=True):
        exponent = distance * rate
        top, bottom = Decimal(exponent.numerator), Decimal(exponent.denominator)
        # Decimal's exp rounds to nearest whatever the context says: step outwards once more
        least = down.next_minus(down.exp(down.divide(top, bottom)))
        most = up.next_plus(up.exp(up.divide(top, bottom)))
        low += max(Fraction(0), Fraction(least)) * weight
        high += Fraction(most) * weight
        lows.append(low)
        highs.append(high)
    return lows, highs
