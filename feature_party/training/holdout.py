"""Which events are kept for scoring: a choice by seed, the same for every run."""

from __future__ import annotations

import numpy as np

from labelveil.common.arrays import Integers
from labelveil.common.errors import DataError


def deal_holdout(rows: Integers, share: float, seed: int) -> Integers:
    """Which of (n,) ascending rows of the features to score on, each by itself.

    A row is scored on whichever others there are, so that what is never trained on in the last of
    several rounds was not trained on in any, nor has anything that was asked depended on it.
    """
    chances = np.random.default_rng(seed).random(int(rows.max(initial=0)) + 1)[rows]
    return np.flatnonzero(chances < share)


def draw_holdout(events: int, share: float, seed: int) -> Integers:
    """Events to score on, ascending, in memory of their own size where they are few of many."""
    size = round(events * share)
    if events - size < 2:
        raise DataError(
            f"{events:,} matched events leave {events - size} to train on after a holdout of"
            f" {share:g}; match more events or lower [training] holdout"
        )
    generator = np.random.default_rng(seed)
    return np.sort(generator.choice(events, size, replace=False, shuffle=False))
