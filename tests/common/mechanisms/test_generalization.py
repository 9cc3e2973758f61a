"""Generalization bounds against mechanisms whose gaps are known exactly, or are measured."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq, linprog

from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.mechanisms.generalization import (
    approximate_gap,
    expected_gap,
    fresh_gap,
    max_information,
    max_information_gap,
    records_needed,
    transfer_gap,
)
from tests.common.guarantees.test_subsampling import geometric
from tests.statistics import binomial_range

EPSILONS = (0.05, 0.3, 1.0, 3.0)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_expected_gap_of_randomized_response(epsilon: float) -> None:
    """One fair bit is answered by randomized response; h asks whether a record is that answer."""
    exact = math.exp(epsilon) / (1 + math.exp(epsilon)) - 0.5  # about ε/4
    assert exact <= expected_gap(epsilon)
    assert exact > expected_gap(epsilon / 16)  # a bound for less ε than was spent is passed
    assert exact + 0.25 * (1 - exact - 0.5) <= expected_gap(epsilon, 0.25)  # or tells all, at δ


def largest_gap(ratio: float, delta: float, records: int, values: int) -> float:
    """Largest ``E[h(S)] − E[h(P)]`` of all (ln ratio, δ)-DP choices of a set of uniform values."""
    samples = list(product(range(values), repeat=records))
    sets = np.array(list(product((0, 1), repeat=values)), dtype=float)  # (h, value)
    gaps = sets[:, samples].mean(axis=2).T - sets.mean(axis=1)  # (sample, h)
    near = [
        (i, j)
        for i, j in product(range(len(samples)), repeat=2)
        if sum(a != b for a, b in zip(samples[i], samples[j], strict=True)) == 1
    ]
    rows, width = len(samples) * len(sets), len(sets)
    excess = np.zeros((len(near), width, rows + len(near) * width))  # K_i − ratio K_j − slack <= 0
    slack = np.zeros((len(near), excess.shape[2]))  # whose sum is δ at most
    for pair, (i, j) in enumerate(near):
        for h in range(width):
            excess[pair, h, i * width + h], excess[pair, h, j * width + h] = 1, -ratio
            excess[pair, h, rows + pair * width + h] = -1
        slack[pair, rows + pair * width : rows + (pair + 1) * width] = 1
    whole = np.kron(np.eye(len(samples)), np.ones(width))
    found = linprog(
        np.append(-gaps.ravel() / len(samples), np.zeros(len(near) * width)),
        A_ub=np.vstack([excess.reshape(-1, excess.shape[2]), slack]),
        b_ub=np.append(np.zeros(len(near) * width), np.full(len(near), delta)),
        A_eq=np.hstack([whole, np.zeros((len(samples), len(near) * width))]),
        b_eq=np.ones(len(samples)),
    )
    return float(-found.fun)


@pytest.mark.parametrize("delta", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("records", "values"), [(1, 2), (1, 3), (1, 4), (2, 2), (3, 2)])
def test_no_private_choice_has_a_larger_expected_gap(
    records: int, values: int, delta: float
) -> None:
    for ratio in (1.0, 1.5, 4.0, 9.0):
        found = largest_gap(ratio, delta, records, values)
        assert found <= expected_gap(math.log(ratio), delta) + 1e-9
        if delta == 0.5 and values == 4:
            assert found > expected_gap(math.log(ratio), 0.1)  # a bound of less δ is passed
    if delta == 0 and (records, values) in ((1, 3), (1, 4)):  # a third or a quarter: attained
        ratio = (values - 1) ** 2
        assert largest_gap(ratio, 0, 1, values) == pytest.approx(expected_gap(math.log(ratio)))


@pytest.mark.parametrize("records", [1, 5, 60])
def test_questions_that_were_fixed_before(records: int) -> None:
    law = stats.binom(records, 0.5)
    for beta in (0.5, 0.05):
        gap = fresh_gap(records, beta)
        misses = law.cdf(math.ceil(records * (0.5 - gap)) - 1) * 2
        assert misses <= beta
        assert gap < fresh_gap(records, beta, questions=2)


def chosen_gaps(epsilon: float, records: int, features: int, trials: int, seed: int) -> Floats:
    """Gap of the fair coin that the exponential mechanism, ε-DP, picks as the most frequent."""
    entropy = seeded_entropy(seed)
    words = entropy.words("coins", 0, trials * features * records // 64)
    heads = np.bitwise_count(words).reshape(trials, features, records // 64).sum(axis=2)
    uniform = (entropy.words("choice", 0, trials * features) >> np.uint64(11)) + 0.5
    gumbel = -np.log(-np.log(uniform.reshape(trials, features) / 2.0**53))
    chosen = np.argmax(epsilon / 2 * heads + gumbel, axis=1)
    return np.asarray(heads[np.arange(trials), chosen] / records - 0.5)


def exact_information(joint: Floats, apart: Floats, beta: float) -> float:
    """The least k with ``Σ max(P − e^k P', 0) <= β``, given both laws of outcomes."""

    def missed(k: float) -> float:
        return float(np.maximum(joint - math.exp(k) * apart, 0).sum()) - beta

    return float(brentq(missed, -1.0, 60.0))


def bits_told(records: int, ratio: float, delta: float) -> tuple[Floats, Floats]:
    """Laws of how many fair bits are told openly, with δ, and how many of the others rightly."""
    counts = np.arange(records + 1)
    told = stats.binom(records, delta).pmf(counts)
    answers = [stats.binom(records - c, ratio / (1 + ratio)).pmf(counts) for c in counts]
    coins = [stats.binom(records - c, 0.5).pmf(counts) * 0.5**c for c in counts]
    return told[:, None] * np.array(answers), told[:, None] * np.array(coins)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.2, 0.01])
@pytest.mark.parametrize("ratio", [1.1, 1.5, 4.0])
def test_max_information_of_private_bits_and_counts(ratio: float, beta: float) -> None:
    """Fair bits by randomized response, told openly with δ; and their noisy count, enumerated."""
    n, epsilon = 200, math.log(ratio)
    exact = exact_information(*bits_told(n, ratio, 0.0), beta)
    assert exact <= max_information(epsilon, n, beta)
    if ratio == 4.0 or (ratio == 1.5 and beta == 0.01):
        assert exact > max_information(epsilon / 2, n, beta)  # a bound for less ε is passed
    for delta in (1e-6, 1e-4):
        exact = exact_information(*bits_told(n, ratio, delta), beta)
        assert exact <= max_information(epsilon, n, beta, delta)
    counts = [math.comb(24, c) / 2**24 for c in range(25)]
    noisy = [[float(p) for p in geometric(c, 24, Fraction(ratio)).values()] for c in range(25)]
    joint = np.array(counts)[:, None] * np.array(noisy)
    apart = np.array(counts)[:, None] * joint.sum(axis=0)
    assert exact_information(joint, apart, beta) <= max_information(epsilon, 24, beta)


def test_a_leak_has_no_bound_that_forgets_delta() -> None:
    """With δ a part of εn records is told openly, any of 1/ε: a gap of ε with probability ~δ/ε."""
    epsilon, delta, n = 0.01, 1e-4, 100_000
    leaked = 1 - (1 - delta) ** (1 / epsilon)
    for beta in (leaked / 2, 0.99 * leaked):
        assert max_information(0.0, n, beta, delta) == math.inf
        for gap in (approximate_gap(0.0, delta, n, beta), approximate_gap(epsilon, delta, n, beta),
                    max_information_gap(epsilon, n, beta, delta)):  # fmt: skip
            assert gap >= epsilon
    assert approximate_gap(epsilon, delta, n, 1.01 * delta / epsilon) == pytest.approx(18 * epsilon)
    assert max_information_gap(epsilon, n, 0.05, 1e-12) < 0.1 < 18 * epsilon


@pytest.mark.statistical
@pytest.mark.parametrize("epsilon", [0.1, 0.5])
def test_the_gap_of_a_private_choice_among_many(epsilon: float) -> None:
    records, trials = 128, 4000
    gaps = chosen_gaps(epsilon, records, 200, trials, seed=1)
    assert abs(gaps.mean()) <= expected_gap(epsilon)
    for beta in (0.5, 0.05):
        _, most = binomial_range(trials, beta)
        assert np.sum(np.abs(gaps) > max_information_gap(epsilon, records, beta)) <= most
    assert max_information_gap(epsilon, records, 0.05) > fresh_gap(records, 0.05)


@pytest.mark.statistical
def test_bounds_that_forget_the_choice_are_passed() -> None:
    gaps = chosen_gaps(4.0, 128, 200, 4000, seed=2)
    _, most = binomial_range(4000, 0.5)
    assert np.sum(gaps > max_information_gap(0.0, 128, 0.5)) > most
    assert np.sum(gaps > fresh_gap(128, 0.5)) > most
    assert gaps.mean() > expected_gap(0.1)


def test_max_information_is_never_above_that_of_the_worst_case() -> None:
    """εn nats always, √n growth where ε is small, and fresh data's gap at ε = 0."""
    assert max_information_gap(0.0, 100, 0.1) == pytest.approx(math.sqrt(math.log(40) / 200))
    small = [max_information_gap(1 / math.sqrt(n), n, 0.1) * math.sqrt(n) for n in (100, 10_000)]
    assert small[0] == pytest.approx(small[1])
    assert max_information_gap(9.0, 50, 0.1) == pytest.approx(math.sqrt((450 + math.log(40)) / 100))
    assert max_information(0.0, 100, 0.1) == 0


def test_the_gap_of_an_approximate_guarantee_needs_many_records_and_a_small_delta() -> None:
    assert approximate_gap(0.02, 1e-6, 1 << 20, 0.05) == pytest.approx(0.36)
    tight, delta = 2.0**-6, 2.0**-16  # δ/ε is 2⁻¹⁰
    assert approximate_gap(tight, delta, 1 << 20, 2.0**-10) == 18 * tight
    for without in ((0.02, 1e-6, 1 << 14), (0.1, 1e-6, 1 << 20), (tight, tight / 4, 1 << 20)):
        assert approximate_gap(*without, 0.5) == 1.0
    assert approximate_gap(0.02, 1e-4, 1 << 20, 0.004) == 1.0  # fails more often than β


@pytest.mark.parametrize("ratio", [Fraction(11, 10), Fraction(3, 2), Fraction(4)])
def test_answers_that_are_accurate_and_private_are_right(ratio: Fraction) -> None:
    """A noisy count of 24 fair bits, by enumeration: every α, with what it misses, at every β."""
    n, epsilon = 24, math.log(ratio)
    joint = np.array([
        [math.comb(n, c) / 2**n * float(p) for p in geometric(c, n, ratio).values()]
        for c in range(n + 1)
    ])  # fmt: skip
    answers = np.array(list(geometric(0, n, ratio))) / n
    apart = np.abs(answers[None] - np.arange(n + 1)[:, None] / n)
    wrong = np.abs(answers - 0.5)
    for alpha in (0.0, 2 / n, 5 / n, 1.0):
        missed = float(joint[apart > alpha + 1e-9].sum())
        for beta in (0.5, 0.1, 0.01):
            bound = transfer_gap(epsilon, 0.0, beta, alpha, min(missed, 0.999))
            assert joint[:, wrong > bound].sum() <= beta
    if ratio < 1.2:  # noise that nobody counted: as if all answers were exact
        assert joint[:, wrong > transfer_gap(epsilon, 0.0, 0.1, 0.0)].sum() > 0.1


def test_the_slack_is_the_least_over_how_failures_are_shared() -> None:
    delta, beta, missed = 1e-4, 0.05, 1e-3
    shares = np.linspace(1e-5, beta - 1e-5, 100_001)
    sums = missed / shares + 2 * delta / (beta - shares)
    slack = transfer_gap(0.0, delta, beta, 0.0, missed)
    assert slack == pytest.approx(float(sums.min()), rel=1e-6)
    assert 1e300 < transfer_gap(math.inf, delta, beta, 0.0) < math.inf


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(PrivacyError, match="epsilon=-1"):
        expected_gap(-1)
    with pytest.raises(PrivacyError, match="beta=0"):
        fresh_gap(10, 0)
    with pytest.raises(PrivacyError, match="beta=1"):
        max_information(1, 10, 1)
    with pytest.raises(PrivacyError, match="records=0"):
        max_information_gap(1, 0, 0.1)
    with pytest.raises(PrivacyError, match="accuracy=-1"):
        transfer_gap(1, 0, 0.1, -1)


@pytest.mark.parametrize("epsilon", [0.01, 0.1])
def test_the_records_that_a_gap_needs(epsilon: float) -> None:
    """At δ = 0 by the root of the bound's square, a quadratic in √n."""
    error, beta = 0.06, 0.05
    a = 2 * error**2 - epsilon**2 / 8  # a n − b √n − c = 0
    b, c = epsilon * math.sqrt(math.log(2 / beta) / 2), math.log(4 / beta)
    root = (b + math.sqrt(b * b + 4 * a * c)) / (2 * a)
    assert records_needed(error, epsilon, beta) == math.ceil(root**2)


def test_the_records_that_a_gap_needs_with_a_delta() -> None:
    """Below 18ε by max-information alone; the other theorem where that is infinite."""
    epsilon, beta, delta = 0.02, 0.05, 1e-12
    found = records_needed(0.1, epsilon, beta, delta)
    assert max_information_gap(epsilon, found, beta, delta) <= 0.1
    assert max_information_gap(epsilon, found - 1, beta, delta) > 0.1
    # the gap widens again: it is so small from 6,000 to 9,000 at most
    window = [n for n in range(6000, 9000) if max_information_gap(0.02, n, beta, 1e-8) <= 0.0382]
    assert 6000 < records_needed(0.0382, 0.02, beta, 1e-8) == window[0] < window[-1] < 8999
    # of δ = 1e-4 nothing is known by max-information for n of a thousand; 18ε from ln(4ε/δ)/ε² on
    assert records_needed(0.36, 0.02, beta, 1e-4) == math.ceil(math.log(800) / 0.02**2)
    for error, spent in ((0.01, 0.1), (0.05, 0.3)):  # below ε/4, whatever the number
        with pytest.raises(PrivacyError, match="smaller epsilon"):
            records_needed(error, spent, beta)
