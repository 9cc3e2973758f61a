"""Exact draws: every word decides as rational arithmetic says, whatever the scores and weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelveil.common.entropy import Entropy, seeded_entropy
from labelveil.common.exact import exponential_choice as choice
from tests.common.mechanisms.selection import laws
from tests.statistics import outcomes_fit

LAST = 2**64 - 1

Case = tuple[list[int], Fraction, list[Fraction]]

CASES: dict[str, Case] = {
    "plain": ([0, 3, 5, 1], Fraction(7, 10), [Fraction(1)] * 4),
    "weights": ([4, 0, 2], Fraction(1, 3), [Fraction(1), Fraction(5), Fraction(7, 3)]),
    # a database of many rows over many cells: each weight is a multinomial share
    "subnormal weights": ([9, 5, 0], Fraction(1), [Fraction(k, 10**322) for k in (1, 9, 30)]),
    "vanishing weights": ([2, 0], Fraction(1, 2), [Fraction(1, 10**700), Fraction(2, 10**700)]),
    "enormous weights": ([0, 1], Fraction(2), [Fraction(10**400), Fraction(10**399)]),
    "subnormal products": ([740, 1, 0], Fraction(1), [Fraction(1, 10**330), *[Fraction(3)] * 2]),
    "far scores": ([10**12, 0], Fraction(1, 2), [Fraction(1), Fraction(1)]),
    "the ends of int64": ([2**63 - 1, -(2**63)], Fraction(3, 2**64), [Fraction(1)] * 2),
    "weights that make up for scores": (
        [0, 4600],
        Fraction(1),
        [Fraction(10**1998), Fraction(1)],
    ),
    "no rate": ([5, 0, 0], Fraction(0), [Fraction(1), Fraction(1, 3), Fraction(2, 7)]),
    "rates without a float": ([1, 0], Fraction(10**400), [Fraction(1), Fraction(9)]),
    "weights near 1": ([0, 0], Fraction(1), [Fraction(10**300 + 1, 10**300), Fraction(1)]),
}


class Tape:
    """Words that were written down, and zeros."""

    def __init__(self, *words: int) -> None:
        self.words = list(words)

    def take(self, count: int) -> Any:
        taken = [self.words.pop(0) if self.words else 0 for _ in range(count)]
        return np.array(taken, dtype=np.uint64)


def cumulative(case: Case) -> list[Fraction]:
    """Cumulative shares to 300 digits, by Python's own decimals."""
    scores, rate, weights = case
    context = Context(prec=400, Emin=-(10**17), Emax=10**17)
    masses = []
    for score, weight in zip(scores, weights, strict=True):
        exponent = (score - max(scores)) * rate
        power = context.exp(
            context.divide(Decimal(exponent.numerator), Decimal(exponent.denominator))
        )
        masses.append(weight * (Fraction(power) if power.adjusted() > -5000 else 0))
    return [sum(masses[: i + 1], Fraction(0)) / sum(masses) for i in range(len(masses))]


def words_to_try(shares: Sequence[Fraction]) -> Iterator[int]:
    """Some of everywhere, and those around every boundary."""
    yield from range(0, LAST, LAST // 199)
    for share in shares:
        at = math.floor(share * 2**64)
        for step in (0, 1, 2, 1000, 10**6, 10**10):
            yield from (word for word in (at - step, at + step) if 0 <= word <= LAST)


def wrong_decisions(draw: Callable[..., int | None], case: Case) -> list[int]:
    """Words for which a draw answers otherwise than the definition does."""
    scores, rate, weights = case
    shares = cumulative(case)
    wrong = []
    for word in words_to_try(shares):
        drawn = draw(np.array(scores), weights, rate, Tape(word))
        # the word is followed by zeros, so U = word / 2^64; at a boundary itself the next one wins
        if drawn is not None and drawn != sum(share * 2**64 <= word for share in shares):
            wrong.append(word)
    return wrong


def weighted(scores: Any, weights: Any, rate: Fraction, source: Any) -> int:
    return choice.exponential_choice(scores, rate, source, weights)


def in_floats(scores: Any, weights: Any, rate: Fraction, source: Any) -> int | None:
    behind = choice._behind(scores).astype(np.float64)
    return choice._decided_in_floats(behind, weights, rate, int(source.take(1)[0]))


def slowly(scores: Any, weights: Any, rate: Fraction, source: Any) -> int:
    behind = choice._behind(scores).tolist()
    return choice._draw_slowly(behind, weights, rate, int(source.take(1)[0]), source)


def as_it_was(scores: Any, weights: Any, rate: Fraction, source: Any) -> int | None:
    """The broken twin: products in double precision, subnormal ones too."""
    behind = (scores - scores.max()).astype(np.float64) * float(rate)
    masses = np.array([float(w) for w in weights]) * np.exp(np.maximum(behind, -745.0))
    shares = np.cumsum(masses) / masses.sum()
    word = int(source.take(1)[0])
    low, high = word / 2**64 - 1e-9, (word + 1) / 2**64 + 1e-9
    first = int(np.searchsorted(shares, low, side="right"))
    return first if first < len(weights) and high <= shares[first] else None


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("draw", [weighted, in_floats, slowly])
def test_every_word_decides_as_rational_arithmetic_says(
    name: str, draw: Callable[..., int | None]
) -> None:
    assert not wrong_decisions(draw, CASES[name])


def test_products_of_a_few_bits_are_rejected() -> None:
    assert wrong_decisions(as_it_was, CASES["subnormal weights"])
    assert not wrong_decisions(as_it_was, CASES["weights"])


@pytest.mark.parametrize("name", ["plain", "subnormal weights", "weights that make up for scores"])
def test_floats_decide_almost_always(name: str) -> None:
    scores, rate, weights = CASES[name]
    words = range(0, LAST, LAST // 499)
    decided = [in_floats(np.array(scores), weights, rate, Tape(word)) for word in words]
    assert sum(one is not None for one in decided) > 0.99 * len(decided)


@pytest.mark.parametrize(("digits", "error"), [(1, 1e-9), (50_000, 7.54e-9)])
def test_the_interval_grows_with_the_logarithms(digits: int, error: float) -> None:
    """By 8 times 2^-49 of the sums of those that count: twice 2 ln(10^50000), here."""
    far = round(digits * math.log(10))
    share = 1 / (1 + math.exp(far - digits * math.log(10)))
    given = np.array([0, far]), [10**digits, 1], Fraction(1)
    for beyond, decided in ((0.9 * error, [None, None]), (1.1 * error, [0, 1])):
        words = (int((share - beyond) * 2**64), int((share + beyond) * 2**64))
        assert [in_floats(*given, Tape(word)) for word in words] == decided


def test_an_undecided_word_is_resolved_by_more_digits() -> None:
    """A boundary at exactly one half: the word 2^63 decides, the word just below needs the rest."""
    halves = [Fraction(1)] * 2
    assert choice._draw_slowly([0, 0], halves, Fraction(1), 2**63, Tape(1)) == 1  # type: ignore[arg-type]
    assert choice._draw_slowly([0, 0], halves, Fraction(1), 2**63 - 1, Tape(LAST - 5)) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("digits", [2, 3, 5])
@pytest.mark.parametrize("weights", [[1, 1, 1], [1, Fraction(2, 3), Fraction(1, 7)]])
def test_bounds_enclose_each_weight_however_few_digits_they_have(
    digits: int, weights: list[Fraction]
) -> None:
    """Against 400 digits, for many rates: what is rounded to nearest fails at some."""
    unit, context = 10**digits, Context(prec=400)
    for rate in (Fraction(n, 97) for n in range(1, 300, 6)):
        lows, highs = choice._cumulative_bounds([0, 1, 2], weights, rate, digits)
        power = Fraction(context.exp(Decimal(-rate.numerator) / rate.denominator))
        true = [weight * power**k for k, weight in enumerate(weights)]
        for k, (low, high) in enumerate(zip(lows, highs, strict=True)):
            before = (lows[k - 1], highs[k - 1]) if k else (0, 0)
            assert low - before[0] <= true[k] * unit <= high - before[1]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_distances_to_the_highest_score_are_those_of_whole_numbers(scores: list[int]) -> None:
    """Whether all of them are below 0, all above, or at the ends."""
    assert choice._behind(np.array(scores)).tolist() == [max(scores) - each for each in scores]


@pytest.mark.parametrize(("constant", "error"), [("_SUM_ERROR", 0.6), ("_STEP_ERROR", 0.2)])
def test_the_draw_falls_back_where_floats_do_not_know(
    constant: str, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = np.array([3, 1, 0, 3])
    plain = np.array(scores), [1, 1, 1, 1], Fraction(7, 10)
    assert in_floats(*plain, Tape(LAST // 4)) is not None
    monkeypatch.setattr(choice, constant, error)
    assert in_floats(*plain, Tape(LAST // 4)) is None
    law = dict(enumerate(laws.softmax([0.7 * s for s in scores.tolist()]).tolist()))

    def draw(entropy: Entropy) -> int:
        return choice.exponential_choice(scores, Fraction(7, 10), entropy.source("x"))

    seen = laws.drawn(draw)
    assert outcomes_fit(seen, law)
    assert not outcomes_fit(seen, laws.broken_twin(law))


def test_scores_of_any_size() -> None:
    source = seeded_entropy(5).source("x")
    ends = np.array([-(2**63), 2**63 - 1])
    assert choice.exponential_choice(ends, Fraction(1, 2), source) == 1
    assert choice.permute_and_flip(ends, Fraction(12345678901, 2**48), source) == 1
    assert choice.permute_and_flip(np.array([0, 10**12]), Fraction(1, 2), source) == 1
    for numerator in (2**42 - 1, 2**42 + 1, 2**43 + 1, 2**44 - 1):  # products around 2^62 to 2^64
        rate = Fraction(numerator, 2**48)
        assert choice.permute_and_flip(np.array([0, 2**20]), rate, source) == 1
    steep = [choice.permute_and_flip(np.array([0, 1]), Fraction(500, 7), source) for _ in range(30)]
    assert steep == [1] * 30
    assert choice.exponential_peeling(np.array([5, 0, 9]), Fraction(60), 3, source).tolist() == [
        2,
        0,
        1,
    ]
    for scores in ([5, 5], [5, 7, 5, 5, 7]):  # each is drawn once, however many are alike
        for _ in range(20):
            drawn = choice.exponential_peeling(np.array(scores), Fraction(0), len(scores), source)
            assert sorted(drawn.tolist()) == list(range(len(scores)))


MANY = (1 << 20) + 7
"""Distinct scores: one user's tie more or less is on either side of a million of them."""


def test_any_number_of_distinct_scores_is_drawn_from() -> None:
    """Words in the midst of a score's share of the line, which closed forms give."""
    scores, rate = np.arange(MANY), Fraction(1, 1000)
    middle = MANY // 2
    word = (2 * middle + 1) * (LAST + 1) // (2 * MANY)
    assert choice.exponential_choice(scores, Fraction(0), Tape(word)) == middle  # type: ignore[arg-type]
    # up to the i-th from the top: (1 - r^i) / (1 - r^n), r = e^-rate
    ends = [math.expm1(-0.001 * i) / math.expm1(-0.001 * MANY) for i in (777, 778)]
    word = LAST - int(sum(ends) / 2 * 2**64)
    first, *_ = choice.exponential_peeling(scores, rate, 1, Tape(word))  # type: ignore[arg-type]
    assert first == MANY - 778


def test_the_interval_covers_a_long_sums_error() -> None:
    """Against exact sums: where double precision decides, the decision is right."""
    random = np.random.default_rng(3)
    masses = np.exp(-random.random(1 << 22))
    shares = np.cumsum(masses)
    exact = Fraction(math.fsum(masses[: 1 << 21])) / Fraction(math.fsum(masses))
    error = abs(Fraction(shares[(1 << 21) - 1] / shares[-1]) - exact)
    assert 0 < error < masses.size * choice._STEP_ERROR
    assert masses.size * choice._STEP_ERROR > choice._SUM_ERROR  # it is what counts here
