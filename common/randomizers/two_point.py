"""Two outputs, chosen with a probability linear in the label: unbiased in closed form.

On a range [lo, hi] with middle m the outputs are m ± (hi - lo)/2 · (e^ε + 1)/(e^ε - 1), and

    P(high | y) = 1/(e^ε + 1) + (y - lo)/(hi - lo) · (e^ε - 1)/(e^ε + 1).

It is the low-ε limit of the optimal unbiased randomizer (Badanidiyuru et al., *Optimal Unbiased
Randomizers for Regression with Label Differential Privacy*, NeurIPS 2023), and the one-bit mean
estimator of Duchi, Jordan and Wainwright (2013). With a the distance of an output from m, the
variance at y is a² - (y - m)².
"""

from __future__ import annotations

import numpy as np

from labelveil.common.exact.channel import TOTAL, FiniteChannel, randomized_response_rows
from labelveil.common.randomizers.base import Problem, Randomizer, register
from labelveil.common.randomizers.knots import rows_between


@register("two-point", reach=float)
def build_two_point(problem: Problem) -> Randomizer:
    """Build the unbiased randomizer with two outputs; prior and loss play no part in it.

    The outputs are derived from the integer weights, so that the mean is the label to float
    precision. Takes no options.
    """
    labels = problem.labels
    lower, upper = float(labels[0]), float(labels[-1])
    rows = randomized_response_rows(2, problem.epsilon)
    lie, truth = rows[1]
    reach = (upper - lower) / 2 * (TOTAL / (truth - lie))
    middle = lower + (upper - lower) / 2
    row_of = rows_between(labels.size, np.array([0, labels.size - 1]))
    channel = FiniteChannel(labels, [middle - reach, middle + reach], rows, row_of)
    return Randomizer("two-point", channel, problem.prior, problem.loss, {"reach": reach})
