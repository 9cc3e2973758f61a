"""Lower bounds of ε from finitely many runs, one function for each published bound.

Statistics can only falsify: a bound above the claim refutes it, a bound below it proves nothing.
Every bound here holds with probability at least 1 - α whatever the mechanism is, as long as the
event or guess was chosen without looking at the runs that are counted.
"""

from __future__ import annotations

import math

import scipy


def clopper_pearson_lower(hits: float, runs: float, alpha: float) -> float:
    """Lower end of the one-sided exact confidence interval of a probability.

    ``B⁻¹(α; v, N - v + 1)``, the α-quantile of a beta law; 0 for no hit. The true value lies below
    with probability at most α. Hits v of N runs need not be whole: expected counts can be put in.

    Source: Clopper and Pearson, *The Use of Confidence or Fiducial Limits Illustrated in the Case
    of the Binomial*, Biometrika 26 (1934).
    """
    _check(hits, runs, alpha)
    if hits <= 0:
        return 0.0
    return float(scipy.special.betaincinv(hits, runs - hits + 1, alpha))


def clopper_pearson_upper(hits: float, runs: float, alpha: float) -> float:
    """Upper end, ``B⁻¹(1 - α; v + 1, N - v)``; 1 if every run hit. As the lower end otherwise."""
    _check(hits, runs, alpha)
    if hits >= runs:
        return 1.0
    # the complement, because 1 - alpha near 1 loses digits: B⁻¹(1-α; a, b) = 1 - B⁻¹(α; b, a)
    return float(1.0 - scipy.special.betaincinv(runs - hits, hits + 1, alpha))


def one_run_bound(correct: float, guesses: float, alpha: float) -> float:
    """Lower bound of ε from v right of m guesses of independent uniform secret bits after one run.

    ``ln(p_L / (1 - p_L))`` with ``p_L = B⁻¹(α; v, m - v + 1)``, at least 0: under ε-DP for each
    record, a guess is right with probability at most e^ε / (e^ε + 1) whatever the other records
    are, and the number of right guesses is dominated by a binomial one. Records that the guesser
    leaves out, by looking at outputs alone, do not count. The bound is above the true ε with
    probability at most ``alpha``.

    Source: Steinke, Nasr, Jagielski, *Privacy Auditing with One (1) Training Run*, NeurIPS 2023,
    for pure ε.
    """
    share = clopper_pearson_lower(correct, guesses, alpha)
    if share >= 1:
        return math.inf
    return max(0.0, math.log(share / (1 - share))) if share > 0 else 0.0


def guess_probability(epsilon: float, values: int = 2) -> float:
    """How often the best guess of one of k uniform secrets is right: e^ε / (e^ε + k - 1)."""
    return 1.0 / (1.0 + (values - 1) * math.exp(-epsilon))


def expected_one_run_bound(epsilon: float, guesses: float, alpha: float) -> float:
    """Bound that a right randomized response gives for the expected number of right guesses."""
    return one_run_bound(guess_probability(epsilon) * guesses, guesses, alpha)


def _check(hits: float, runs: float, alpha: float) -> None:
    if not 0 <= hits <= runs:
        raise ValueError(f"hits={hits} must lie in 0 … {runs} (the number of runs)")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha={alpha} must lie between 0 and 1")
