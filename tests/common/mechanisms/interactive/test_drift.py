"""The test for drift: its sensitivity by enumeration, its ε exactly, how often it is wrong."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.mechanisms.interactive import DriftTest, affordable_epsilon
from labelveil.common.randomizers import NoisyPrior, private_prior

PRIOR = NoisyPrior(np.array([3, 9, -1, 5]), Fraction(1, 2), 16)


@pytest.mark.parametrize("moved", [1, 2])
def test_replacing_labels_moves_the_statistic_by_at_most_their_number(moved: int) -> None:
    test = DriftTest(PRIOR, 5, Fraction(1, 10), group=moved)
    data = list(itertools.combinations_with_replacement(range(4), 5))
    histograms = np.array([np.bincount(labels, minlength=4) for labels in data])
    found = np.array([test.statistic(counts) for counts in histograms])
    distance = np.abs(histograms[:, None] - histograms[None, :]).sum(axis=2) // 2
    change = np.abs(found[:, None] - found[None, :])[distance <= moved]
    assert change.max() == moved  # attained, so that no smaller sensitivity would do
    assert test.scale == moved * 10
    assert DriftTest(PRIOR, 5, Fraction(1, 10)).scale == 10  # of one record


def test_the_statistic_is_the_largest_distance_of_distribution_functions() -> None:
    test = DriftTest(replace(PRIOR, noisy_counts=np.array([4000, 4000, 4000, 4000]), rows=16000), 8,
                     Fraction(1, 10))  # fmt: skip
    assert test.expected.tolist() == [2, 4, 6, 8]
    assert test.statistic([2, 2, 2, 2]) == 0
    assert test.statistic([8, 0, 0, 0]) == 6
    assert test.statistic([0, 4, 0, 4]) == 2


def test_a_day_has_drifted_from_the_threshold_on() -> None:
    """At an ε of 60 there is noise but once in 10**26 days."""
    prior = replace(PRIOR, noisy_counts=np.array([4000, 4000, 4000, 4000]), rows=16000)
    test, source = DriftTest(prior, 1000, Fraction(60)), seeded_entropy(0).source("x")
    for moved, drifted in ((test.threshold - 1, False), (test.threshold, True)):
        outcome = test.draw([250 + moved, 250 - moved, 250, 250], source)
        assert (outcome.value, outcome.hits) == (drifted, (drifted,))


@pytest.mark.slow
def test_false_alarms_and_misses_are_as_rare_as_stated() -> None:
    """At 2% each; 400 days of which more than 30 wrong have a probability below 1e-9."""
    rng = np.random.default_rng(1)
    entropy = seeded_entropy(1)
    law = rng.dirichlet(np.full(40, 2.0))
    rows, wrong, missed = 6000, 0, 0
    tilted = law * np.linspace(0.0, 2.0, 40)
    for day in range(400):
        if day % 20 == 0:
            source = seeded_entropy(day)
            prior = private_prior(rng.multinomial(6000, law), Fraction(8, 100), source)
        test = DriftTest(prior, rows, Fraction(1, 50), false_alarm=0.02)
        drawn = entropy.source(f"day {day}")
        reach = test.noticed(0.02)
        assert 0.05 < reach < 0.5
        share = reach / np.abs(np.cumsum(tilted / tilted.sum() - law)).max()
        moved = (1 - min(share, 1.0)) * law + min(share, 1.0) * tilted / tilted.sum()
        for away, shifted in ((False, law), (share <= 1.0, moved)):
            drifted = test.draw(rng.multinomial(rows, shifted), drawn).value
            wrong += drifted and not away and shifted is law
            missed += away and not drifted
    assert wrong <= 30
    assert missed <= 30


def test_a_test_costs_what_the_tolerance_needs_and_at_most_a_quarter_of_a_prior() -> None:
    prior = Fraction(1, 10)
    assert affordable_epsilon(prior, 1000, 0.05, 0.01) == Fraction(int(2**24 / 40), 2**24)
    cheap = float(affordable_epsilon(prior, 100_000, 0.05, 0.01))
    assert cheap == pytest.approx(2 * math.log(100) / 5000, rel=1e-3)
    assert float(affordable_epsilon(prior, 100_000, 0.05, 0.01, 3)) == pytest.approx(
        3 * cheap, rel=1e-3
    )
    assert affordable_epsilon(prior, 1000, 0.0, 0.01) == Fraction(int(2**24 / 40), 2**24)


def test_impossible_parameters_are_refused() -> None:
    for change in ({"rows": 0}, {"group": 0}, {"tolerance": 1.0}, {"false_alarm": 0.0}):
        with pytest.raises(PrivacyError):
            DriftTest(**{"prior": PRIOR, "rows": 5, "epsilon": Fraction(1, 10), **change})  # type: ignore[arg-type]
