"""Mixing distributions: the weights under which a mixture explains held-out labels best."""

from __future__ import annotations

import numpy as np

from feature_party.learning.problem import Floats

_NEGLIGIBLE = 0.02


def mixture_weights(likelihoods: Floats, rounds: int = 500) -> Floats:
    """Weights w maximising Σ_i ln Σ_h w_h L_h(i), by expectation maximisation.

    The problem is concave, so that the rounds climb to its one maximum. Weights under 2% are
    dropped: they cost a network and change nothing.

    Parameters
    ----------
    likelihoods
        (h, n) out-of-fold likelihoods of the privatized labels under each candidate, > 0.

    Returns
    -------
    (h,) weights >= 0, summing to 1.
    """
    count = likelihoods.shape[0]
    scaled = likelihoods / likelihoods.max(axis=0)
    weights = np.full(count, 1.0 / count)
    for _ in range(rounds):
        shares = weights[:, None] * scaled
        update = (shares / shares.sum(axis=0)).mean(axis=1)
        if np.abs(update - weights).max() < 1e-7:
            break
        weights = update
    weights = np.where(weights < _NEGLIGIBLE, 0.0, weights)
    return np.asarray(weights / weights.sum())
