"""A chi-square test of integer samples against an exact law, with a stated false-alarm rate.

``fits`` accepts at α = 1e-9: a right sampler fails one run in a billion. A test that cannot fail
proves nothing, so every caller also shows that the same call rejects a broken twin. With 200,000
draws, as used here, a scale that is 5% off is rejected with a probability above 1 - 1e-9 (the
smallest deviation that the tests rely on is 30%).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from common.arrays import Floats, Integers

ALPHA = 1e-9
DRAWS = 200_000

_LEAST_EXPECTED = 20.0


def fits(
    samples: NDArray[np.integer],
    mass: Callable[[Integers], Floats],
    *,
    alpha: float = ALPHA,
) -> bool:
    """Whether integer samples agree with a probability mass function.

    Parameters
    ----------
    samples
        (n,) integers.
    mass
        Normalised probabilities of an array of integers. Cells in which fewer than 20 draws are
        expected are pooled, to the left and to the right, together with everything unlisted.
    alpha
        Probability of rejecting the right law.
    """
    reach = int(np.abs(samples).max()) + 1
    support = np.arange(-reach, reach + 1)
    expected = mass(support) * samples.size
    large = np.flatnonzero(expected >= _LEAST_EXPECTED)
    low, high = support[large[0]], support[large[-1]]
    observed = np.bincount(
        np.clip(samples, low - 1, high + 1) - (low - 1), minlength=high - low + 3
    )
    inner = expected[large[0] : large[-1] + 1]
    tails = np.array([expected[: large[0]].sum(), expected[large[-1] + 1 :].sum()])
    tails += max(samples.size - expected.sum(), 0.0) / 2  # what lies beyond every sample
    cells = np.concatenate([tails[:1], inner, tails[1:]])
    statistic = float(np.sum((observed - cells) ** 2 / np.maximum(cells, 1e-3)))
    return bool(stats.chi2.sf(statistic, df=cells.size - 1) > alpha)
