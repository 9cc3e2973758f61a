"""Compositions, totals, filters and loss distributions, beside what their formulas say."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import pytest

from labelveil.common.errors import BudgetError, PrivacyError
from labelveil.common.exact.rounding import above
from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    Filter,
    PureDP,
    Unit,
    ZeroConcentratedDP,
    adaptive_total,
    composition,
    epsilon_at,
    pld,
)
from labelveil.common.guarantees.accountant import ORDERS, Odometer, total
from labelveil.common.guarantees.bounded_range import BoundedRange
from labelveil.common.guarantees.composition import advanced_composition, optimal_composition
from labelveil.common.guarantees.conversion import (
    to_renyi,
)
from labelveil.common.guarantees.gaussian import (
    gaussian_delta,
)
from tests.common.guarantees.curves import ADD, F, renyi


def test_advanced_composition_is_its_formula_or_the_sum() -> None:
    bound = math.sqrt(2 * 100 * math.log(1e6)) * 0.01 + 100 * 0.01 * math.expm1(0.01)
    found = float(advanced_composition(F(1, 100), 100, F(1, 10**6)))
    assert bound <= found <= bound * (1 + 1e-9)
    assert advanced_composition(F(1, 100), 2, F(1, 10**6)) == F(1, 50)  # the sum is less
    assert advanced_composition(F(1, 100), 100, 0) == 1
    assert advanced_composition(F(1, 100), 0, F(1, 2)) == 0
    assert advanced_composition(800, 2, F(1, 2)) == 1600


def enumerated(epsilons: list[float], epsilon: float) -> float:
    """δ at ε of randomized responses, by every outcome."""
    delta = 0.0
    for signs in product((1, -1), repeat=len(epsilons)):
        loss = sum(sign * each for sign, each in zip(signs, epsilons, strict=True))
        chance = math.prod(
            1 / (1 + math.exp(-sign * each)) for sign, each in zip(signs, epsilons, strict=True)
        )
        delta += chance * max(0.0, -math.expm1(epsilon - loss))
    return delta


@pytest.mark.parametrize("epsilons", [[0.5] * 6, [0.25, 0.5, 0.75, 0.5], [0.125, 1.0, 0.5]])
@pytest.mark.parametrize("delta", [F(1, 100), F(1, 10**4)])
def test_optimal_composition_is_the_sum_over_all_outcomes(
    epsilons: list[float], delta: Fraction
) -> None:
    parts = [PureDP.of(F(each)) for each in epsilons]
    found = optimal_composition(parts, delta)
    assert found.exact_delta == delta
    assert enumerated(epsilons, found.epsilon) <= float(delta)
    assert enumerated(epsilons, found.epsilon - 1e-6) > float(delta)
    failing = [ApproximateDP.of(F(each), F(1, 100)) for each in epsilons]
    kept = F(99, 100) ** len(epsilons)
    more = 1 - kept + delta * kept
    assert optimal_composition(failing, more).epsilon == pytest.approx(found.epsilon, abs=1e-6)
    assert optimal_composition(failing, 1 - kept).epsilon == pytest.approx(sum(epsilons))
    for nothing in (0, F(1, 10**200)):
        assert optimal_composition(parts, nothing).exact_epsilon == sum(map(F, epsilons))
    assert optimal_composition(parts, F(99, 100)).exact_epsilon == 0


def test_long_products_are_cut_to_the_safe_side(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, delta = [ApproximateDP.of(F(1, 100), F(1, 10**9))] * 5000, F(1, 10**5)
    once, other = 1 - F(1, 10**9), F(2, 3)
    cut = composition._product({once: 5000, other: 7})
    exact, bits = once**5000 * other**7, composition._EXACT_BITS
    assert exact.denominator.bit_length() > 2 * bits
    assert cut.denominator.bit_length() <= bits + 1
    assert 0 < exact - cut < F(2**14, 2**bits)
    assert composition._product({once: 1000, other: 7}) == once**1000 * other**7
    found = optimal_composition(parts, delta)
    monkeypatch.setattr(composition, "_EXACT_BITS", 1 << 20)
    assert composition._product({once: 5000, other: 7}) == exact
    assert optimal_composition(parts, delta) == found


def test_many_equal_parts_are_composed_as_powers() -> None:
    """One by one, their exact failure probabilities would take a minute."""
    parts, delta = [ApproximateDP.of(F(1, 1000), F(1, 10**13))] * 30_000, F(1, 10**6)
    pure = optimal_composition([PureDP.of(F(1, 1000))] * 30_000, delta)
    found = optimal_composition(parts, delta)
    assert pure.epsilon < found.epsilon < pure.epsilon * 1.01
    with pytest.raises(PrivacyError, match="which the parts spend"):
        optimal_composition(parts, F(29, 10**10))


def test_totals_take_the_least_route() -> None:
    pure = [PureDP.of(F(1, 10))] * 5
    assert total(pure, 0) == ApproximateDP.of(F(1, 2), 0)
    rho = [ZeroConcentratedDP.of(F(1, 200))] * 5
    together = ZeroConcentratedDP.of(F(1, 40))
    assert total(rho, F(1, 10**6)).epsilon <= epsilon_at(together, F(1, 10**6))
    mixed = [*pure, *rho]
    alone = ZeroConcentratedDP.of(F(1, 40) + 5 * F(1, 200))
    assert total(mixed, F(1, 10**6)).epsilon <= epsilon_at(alone, F(1, 10**6))
    assert adaptive_total(pure, F(1, 10)) == ApproximateDP.of(F(1, 2), 0)
    assert tuple(F(n) for n in (2, 3, 5, 9, 17, 33, 65, 129, 257, 513, 1025)) == ORDERS
    delta = F(1, 10**5)
    found = adaptive_total(rho, delta)
    assert found.exact_delta == delta / 2
    share = float(delta) / 22
    least = min(
        a / 40 + math.log1p(-1 / a) - math.log(share * a) / (a - 1) for a in map(float, ORDERS)
    )
    assert least <= found.epsilon <= least * (1 + 1e-9)
    failing = adaptive_total([ZeroConcentratedDP.of(F(1, 200), F(1, 10**6))] * 2, delta)
    assert failing.exact_delta == delta / 2 + F(2, 10**6)
    most = adaptive_total([ZeroConcentratedDP.of(F(1, 200), F(2, 3))] * 2, delta)
    assert most.exact_delta == 1
    short = adaptive_total([to_renyi(together, [F(2), F(3)])], delta)
    two = min(a / 40 + math.log1p(-1 / a) - math.log(share * a) / (a - 1) for a in (2.0, 3.0))
    assert two <= short.epsilon <= two * (1 + 1e-9)


def test_a_filter_stops_before_its_limit_and_charges_nothing_then() -> None:
    kept = Filter(ZeroConcentratedDP.of(F(1, 2), F(1, 10)))
    assert kept.spent == ZeroConcentratedDP.of(0)
    kept.spend(ZeroConcentratedDP.of(F(1, 4), F(1, 10)))
    with pytest.raises(BudgetError, match="would bring the total to"):
        kept.spend(ZeroConcentratedDP.of(F(1, 4), F(1, 100)))
    assert kept.spent == ZeroConcentratedDP.of(F(1, 4), F(1, 10))
    assert kept.admits(PureDP.of(F(1, 2)))  # ε²/2 is 1/8
    kept.spend(PureDP.of(F(1, 2)))
    assert kept.spent == ZeroConcentratedDP.of(F(3, 8), F(1, 10))
    assert kept.restated([PureDP.of(1)]) == ZeroConcentratedDP.of(F(1, 2))
    assert Filter(PureDP.of(1)).restated([BoundedRange.of(F(1, 3))]) == PureDP.of(F(1, 3))
    approximate = Filter(ApproximateDP.of(1, F(1, 10))).restated([PureDP.of(F(1, 3))])
    assert approximate == ApproximateDP.of(F(1, 3), 0)
    limit = renyi([2, 3], [1, 1])
    assert Filter(limit).restated([ZeroConcentratedDP.of(F(1, 4))]).values == (F(1, 2), F(3, 4))  # type: ignore[attr-defined]
    ranged = Filter(BoundedRange.of(1))
    ranged.spend(BoundedRange.of(F(1, 2)))
    assert ranged.spent == BoundedRange.of(F(1, 2))


def test_an_odometer_reads_the_rung_above_what_was_spent() -> None:
    meter = Odometer(F(1, 1000))
    meter.record(ZeroConcentratedDP.of(F(3, 1000), F(1, 10)))
    # ρ₀ 2^f >= ρ first at f = 2, whose δ is δ / 12
    ceiling = 0.004
    exact = ceiling + 2 * math.sqrt(ceiling * math.log(12_000))
    found = meter.reading()
    assert exact <= found.epsilon <= exact * (1 + 1e-9)
    assert found.exact_delta == F(101, 1000)
    meter.record(PureDP.of(F(1, 100)))
    assert meter.reading() == found  # 3/1000 + 1/20000 is below the same rung
    meter.record(ZeroConcentratedDP.of(0, F(9, 10)))
    assert meter.reading().exact_delta == 1
    small = Odometer(F(1, 1000))
    small.record(ZeroConcentratedDP.of(F(1, 1000)))
    first = 0.001 + 2 * math.sqrt(0.001 * math.log(2000))
    assert first <= small.reading().epsilon <= first * (1 + 1e-9)


@pytest.mark.skipif(not pld.available(), reason="dp-accounting is an extra")
def test_loss_laws_keep_their_pure_epsilon_exactly() -> None:
    law = pld.PrivacyLoss.of_pure(PureDP.of(F(1, 2)))
    assert law.pure == F(1, 2)
    assert law.epsilon(0) == 0.5
    assert (law.delta(0.5), law.delta(0.6)) == (0, 0)
    assert pld.PrivacyLoss.of_pure(PureDP.of(F(100))).delta(0) == 1  # never more than all
    exact = -math.expm1(0.25 - 0.5) / (1 + math.exp(-0.5))
    assert exact <= law.delta(0.25) <= exact * (1 + 1e-2)
    twice = law.repeat(2)
    assert twice.pure == law.compose(law).pure == 1
    assert law.repeat(1) is law
    assert enumerated([0.5, 0.5], 0.3) <= twice.delta(0.3) <= enumerated([0.5, 0.5], 0.3) * 1.02
    gauss = pld.PrivacyLoss.of_gaussian(2.0)
    assert gauss.pure is None
    assert gauss.epsilon(0) == math.inf
    assert (gauss.adjacency, law.adjacency) == (ADD, Adjacency.REPLACE_LABEL)
    assert gaussian_delta(2.0, 0.5) <= gauss.delta(0.5) <= gaussian_delta(2.0, 0.5) * 1.02
    assert gauss.repeat(2).pure is None
    assert pld.PrivacyLoss.of_discrete_laplace(F(4)).pure == F(1, 4)
    both = gauss.compose(pld.PrivacyLoss.of_discrete_laplace(F(4)))
    assert both.pure is None
    for wrong in (lambda: law.compose(gauss), lambda: law.repeat(0)):
        with pytest.raises(PrivacyError):
            wrong()
    fair = {0: 0.5, 1: 0.5}
    for upper, lower in (({0: 0.5}, fair), (fair, {0: 1.2, 1: -0.2}), ({0: math.nan}, fair)):
        with pytest.raises(PrivacyError, match="they must be >= 0 and sum to 1"):
            pld.PrivacyLoss.of_pair(upper, lower)
    stated = law.guarantee(0.01)
    assert stated.exact_delta == F(0.01)
    assert stated.epsilon == law.epsilon(0.01)
    of_users = PureDP.of(F(1, 2), ADD, Unit.USER)
    about_users = pld.PrivacyLoss.of_pure(of_users).repeat(2).guarantee(0.01)
    assert about_users.neighbours == of_users.neighbours
    assert above(1.0) > 1
