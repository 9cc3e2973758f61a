"""Exact draws: the slow path decides as the fast one, and both follow the law."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.entropy import Entropy, seeded_entropy
from common.exact import exponential_choice as choice
from tests.common.mechanisms.selection import laws
from tests.statistics import outcomes_fit

quick = settings(max_examples=40, deadline=None)


@quick
@given(
    scores=st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True),
    rate=st.fractions(Fraction(1, 50), 3, max_denominator=100),
    digits=st.integers(0, 2**64 - 1),
)
def test_interval_arithmetic_agrees_with_the_definition(
    scores: list[int], rate: Fraction, digits: int
) -> None:
    weights = [Fraction(1 + i % 3) for i in range(len(scores))]
    behind = [score - max(scores) for score in scores]
    drawn = choice._draw_slowly(behind, weights, rate, digits, seeded_entropy(1).source("x"))
    masses = [float(w) * math.exp(float(rate) * b) for w, b in zip(weights, behind, strict=True)]
    shares = np.cumsum(masses) / sum(masses)
    u = digits / 2**64
    assert (shares[drawn - 1] if drawn else 0) - 1e-12 <= u <= shares[drawn] + 1e-12


def test_an_undecided_word_is_resolved_by_more_digits() -> None:
    """A boundary at exactly one half: the word 2^63 decides, the word just below needs the rest."""
    source = seeded_entropy(3).source("x")
    assert choice._draw_slowly([0, 0], [Fraction(1)] * 2, Fraction(1), 2**63, source) == 1
    assert choice._draw_slowly([0, 0], [Fraction(1)] * 2, Fraction(1), 2**63 - 1, source) == 0


def test_the_fast_path_falls_back_near_a_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_FLOAT_ERROR", 0.6)
    scores = np.array([3, 1, 0, 3])
    law = dict(enumerate(laws.softmax([0.7 * s for s in scores.tolist()]).tolist()))

    def draw(entropy: Entropy) -> int:
        return choice.exponential_choice(scores, Fraction(7, 10), entropy.source("x"))

    seen = laws.drawn(draw)
    assert outcomes_fit(seen, law)
    assert not outcomes_fit(seen, laws.broken_twin(law))


def test_weights_and_scores_of_any_size() -> None:
    source = seeded_entropy(5).source("x")
    scores = np.array([0, 10**12])
    assert choice.exponential_choice(scores, Fraction(1, 2), source) == 1
    weights = [Fraction(10**30), Fraction(1)]
    assert choice.exponential_choice(np.array([0, 1]), Fraction(1), source, weights) == 0
    assert choice.permute_and_flip(scores, Fraction(1, 2), source) == 1
    assert choice.exponential_peeling(np.array([5, 0, 9]), Fraction(60), 3, source).tolist() == [
        2,
        0,
        1,
    ]
    assert choice.exponential_peeling(np.array([5, 5]), Fraction(0), 2, source).size == 2
