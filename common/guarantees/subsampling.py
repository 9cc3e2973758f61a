"""Privacy amplification by subsampling, for the neighbours that each way of sampling goes with.

- *Poisson:* each unit takes part with probability q. For adding or removing one unit.
- *Fixed size:* m of n units, drawn without replacement, q = m/n. For replacing one; n is public.

The bounds of one say nothing about the other's neighbours: using them there is a known fault of
public accountants, and is refused.
"""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import scipy

from labelveil.common.arrays import Floats
from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rational import rational
from labelveil.common.exact.rounding import above, float_above
from labelveil.common.guarantees.additive import ApproximateDP, PureDP
from labelveil.common.guarantees.base import Adjacency, Guarantee, Unit
from labelveil.common.guarantees.limits import positive, within
from labelveil.common.guarantees.renyi import RenyiDP

INTEGER_ORDERS: tuple[Fraction, ...] = tuple(
    Fraction(order) for order in (*range(2, 65), *range(72, 129, 8), 160, 192, 256, 384, 512)
)

_DIFFERENCES = 64
"""Up to which j differences of a Gaussian's moments are summed."""


def poisson_subsample(guarantee: Guarantee, rate: float | Fraction) -> Guarantee:
    """Return the guarantee of running a mechanism on a Poisson sample of rate q, in 0 … 1.

    - ε-DP: ``ln(1 + q(e^ε − 1))``; (ε, δ)-DP: the same with qδ (Li, Qardaji, Su 2012, Theorem 1;
      Balle, Barthe, Gaboardi 2018, Theorem 8).
    - RDP, at integer orders: with ``ε_l = ε(l)``,
      ``e^{(α−1)ε'} = (1−q)^{α−1}(αq−q+1) + C(α,2) q²(1−q)^{α−2} e^{ε_2}
      + 3 Σ_{l=3}^α C(α,l)(1−q)^{α−l} q^l e^{(l−1)ε_l}`` (Zhu and Wang, *Poisson Subsampled Rényi
      Differential Privacy*, ICML 2019, Theorem 5). The sampled curve is never above the original.

    The guarantee of the mechanism on the sample is for adding or removing.

    Raises
    ------
    PrivacyError
        For a guarantee of replacing, a rate outside 0 … 1, or a kind without such a theorem.
    """
    if guarantee.adjacency != Adjacency.ADD_REMOVE:
        raise PrivacyError(
            f"Poisson subsampling amplifies add-remove guarantees, not {guarantee.adjacency}"
        )
    q = _checked_rate(rate)
    if isinstance(guarantee, PureDP | ApproximateDP):
        return _mixed(guarantee, q)
    curve, terms = _moments(guarantee)
    terms[3:] += math.log(3)
    return _sampled(curve, terms, q)


def fixed_size_subsample(guarantee: Guarantee, rate: float | Fraction) -> Guarantee:
    """Return the guarantee of running a mechanism on m of n units, q = m/n, without replacement.

    - ε-DP: ``ln(1 + q(e^ε − 1))``; (ε, δ)-DP: the same with qδ (Balle, Barthe, Gaboardi 2018,
      Theorem 9).
    - RDP, at integer orders: with ``ε_j = ε(j)``,
      ``e^{(α−1)ε'} = 1 + C(α,2) q² min(4(e^{ε_2} − 1), 2e^{ε_2})
      + 2 Σ_{j=3}^α C(α,j) q^j e^{(j−1)ε_j}`` (Wang, Balle, Kasiviswanathan, *Subsampled Rényi
      Differential Privacy and Analytical Moments Accountant*, AISTATS 2019, Theorem 9, for a
      mechanism whose ε(∞) is not known to be finite; where it is, ε-DP above says more). The
      sampled curve is never above the original.

    The guarantee of the mechanism on the sample is for replacing one record or one label.

    Raises
    ------
    PrivacyError
        For a guarantee of adding or removing, a rate outside 0 … 1, or a kind without such a
        theorem.
    """
    if guarantee.adjacency == Adjacency.ADD_REMOVE:
        raise PrivacyError(
            "samples of a fixed size amplify guarantees for replacing, not for adding and removing"
        )
    q = _checked_rate(rate)
    if isinstance(guarantee, PureDP | ApproximateDP):
        return _mixed(guarantee, q)
    return _sampled(*_fixed_terms(guarantee), q, stay=False)


def subsampled_gaussian(
    noise_multiplier: float | Fraction, rate: float | Fraction, unit: Unit = Unit.RECORD
) -> RenyiDP:
    """Return the exact RDP curve of one Poisson-subsampled Gaussian step, at integer orders.

    ``(α−1)ε' = ln Σ_l C(α,l)(1−q)^{α−l} q^l e^{(l²−l)/(2σ²)}``: Mironov, Talwar, Zhang, *Rényi
    Differential Privacy of the Sampled Gaussian Mechanism*, 2019, Section 3.3. This is the step of
    DP-SGD, with σ the noise multiplier, for adding or removing one unit.
    """
    positive(noise_multiplier=noise_multiplier)
    sigma = rational(noise_multiplier)
    values = tuple(order / (2 * sigma * sigma) for order in INTEGER_ORDERS)
    curve = RenyiDP(Adjacency.ADD_REMOVE, unit, INTEGER_ORDERS, values, Fraction(0))
    degree = np.arange(int(INTEGER_ORDERS[-1]) + 1.0)
    terms = degree * (degree - 1) / (2 * float(sigma) ** 2)
    return _sampled(curve, terms, _checked_rate(rate))


def fixed_size_gaussian(
    noise_multiplier: float | Fraction, rate: float | Fraction, unit: Unit = Unit.RECORD
) -> RenyiDP:
    """Return a bound of the RDP of a Gaussian step on m of n units, drawn without replacement.

    For replacing one unit, whose contribution has norm 1 at most, so that a sum moves by 2; σ is
    the noise multiplier, discrete or not. As :func:`fixed_size_subsample`, with the term of
    j = 3 … 64 replaced by ``C(α,j) (2q)^j E_Q|P/Q − 1|^j`` where that is less. The proof of Theorem
    9 of Wang, Balle, Kasiviswanathan (2019) bounds ``q^j E_R |P − Q|^j/R^j`` for any three of their
    neighbours, and ``|P − Q|^j <= 2^{j−1}(|P − R|^j + |Q − R|^j)``. For an even j it is the j-th
    difference of ``E_Q (P/Q)^i = e^{(i²−i)/(2(σ/2)²)}``, summed with as many digits as cancel; for
    an odd one the geometric mean of its neighbours.
    """
    positive(noise_multiplier=noise_multiplier)
    sigma = rational(noise_multiplier)
    values = tuple(2 * order / (sigma * sigma) for order in INTEGER_ORDERS)
    curve = RenyiDP(Adjacency.REPLACE_RECORD, unit, INTEGER_ORDERS, values, Fraction(0))
    terms = _fixed_terms(curve)[1]
    differences = _log_differences(4 / (sigma * sigma), _DIFFERENCES)
    for j in range(3, _DIFFERENCES + 1):
        ends = differences[j - j % 2], differences[j + j % 2]
        terms[j] = min(terms[j], j * math.log(2) + sum(ends) / 2)
    return _sampled(curve, terms, _checked_rate(rate), stay=False)


def _log_differences(square: Fraction, last: int) -> dict[int, float]:
    """``ln Σ_i C(j,i) (−1)^i e^{(i²−i) square/2}`` for even j up to ``last``, rounded up."""
    # digits that the alternating sum cancels: it is about (√square/2)^last of its largest terms
    lost = last * math.log10(2 / math.sqrt(min(1.0, float(square))))
    exact = Context(prec=60 + math.ceil(lost), Emax=10**15, Emin=-(10**15))
    half = exact.divide(Decimal(square.numerator), Decimal(2 * square.denominator))
    moments = [exact.exp(exact.multiply(half, Decimal(i * i - i))) for i in range(last + 1)]
    differences = {}
    for j in range(2, last + 1, 2):
        total = Decimal(0)
        for i in range(j + 1):
            term = exact.multiply(Decimal((-1) ** i * math.comb(j, i)), moments[i])
            total = exact.add(total, term)
        differences[j] = above(float(exact.ln(total)))
    return differences


def _fixed_terms(guarantee: Guarantee) -> tuple[RenyiDP, Floats]:
    """The curve, and logarithms of what stands with ``C(α,j) q^j`` in Theorem 9, j = 0, 1, …"""
    curve, terms = _moments(guarantee)
    second = float(terms[2])
    terms[1:] += math.log(2)
    terms[1] = -math.inf
    if second < math.log(2):  # 4(e^ε - 1) < 2e^ε
        terms[2] = math.log(4 * math.expm1(second)) if second > 0 else -math.inf
    return curve, terms


def _moments(curve: Guarantee) -> tuple[RenyiDP, Floats]:
    """The curve, and its ``(j − 1) ε(j)`` for j = 0 (as 0), 1, 2, … up to its last order."""
    if not isinstance(curve, RenyiDP):
        raise PrivacyError(
            f"a {curve.kind} guarantee has no subsampling theorem here; restate it with to_renyi"
        )
    if curve.exact_delta > 0:
        raise PrivacyError(
            "RDP with a failure probability has no subsampling theorem; convert it to"
            " (epsilon, delta) first"
        )
    if curve.orders[-1] < 2:
        raise PrivacyError(
            f"the curve ends at order {float(curve.orders[-1])}; subsampling needs order 2"
        )
    last = int(_integer_orders(curve)[-1])
    moments = [float((j - 1) * curve.at(j)) for j in range(2, last + 1)]
    return curve, np.array([0.0, 0.0, *moments])


def _integer_orders(curve: RenyiDP) -> tuple[Fraction, ...]:
    return tuple(order for order in INTEGER_ORDERS if order <= curve.orders[-1])


def _sampled(curve: RenyiDP, log_terms: Floats, rate: Fraction, *, stay: bool = True) -> RenyiDP:
    """``ln Σ_l C(α,l)(1−q)^{α−l} q^l e^{log_terms[l]} / (α − 1)``, nowhere above the curve itself.

    Moved up by its float error. Without ``stay`` the factor of 1 − q is left out.
    """
    if rate == 1:
        return curve
    orders, values = _integer_orders(curve), []
    if rate == 0:
        return RenyiDP(*curve.neighbours, orders, (Fraction(0),) * len(orders), Fraction(0))
    gammaln = scipy.special.gammaln
    log_in, log_out = math.log(float(rate)), math.log1p(-float(rate)) if stay else 0.0
    for alpha in map(int, orders):
        degree = np.arange(alpha + 1.0)
        log_choose = gammaln(alpha + 1.0) - gammaln(degree + 1) - gammaln(alpha - degree + 1)
        terms = log_choose + (alpha - degree) * log_out + degree * log_in + log_terms[: alpha + 1]
        # a logarithm's float error grows with its size: a bound must not lie below the exact sum
        error = 1e-15 * (10 + float(np.max(np.abs(terms), where=np.isfinite(terms), initial=0)))
        value = (max(0.0, float(scipy.special.logsumexp(terms))) + error) / (alpha - 1)
        values.append(min(Fraction(above(value)), curve.at(alpha)))
    return RenyiDP(*curve.neighbours, orders, tuple(values), Fraction(0))


def _mixed(guarantee: PureDP | ApproximateDP, q: Fraction) -> PureDP | ApproximateDP:
    epsilon = guarantee.exact_epsilon
    if q < 1 and epsilon > 0:
        e = float_above(epsilon)
        bound = math.log1p(float_above(q) * math.expm1(e)) if e < 700 else e
        epsilon = min(epsilon, Fraction(above(bound)))
    if isinstance(guarantee, ApproximateDP):
        return replace(guarantee, exact_epsilon=epsilon, exact_delta=q * guarantee.exact_delta)
    return replace(guarantee, exact_epsilon=epsilon)


def _checked_rate(rate: float | Fraction) -> Fraction:
    within("[0, 1]", rate=rate)
    return rational(rate)
