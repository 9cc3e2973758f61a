"""Random guarantees of every kind, and exact divergences of small discrete laws, for the tests."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Context, Decimal
from fractions import Fraction
from itertools import product
from typing import Any

from hypothesis import strategies as st

from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    BoundedRange,
    Guarantee,
    PureDP,
    RenyiDP,
    Unit,
    ZeroConcentratedDP,
)

ADD = (Adjacency.ADD_REMOVE, Unit.USER)
PRECISE = Context(prec=60)

epsilons = st.fractions(Fraction(1, 1000), 4, max_denominator=1000)
deltas = st.sampled_from([Fraction(1, 10**n) for n in (2, 4, 6, 9, 12)])
failures = st.sampled_from([Fraction(0), Fraction(1, 10**9), Fraction(1, 10**7)])
orders = st.sampled_from(
    [
        tuple(Fraction(n, 2) for n in range(3, 25)),
        tuple(Fraction(n) for n in range(2, 33)),
        (Fraction(5, 4), Fraction(2), Fraction(8), Fraction(64)),
    ]
)


@st.composite
def curves(draw: st.DrawFn) -> RenyiDP:
    """RDP curves that real mechanisms have: a mixture of a Gaussian's and a response's."""
    rho, epsilon, grid = draw(epsilons) / 4, draw(epsilons), draw(orders)
    values = tuple(min(a * rho, epsilon) + a * rho / 8 for a in grid)
    return RenyiDP(*ADD, grid, values, draw(failures))


pure = epsilons.map(lambda e: PureDP(*ADD, e))
approximate = st.builds(lambda e, d: ApproximateDP(*ADD, e, d), epsilons, failures)
bounded = epsilons.map(lambda e: BoundedRange.of(e, *ADD))
concentrated = st.builds(lambda r, d: ZeroConcentratedDP(*ADD, r, d), epsilons, failures)
kinds: dict[str, st.SearchStrategy[Guarantee]] = {
    "pure": pure,
    "approximate": approximate,
    "bounded-range": bounded,
    "zcdp": concentrated,
    "renyi": curves(),
}
anything: st.SearchStrategy[Guarantee] = st.one_of(*kinds.values())


def response(ratio: Fraction) -> dict[int, dict[int, Fraction]]:
    """Binary randomized response with e^ε = ratio, as input → output → probability."""
    truth = ratio / (1 + ratio)
    return {0: {0: truth, 1: 1 - truth}, 1: {0: 1 - truth, 1: truth}}


def power(law: Mapping[Any, Fraction], times: int) -> dict[tuple[Any, ...], Fraction]:
    """The law of independent repeats."""
    out: dict[tuple[Any, ...], Fraction] = {}
    for path in product(law, repeat=times):
        mass = Fraction(1)
        for outcome in path:
            mass *= law[outcome]
        out[path] = mass
    return out


def hockey_stick(p: Mapping[Any, Fraction], q: Mapping[Any, Fraction], epsilon: Fraction) -> float:
    """``Σ max(0, p − e^ε q)`` to 60 digits, rounded down: a lower bound of any valid δ(ε)."""
    grow = PRECISE.exp(PRECISE.divide(Decimal(epsilon.numerator), Decimal(epsilon.denominator)))
    total = Decimal(0)
    for outcome, mass in p.items():
        other = q.get(outcome, Fraction(0))
        gap = PRECISE.subtract(_decimal(mass), PRECISE.multiply(grow, _decimal(other)))
        total = PRECISE.add(total, max(Decimal(0), gap))
    return float(total) * (1 - 1e-14)


def renyi(p: Mapping[Any, Fraction], q: Mapping[Any, Fraction], order: Fraction) -> float:
    """``ln Σ p^α q^{1−α} / (α − 1)`` to 60 digits, rounded down."""
    alpha = _decimal(order)
    total = Decimal(0)
    for outcome, mass in p.items():
        if mass == 0:
            continue
        ratio = PRECISE.ln(_decimal(mass / q[outcome]))
        term = PRECISE.multiply(
            _decimal(mass), PRECISE.exp(PRECISE.multiply(PRECISE.subtract(alpha, 1), ratio))
        )
        total = PRECISE.add(total, term)
    value = float(PRECISE.divide(PRECISE.ln(total), PRECISE.subtract(alpha, 1)))
    return value - abs(value) * 1e-14


def log_ratio_up(ratio: Fraction) -> Fraction:
    """A rational just above ln(ratio)."""
    return Fraction(PRECISE.ln(_decimal(ratio))) + Fraction(1, 10**50)


def _decimal(value: Fraction) -> Decimal:
    return PRECISE.divide(Decimal(value.numerator), Decimal(value.denominator))
