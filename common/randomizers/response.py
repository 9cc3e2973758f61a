"""Randomized response over labels: over all of them, and over the likeliest few."""

from __future__ import annotations

import numpy as np

from labelveil.common.exact.channel import TOTAL, FiniteChannel, randomized_response_rows
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.randomizers.base import Problem, Randomizer, register
from labelveil.common.randomizers.knots import MOST_KNOTS, over_knots


@register("randomized-response")
@over_knots
def build_randomized_response(problem: Problem) -> Randomizer:
    """k-ary randomized response (Warner 1965): the label, or any other with 1/(e^ε + k - 1).

    Prior and loss play no part, except that the prior thins a grid of more than 513 points. Takes
    no options.
    """
    k = problem.labels.size
    rows = randomized_response_rows(k, problem.epsilon)
    channel = FiniteChannel(problem.labels, problem.labels, rows)
    return Randomizer("randomized-response", channel, problem.prior, problem.loss, {})


@register("rr-with-prior", m=int, accuracy=float)
def build_rr_with_prior(problem: Problem) -> Randomizer:
    """RRWithPrior (Ghazi et al., *Deep Learning with Label Differential Privacy*, NeurIPS 2021).

    Randomized response over the m likeliest labels; any other label is sent as one of them,
    uniformly. It maximises P(output = label): m, at most 513, maximises w_m = e^ε/(e^ε + m - 1)
    times the prior mass of the m likeliest labels. Ties go to the fewer labels, and among labels to
    the lower one.
    The loss plays no part; takes no options.
    """
    order = np.argsort(-problem.prior, kind="stable")
    grow = float(exp_lower_bound(problem.epsilon))
    sizes = np.arange(1, min(order.size, MOST_KNOTS) + 1)
    accuracy = grow / (grow + sizes - 1) * np.cumsum(problem.prior[order])[: sizes.size]
    m = int(np.flatnonzero(accuracy >= accuracy.max() * (1 - 1e-12))[0]) + 1
    kept = np.sort(order[:m])
    # 2**64 is seldom a multiple of m: the first few get one unit more, which stays inside ε
    share, rest = divmod(TOTAL, m)
    uniform = [share + (z < rest) for z in range(m)]
    rows = [*randomized_response_rows(m, problem.epsilon), uniform]
    row_of = np.full(order.size, m)
    row_of[kept] = np.arange(m)
    if m == order.size:
        rows.pop()
    channel = FiniteChannel(problem.labels, problem.labels[kept], rows, row_of)
    details = {"m": m, "accuracy": float(accuracy[m - 1])}
    return Randomizer("rr-with-prior", channel, problem.prior, problem.loss, details)
