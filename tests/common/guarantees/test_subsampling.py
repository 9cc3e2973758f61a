"""Samples of a fixed size: no bound is below the truth, which small populations give exactly."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy

from labelveil.common.arrays import Floats
from labelveil.common.errors import PrivacyError
from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    PureDP,
    RenyiDP,
    ZeroConcentratedDP,
    epsilon_at,
    fixed_size_gaussian,
    fixed_size_subsample,
    subsampled_gaussian,
    to_renyi,
)
from labelveil.common.guarantees.gaussian import gaussian_zcdp
from tests.common.guarantees.examples import hockey_stick, log_ratio_up, renyi

Law = dict[int, Fraction]
INTEGERS = tuple(Fraction(n) for n in range(2, 33))


def geometric(count: int, top: int, ratio: Fraction) -> Law:
    """Answers 0 … top with weight ``ratio^-|z - count|``, ends taking their tails: ln(ratio)-DP."""
    inside = {z: ratio ** -abs(z - count) for z in range(1, top)}
    scale = (ratio - 1) / (ratio + 1)
    ends = {z: ratio ** -abs(z - count) * ratio / (ratio + 1) for z in (0, top)}
    return {z: scale * w for z, w in inside.items()} | ends


def on_a_sample(ones: int, records: int, sample: int, ratio: Fraction) -> Law:
    """The same on the ones among ``sample`` records, drawn without replacement."""
    law: Law = dict.fromkeys(range(sample + 1), Fraction(0))
    for seen in range(max(0, sample - (records - ones)), min(sample, ones) + 1):
        ways = math.comb(ones, seen) * math.comb(records - ones, sample - seen)
        chance = Fraction(ways, math.comb(records, sample))
        for z, mass in geometric(seen, sample, ratio).items():
            law[z] += chance * mass
    return law


def neighbours(records: int, sample: int, ratio: Fraction) -> list[tuple[Law, Law]]:
    laws = [on_a_sample(ones, records, sample, ratio) for ones in range(records + 1)]
    pairs = list(itertools.pairwise(laws))
    return pairs + [(q, p) for p, q in pairs]


def own_curve(sample: int, ratio: Fraction) -> RenyiDP:
    """The mechanism's RDP on a whole sample, to 60 digits."""
    pairs = neighbours(sample, sample, ratio)
    values = [max(renyi(p, q, a) for p, q in pairs) * (1 + 1e-12) for a in INTEGERS]
    return RenyiDP.of(values, adjacency=Adjacency.REPLACE_RECORD, orders=INTEGERS)


def sampled_curve(curve: RenyiDP, rate: float | Fraction) -> RenyiDP:
    found = fixed_size_subsample(curve, rate)
    assert isinstance(found, RenyiDP)
    return found


@pytest.mark.parametrize(("records", "sample"), [(4, 1), (5, 2), (9, 3)])
@pytest.mark.parametrize("ratio", [Fraction(3, 2), Fraction(3), Fraction(20)])
def test_an_enumerated_population(records: int, sample: int, ratio: Fraction) -> None:
    rate = Fraction(sample, records)
    pairs = neighbours(records, sample, ratio)
    curve = sampled_curve(own_curve(sample, ratio), rate)
    for order in (Fraction(2), Fraction(3), Fraction(8), Fraction(32)):
        truth = max(renyi(p, q, order) for p, q in pairs)
        assert truth <= float(curve.at(order))
    one = PureDP.of(log_ratio_up(ratio), Adjacency.REPLACE_RECORD)
    sampled = fixed_size_subsample(one, rate)
    assert isinstance(sampled, PureDP)
    worst = max(p[z] / q[z] for p, q in pairs for z in p)
    assert float(log_ratio_up(worst)) <= sampled.epsilon
    half = one.exact_epsilon / 2
    delta = max(hockey_stick(p, q, half) for p, q in neighbours(sample, sample, ratio)) * 1.0001
    mixed = fixed_size_subsample(ApproximateDP.of(half, delta, Adjacency.REPLACE_RECORD), rate)
    assert isinstance(mixed, ApproximateDP)
    assert mixed.exact_delta == rate * Fraction(delta)
    assert all(hockey_stick(p, q, mixed.exact_epsilon) <= mixed.delta for p, q in pairs)


@pytest.mark.parametrize("ratio", [Fraction(3, 2), Fraction(3)])
def test_a_smaller_rate_than_the_true_one_would_be_caught(ratio: Fraction) -> None:
    """The twin: as if a third as many were drawn."""
    records, sample = 30, 3
    pairs = neighbours(records, sample, ratio)
    claimed = sampled_curve(own_curve(sample, ratio), Fraction(sample, 3 * records))
    assert max(renyi(p, q, Fraction(2)) for p, q in pairs) > float(claimed.at(2))
    pure = fixed_size_subsample(
        PureDP.of(log_ratio_up(ratio), Adjacency.REPLACE_RECORD), Fraction(sample, 3 * records)
    )
    worst = max(p[z] / q[z] for p, q in pairs for z in p)
    assert isinstance(pure, PureDP)
    assert float(log_ratio_up(worst)) > pure.epsilon * 1.001


def sampled_gaussian(sigma: float, records: int, order: int) -> float:
    """RDP of one of n numbers plus N(0, σ²), when ½ replaces one of n times -½: by integration."""
    grid: Floats = np.arange(-40 * sigma - 40, 40 * sigma + 40, 1e-3)

    def log_law(mean: float) -> Floats:
        return -((grid - mean) ** 2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))

    most = log_law(-0.5) + math.log1p(-1 / records)
    mixed = np.logaddexp(most, log_law(0.5) - math.log(records))
    ends = [
        scipy.special.logsumexp(order * p - (order - 1) * q) + math.log(1e-3)
        for p, q in ((mixed, log_law(-0.5)), (log_law(-0.5), mixed))
    ]
    return float(max(ends)) / (order - 1)


@pytest.mark.parametrize("sigma", [0.7, 1.0, 4.0])
def test_one_number_of_many_with_gaussian_noise(sigma: float) -> None:
    one = to_renyi(
        ZeroConcentratedDP.of(Fraction(1) / (2 * Fraction(sigma) ** 2),
                              adjacency=Adjacency.REPLACE_RECORD))  # fmt: skip
    curve = sampled_curve(one, Fraction(1, 50))
    truths = {order: sampled_gaussian(sigma, 50, order) for order in (2, 3, 8)}
    assert all(truth <= float(curve.at(order)) for order, truth in truths.items())
    assert float(curve.at(2)) < 4.001 * truths[2]  # its constant at order 2
    own = fixed_size_gaussian(2 * sigma, Fraction(1, 50))  # numbers of size 1 at most, here 1/2
    assert all(truth <= float(own.at(order)) <= float(curve.at(order)) * (1 + 1e-12)
               for order, truth in truths.items())  # fmt: skip
    assert truths[2] > float(fixed_size_gaussian(6 * sigma, Fraction(1, 50)).at(2))
    quieter = to_renyi(ZeroConcentratedDP.of(one.values[0] / one.orders[0] / 6,
                                             adjacency=Adjacency.REPLACE_RECORD))  # fmt: skip
    twin = sampled_curve(quieter, Fraction(1, 50))
    assert truths[2] > float(twin.at(2))


def test_differences_of_moments_pay_where_theorem_9_alone_amplifies_nothing() -> None:
    """A sixteenth of the records, 160 steps, σ = 20: ε by each."""
    one = gaussian_zcdp(Fraction(400), 4, Adjacency.REPLACE_RECORD)
    ends = [
        epsilon_at(curve, 1e-6)
        for curve in (
            fixed_size_gaussian(20, Fraction(1, 16)).repeat(160),
            sampled_curve(to_renyi(one), Fraction(1, 16)).repeat(160),
            one.repeat(160),
        )
    ]
    assert ends[0] < ends[1] / 3 < ends[2] / 3


def test_sampling_never_costs_and_ends_where_it_must() -> None:
    curve = own_curve(3, Fraction(3))
    whole = sampled_curve(curve, 1)
    assert whole == curve
    nearly = sampled_curve(curve, Fraction(999, 1000))
    assert all(nearly.at(a) <= curve.at(a) for a in nearly.orders)
    assert max(map(float, sampled_curve(curve, 0).values)) < 1e-14


def test_other_neighbours_and_rates_are_refused() -> None:
    with pytest.raises(PrivacyError, match="replacing"):
        fixed_size_subsample(PureDP.of(1, Adjacency.ADD_REMOVE), Fraction(1, 2))
    with pytest.raises(PrivacyError, match="rate"):
        fixed_size_subsample(PureDP.of(1), 2)
    with pytest.raises(PrivacyError, match="no subsampling theorem"):
        fixed_size_subsample(ZeroConcentratedDP.of(1), Fraction(1, 2))
    failing = RenyiDP.of([1.0], delta=0.1, orders=(Fraction(2),))
    with pytest.raises(PrivacyError, match="failure"):
        fixed_size_subsample(failing, Fraction(1, 2))


@pytest.mark.parametrize(
    ("made", "apart", "sigma"),
    [
        (subsampled_gaussian, 1, Fraction(1, 2)),
        (subsampled_gaussian, 1, Fraction(3)),
        (fixed_size_gaussian, 2, Fraction(3)),
    ],
)
def test_a_sample_of_everybody_is_none(made: Any, apart: int, sigma: Fraction) -> None:
    """Δ² α / (2σ²); a sample of nearly all costs no more, and one of nobody nothing."""
    whole, most, nobody = (made(sigma, rate) for rate in (1, Fraction(999, 1000), 0))
    wanted = tuple(order * apart**2 / (2 * sigma**2) for order in whole.orders)
    assert whole.values == wanted
    assert all(a <= b for a, b in zip(most.values, wanted, strict=True))
    assert not any(nobody.values)
