"""Privacy amplification by Poisson subsampling: each unit takes part with probability q.

Only for adding or removing one unit: under replacement the sampled neighbours differ in another
way, and using these bounds there is a known fault of public accountants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import singledispatch

import numpy as np
import scipy

from common.arrays import Floats
from common.errors import PrivacyError
from common.exact.rounding import above, float_above
from common.guarantees.approximate import ApproximateDP
from common.guarantees.base import Adjacency, Guarantee, Unit
from common.guarantees.pure import PureDP
from common.guarantees.renyi import RenyiDP

INTEGER_ORDERS: tuple[Fraction, ...] = tuple(
    Fraction(order) for order in (*range(2, 65), *range(72, 129, 8), 160, 192, 256, 384, 512)
)


@singledispatch
def poisson_subsample(guarantee: Guarantee, rate: float | Fraction) -> Guarantee:
    """Return the guarantee of running a mechanism on a Poisson sample of rate q.

    - ε-DP: ``ln(1 + q(e^ε − 1))``; (ε, δ)-DP: the same with qδ (Li, Qardaji, Su 2012, Theorem 1;
      Balle, Barthe, Gaboardi 2018, Theorem 8).
    - RDP, at integer orders: with ``ε_l = ε(l)``,
      ``e^{(α−1)ε'} = (1−q)^{α−1}(αq−q+1) + C(α,2) q²(1−q)^{α−2} e^{ε_2}
      + 3 Σ_{l=3}^α C(α,l)(1−q)^{α−l} q^l e^{(l−1)ε_l}`` (Zhu and Wang, *Poisson Subsampled Rényi
      Differential Privacy*, ICML 2019, Theorem 5). The sampled curve is never above the original.

    Parameters
    ----------
    guarantee
        An add-or-remove guarantee of the mechanism on the sample.
    rate
        q in 0 … 1.

    Raises
    ------
    PrivacyError
        For another adjacency, a rate outside 0 … 1, or a kind without such a theorem.
    """
    raise PrivacyError(
        f"a {guarantee.kind} guarantee has no subsampling theorem here; restate it with to_renyi"
    )


@poisson_subsample.register
def _(guarantee: PureDP, rate: float | Fraction) -> PureDP:
    q = _rate(guarantee, rate)
    return PureDP(guarantee.adjacency, guarantee.unit, _sampled(guarantee.exact_epsilon, q))


@poisson_subsample.register
def _(guarantee: ApproximateDP, rate: float | Fraction) -> ApproximateDP:
    q = _rate(guarantee, rate)
    epsilon = _sampled(guarantee.exact_epsilon, q)
    return ApproximateDP(guarantee.adjacency, guarantee.unit, epsilon, q * guarantee.exact_delta)


@poisson_subsample.register
def _(guarantee: RenyiDP, rate: float | Fraction) -> RenyiDP:
    q = _rate(guarantee, rate)
    if guarantee.exact_delta > 0:
        raise PrivacyError(
            "RDP with a failure probability has no subsampling theorem; convert it to"
            " (epsilon, delta) first"
        )
    if q == 1:
        return guarantee
    orders = [order for order in INTEGER_ORDERS if order <= guarantee.orders[-1]]
    if not orders:
        raise PrivacyError(
            f"the curve ends at order {float(guarantee.orders[-1])}; subsampling needs order 2"
        )
    last = int(orders[-1])
    moments = np.array([float((m - 1) * guarantee.at(m)) for m in range(2, last + 1)])
    log_terms = np.concatenate([[0.0, 0.0], moments])
    log_terms[3:] += math.log(3)
    values = _sampled_curve(log_terms, q, orders)
    capped = tuple(
        min(Fraction(above(v)), guarantee.at(a)) for v, a in zip(values, orders, strict=True)
    )
    return RenyiDP(guarantee.adjacency, guarantee.unit, tuple(orders), capped, Fraction(0))


def subsampled_gaussian(
    noise_multiplier: float | Fraction,
    rate: float | Fraction,
    unit: Unit = Unit.RECORD,
    orders: Sequence[Fraction] = INTEGER_ORDERS,
) -> RenyiDP:
    """Return the exact RDP curve of one Poisson-subsampled Gaussian step, at integer orders.

    ``(α−1)ε' = ln Σ_l C(α,l)(1−q)^{α−l} q^l e^{(l²−l)/(2σ²)}``: Mironov, Talwar, Zhang, *Rényi
    Differential Privacy of the Sampled Gaussian Mechanism*, 2019, Section 3.3. This is the step of
    DP-SGD, with σ the noise multiplier, for adding or removing one unit.
    """
    sigma, q = Fraction(noise_multiplier), Fraction(rate)
    if sigma <= 0:
        raise PrivacyError(f"noise_multiplier={float(sigma)} must be > 0")
    if not 0 <= q <= 1:
        raise PrivacyError(f"rate={float(q)} must lie in 0 … 1")
    last = int(orders[-1])
    degree = np.arange(last + 1.0)
    values = _sampled_curve(degree * (degree - 1) / (2 * float(sigma) ** 2), q, orders)
    capped = tuple(
        min(Fraction(above(value)), order / (2 * sigma * sigma))
        for value, order in zip(values, orders, strict=True)
    )
    return RenyiDP(Adjacency.ADD_REMOVE, unit, tuple(orders), capped, Fraction(0))


def _sampled_curve(log_terms: Floats, rate: Fraction, orders: Sequence[Fraction]) -> list[float]:
    """``ln Σ_l C(α,l)(1−q)^{α−l} q^l e^{log_terms[l]} / (α − 1)``, moved up by its float error."""
    if rate == 0:
        return [0.0] * len(orders)
    if rate == 1:
        return [float(log_terms[int(a)]) / (int(a) - 1) for a in orders]
    log_in, log_out = math.log(float(rate)), math.log1p(-float(rate))
    values = []
    for order in orders:
        alpha = int(order)
        degree = np.arange(alpha + 1.0)
        gammaln = scipy.special.gammaln
        log_choose = gammaln(alpha + 1.0) - gammaln(degree + 1) - gammaln(alpha - degree + 1)
        terms = log_choose + (alpha - degree) * log_out + degree * log_in + log_terms[: alpha + 1]
        error = 1e-15 * (10 + float(np.max(np.abs(terms), where=np.isfinite(terms), initial=0)))
        values.append((max(0.0, float(scipy.special.logsumexp(terms))) + error) / (alpha - 1))
    return values


def _sampled(epsilon: Fraction, rate: Fraction) -> Fraction:
    if rate == 1 or epsilon == 0:
        return epsilon
    e, q = float_above(epsilon), float_above(rate)
    bound = math.log1p(q * math.expm1(e)) if e < 700 else e
    return min(epsilon, Fraction(above(bound)))


def _rate(guarantee: Guarantee, rate: float | Fraction) -> Fraction:
    q = Fraction(rate)
    if not 0 <= q <= 1:
        raise PrivacyError(f"rate={float(q)} must lie in 0 … 1")
    if guarantee.adjacency != Adjacency.ADD_REMOVE:
        raise PrivacyError(
            f"Poisson subsampling amplifies add-remove guarantees, not {guarantee.adjacency}"
        )
    return q
