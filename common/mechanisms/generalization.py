"""How far what was chosen on a sample may be from the population, because the choice was private.

S are n independent records from a population P, and an (ε, δ)-DP mechanism (for replacing a record)
picks a question h: records → 0 … 1 after seeing S. Each function bounds ``|h(S) − h(P)|``, the mean
over the sample against the mean over the population:

=============================  ====================================================
:func:`expected_gap`           its expectation with its sign, for any n: the least there is
:func:`fresh_gap`              no choice at all: one question, fixed before S was seen
:func:`max_information_gap`    but for probability β, by :func:`max_information`
:func:`approximate_gap`        but for probability β, for (ε, δ) and any one question
:func:`transfer_gap`           but for probability β, of answers that are α-accurate on S
=============================  ====================================================

:func:`records_needed` turns the third and fourth round: how large n has to be for a gap.

Splitting S into one part a question needs nothing of the kind; these pay once there are more
questions than parts, and n is large. A bound of 1 or more says nothing.
"""

from __future__ import annotations

import math

from labelveil.common.errors import PrivacyError
from labelveil.common.guarantees.limits import at_least, within


def expected_gap(epsilon: float, delta: float = 0.0) -> float:
    """``E[h(S)] − E[h(P)] <= t + (1 − t)δ``, ``t = tanh(ε/4)``, and the same with the other sign.

    No less holds for every n: at δ = 0 and n = 1 a random set of ``1/(e^{ε/2} + 1)`` of all values
    that holds the record with odds ``e^{ε/2}`` attains it. (Published is ``e^ε − 1 + δ``.)

    Proof. Levels of h are sets, so let h be one. Replace record i by a fresh one, x': given h, i is
    in it with probability ρ_h, x' with q_h. With ``u = ρ(1 − q)``, ``v = (1 − ρ)q`` and ``c = u −
    e^ε v`` the guarantee, for outputs with c_h > 0 that hold the one and not the other, says ``E
    max(c_h, 0) <= δ``. And ``ρ − q = u − v <= t + (1 − t) max(c, 0)``, because ``√u + √v <= 1``:
    where ``√u <= e^{ε/2}√v``, ``u − v <= t(√u + √v)² <= t``; else ``(1 + e^{ε/2})√v <= 1``, so that
    ``u + (2e^{ε/2} + 1)v <= (1 − √v)² + (2e^{ε/2} + 1)v <= 1``, which is the claim over t.

    Source of the published bound: Dwork, Feldman, Hardt, Pitassi, Reingold, Roth, *Preserving
    Statistical Validity in Adaptive Data Analysis*, STOC 2015; Bassily, Nissim, Smith, Steinke,
    Stemmer, Ullman, *Algorithmic Stability for Adaptive Data Analysis*, STOC 2016.
    """
    _check(epsilon, delta)
    pure = math.tanh(epsilon / 4)
    return pure + (1 - pure) * delta


def fresh_gap(records: int, beta: float, questions: int = 1) -> float:
    """``√(ln(2k/β)/(2n))``: k questions that were fixed before S was seen (Hoeffding 1963)."""
    at_least(1, records=records)
    within("(0, 1)", beta=beta)
    return math.sqrt(math.log(2 * questions / beta) / (2 * records))


def max_information(epsilon: float, records: int, beta: float, delta: float = 0.0) -> float:
    """β-approximate max-information of an (ε, δ)-DP output z with n independent records, in nats.

    It is k if ``P[(S, z) ∈ O] <= e^k P'[(S, z) ∈ O] + β`` for all O, where S and z are independent
    under P'; hence if ``Z = ln P[z | S]/P[z]`` is above k with probability β at most. ∞ where nδ is
    too large beside β (above β/4.4 or so).

    Proof. Z is the sum of ``Z_i = ln r``, ``r = P[z | x_1 … x_i]/P[z | x_1 … x_{i-1}]``. Given z
    and x_1 … x_{i-1}, x_i has r times its own law's density. *δ = 0:* the values of Z_i lie in an
    interval of length ε, and ``E e^{−Z_i} = 1``, so that its mean is ε²/8 at most (Hoeffding's
    lemma), and Azuma's inequality adds ``ε√(n ln(1/β)/2)``. *δ > 0:* for any s > 0 and a = ε + s,
    ``|Z_i| > a`` has probability ``δ' = δ(1 + e^{−a})/(1 − e^{−s})`` at most, for x_i and for a
    fresh one. Otherwise ``r ln r`` lies below its chord, ``a tanh(a/2) + a coth(a) (r − 1)``, so
    that the mean of what is left of Z_i is at most ``a tanh(a/2)`` plus a fresh record's chance of
    ``|Z_i| > a``. Those chances sum to more than τ with probability nδ'/τ at most (Markov), and
    Azuma adds ``a√(2n ln(2/β))`` but for β/2. So ``nδ'(1 + 1/τ) = β/2``.

    Source: Dwork et al., *Generalization in Adaptive Data Analysis and Holdout Reuse*, NeurIPS
    2015, Definition 10 and Theorem 20 (``ε²n/2 + ε√(n ln(2/β)/2)``); for (ε, δ), up to constants,
    Rogers, Roth, Smith, Thakkar, *Max-Information, Differential Privacy, and Post-Selection
    Hypothesis Testing*, FOCS 2016.
    """
    _check(epsilon, delta)
    at_least(1, records=records)
    within("(0, 1)", beta=beta)
    if delta == 0:
        deviation = epsilon * math.sqrt(records * math.log(1 / beta) / 2)
        return min(epsilon * records, epsilon * epsilon * records / 8 + deviation)
    least = math.inf
    for s in (2.0**-power for power in range(30)):
        a = epsilon + s
        outside = records * delta * (1 + math.exp(-a)) / -math.expm1(-s)
        if outside < beta / 2:
            mean = a * math.tanh(a / 2) * records + outside / (beta / 2 - outside)
            least = min(least, mean + a * math.sqrt(2 * records * math.log(2 / beta)))
    return least


def max_information_gap(epsilon: float, records: int, beta: float, delta: float = 0.0) -> float:
    """Bound of the gap but for probability β when an (ε, δ)-DP mechanism chose the question.

    k being the β/2-approximate :func:`max_information`, an event of probability p for an h that is
    independent of S has probability ``e^k p + β/2`` at most for the chosen one. With Hoeffding's
    ``p = 2e^{−2nτ²}`` that is β at ``τ = √((k + ln(4/β))/(2n))``.
    """
    information = max_information(epsilon, records, beta / 2, delta)
    return math.sqrt((information + math.log(4 / beta)) / (2 * records))


def approximate_gap(epsilon: float, delta: float, records: int, beta: float) -> float:
    """``18ε`` but for probability δ/ε when an (ε, δ)-DP mechanism chose the question; 1 otherwise.

    It needs ε < 1/3, δ < ε/4 and ``n >= ln(4ε/δ)/ε²``, and says nothing (1) if δ/ε is above β. For
    ε of about √(ln(1/δ)/n) that is within a constant of the best gap that any mechanism has.

    Source: Bassily, Nissim, Smith, Steinke, Stemmer, Ullman, *Algorithmic Stability for Adaptive
    Data Analysis*, STOC 2016, Theorem 7.2, for questions of sensitivity 1/n.
    """
    _check(epsilon, delta)
    at_least(1, records=records)
    within("(0, 1)", beta=beta)
    if not (0 < epsilon < 1 / 3 and 0 < delta < epsilon / 4 and delta <= beta * epsilon):
        return 1.0
    enough = records * epsilon**2 >= math.log(4 * epsilon / delta)
    return min(1.0, 18 * epsilon) if enough else 1.0


def records_needed(error: float, epsilon: float, beta: float, delta: float = 0.0) -> int:
    """The least n at which a question that an (ε, δ)-DP mechanism chose has a gap of ``error``.

    But for probability β, by :func:`max_information_gap` or :func:`approximate_gap`, whichever says
    it earlier.

    Raises
    ------
    PrivacyError
        If neither says so up to 10¹² records: at δ = 0 the gap tends to ε/4 for large n, and δ has
        to stay far below β/n.
    """
    within("(0, 1)", error=error)

    def enough(records: int) -> bool:
        gap = max_information_gap(epsilon, records, beta, delta)
        return min(gap, approximate_gap(epsilon, delta, records, beta)) <= error

    low, high = 0, 1
    while not enough(high):  # in small steps, because for δ > 0 the gap widens again
        if high > 10**12:
            raise PrivacyError(
                f"no number of records up to 10**12 has a gap of error={error:g} at"
                f" epsilon={epsilon:g}, delta={delta:g}; give a smaller epsilon, or delta"
            )
        low, high = high, high + max(1, high // 16)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def transfer_gap(
    epsilon: float, delta: float, beta: float, accuracy: float, missed: float = 0.0
) -> float:
    """Bound of ``|answer − h(P)|``, but for probability β, over all answers of an interaction.

    The mechanism is (ε, δ)-DP as a whole, and all its answers are within α = ``accuracy`` of h(S)
    but for probability ``missed``. Then they are within ``α + (e^ε − 1) + c + 2d`` of h(P) but for
    probability ``missed/c + δ/d``, for every c, d > 0. The least such sum at β is taken: ``c =
    missed/p``, ``d = δ/(β − p)`` and the best p add up to ``(√missed + √(2δ))²/β``.

    Source: Jung, Ligett, Neel, Roth, Sharifi-Malvajerdi, Shenfeld, *A New Analysis of Differential
    Privacy's Generalization Guarantees*, ITCS 2020, the transfer theorem for (ε, δ)-DP.
    """
    _check(epsilon, delta)
    within("(0, 1)", beta=beta)
    within("[0, 1)", missed=missed)
    within("[0, ∞]", accuracy=accuracy)
    slack = (math.sqrt(missed) + math.sqrt(2 * delta)) ** 2 / beta
    return accuracy + math.expm1(min(epsilon, 700.0)) + slack


def _check(epsilon: float, delta: float) -> None:
    within("[0, ∞]", epsilon=epsilon)
    within("[0, 1]", delta=delta)
