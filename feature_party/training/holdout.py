"""Which events are kept for scoring: a choice by seed, the same for every run."""

from __future__ import annotations

import numpy as np

from common.arrays import Integers
from common.errors import DataError


def split_holdout(events: int, share: float, seed: int) -> tuple[Integers, Integers]:
    """Rows to train on and rows to score on, each ascending; fixed by count, share and seed."""
    held = held_events(events, share, seed)
    rest = np.ones(events, dtype=np.bool_)
    rest[held] = False
    return np.flatnonzero(rest), held


def held_events(events: int, share: float, seed: int) -> Integers:
    """Events to score on, ascending, in memory of their own size where they are few of many."""
    held = round(events * share)
    if events - held < 2:
        raise DataError(
            f"{events:,} matched events leave {events - held} to train on after a holdout of"
            f" {share:g}; match more events or lower [training] holdout"
        )
    generator = np.random.default_rng(seed)
    return np.sort(generator.choice(events, held, replace=False, shuffle=False))


def split_events(rows: Integers, share: float, seed: int) -> tuple[Integers, Integers]:
    """As :func:`split_holdout`, where several labels may be about one event: they stay together.

    Parameters
    ----------
    rows
        (n,) the event that each label is about.
    """
    events, event_of = np.unique(rows, return_inverse=True)
    held = np.zeros(events.size, dtype=np.bool_)
    held[split_holdout(events.size, share, seed)[1]] = True
    return np.flatnonzero(~held[event_of]), np.flatnonzero(held[event_of])
