"""Exact draws from ``P(i) ∝ w_i exp(rate · score_i)``, however many candidates there are.

This is the exponential mechanism, and at the same time the argmax of scores plus Gumbel noise of
scale 1/rate. The weights are irrational, so a uniform number is drawn digit by digit and compared
with *intervals* around the cumulative weights: double precision with a proven error decides almost
always; where the number falls inside an interval, the weights are computed again with more digits
until it does not. The outcome is the one that infinite precision would give, so the law is exactly
the stated one. Candidates of equal score share one weight, so a million of them cost one sort.

*Double precision decides nothing that it does not know.* Let ``a_i = ln w_i − rate · d_i``, d_i the
distance to the highest score and w_i = p_i/q_i. The computed a_i is off by at most ``η_i = 2^-49
(ln p_i + ln q_i + rate · d_i + 1)``: logarithms of integers, a product, differences, each right to
a few units in the last place. Masses ``exp(a_i − A)`` are taken relative to the largest *product*,
of logarithm A, so that none of those that count is subnormal, whatever weights and scores are.
Those with ``a_i + η_i < A − 700`` are left out, which is an absolute error of n e^-699 at most;
the others are right to a factor ``1 ± 3η``, η the sum of the largest of their η_i and that of A, as
long as η < 1/4. A float sum of n < 2^40 positive numbers is right to ``n 2^-52`` of itself. A
cumulative share is a quotient of two such sums, hence off by less than ``max(1e-9, n 2^-50) + 8η``,
and that is the interval around it: from η = 1/8 on it holds every share, and decides nothing.

*More digits.* Products are bounded from both sides by decimal arithmetic, rounded outwards, and
then by integers in a unit that lies those digits below the largest of them. An integer bound of one
unit is never too small for a product of any smallness, so that underflow only widens an interval.
Intervals shrink with every round while the uniform number gets 64 more bits: a round leaves a
number undecided with probability of about 2^-60.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

import numpy as np

from labelveil.common.arrays import Floats, Integers, Words
from labelveil.common.entropy import WordSource
from labelveil.common.exact.noise import bernoulli_exp, uniform_below

_WORD = 1 << 64
_SUM_ERROR = 1e-9
"""Of a cumulative share in double precision, at least, beside what the logarithms err by."""
_STEP_ERROR = 2.0**-50
"""The same, for each of the numbers that are added up."""
_LOG_ERROR = 2.0**-49
_NEGLIGIBLE = -700.0
_LARGEST_RATE = 10**200
_DIGITS = 40
"""Decimal digits of the first round with more digits than a float; 64 bits more need 20 more."""


def exponential_choice(
    scores: Integers,
    rate: Fraction,
    source: WordSource,
    weights: Sequence[int | Fraction] | None = None,
) -> int:
    """Draw index i with probability ∝ ``weights[i] exp(rate · scores[i])``, exactly.

    Scores are (n,) integers, the rate is >= 0, weights are rationals > 0 and by default all 1.
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
    """Draw ``draws`` <= n distinct indices, one exponential choice after another, exactly.

    The same law as the ``draws`` largest of scores plus Gumbel noise, in order (Durfee and Rogers
    2019, Lemma 4.2), and the indices come in that order.
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
    all coins may be flipped at once. The rate's denominator is at most 2^48.
    """
    behind = _behind(scores)
    if int(behind.max()) * rate.numerator < 1 << 62:
        exponents = behind.astype(np.int64) * rate.numerator
    else:  # Python integers: scores are private and must not decide whether there is an answer
        exponents = behind.astype(object) * rate.numerator
    heads = np.flatnonzero(bernoulli_exp(exponents, rate.denominator, source))
    return int(heads[uniform_below(int(heads.size), 1, source)[0]])


def _behind(scores: Integers) -> Words:
    """Distances to the highest score, modulo 2^64 and so right for any two int64."""
    return np.uint64(int(scores.max()) % _WORD) - scores.astype(np.int64).view(np.uint64)


def _draw(
    scores: Integers, weights: Sequence[int | Fraction], rate: Fraction, source: WordSource
) -> int:
    """Draw one of the weighted levels: exactly, fast, and with more digits where needed."""
    word = int(source.take(1)[0])
    behind = _behind(scores)
    decided = _decided_in_floats(behind.astype(np.float64), weights, rate, word)
    return (
        _draw_slowly(behind.tolist(), weights, rate, word, source) if decided is None else decided
    )


def _decided_in_floats(
    behind: Floats, weights: Sequence[int | Fraction], rate: Fraction, word: int
) -> int | None:
    """The level that the first word decides for; None if double precision cannot know."""
    if rate >= _LARGEST_RATE:
        return None
    above = np.array([math.log(weight.numerator) for weight in weights])
    below = np.array([math.log(weight.denominator) for weight in weights])
    steps = behind * float(rate)
    # of each logarithm; levels that are negligible even with it bear on no interval below
    errors = _LOG_ERROR * (above + below + steps + 1)
    products = above - below - steps
    top = int(products.argmax())
    products -= products[top]
    counted = products + errors >= _NEGLIGIBLE
    error = float(errors[counted].max() + errors[top])
    cumulative = np.cumsum(np.where(counted, np.exp(products), 0.0))
    cumulative /= cumulative[-1]
    # the word decides only where no true cumulative weight can lie within its interval
    interval = max(_SUM_ERROR, len(weights) * _STEP_ERROR) + 8 * error
    low, high = word / _WORD - interval, (word + 1) / _WORD + interval
    first = int(np.searchsorted(cumulative, low, side="right"))
    last = len(weights) - 1
    return first if first == last or high <= cumulative[first] else None


def _draw_slowly(
    behind: Sequence[int],
    weights: Sequence[int | Fraction],
    rate: Fraction,
    word: int,
    source: WordSource,
) -> int:
    """Decide by integer bounds of the cumulative weights, with ever more digits."""
    digits, bits, precision = word, 64, _DIGITS
    while True:
        lows, highs = _cumulative_bounds(behind, weights, rate, precision)
        # U lies in [digits, digits + 1) / 2^bits; compare U · total with the cumulative weights
        for i in range(len(behind)):
            certain_above = i == 0 or digits * lows[-1] >= highs[i - 1] << bits
            certain_below = (digits + 1) * highs[-1] <= lows[i] << bits
            if certain_above and (certain_below or i == len(behind) - 1):
                return i
            if not certain_above:
                break
        digits = digits * _WORD + int(source.take(1)[0])
        bits, precision = bits + 64, precision + 24


def _cumulative_bounds(
    behind: Sequence[int], weights: Sequence[int | Fraction], rate: Fraction, precision: int
) -> tuple[list[int], list[int]]:
    """Integer lower and upper bounds of the cumulative weights, in some common unit."""
    wide = {"prec": precision, "Emin": MIN_EMIN, "Emax": MAX_EMAX, "traps": []}
    down = Context(rounding=ROUND_FLOOR, **wide)  # type: ignore[arg-type]
    up = Context(rounding=ROUND_CEILING, **wide)  # type: ignore[arg-type]
    products = []
    for distance, weight in zip(behind, weights, strict=True):
        exponent = -distance * rate
        top, bottom = Decimal(exponent.numerator), Decimal(exponent.denominator)
        # Decimal's exp rounds to nearest whatever the context says: step outwards once more
        least = down.next_minus(down.exp(down.divide(top, bottom)))
        most = up.next_plus(up.exp(up.divide(top, bottom)))
        top, bottom = Decimal(weight.numerator), Decimal(weight.denominator)
        least = down.multiply(max(least, Decimal(0)), down.divide(top, bottom))
        products.append((least, up.multiply(most, up.divide(top, bottom))))
    shift = precision - max(most for _, most in products).adjusted()
    lows, highs, low, high = [], [], 0, 0
    for least, most in products:
        low += int(least.scaleb(shift, down).to_integral_value(ROUND_FLOOR, down))
        high += int(most.scaleb(shift, up).to_integral_value(ROUND_CEILING, up))
        lows.append(low)
        highs.append(high)
    return lows, highs
