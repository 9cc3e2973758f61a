"""Composition of pure mechanisms: the exact optimum, and the closed formula it improves on.

The composition of ε_i-DP mechanisms, chosen adaptively or not, is never worse than releasing one
randomized response for each: its privacy loss is ``Σ ±ε_i``. That law is a convolution, which is
the optimal composition theorem (Kairouz, Oh, Viswanath, *The Composition Theorem for Differential
Privacy*, ICML 2015, Theorem 3.3; different ε_i: Murtagh and Vadhan 2016, Theorem 1.5).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import numpy as np
import scipy

from labelveil.common.arrays import Floats
from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rational import rational
from labelveil.common.exact.rounding import above, float_below
from labelveil.common.exact.search import bisected
from labelveil.common.guarantees.additive import ApproximateDP, PureDP
from labelveil.common.guarantees.base import about_the_same
from labelveil.common.guarantees.limits import at_least, within

_MAX_CELLS = 1 << 18
_ERROR = 1e-11
"""Relative error of a convolution of at most 2**18 positive terms, generously."""
_EXACT_BITS = 1 << 16
"""How long a product of exact probabilities may grow before its last bits are cut off."""


def advanced_composition(
    epsilon: float | Fraction, times: int, delta: float | Fraction
) -> Fraction:
    """ε of the advanced composition theorem, ``√(2m ln(1/δ)) ε + m ε (e^ε − 1)``, or mε if less.

    Dwork and Roth (2014), Theorem 3.20. The optimum is :func:`optimal_composition`.
    """
    exact, d = rational(epsilon), rational(delta)
    within("[0, 1]", delta=d)
    at_least(0, times=times)
    basic = exact * times
    if d == 0 or times == 0:
        return basic
    e = float(exact)
    root = math.sqrt(2 * times * -math.log(float_below(d)))
    bound = root * e + times * e * math.expm1(e) if e < 700 else math.inf
    return basic if math.isinf(bound) else min(basic, Fraction(above(bound)))


def optimal_composition(
    guarantees: Iterable[PureDP | ApproximateDP], delta: float | Fraction
) -> ApproximateDP:
    """Return the optimal (ε, δ) of releasing everything, for pure or (ε, δ) guarantees.

    An (ε_i, δ_i)-DP mechanism behaves like randomized response but for an event of probability δ_i,
    so ``1 − Π(1 − δ_i)`` of δ is spent on those events. With equal ε_i the result is the optimum up
    to float error; different ε_i are rounded up to multiples of a common step first, at most
    ``2^18`` cells wide. The parameters must not depend on earlier outputs.

    Raises
    ------
    PrivacyError
        If there is no part, or the parts do not compose or leave nothing of δ.
    """
    items = about_the_same(guarantees)
    exact = rational(delta)
    within("[0, 1]", delta=exact)
    kept = _product(Counter(1 - item.exact_delta for item in items))
    if exact < 1 - kept:
        raise PrivacyError(
            f"delta={float(exact)} is below {float(1 - kept)}, which the parts spend already"
        )
    remaining = (exact - (1 - kept)) / kept if kept > 0 else Fraction(0)
    epsilons = [item.exact_epsilon for item in items if item.exact_epsilon > 0]
    epsilon = sum(epsilons, Fraction(0))
    if remaining > 0 and epsilon > 0:
        least = _invert(*_loss_law(epsilons), float_below(remaining))
        epsilon = min(epsilon, Fraction(above(least))) if least > 0 else Fraction(0)
    return ApproximateDP(*items[0].neighbours, epsilon, exact)


def _product(powers: Mapping[Fraction, int]) -> Fraction:
    """``Π p^m`` of probabilities p; one of more than ``_EXACT_BITS`` bits is rounded down to them.

    Powers are taken by squaring: of a million equal ones the exact product has as many digits, and
    to multiply one by one takes hours. What is kept of δ rounded down leaves ε above the optimum,
    by far less than the float that it becomes.
    """
    product = Fraction(1)
    for base, times in powers.items():
        power = Fraction(1)
        for bit in f"{times:b}":
            power = _cut(power * power)
            if bit == "1":
                power = _cut(power * base)
        product = _cut(product * power)
    return product


def _cut(probability: Fraction) -> Fraction:
    if probability.denominator.bit_length() <= _EXACT_BITS:
        return probability
    return Fraction(math.floor(probability * (1 << _EXACT_BITS)), 1 << _EXACT_BITS)


def _loss_law(epsilons: Sequence[Fraction]) -> tuple[Floats, Floats]:
    """Losses (ascending) and their probabilities under the first of the worst two neighbours."""
    counts = Counter(epsilons)
    if len(counts) == 1:
        ((epsilon, times),) = counts.items()
        losses = above(float(epsilon)) * np.arange(-times, times + 1, 2.0)
        return losses, _binomial(float(epsilon), times)
    step = _common_step(counts)
    masses = np.ones(1)
    for epsilon, times in counts.items():
        # rounded up to the step: the losses of what is stated are never larger than these
        cells = math.ceil(epsilon / step)
        spread = np.zeros(masses.size + 2 * cells * times)
        for j, mass in enumerate(_binomial(float(cells * step), times).tolist()):
            spread[2 * cells * j : 2 * cells * j + masses.size] += mass * masses
        masses = spread
    half_width = masses.size // 2
    return above(float(step)) * np.arange(-half_width, half_width + 1.0), masses


def _common_step(counts: Counter[Fraction]) -> Fraction:
    """A step of which every ε is (after rounding up) a multiple, within the cells allowed."""
    total = sum((epsilon * times for epsilon, times in counts.items()), Fraction(0))
    divisor = math.lcm(*(epsilon.denominator for epsilon in counts))
    shared = Fraction(math.gcd(*(int(epsilon * divisor) for epsilon in counts)), divisor)
    if 2 * total / shared <= _MAX_CELLS:
        return shared
    return max(2 * total / _MAX_CELLS, min(counts) / 4096)


def _binomial(epsilon: float, times: int) -> Floats:
    """P[the loss of ``times`` randomized responses is (2j − times) ε], j = 0 … times."""
    j = np.arange(times + 1.0)
    log_truth, log_lie = -math.log1p(math.exp(-epsilon)), -epsilon - math.log1p(math.exp(-epsilon))
    gammaln = scipy.special.gammaln
    log_choose = gammaln(times + 1.0) - gammaln(j + 1) - gammaln(times - j + 1)
    return np.asarray(np.exp(log_choose + j * log_truth + (times - j) * log_lie))


def _delta_at(losses: Floats, masses: Floats, epsilon: float) -> float:
    """``Σ P(l) (1 − e^{ε − l})`` over the losses above ε, rounded up."""
    over = losses > epsilon
    gains = -np.expm1(epsilon - losses[over])
    return float(np.sum(masses[over] * gains)) * (1 + _ERROR * max(10, len(masses)))


def _invert(losses: Floats, masses: Floats, delta: float) -> float:
    """Return an ε just above the least one whose δ is at most ``delta``."""
    if _delta_at(losses, masses, 0.0) <= delta:
        return 0.0

    def enough(epsilon: float) -> bool:
        return _delta_at(losses, masses, epsilon) <= delta

    return bisected(enough, 0.0, float(losses[-1]), steps=200, tolerance=1e-13)[1]
