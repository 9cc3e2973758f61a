"""The comparison of PATE aggregators, in small runs on real data."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from benchmarks.published import pate, sources
from labelveil.common.arrays import Booleans
from labelveil.common.entropy import seeded_entropy
from labelveil.common.mechanisms.pate import StableVote


@pytest.mark.slow
@pytest.mark.skipif(
    bool(sources.missing("optdigits.parquet")), reason=str(sources.missing("optdigits.parquet"))
)
def test_a_hundred_teachers_on_optical_digits() -> None:
    def linear() -> Any:
        return LogisticRegression(max_iter=200)

    outcome = pate.classes(sources.optdigits(), 10, linear)
    assert outcome.ceiling > 0.88
    cheapest = outcome.least()["GNMax"]
    assert cheapest.epsilon < 8
    assert cheapest.answered == 400
    costly = [p for p in outcome.points if p.aggregator == "GNMax" and p.epsilon > 20]
    assert all(p.incurred < p.epsilon for p in costly)


@pytest.mark.slow
def test_stable_answers_win_where_sets_are_large() -> None:
    small, large = pate.by_set_size(False, sizes=(1, 16), queries=50)
    cheap = {o.task: {n: p.epsilon for n, p in o.least().items()} for o in (small, large)}
    stable, clipped = (cheap[large.task][name] for name in ("StableTopK", "PATE-τ, L2"))
    assert stable * 1.8 < clipped
    # and an honest limit: with one label a set, clipping to one vote is as cheap
    assert cheap[small.task]["PATE-τ, L2"] < 1.5 * cheap[small.task]["StableTopK"]


def test_attributes_are_read_as_celeba_publishes_them(tmp_path: Path) -> None:
    file = tmp_path / "list_attr_celeba.txt"
    file.write_text("3\nA B C\n000001.jpg -1  1  1\n000002.jpg  1 -1 -1\n000003.jpg -1 -1 -1\n")
    assert sources.celeba(file).tolist() == [
        [False, True, True],
        [True, False, False],
        [False, False, False],
    ]
    file.write_text("3\nA B C\n000001.jpg -1  1  1\n")
    with pytest.raises(ValueError, match="3 rows"):
        sources.celeba(file)


def test_attributes_of_celebas_sizes() -> None:
    vectors = sources.like_celeba(4000)
    assert vectors.shape == (4000, 40)
    assert 8.5 < vectors.sum(axis=1).mean() < 9.5
    votes, truth = sources.votes_on(vectors, 20, 10, 1.0, 0.0)
    assert np.array_equal(votes[3], truth)


def test_some_labels_are_hard_for_most_teachers() -> None:
    """Beta(1, 14): mean 1/15, and more spread between labels than independent errors have."""
    votes, truth = sources.unequally_hard(sources.like_celeba(4000), 200, 500, seed=1)
    rates = (votes ^ truth).mean(axis=0)
    assert rates.mean() == pytest.approx(1 / 15, abs=0.002)
    assert rates.std() == pytest.approx((14 / 15**2 / 16 + 1 / 15 * 14 / 15 / 200) ** 0.5, rel=0.1)
    other, _ = sources.unequally_hard(sources.like_celeba(4000), 200, 500, seed=2)
    assert not np.array_equal(votes, other)


def test_a_contested_label_closes_the_gap_that_stable_answers_need() -> None:
    def gaps(votes: Booleans) -> Any:
        counts = votes.sum(axis=0)
        named = 2 * counts > len(votes)
        return np.where(named, counts, 200).min(axis=1) - np.where(named, 0, counts).max(axis=1)

    easy = gaps(sources.votes_on(sources.like_celeba(), 200, 40, 0.97, 0.03)[0])
    votes, truth = sources.unequally_hard(sources.like_celeba(), 200, 40, seed=0)
    hard = gaps(votes)
    assert easy.min() == 170
    assert (hard.min(), round(hard.mean())) == (31, 113)
    vote = StableVote(Fraction(1, 100), Fraction(1, 16_000_000), replacing=False)
    wrong = np.any(vote.draw(votes, seeded_entropy(0)).labels != truth, axis=1)
    assert 1 <= wrong.sum() <= 8
    assert hard[wrong].max() < np.quantile(hard, 0.3)


def test_the_ratio_of_two_aggregators_is_of_the_same_draws() -> None:
    def outcome(one: float, other: float, reached: float = 1.0) -> pate.Outcome:
        points = [
            pate.Point("t", "one", one, 0.0, 1.0, 1),
            pate.Point("t", "one", one / 9, 0.0, 0.5, 1),  # cheap, and bad
            pate.Point("t", "other", other, 0.0, reached, 1),
        ]
        return pate.Outcome("t", 1.0, points)

    runs = [outcome(1.0, 2.0), outcome(3.0, 4.0), outcome(9.0, 1.0, reached=0.9)]
    assert pate.ratio(runs, "one", "other") == "0.62 ± 0.12"  # of 1/2 and 3/4; the third never
    assert pate.ratio(runs[1:], "one", "other") == "never"


def test_repetitions_have_votes_of_their_own() -> None:
    vectors = sources.like_celeba()
    first, again, other = (
        sources.votes_on(vectors, 20, 10, 0.97, 0.03, seed)[0] for seed in (29, 29, 30)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
