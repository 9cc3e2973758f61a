"""The two steps together: every joint outcome of a tiny data set, enumerated through the code."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelveil.common.arrays import Integers
from labelveil.common.entropy import WordSource, seeded_entropy
from labelveil.common.errors import DataError, PrivacyError
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.guarantees import Unit
from labelveil.common.randomizers import prior as prior_module
from labelveil.common.randomizers import private_prior, split_budget
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.prior import rational_epsilon
from tests.effort import effort
from tests.one_label import OneLabel, one_label
from tests.statistics import DRAWS, fits, laplace_mass

GRID = Grid.from_edges([0, 1, 5])
ROWS = effort(3, 4)
REACH = range(-1, ROWS + 2)
"""Noisy counts that are looked at. Beyond them the noise's ratio is what it is at the end."""

Histogram = tuple[int, ...]


class Enumeration:
    """The two-step procedure as a function of the noisy histogram, for any noise scale it asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, epsilon: float, *, leak: bool = False):
        self.epsilon = epsilon
        self.scales: set[Fraction] = set()
        self._patch = monkeypatch
        self._leak = leak
        self._seen: dict[tuple[Histogram, Histogram], OneLabel] = {}

    def run(self, counts: Histogram, noisy: Histogram) -> OneLabel:
        """Return what the code releases when its noise makes ``noisy`` of ``counts``."""
        key = (counts if self._leak else (), noisy)
        if key not in self._seen:
            wanted = np.array(noisy) - np.array(counts)

            def noise(scale: Fraction, size: int, _: WordSource) -> Integers:
                assert size == len(counts)
                self.scales.add(scale)
                return np.zeros_like(wanted) if self._leak else wanted

            self._patch.setattr(prior_module, "discrete_laplace", noise)
            self._seen[key] = one_label(
                np.array(counts), GRID, self.epsilon, seeded_entropy(0), "rr-on-bins"
            )
        return self._seen[key]

    def worst(self, *, noise_factor: Fraction = Fraction(1)) -> float:
        """The largest log ratio of any joint outcome's probabilities over neighbouring data."""
        worst = 0.0
        for first, second in neighbours():
            counts = [tuple(np.bincount(data, minlength=3).tolist()) for data in (first, second)]
            (changed,) = [i for i in range(ROWS) if first[i] != second[i]]
            before, after = first[changed], second[changed]
            for noisy in product(REACH, repeat=3):
                released = [self.run(c, noisy) for c in counts]
                scale = max(self.scales) * noise_factor
                distance = [
                    sum(abs(h - c) for h, c in zip(noisy, count, strict=True)) for count in counts
                ]
                prior = Fraction(distance[1] - distance[0]) / scale
                here, there = (step.channel for step in released)
                if here.outputs.tolist() != there.outputs.tolist():
                    return math.inf
                label = max(
                    Fraction(a, b)
                    for a, b in zip(here.weights[before], there.weights[after], strict=True)
                )
                # the other labels' factors cancel: their rows are the same in both
                worst = max(worst, float(prior) + math.log(label))
        return worst


def neighbours() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every ordered pair of data sets that differ in the label of the last record."""
    return [
        ((*rest, a), (*rest, b))
        for rest in product(range(3), repeat=ROWS - 1)
        if list(rest) == sorted(rest)
        for a, b in product(range(3), repeat=2)
        if a != b
    ]


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_the_joint_release_is_exactly_epsilon_private(
    epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Enumeration(monkeypatch, epsilon)
    worst = steps.worst()
    (scale,) = steps.scales
    assert scale == 2 / split_budget(epsilon, 3, ROWS).prior
    assert worst <= epsilon * (1 + 1e-12)
    assert worst == pytest.approx(epsilon, rel=1e-9)
    counts = (ROWS - 2, 1, 1)
    total = steps.run(counts, counts).guarantee
    assert Fraction(worst) <= total.exact_epsilon * (1 + Fraction(1, 10**12))
    assert total.exact_epsilon <= Fraction(epsilon)


def test_the_enumeration_sees_half_the_noise_and_raw_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    split = split_budget(1.0, 3, ROWS)
    halved = Enumeration(monkeypatch, 1.0).worst(noise_factor=Fraction(1, 2))
    assert halved == pytest.approx(float(2 * split.prior + split.labels), rel=1e-9)
    assert Enumeration(monkeypatch, 1.0, leak=True).worst() == math.inf


def test_the_noise_on_the_counts_is_a_geometric_law_with_tails() -> None:
    # the enumeration takes its ratios from |z| / scale: check that law's mass and ratio
    scale = 2 / split_budget(1.0, 3, ROWS).prior
    ratio = math.exp(-1 / scale)
    inner = sum((1 - ratio) / (1 + ratio) * ratio ** abs(z) for z in range(-50, 51))
    tails = 2 * ratio**51 / (1 + ratio)
    assert inner + tails == pytest.approx(1.0, abs=1e-12)


@given(
    epsilon=st.floats(0.05, 10.0),
    points=st.integers(2, 1000),
    rows=st.integers(1, 10**7),
    share=st.sampled_from([Fraction(1, 8), Fraction(1, 2), 0.25, None]),
    records=st.integers(1, 10),
)
def test_theorem_7_splits_the_budget_without_a_remainder(
    epsilon: float, points: int, rows: int, share: float | Fraction | None, records: int
) -> None:
    split = split_budget(epsilon, points, rows, records=records, largest_share=share)
    assert split.prior + split.labels == Fraction(epsilon)
    wanted, most = math.sqrt(points / rows), epsilon * float(share or 0)
    if share is None:
        # where the variance of the histogram's mean and what ε₁ takes from codes add up to least
        tried = epsilon * np.linspace(1 / 8, 1 / 2, 100_001)
        lost = 8 * points * (records / rows / tried) ** 2 + tried / (2 * epsilon)
        most = tried[lost.argmin()]
        assert float(split.prior) == pytest.approx(min(wanted, most), rel=1e-4, abs=2.0**-24)
        return
    assert float(split.prior) <= min(wanted, most) * (1 + 1e-12)
    assert float(split.prior) >= min(wanted, most) * (1 - 1e-12) - 2.0**-24


@given(st.floats(2.0**-24, 40.0))
def test_rounding_an_epsilon_never_raises_it(epsilon: float) -> None:
    assert 0 <= Fraction(epsilon) - rational_epsilon(epsilon) < Fraction(1, 2**24)


@pytest.mark.statistical
def test_noise_of_scale_2_over_epsilon_lands_on_every_cell() -> None:
    counts = np.zeros(DRAWS, dtype=np.int64)
    counts[::1000] = 1_000_000
    epsilon = 0.75
    noise = private_prior(counts, epsilon, seeded_entropy(4)).noisy_counts - counts

    assert fits(noise, laplace_mass(2 / epsilon))
    assert fits(noise[counts == 0], laplace_mass(2 / epsilon))
    assert not fits(noise, laplace_mass(1 / epsilon))
    assert not fits(noise, laplace_mass(2 / epsilon * 1.3))


def test_a_users_records_scale_the_noise_and_the_label_budget() -> None:
    counts = np.array([40, 30, 30])
    steps = one_label(
        counts, GRID, 2.0, seeded_entropy(0), "rr-on-bins", records=5, prior_share=0.5
    )
    assert steps.prior.scale == 10 / steps.epsilon_prior
    assert steps.prior.guarantee.unit == steps.labels_guarantee.unit == Unit.USER
    assert steps.channel.epsilon <= float(steps.epsilon_labels) / 5
    assert steps.guarantee.exact_epsilon <= 2
    assert steps.guarantee.epsilon == pytest.approx(2.0, rel=1e-9)


def test_the_prior_is_a_distribution_whatever_the_noise() -> None:
    for seed in range(50):
        noisy = private_prior(np.array([1, 0, 0, 0]), 0.05, seeded_entropy(seed))
        assert noisy.probabilities.min() >= 0
        assert noisy.probabilities.sum() == pytest.approx(1.0, rel=1e-12)


def test_seeded_counts_are_frozen() -> None:
    noisy = private_prior(np.array([5, 0, 2]), 0.5, seeded_entropy(0))
    drawn = discrete_laplace(Fraction(4), 3, seeded_entropy(0).source("prior"))
    assert noisy.noisy_counts.tolist() == (np.array([5, 0, 2]) + drawn).tolist() == [2, 1, -1]


def test_impossible_requests_are_refused() -> None:
    counts, entropy = np.array([1, 2]), seeded_entropy(0)
    for epsilon in (0.0, -1.0, math.nan, math.inf, 1e-9):
        with pytest.raises(PrivacyError, match="epsilon="):
            private_prior(counts, epsilon, entropy)
    for group in (0, 1 << 30):
        with pytest.raises(PrivacyError, match="group="):
            private_prior(counts, 1.0, entropy, group=group)
    for bad in ([1.0, 2.0], [[1, 2]], [-1, 2]):
        with pytest.raises(DataError, match="count"):
            private_prior(np.array(bad), 1.0, entropy)
    for share in (0.0, 1.0, -1.0):
        with pytest.raises(PrivacyError, match="largest_share="):
            split_budget(1.0, 3, 10, largest_share=share)
    with pytest.raises(PrivacyError, match="at least 1"):
        split_budget(1.0, 3, 0)
