"""Statistical tests whose thresholds all follow from one stated false-alarm rate.

At :data:`RATE` right software fails a test in one of a billion runs. A test that cannot fail proves
nothing, so anyone who calls one of these also shows that the same call rejects a broken twin.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import stats

from labelveil.common.arrays import Floats, Integers

if TYPE_CHECKING:
    from labelveil.feature_party.evaluation.intervals import Measured

RATE = 1e-9
DRAWS = 200_000
"""Enough that a scale which is 5% off is rejected with a probability above 1 - 1e-9."""

_LEAST_EXPECTED = 20.0


def counts_fit(counts: Integers | Floats, probabilities: Floats, rate: float = RATE) -> bool:
    """Whether counts of cells agree with their probabilities.

    Pearson's χ² over the cells in which at least 20 are expected, and an exact binomial test of all
    others together, at half the rate each. Probabilities may fall short of 1; then the others take
    the remainder.
    """
    total = int(np.sum(counts))
    large = total * probabilities >= _LEAST_EXPECTED
    expected = total * probabilities[large]
    statistic = float(np.sum((counts[large] - expected) ** 2 / expected))
    rest, share = int(np.sum(counts[~large])), max(1 - float(np.sum(probabilities[large])), 0.0)
    alike = stats.chi2.sf(statistic, max(int(large.sum()), 1)) > rate / 2
    return bool(alike and stats.binomtest(rest, total, share).pvalue > rate / 2)


def fits(samples: Integers, mass: Callable[[Integers], Floats], rate: float = RATE) -> bool:
    """Whether integers agree with a probability mass function, which takes an array of integers.

    Neighbours are counted together where the law is wide, in about a hundred cells.
    """
    reach = int(np.abs(samples).max()) + 1
    probabilities = mass(np.arange(-reach, reach + 1))
    share = max(0.01, _LEAST_EXPECTED / samples.size)
    cells = np.floor(np.cumsum(probabilities) / share).astype(np.int64)
    counts = np.bincount(cells[samples + reach], minlength=cells[-1] + 1)
    return counts_fit(counts, np.bincount(cells, probabilities), rate)


def outcomes_fit(
    seen: Counter[Hashable], law: Mapping[Hashable, float], rate: float = RATE
) -> bool:
    """Whether counted outcomes of any kind agree with a law."""
    if any(law.get(outcome, 0.0) <= 0 for outcome in seen):
        return False
    counts = np.array([seen[outcome] for outcome in law])
    return counts_fit(counts, np.array(list(law.values())), rate)


def follows(sample: Floats, cdf: Callable[[Floats], Floats], rate: float = RATE) -> bool:
    """Whether real numbers agree with a distribution function (Kolmogorov and Smirnov)."""
    return bool(stats.kstest(sample, cdf).pvalue > rate)


def mean_fits(
    sample: Floats, mean: float, deviation: float | None = None, rate: float = RATE
) -> bool:
    """Whether an average of many draws agrees with a mean, by the central limit theorem.

    ``deviation`` is that of one draw; by default that of the sample.
    """
    spread = float(np.std(sample)) if deviation is None else deviation
    return bool(abs(np.mean(sample) - mean) <= deviations(rate) * spread / np.sqrt(np.size(sample)))


def deviations(rate: float = RATE) -> float:
    """How many standard deviations a normal number passes, to either side, at this rate."""
    return float(stats.norm.isf(rate / 2))


def binomial_range(trials: int, chance: float, rate: float = RATE) -> tuple[int, int]:
    """The least and the most successes of ``trials``, outside of which fall at most this rate."""
    law = stats.binom(trials, chance)
    return int(law.ppf(rate / 2)), int(law.isf(rate / 2))


def covers(
    truth: float, intervals: Iterable[Measured], width: float = 1.0, rate: float = 1e-6
) -> bool:
    """Whether 95% intervals hold a truth as often as they say, or those of another ``width`` do.

    Of intervals no wider than they must be, those a fifth narrower hold 88.3%: of 1,000 they are
    rejected with a probability of .9996, of 600 with .97, and of 30 hardly ever.
    """
    held = [
        each.value - width * (each.value - each.low)
        <= truth
        <= each.value + width * (each.high - each.value)
        for each in intervals
    ]
    return sum(held) >= binomial_range(len(held), 0.95, 2 * rate)[0]


@contextmanager
def repeatable_entropy(seed: int = 0) -> Iterator[None]:
    """Give this process the same "system" entropy in every run, key after key.

    For tests to which noise is a nuisance, and for audits, whose gate lets right software fail once
    in a million runs.
    """
    calls = itertools.count()

    def urandom(size: int) -> bytes:
        return hashlib.shake_256(f"{seed} {next(calls)}".encode()).digest(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labelveil.common.entropy.os", SimpleNamespace(urandom=urandom))
        yield


@pytest.fixture
def repeatable() -> Iterator[None]:
    """As above, for one test."""
    with repeatable_entropy():
        yield


def laplace_mass(scale: float | Fraction) -> Callable[[Integers], Floats]:
    """The discrete Laplace law: P(z) ∝ exp(-|z| / scale)."""
    ratio = math.exp(-1 / float(scale))
    return lambda z: (1 - ratio) / (1 + ratio) * ratio ** np.abs(z).astype(float)


def gaussian_mass(variance: float | Fraction) -> Callable[[Integers], Floats]:
    """The discrete Gaussian law: P(z) ∝ exp(-z² / 2 variance)."""
    twice = 2 * float(variance)
    reach = np.arange(-int(40 * math.sqrt(twice)) - 40, int(40 * math.sqrt(twice)) + 41)
    total = np.exp(-(reach.astype(float) ** 2) / twice).sum()
    return lambda z: np.exp(-(z.astype(float) ** 2) / twice) / total
