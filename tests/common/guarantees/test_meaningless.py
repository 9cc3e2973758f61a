"""Numbers that mean nothing are refused, each in one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from labelveil.common.errors import PrivacyError
from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    Filter,
    PureDP,
    Unit,
    ZeroConcentratedDP,
    adaptive_total,
    compose,
    largest_rho,
)
from labelveil.common.guarantees.accountant import Odometer, total
from labelveil.common.guarantees.bounded_range import BoundedRange
from labelveil.common.guarantees.calibration import calibrate
from labelveil.common.guarantees.composition import advanced_composition, optimal_composition
from labelveil.common.guarantees.conversion import (
    for_replacement,
    to_approximate,
    to_pure,
    to_renyi,
    to_zcdp,
    unconverted,
)
from labelveil.common.guarantees.gaussian import (
    gaussian_sigma,
    gaussian_zcdp,
)
from labelveil.common.guarantees.limits import at_least, positive, within
from labelveil.common.guarantees.subsampling import (
    fixed_size_gaussian,
    fixed_size_subsample,
    poisson_subsample,
    subsampled_gaussian,
)
from tests.common.guarantees.curves import ADD, F, renyi


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1]", [0, 0.5, 1, F(1)], [-1e-300, 1.0000001, math.nan, math.inf, -math.inf]),
        ("(0, 1)", [1e-300, 0.999], [0, 1, math.nan]),
        ("[0, ∞)", [0, 1e300], [-1e-9, math.inf, math.nan]),
        ("(0, 1/2]", [F(1, 2), 0.1], [F(51, 100), 0]),
        ("[1e-100, 1)", [1e-100, 0.5], [1e-101, 1, 0, 10**400]),
    ],
)
def test_ends_of_intervals_are_in_them_or_not(
    interval: str, inside: list[Any], outside: list[Any]
) -> None:
    for number in inside:
        within(interval, x=number)
    for number in outside:
        with pytest.raises(PrivacyError, match=r"x=.* must lie in"):
            within(interval, y=inside[0], x=number)
    for other in ("1", None):
        with pytest.raises(PrivacyError, match="must be a number in"):
            within(interval, x=other)  # type: ignore[arg-type]
    positive(a=None, b=1e-300)
    for number in (0, -1, math.inf, math.nan):
        with pytest.raises(PrivacyError, match=r"b=.* must be > 0 and finite"):
            positive(a=1, b=number)
    at_least(2, a=None, b=2)
    with pytest.raises(PrivacyError, match="b=1 must be at least 2"):
        at_least(2, a=5, b=1)


REFUSED: list[Callable[[], object]] = [
    lambda: PureDP.of(-0.1),
    lambda: PureDP.of(math.nan),
    lambda: PureDP.of(math.inf),
    lambda: PureDP(Adjacency.REPLACE_LABEL, Unit.RECORD, F(-1)),
    lambda: ApproximateDP.of(-1, 0.1),
    lambda: ApproximateDP.of(1, -0.1),
    lambda: ApproximateDP.of(1, F(11, 10)),
    lambda: ZeroConcentratedDP.of(-1),
    lambda: ZeroConcentratedDP.of(1, F(11, 10)),
    lambda: BoundedRange.of(-1),
    lambda: BoundedRange(Adjacency.REPLACE_LABEL, Unit.RECORD, ((F(2), 1), (F(1), 0))),
    lambda: BoundedRange(Adjacency.REPLACE_LABEL, Unit.RECORD, ((F(1), 1), (F(2), 1))),
    lambda: BoundedRange(Adjacency.REPLACE_LABEL, Unit.RECORD, ((F(1), 1), (F(1), 1))),
    lambda: BoundedRange(Adjacency.REPLACE_LABEL, Unit.RECORD, ((F(1), 1), (F(0), 1))),
    lambda: renyi([], []),
    lambda: renyi([2], [1, 2]),
    lambda: renyi([1, 2], [1, 2]),
    lambda: renyi([3, 2], [1, 2]),
    lambda: renyi([2, 2], [1, 2]),
    lambda: renyi([2, 3], [1, -1]),
    lambda: renyi([2], [1], F(11, 10)),
    lambda: renyi([2], [1]).at(1),
    lambda: renyi([2], [1]).at(F(21, 10)),
    lambda: to_renyi(renyi([2, 3], [1, 2]), [F(4)]),
    lambda: to_pure(ApproximateDP.of(1, 0.1)),
    lambda: to_zcdp(renyi([2], [1])),
    lambda: unconverted(ZeroConcentratedDP.of(1)),
    lambda: to_approximate(PureDP.of(1), -0.1),
    lambda: to_approximate(PureDP.of(1), F(11, 10)),
    lambda: to_approximate(ApproximateDP.of(1, F(1, 10)), F(99, 1000)),
    lambda: to_approximate(ZeroConcentratedDP.of(1, F(1, 10)), F(1, 10)),
    lambda: to_approximate(ZeroConcentratedDP.of(1), F(1, 10**301)),
    lambda: to_approximate(ZeroConcentratedDP.of(1), F(1, 10**400)),
    lambda: to_approximate(renyi([2], [1]), F(1, 10**400)),
    lambda: for_replacement(PureDP.of(1)),
    lambda: compose([]),
    lambda: compose([PureDP.of(1), ZeroConcentratedDP.of(1)]),
    lambda: total([], 0.1),
    lambda: total([ZeroConcentratedDP.of(1)], 0),
    lambda: adaptive_total([ZeroConcentratedDP.of(1)], F(0)),
    lambda: adaptive_total([renyi([F(3, 2)], [1])], F(1, 10)),
    lambda: advanced_composition(1, -1, 0.1),
    lambda: advanced_composition(1, 1, -0.1),
    lambda: advanced_composition(1, 1, F(11, 10)),
    lambda: optimal_composition([PureDP.of(1)], F(11, 10)),
    lambda: optimal_composition([ApproximateDP.of(1, F(1, 10))] * 2, F(18, 100)),
    lambda: calibrate(PureDP.of, 0, 0),
    lambda: calibrate(lambda scale: PureDP.of(1), 0.5, 0, limit=8),
    lambda: largest_rho(0, 0.1),
    lambda: gaussian_zcdp(0),
    lambda: gaussian_sigma(-1, 0.1),
    lambda: gaussian_sigma(1, 0),
    lambda: gaussian_sigma(1, 1),
    lambda: gaussian_sigma(0, 1e-14),  # below the float error of any
    lambda: poisson_subsample(PureDP.of(1), 0.1),
    lambda: poisson_subsample(PureDP.of(1, ADD), 1.1),
    lambda: poisson_subsample(PureDP.of(1, ADD), -0.1),
    lambda: poisson_subsample(ZeroConcentratedDP.of(1, adjacency=ADD), 0.1),
    lambda: poisson_subsample(renyi([2], [1], F(1, 10), adjacency=ADD), 0.1),
    lambda: poisson_subsample(renyi([F(3, 2)], [1], adjacency=ADD), 0.1),
    lambda: fixed_size_subsample(PureDP.of(1, ADD), 0.1),
    lambda: fixed_size_subsample(PureDP.of(1), 1.1),
    lambda: subsampled_gaussian(0, 0.1),
    lambda: subsampled_gaussian(1, 1.1),
    lambda: fixed_size_gaussian(0, 0.1),
    lambda: fixed_size_gaussian(1, -0.1),
    lambda: Odometer(0),
    lambda: Odometer(1),
    lambda: Odometer(0.1).reading(),
    lambda: Filter(PureDP.of(1)).admits(ZeroConcentratedDP.of(1)),
    lambda: Filter(BoundedRange.of(1)).admits(PureDP.of(1)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_has_no_meaning_is_refused(number: int) -> None:
    with pytest.raises(PrivacyError):
        REFUSED[number]()
