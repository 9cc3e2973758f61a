"""Every q and t against the largest that linear programming finds, over small sets of outcomes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.errors import PrivacyError
from labelveil.common.mechanisms.interactive.targets import (
    Target,
    between_thresholds,
    boundary,
    boundary_closeness,
    hit_probability,
    not_prior,
    run_twice,
)
from tests.common.mechanisms.interactive import laws
from tests.effort import effort, one_in

EPSILONS = [Fraction(1, 10), Fraction(1, 2), Fraction(1), Fraction(2)]


def least(pairs: list[tuple[np.ndarray, np.ndarray]], target: set[int], epsilon: float) -> float:
    return min(laws.largest_q(one, other, target, epsilon) for one, other in pairs)


def rows(epsilon: float, outcomes: int, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(laws.neighbours(epsilon, outcomes, count, seed=outcomes))


@pytest.mark.parametrize("outcomes", [2, 3, 5])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_closed_form_is_the_linear_program(epsilon: Fraction, outcomes: int) -> None:
    e = float(epsilon)
    for one, other in rows(e, outcomes, effort(5, 25)):
        for target in ({0}, {outcomes - 1}, set(range(1, outcomes))):
            solved = laws.largest_q(one, other, target, e)
            assert hit_probability(one, other, target, e) == pytest.approx(solved, abs=2e-6)


def test_laws_that_are_not_close_have_no_target() -> None:
    with pytest.raises(PrivacyError, match="within a factor"):
        hit_probability([0.9, 0.1], [0.5, 0.5], {1}, 0.5)
    assert hit_probability([0.5, 0.5], [0.5, 0.5], {1}, 0.5) == pytest.approx(1)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_not_prior(epsilon: Fraction) -> None:
    e, q = float(epsilon), float(not_prior(epsilon).probability)
    pairs = [pair for outcomes in (2, 3, 4) for pair in rows(e, outcomes, effort(5, 12))]
    for one, other in pairs:
        for prior in range(one.size):
            target = set(range(one.size)) - {prior}
            assert laws.largest_q(one, other, target, e) >= q - 2e-6
    x = 0.01 * math.exp(-e)
    extreme = (np.array([1 - x, x]), np.array([1 - x * math.exp(e), x * math.exp(e)]))
    assert least([extreme], {1}, e) == pytest.approx(1 / (math.exp(e) + 1), abs=1e-6)


def position_law(count: int, low: int, high: int, scale: float) -> np.ndarray:
    above = float(laws.at_least(scale, high - count))
    below = 1 - float(laws.at_least(scale, low - count))
    return np.array([below, 1 - below - above, above])


@pytest.mark.parametrize("sensitivity", [1, 3])
@pytest.mark.parametrize("width", one_in(3, [1, 2, 7]))
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_between_thresholds(epsilon: Fraction, width: int, sensitivity: int) -> None:
    e, q = float(epsilon), float(between_thresholds(epsilon, width, sensitivity).probability)
    low, high = 0, width
    pairs = [
        (
            position_law(count, low, high, sensitivity / e),
            position_law(count + step, low, high, sensitivity / e),
        )
        for count in range(-4, width + 2)
        for step in {1, sensitivity}
    ]
    found = least(pairs, {1}, e)
    assert found >= q - 2e-6
    assert found == pytest.approx(
        (1 - math.exp(-e * width / sensitivity)) / (math.exp(e) + 1), abs=1e-5
    )


def test_between_thresholds_with_the_continuous_length_would_be_wrong() -> None:
    # three integers 0, 1, 2 lie in [0, 3); the distance between the outer ones is 2
    e = 1.0
    pairs = [(position_law(c, 0, 2, 1 / e), position_law(c + 1, 0, 2, 1 / e)) for c in (-3, 1)]
    claimed = (1 - math.exp(-e * 3)) / (math.exp(e) + 1)
    assert least(pairs, {1}, e) < claimed - 1e-3


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_closeness_of_the_boundary_wrapper(epsilon: Fraction) -> None:
    e, t = float(epsilon), float(boundary_closeness(epsilon))
    worst = 0.0
    for outcomes in (2, 3, 4):
        for one, other in rows(e, outcomes, effort(100, 400)):
            with np.errstate(divide="ignore"):
                worst = max(
                    worst, float(np.abs(np.log(laws.wrapped(one) / laws.wrapped(other))).max())
                )
    # one vanishing outcome grows while all others but the likeliest shrink
    tiny = 1e-7
    for half in np.linspace(0.3, 0.6, 61):
        one = np.array([1 - half, tiny, half - tiny])
        other = np.array([0.0, tiny * math.exp(e), (half - tiny) * math.exp(-e)])
        other[0] = 1 - other.sum()
        if other[0] <= one[0] * math.exp(e):
            worst = max(worst, float(np.log(laws.wrapped(other) / laws.wrapped(one)).max()))
    assert worst <= t + 1e-12
    assert worst == pytest.approx(t, abs=1e-5)
    assert t <= 4 * e / 3


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_boundary(epsilon: Fraction) -> None:
    guarantee = boundary(epsilon)
    e, t, q = float(epsilon), float(guarantee.epsilon), float(guarantee.probability)
    pairs = [
        (laws.wrapped(one), laws.wrapped(other))
        for outcomes in (2, 3, 4)
        for one, other in rows(e, outcomes, effort(4, 30))
    ]
    assert least(pairs, {0}, t) >= q - 2e-6
    many = [
        hit_probability(laws.wrapped(one), laws.wrapped(other), {0}, t)
        for outcomes in (2, 3, 4, 6)
        for one, other in rows(e, outcomes, effort(100, 400))
    ]
    assert min(many) >= q - 1e-9
    x = 1e-5
    one, other = np.array([1 - x, x]), np.array([1 - x * math.exp(e), x * math.exp(e)])
    extreme = hit_probability(laws.wrapped(one), laws.wrapped(other), {0}, t)
    assert extreme == pytest.approx(q, rel=1e-3)  # no larger q is true
    published = math.expm1(t) / (2 * math.expm1(e + t))
    assert published < q < 1.09 * published


@pytest.mark.parametrize("epsilon", [Fraction(1, 20), *EPSILONS, Fraction(3)])
def test_two_runs(epsilon: Fraction) -> None:
    guarantee = run_twice(epsilon)
    e, q = float(epsilon), float(guarantee.probability)
    assert guarantee.epsilon == 2 * epsilon
    for outcomes, programs in ((2, effort(6, 20)), (3, effort(3, 10))):
        target = {i for i in range(outcomes**2) if i // outcomes != i % outcomes}
        for one, other in rows(e, outcomes, programs):
            found = laws.largest_q(laws.twice(one), laws.twice(other), target, 2 * e)
            assert found >= q - 2e-6
        for one, other in rows(e, outcomes, effort(100, 400)):
            found = hit_probability(laws.twice(one), laws.twice(other), target, 2 * e)
            assert found >= q - 1e-9
    u, x = 1 / (math.exp(e) + 1), 1e-7
    extremes = [
        (np.array([u, 1 - u]), np.array([1 - u, u])),
        (np.array([1 - x, x]), np.array([1 - x * math.exp(e), x * math.exp(e)])),
    ]
    found = [hit_probability(laws.twice(a), laws.twice(b), {1, 2}, 2 * e) for a, b in extremes]
    assert min(found) == pytest.approx(q, rel=1e-3)


def test_the_grid_of_two_outcomes_holds_no_worse_pair_for_two_runs() -> None:
    for e in np.geomspace(0.02, 4, 8).tolist():
        q = float(run_twice(Fraction(e)).probability)
        grow = math.exp(e)
        for x in [*np.geomspace(1e-6, 0.5, 30).tolist(), 1 / (1 + grow)]:
            top = min(grow * x, 1 - (1 - x) / grow)
            for y in np.linspace(x, top, 13)[1:].tolist():
                one, other = np.array([1 - x, x]), np.array([1 - y, y])
                found = hit_probability(laws.twice(one), laws.twice(other), {1, 2}, 2 * e)
                assert found >= q * (1 - 1e-9), (e, x, y)


def test_small_epsilon_limits() -> None:
    small = Fraction(1, 1000)
    assert float(not_prior(small).probability) == pytest.approx(1 / 2, abs=1e-3)
    assert float(boundary(small).probability) == pytest.approx(4 / 13, abs=1e-3)
    assert float(run_twice(small).probability) == pytest.approx(1 / 2, abs=1e-3)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Target(Fraction(0), Fraction(1, 2)), "epsilon"),
        (lambda: Target(Fraction(50), Fraction(1, 2)), "epsilon"),
        (lambda: Target(Fraction(1), Fraction(0)), "q="),
        (lambda: Target(Fraction(1), Fraction(3, 2)), "q="),
        (lambda: Target(Fraction(1), Fraction(1, 2), Fraction(1)), "delta"),
        (lambda: between_thresholds(Fraction(1), 0), "width"),
    ],
)
def test_impossible_targets_are_refused(make: object, named: str) -> None:
    with pytest.raises(PrivacyError, match=named):
        make()  # type: ignore[operator]
