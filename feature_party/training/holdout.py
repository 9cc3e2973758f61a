"""Which events are kept for scoring: a choice by seed, the same for every run."""

from __future__ import annotations

import numpy as np

from common.arrays import Integers
from common.errors import DataError


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
