"""What finitely many runs show of ε, and what they would have shown: one function for each bound.

Statistics can only falsify: a bound above the claim refutes it, a bound below it proves nothing.
Every lower bound of ε here holds with probability at least 1 - α whatever the mechanism is, as long
as the event or guess was chosen without looking at the runs that are counted.

What would have been found counts *guesses*: an event is seen, and the likelier of two equally
likely worlds is guessed. Under ε-DP a guess is right with probability at most e^ε / (1 + e^ε),
whatever the event, so that the number of right ones has an exact threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import betaincinv, logit
from scipy.stats import binom, norm, poisson

from labelveil.common.arrays import Floats, Integers

FOUND = 0.95  # with which probability a fault of stated size is found

_GRID = 201


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
    return float(betaincinv(hits, runs - hits + 1, alpha))


def clopper_pearson_upper(hits: float, runs: float, alpha: float) -> float:
    """Upper end, ``B⁻¹(1 - α; v + 1, N - v)``; 1 if every run hit. As the lower end otherwise."""
    _check(hits, runs, alpha)
    if hits >= runs:
        return 1.0
    # the complement, because 1 - alpha near 1 loses digits: B⁻¹(1-α; a, b) = 1 - B⁻¹(α; b, a)
    return float(1.0 - betaincinv(runs - hits, hits + 1, alpha))


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


def critical(guesses: Integers, epsilon: float, alpha: float) -> Integers:
    """(n,) least numbers of right guesses that refute ε at level α; above ``guesses`` if none."""
    share = guess_probability(epsilon)
    needed = np.asarray(binom.isf(alpha, guesses, share)).astype(np.int64) + 1
    return np.asarray(np.where(guesses > 0, needed, 1))


def refutation_probability(
    excess: float, probability: float, runs: float, epsilon: float, alpha: float
) -> float:
    """Probability that a test of level α refutes ε by an event e^(ε + excess) times likelier.

    ``probability`` is the event's in the likelier world (an infinite excess: in no other); half of
    the ``runs`` are of either world.
    """
    share = guess_probability(epsilon + excess)
    mean = runs / 2 * probability / share
    # the number of guesses is within seven deviations of its mean; a grid of it is enough
    spread = 7 * math.sqrt(mean) + 7
    guesses = np.unique(np.linspace(max(mean - spread, 0), mean + spread, _GRID).astype(np.int64))
    edges = np.concatenate([guesses, [np.iinfo(np.int64).max]])
    mass = np.diff(poisson.cdf(edges - 1.0, mean))
    needed = critical(guesses, epsilon, alpha)
    return float(np.sum(mass * binom.sf(needed - 1, guesses, share)))


def detectable_epsilon(claimed: float, guesses: int, alpha: float) -> float:
    """The smallest true ε whose best guesses, n of them, refute a claim; infinite if none."""
    least = int(critical(np.array([guesses]), claimed, alpha)[0])
    if least > guesses:
        return math.inf
    return float(logit(betaincinv(least, guesses - least + 1, FOUND)))


def smallest_excess(
    probability: float, runs: float, epsilon: float, alpha: float, power: float = FOUND
) -> float:
    """Smallest excess of ε that is refuted, in an event of known probability; infinite if none."""
    return least(
        lambda excess: refutation_probability(excess, probability, runs, epsilon, alpha) >= power,
        1e-4,
        30.0,
    )


def rarest_event(
    excess: float, runs: float, epsilon: float, alpha: float, power: float = FOUND
) -> float:
    """Smallest probability of an event at which an excess of ε is refuted; infinite if none."""
    return least(
        lambda chance: refutation_probability(excess, chance, runs, epsilon, alpha) >= power,
        1e-9,
        1.0,
    )


def rarest_seen(runs: float, times: int = 1, power: float = FOUND) -> float:
    """Probability p at which P(Binomial(runs, p) >= times) = power; infinite if there is none."""
    return math.inf if runs < times else float(betaincinv(times, runs - times + 1, power))


def birthday_starts(seeds: float) -> int:
    """How many uniform draws of ``seeds`` values show one twice with probability ``FOUND``.

    The least n with exp(-n(n-1) / 2 seeds) <= 1 - FOUND, which bounds the chance of no repeat
    from above: ∏(1 - i/N) <= exp(-Σ i/N).
    """
    return math.ceil((1 + math.sqrt(1 - 8 * seeds * math.log1p(-FOUND))) / 2)


def largest_seed_space(starts: int) -> float:
    """The other way round: how many seeds n starts find with probability ``FOUND``."""
    return starts * (starts - 1) / (-2 * math.log1p(-FOUND))


def bernstein_threshold(variance: Floats | float, largest: float, alpha: float) -> Floats:
    """What a sum of centred terms passes with probability at most α, to one side.

    The t > 0 with t² = 2 ln(1/α) (v + b t / 3), v the sum of the terms' (conditional) variances and
    b a bound of every term's size. It holds for independent terms (Bernstein) and for martingale
    differences (Freedman, *On Tail Probabilities for Martingales*, 1975).
    """
    level = -math.log(alpha)
    half = level * largest / 3
    return np.asarray(half + np.sqrt(half * half + 2 * level * np.asarray(variance)))


def least_share(threshold: float, variance: float, certain: float) -> float:
    """Share s at which a sum of mean s · ``certain`` passes a threshold with ``FOUND``; or ∞."""
    needed = threshold + float(norm.isf(1 - FOUND)) * math.sqrt(variance)
    return needed / certain if needed <= certain else math.inf


def least(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Where a monotone condition begins to hold, by bisecting logarithms; infinite if nowhere."""
    if not holds(high):
        return math.inf
    for _ in range(20):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
