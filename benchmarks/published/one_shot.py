"""One-shot top-k from noisy scores: the analysis by target charging beside the one for Laplace.

Published: Cohen and Lyu, NeurIPS 2023, Theorem I.3 and its remark, which names three improvements
over Qiao, Su, Zhang, *Oneshot Differentially Private Top-k Selection*, ICML 2021: scores are free,
the number of candidates does not matter, and any private algorithm may be one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from benchmarks.harness import markdown
from benchmarks.published import sources
from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import Entropy, seeded_entropy
from labelveil.common.exact.exponential_choice import exponential_peeling
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.exact.rounding import multiple_above
from labelveil.common.guarantees import BoundedRange, PureDP, total
from labelveil.common.mechanisms.interactive import Session, Terms, one_shot_top_k
from labelveil.common.mechanisms.interactive.targets import not_prior
from labelveil.common.mechanisms.selection import Ranking

EPSILON, DELTA = Fraction(1, 5), Fraction(1, 10**6)
"""The largest ε for which Qiao and others' theorem is stated; and below their largest δ, .05."""
KS = (1, 10, 100, 1000)
CANDIDATES = (10**2, 10**6, 10**9)
_GRAIN = 1 << 20


def qiao_scale(k: int, candidates: int, epsilon: Fraction, delta: Fraction) -> Fraction:
    """Scale of the Laplace noise in their Theorem 2.2, ``8√(k ln(m/δ))/ε``: for the names alone."""
    return multiple_above(Fraction(8 * math.sqrt(k * math.log(candidates / delta))) / epsilon)


def _largest(epsilon_of: Callable[[Fraction], Fraction], epsilon: Fraction) -> Fraction:
    """The largest parameter, within a five-hundredth, whose total ε is at most the one given."""
    low, high = Fraction(1, _GRAIN), 4 * epsilon
    while high > low * Fraction(501, 500):
        middle = Fraction(math.sqrt(low * high)).limit_denominator(_GRAIN)
        low, high = (middle, high) if epsilon_of(middle) <= epsilon else (low, middle)
    return low


def charged_rate(k: int, epsilon: Fraction, delta: Fraction) -> Fraction:
    """ε of a candidate so that k hits of calls of twice as much are (ε, δ)-DP (Lemma 2.6)."""

    def spent(each: Fraction) -> Fraction:
        return Terms(not_prior(2 * each), k).approximate(delta).exact_epsilon

    return _largest(spent, epsilon)


def peeling_rate(k: int, epsilon: Fraction, delta: Fraction) -> Fraction:
    """ε of bounded range of each of k draws that are (ε, δ)-DP together."""
    return _largest(
        lambda each: total([BoundedRange.of(each).repeat(k)], delta).exact_epsilon, epsilon
    )


def scores_rate(k: int, epsilon: Fraction, delta: Fraction) -> Fraction:
    """ε of each of k Laplace mechanisms that are (ε, δ)-DP together: a round of scores."""
    return _largest(lambda each: total([PureDP.of(each)] * k, delta).exact_epsilon, epsilon)


def scales_table(epsilon: Fraction = EPSILON, delta: Fraction = DELTA) -> str:
    """Scale of the noise on scores that move by 1 in either direction, as Markdown.

    First for the names; then for names and scores: half of ε and δ go to a further round of Laplace
    noise, except in target charging, where scores are free.
    """
    rows = []
    for k in KS:
        half = (k, epsilon / 2, delta / 2)
        charged = 1 / charged_rate(k, epsilon, delta)
        cells = [qiao_scale(k, m, epsilon, delta) for m in CANDIDATES]
        cells += [charged, 2 / peeling_rate(k, epsilon, delta)]
        again = [
            (qiao_scale(k, CANDIDATES[1], epsilon / 2, delta / 2), 1 / scores_rate(*half)),
            (charged, charged),
            (2 / peeling_rate(*half), 1 / scores_rate(*half)),
        ]
        shown = [f"{float(cell):,.0f}" for cell in cells]
        rows.append([f"{k:,}", *shown, *(f"{float(a):,.0f}, {float(b):,.0f}" for a, b in again)])
    heads = [
        "k",
        *(f"one-shot Laplace, m = 10^{round(math.log10(m))}" for m in CANDIDATES),
        "target charging",
        "peeling",
        "with scores: one-shot Laplace, m = 10^6",
        "with scores: target charging",
        "with scores: peeling",
    ]
    return markdown(heads, rows)


def states_table(
    k: int = 10, trials: int = 5, epsilon: Fraction = EPSILON, delta: Fraction = DELTA
) -> str:
    """The k states with most cases so far, each of 62 days alone, names and scores: as Markdown."""
    _, names, cases = sources.covid()
    half = (k, epsilon / 2, delta / 2)
    first = qiao_scale(k, len(names), epsilon / 2, delta / 2)
    each = charged_rate(k, epsilon, delta)
    second, charged = multiple_above(1 / scores_rate(*half)), multiple_above(1 / each)
    rate = peeling_rate(*half) / 2
    terms = Terms(not_prior(2 * each), k)

    def noisy(counts: Integers, scale: Fraction, entropy: Entropy, name: str) -> Integers:
        return np.asarray(counts + discrete_laplace(scale, counts.size, entropy.source(name)))

    def laplace(counts: Integers, entropy: Entropy) -> tuple[Integers, Integers]:
        chosen = np.argsort(-noisy(counts, first, entropy, "names"), kind="stable")[:k]
        return chosen, noisy(counts[chosen], second, entropy, "scores")

    def charging(counts: Integers, entropy: Entropy) -> tuple[Integers, Integers]:
        runs = [
            lambda data, source, i=i: (  # type: ignore[misc]
                int(data[i] + discrete_laplace(charged, 1, source)[0]),
                None,
            )
            for i in range(counts.size)
        ]
        shown = one_shot_top_k(Session(counts, terms, entropy), runs, each, k)
        return np.array([one.index for one in shown]), np.array([one.score for one in shown])

    def peeling(counts: Integers, entropy: Entropy) -> tuple[Integers, Integers]:
        chosen = exponential_peeling(counts, rate, k, entropy.source("names"))
        return chosen, noisy(counts[chosen], second, entropy, "scores")

    rows = []
    for title, method in (
        ("one-shot Laplace, and a round for the scores", laplace),
        ("one-shot, target charging", charging),
        ("peeling (exponential mechanism), and a round for the scores", peeling),
    ):
        found = np.array([
            _quality(counts, k, *method(counts, seeded_entropy(1000 * day + i)))
            for day, counts in enumerate(cases)
            for i in range(trials)
        ])  # fmt: skip
        # trials of a day are alike; the days are what the error is about
        spread = found.reshape(len(cases), trials, 2).mean(axis=1).std(axis=0)
        error = spread / len(cases) ** 0.5
        recall = f"{found[:, 0].mean():.3f} ± {error[0]:.3f}"
        rows.append([title, recall, f"{found[:, 1].mean():,.0f} ± {error[1]:,.0f}"])
    return markdown(["method", f"recall of the top {k}", "mean error of a score, cases"], rows)


def _quality(counts: Integers, k: int, chosen: Integers, scores: Integers) -> tuple[float, float]:
    """Recall, and the mean absolute error of the scores."""
    bar = Ranking(counts).sorted[k - 1]
    gaps: Floats = np.abs(scores - counts[chosen]).astype(np.float64)
    return float(np.sum(counts[chosen] >= bar)) / k, float(gaps.mean())
