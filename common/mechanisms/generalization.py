"""How far what was chosen on a sample may be from the population, because the choice was private.

S are n independent records from a population P, and an (ε, δ)-DP mechanism (for replacing a record)
picks a question h: records → 0 … 1 after seeing S. Each function bounds ``|h(S) − h(P)|``, the mean
over the sample against the mean over the population:

=============================  ====================================================
:func:`expected_gap`           its expectation with its sign, for any n
:func:`fresh_gap`              no choice at all: one question, fixed before S was seen
:func:`max_information_gap`    but for probability β, for pure ε: product laws' max-information
:func:`approximate_gap`        but for probability β, for (ε, δ) and any one question
:func:`transfer_gap`           but for probability β, of answers that are α-accurate on S
=============================  ====================================================

Splitting S into one part a question needs nothing of the kind; these pay once there are more
questions than parts, and n is large. A bound of 1 or more says nothing.
"""

from __future__ import annotations

import math

from common.guarantees.limits import at_least, within


def expected_gap(epsilon: float, delta: float = 0.0) -> float:
    """``E[h(S)] − E[h(P)] <= e^ε − 1 + δ``, and the same with the other sign.

    Replace record i by a fresh one z: (S, z) has the law of (S with z for i, record i), so that
    ``E[h(S_i)] <= e^ε E[h(z)] + δ`` and the excess is ``(e^ε − 1) E[h(P)] + δ`` at most.

    Source: Dwork, Feldman, Hardt, Pitassi, Reingold, Roth, *Preserving Statistical Validity in
    Adaptive Data Analysis*, STOC 2015; Bassily, Nissim, Smith, Steinke, Stemmer, Ullman,
    *Algorithmic Stability for Adaptive Data Analysis*, STOC 2016.
    """
    _check(epsilon, delta)
    return math.expm1(min(epsilon, 700.0)) + delta


def fresh_gap(records: int, beta: float, questions: int = 1) -> float:
    """``√(ln(2k/β)/(2n))``: k questions that were fixed before S was seen (Hoeffding 1963)."""
    at_least(1, records=records)
    within("(0, 1)", beta=beta)
    return math.sqrt(math.log(2 * questions / beta) / (2 * records))


def max_information_gap(epsilon: float, records: int, beta: float) -> float:
    """Bound of the gap but for probability β when a pure ε-DP mechanism chose the question.

    On independent records its β/2-approximate max-information is at most
    ``k = ε²n/2 + ε√(n ln(4/β)/2)`` nats, or εn: an event of probability p for an h that is
    independent of S has probability ``e^k p + β/2`` at most for the chosen one. With Hoeffding's
    ``p = 2e^{−2nτ²}`` that is β at ``τ = √((k + ln(4/β))/(2n))``.

    Source: Dwork et al., *Generalization in Adaptive Data Analysis and Holdout Reuse*, NeurIPS
    2015, Theorem 20 (in bits there) with Definition 10.
    """
    _check(epsilon, 0.0)
    at_least(1, records=records)
    within("(0, 1)", beta=beta)
    whole = epsilon * records
    information = epsilon * whole / 2 + epsilon * math.sqrt(records * math.log(4 / beta) / 2)
    return math.sqrt((min(whole, information) + math.log(4 / beta)) / (2 * records))


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
