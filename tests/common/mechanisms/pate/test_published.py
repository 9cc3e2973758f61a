"""The comparison of PATE aggregators, in small runs on real data."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.linear_model import LogisticRegression

from tests.benchmarks.published import pate, sources


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
