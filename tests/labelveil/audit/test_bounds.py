"""The bounds: their published formulas, their reach, and that they are never above the truth."""

from __future__ import annotations

import pytest
from scipy.stats import beta, binom

from labelveil.audit import bounds
from tests.benchmarks.audit import expected_histogram_event_bound

REACH = {  # (ε, m): 95%, one in a million
    (0.5, 1e3): (0.393, 0.193),
    (0.5, 1e6): (0.497, 0.490),
    (1.0, 1e3): (0.881, 0.666),
    (1.0, 1e4): (0.963, 0.894),
    (1.0, 1e5): (0.988, 0.966),
    (1.0, 1e6): (0.996, 0.989),
    (2.0, 1e5): (1.984, 1.954),
    (4.0, 1e3): (3.601, 3.018),
    (4.0, 1e6): (3.988, 3.964),
}


@pytest.mark.parametrize(("key", "reach"), REACH.items())
def test_one_run_reaches_what_it_can(key: tuple[float, float], reach: tuple[float, float]) -> None:
    for alpha, expected in zip((0.05, 1e-6), reach, strict=True):
        assert bounds.expected_one_run_bound(*key, alpha) == pytest.approx(expected, abs=0.003)


@pytest.mark.parametrize(
    ("epsilon", "reach"), [(1.0, (0.649, 0.892, 0.966, 0.989)), (4.0, (3.073, 3.704, 3.907, 3.971))]
)
def test_the_histogram_event_reaches_what_it_can(epsilon: float, reach: tuple[float, ...]) -> None:
    for power, expected in zip((3, 4, 5, 6), reach, strict=True):
        found = expected_histogram_event_bound(epsilon, 2 * 10**power, 0.05, continuous=True)
        assert found == pytest.approx(expected, abs=0.003)
        discrete = expected_histogram_event_bound(epsilon, 2 * 10**power, 0.05)
        assert discrete >= expected  # whole counts hit the closed half-lines more often


def test_clopper_pearson_is_the_beta_quantile() -> None:
    for hits, runs in ((1, 10), (7, 10), (10, 10), (500, 1000)):
        assert bounds.clopper_pearson_lower(hits, runs, 0.05) == pytest.approx(
            beta.ppf(0.05, hits, runs - hits + 1)
        )
        if hits < runs:
            assert bounds.clopper_pearson_upper(hits, runs, 1e-6) == pytest.approx(
                beta.isf(1e-6, hits + 1, runs - hits)
            )
    assert bounds.clopper_pearson_lower(0, 10, 0.05) == 0
    assert bounds.clopper_pearson_upper(10, 10, 0.05) == 1


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_one_run_bound_covers_exactly(epsilon: float) -> None:
    """The chance of a bound above the truth, summed over every count, is at most α."""
    runs, alpha = 200, 0.05
    share = bounds.guess_probability(epsilon)
    wrong = sum(
        binom.pmf(hits, runs, share)
        for hits in range(runs + 1)
        if bounds.one_run_bound(hits, runs, alpha) > epsilon
    )
    assert 0.001 < wrong <= alpha


@pytest.mark.parametrize(("hits", "runs", "alpha"), [(-1, 10, 0.1), (11, 10, 0.1), (1, 10, 0.0)])
def test_impossible_counts_are_refused(hits: float, runs: float, alpha: float) -> None:
    with pytest.raises(ValueError, match="must lie"):
        bounds.clopper_pearson_lower(hits, runs, alpha)
