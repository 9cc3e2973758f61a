"""What every accountant must obey, whatever its kind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from fractions import Fraction
from functools import reduce
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labelveil.common.errors import PrivacyError
from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    BoundedRange,
    Guarantee,
    Odometer,
    PureDP,
    RenyiDP,
    Unit,
    ZeroConcentratedDP,
    advanced_composition,
    calibrate,
    compose,
    epsilon_at,
    fixed_size_gaussian,
    for_replacement,
    guarantee_from_json,
    largest_rho,
    optimal_composition,
    poisson_subsample,
    subsampled_gaussian,
    to_approximate,
    to_renyi,
    to_zcdp,
    total,
)
from labelveil.common.guarantees.gaussian import gaussian_sigma, gaussian_zcdp
from tests.common.guarantees import examples

quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
each_kind = pytest.mark.parametrize("kind", sorted(examples.kinds))
DELTA = Fraction(1, 10**5)


@each_kind
@quick
@given(data=st.data(), times=st.integers(1, 9))
def test_repeat_is_composition(kind: str, data: st.DataObject, times: int) -> None:
    item = data.draw(examples.kinds[kind])
    assert item.repeat(times) == compose([item] * times)
    assert epsilon_at(item.repeat(0), DELTA) == 0


@pytest.mark.slow
@each_kind
@quick
@given(data=st.data())
def test_composition_ignores_order_and_grouping(kind: str, data: st.DataObject) -> None:
    items = data.draw(st.lists(examples.kinds[kind], min_size=3, max_size=4))
    mixed = data.draw(st.permutations(items))
    assert compose(items) == compose(mixed)
    right = reduce(lambda acc, item: item.compose(acc), reversed(items[:-1]), items[-1])
    assert compose(items) == right


@each_kind
@quick
@given(data=st.data(), delta=examples.deltas)
def test_more_releases_never_cost_less(kind: str, data: st.DataObject, delta: Fraction) -> None:
    first, second = data.draw(st.tuples(examples.kinds[kind], examples.kinds[kind]))
    both = compose([first, second])
    assert first.within(both)
    assert not both.within(first) or second.within(second.repeat(0))
    if delta <= Fraction(1, 10**6):
        delta = Fraction(1, 10**6)
    one, two = to_approximate(first, delta), to_approximate(both, delta)
    assert 0 <= one.exact_epsilon <= two.exact_epsilon


def test_a_curve_known_at_more_orders_never_converts_to_more() -> None:
    """The conversion takes the least over chords too: orders that others bring change nothing."""
    coarse = RenyiDP.of([0.05, 0.3, 1.0], orders=(Fraction(5, 4), Fraction(8), Fraction(64)))
    nothing = RenyiDP.of(lambda _: Fraction(0), orders=tuple(Fraction(n, 8) for n in range(9, 513)))
    finer = compose([coarse, nothing])
    assert isinstance(finer, RenyiDP)
    assert len(finer.orders) > 500
    for delta in (Fraction(1, 10**n) for n in (1, 2, 4, 6, 9)):
        whole, parts = epsilon_at(coarse, delta), epsilon_at(finer, delta)
        assert whole == pytest.approx(parts, rel=1e-12)
        assert whole > 0
    own_orders = min(
        float(value) + math.log1p(-1 / a) - math.log(1e-4 * a) / (a - 1)
        for a, value in zip(map(float, coarse.orders), coarse.values, strict=True)
    )
    assert epsilon_at(coarse, Fraction(1, 10**4)) < own_orders - 0.001


@each_kind
@quick
@given(data=st.data())
def test_a_larger_delta_never_asks_more_epsilon(kind: str, data: st.DataObject) -> None:
    item = data.draw(examples.kinds[kind])
    values = [epsilon_at(item, Fraction(1, 10**n)) for n in (2, 3, 4, 5, 6)]
    assert values == sorted(values)
    assert values[0] >= 0


@each_kind
@quick
@given(data=st.data())
def test_json_round_trip_is_exact(kind: str, data: st.DataObject) -> None:
    item = data.draw(examples.kinds[kind])
    assert guarantee_from_json(json.loads(json.dumps(item.to_json()))) == item


@each_kind
@quick
@given(data=st.data())
def test_other_neighbours_do_not_compose(kind: str, data: st.DataObject) -> None:
    item = data.draw(examples.kinds[kind])
    other = type(item).from_parameters(item.to_json(), Adjacency.REPLACE_RECORD, item.unit)
    for action in (item.compose, item.within):
        with pytest.raises(PrivacyError, match="adjacency"):
            action(other)
    third = type(item).from_parameters(item.to_json(), item.adjacency, Unit.RECORD)
    with pytest.raises(PrivacyError, match="privacy unit"):
        total([item, third], DELTA)


@quick
@given(epsilon=examples.epsilons, times=st.integers(1, 60), delta=examples.deltas)
def test_a_tighter_method_is_never_looser(epsilon: Fraction, times: int, delta: Fraction) -> None:
    one = PureDP(*examples.ADD, epsilon)
    best = optimal_composition([one] * times, delta).exact_epsilon
    slack = 1 + Fraction(1, 10**8)
    assert best <= advanced_composition(epsilon, times, delta) * slack
    assert best <= epsilon * times
    curve = epsilon_at(to_renyi(one).repeat(times), delta)
    assert best <= Fraction(curve) * slack
    assert curve <= epsilon_at(to_zcdp(one).repeat(times), delta) * 1.01


@pytest.mark.slow
@quick
@given(items=st.lists(examples.anything, min_size=1, max_size=4))
def test_the_total_takes_the_best_route(items: list[Guarantee]) -> None:
    result = total(items, DELTA)
    assert result.exact_delta == DELTA
    assert result.exact_epsilon >= 0
    curves = [to_renyi(item, tuple(Fraction(n) for n in range(2, 65))) for item in items]
    assert result.exact_epsilon <= to_approximate(compose(curves), DELTA).exact_epsilon * Fraction(
        1001, 1000
    ) or any(isinstance(item, RenyiDP) for item in items)


@quick
@given(rho=examples.epsilons, times=st.integers(1, 300), delta=examples.deltas)
def test_bounded_range_beats_pure_by_four(rho: Fraction, times: int, delta: Fraction) -> None:
    assert to_zcdp(BoundedRange.of(rho)).exact_rho * 4 == to_zcdp(PureDP.of(rho)).exact_rho
    curve, plain = to_renyi(BoundedRange.of(rho)), to_renyi(PureDP.of(rho))
    assert all(a <= b for a, b in zip(curve.values, plain.values, strict=True))
    many = BoundedRange.of(rho).repeat(times)
    pure, concentrated = PureDP.of(rho * times), to_zcdp(many)
    assert epsilon_at(many, delta) == min(epsilon_at(pure, delta), epsilon_at(concentrated, delta))


def test_laws_whose_divergence_is_0_at_one_order_are_equal() -> None:
    curve = RenyiDP(*examples.ADD, (Fraction(2), Fraction(3)), (Fraction(0), Fraction(2)), DELTA)
    assert epsilon_at(curve, 2 * DELTA) == 0


def test_a_curve_that_ends_earlier_is_within_none_that_goes_on() -> None:
    orders, values = (Fraction(2), Fraction(3)), (Fraction(1), Fraction(2))
    longer, shorter = (
        RenyiDP(*examples.ADD, orders[:size], values[:size], Fraction(0)) for size in (2, 1)
    )
    assert longer.within(longer)
    assert longer.within(shorter)
    assert not shorter.within(longer)


def test_what_a_step_on_samples_protects_and_the_range_of_a_group() -> None:
    for unit in Unit:
        assert fixed_size_gaussian(2, 0.1, unit).unit == unit
        assert subsampled_gaussian(2, 0.1, unit=unit).unit == unit
    assert BoundedRange.of(Fraction(1, 4)).scale(3) == BoundedRange.of(Fraction(3, 4))


@settings(quick, max_examples=6)
@given(rho=examples.epsilons, group=st.integers(2, 5))
def test_group_privacy(rho: Fraction, group: int) -> None:
    item = ZeroConcentratedDP(*examples.ADD, rho, Fraction(0))
    assert item.scale(group).exact_rho == group * group * rho
    orders = tuple(Fraction(2**n) for n in range(1, 17))
    curve = to_renyi(item, orders).scale(group)
    exact = to_renyi(item.scale(group), curve.orders)
    # the triangle inequality is an upper bound of the Gaussian's own group curve, and not absurd
    assert all(e <= c for c, e in zip(curve.values, exact.values, strict=True))
    assert curve.at(2) <= 4 * exact.at(2)
    loose = ApproximateDP(*examples.ADD, Fraction(1, 2), Fraction(1, 10**9)).scale(group)
    assert loose.exact_epsilon == Fraction(group, 2)
    assert group * Fraction(1, 10**9) < loose.exact_delta < Fraction(3**group, 10**9)


def test_replacement_quadruples_rho_and_refuses_what_it_cannot_restate() -> None:
    item = ZeroConcentratedDP(*examples.ADD, Fraction(1, 2), Fraction(0))
    restated = for_replacement(item)
    assert (restated.exact_rho, restated.adjacency) == (2, Adjacency.REPLACE_RECORD)
    with pytest.raises(PrivacyError, match="add-remove"):
        for_replacement(restated)
    with pytest.raises(PrivacyError, match="group"):
        for_replacement(ZeroConcentratedDP(*examples.ADD, Fraction(1), Fraction(1, 10)))


def test_a_failure_probability_is_never_lost() -> None:
    item = ZeroConcentratedDP.of(Fraction(1, 10), Fraction(1, 10**6))
    with pytest.raises(PrivacyError, match="failure probability"):
        epsilon_at(item, Fraction(1, 10**6))
    assert epsilon_at(item, Fraction(2, 10**6)) == epsilon_at(
        ZeroConcentratedDP.of(Fraction(1, 10)), Fraction(1, 10**6)
    )
    assert item.repeat(10**7).exact_delta == 1


def negated(value: Any) -> Iterator[Any]:
    """Yield a number, or numbers in tuples, with each of them in turn below 0."""
    if isinstance(value, int | Fraction):
        yield -value - Fraction(1, 10**9)
    elif isinstance(value, tuple):
        for place, each in enumerate(value):
            yield from ((*value[:place], new, *value[place + 1 :]) for new in negated(each))


def spoiled(item: Any) -> Iterator[dict[str, Any]]:
    """Yield a field of a guarantee with one of its numbers below 0, or a δ above 1."""
    for each in fields(item):
        for value in negated(getattr(item, each.name)):
            yield {each.name: value}
        if each.name == "exact_delta":
            yield {each.name: 1 + Fraction(1, 10**9)}


@each_kind
@quick
@given(data=st.data())
def test_no_number_of_a_guarantee_may_be_negative(kind: str, data: st.DataObject) -> None:
    item = data.draw(examples.kinds[kind])
    for change in spoiled(item):
        with pytest.raises(PrivacyError):
            replace(item, **change)
    uses: list[tuple[Callable[[int], Guarantee], int]] = [(item.repeat, -1), (item.scale, 0)]
    for use, count in uses:
        with pytest.raises(PrivacyError, match=f"={count} must be at least {count + 1}"):
            use(count)


@pytest.mark.parametrize("wrong", [-0.001, math.nan])
@pytest.mark.parametrize(
    "use",
    [
        PureDP.of,
        lambda epsilon: ApproximateDP.of(epsilon, DELTA),
        lambda epsilon: gaussian_sigma(epsilon, 1e-5),
        lambda epsilon: largest_rho(epsilon, DELTA),
        lambda epsilon: calibrate(gaussian_zcdp, epsilon, DELTA),
        lambda delta: gaussian_sigma(1.0, delta),
        lambda delta: optimal_composition([PureDP.of(1)], delta),
        lambda delta: advanced_composition(1, 2, delta),
        lambda delta: to_approximate(ZeroConcentratedDP.of(1), delta),
        Odometer,
        lambda rate: poisson_subsample(PureDP(*examples.ADD, Fraction(1)), rate),
        gaussian_zcdp,
        lambda noise: subsampled_gaussian(noise, 0.1),
        lambda noise: fixed_size_gaussian(noise, 0.1),
    ],
)
def test_what_is_outside_of_its_limits_is_refused(use: Any, wrong: float) -> None:
    with pytest.raises((PrivacyError, ValueError), match=r"must|NaN"):  # NaN is no rational
        use(wrong)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ApproximateDP.of(-1, 0),
        lambda: ApproximateDP.of(1, 2),
        lambda: ZeroConcentratedDP.of(-1),
        lambda: ZeroConcentratedDP.of(1, -1),
        lambda: RenyiDP.of([], orders=()),
        lambda: RenyiDP.of([1.0, 1.0], orders=(Fraction(3), Fraction(2))),
        lambda: RenyiDP.of([1.0], orders=(Fraction(1),)),
        lambda: RenyiDP.of([Fraction(-1)], orders=(Fraction(2),)),
        lambda: BoundedRange.of(-1),
        lambda: PureDP.of(1).repeat(-1),
        lambda: BoundedRange.of(1).scale(0),
        lambda: to_approximate(PureDP.of(1), 1.5),
        lambda: to_approximate(PureDP.of(1), -0.1),
        lambda: to_approximate(ZeroConcentratedDP.of(1), 1.5),
        lambda: to_approximate(ZeroConcentratedDP.of(0), -0.1),
        lambda: compose([]),
        lambda: total([], DELTA),
        lambda: compose([PureDP.of(1), ZeroConcentratedDP.of(1)]),
    ],
)
def test_impossible_guarantees_are_refused(build: object) -> None:
    with pytest.raises(PrivacyError):
        build()  # type: ignore[operator]
