"""Which events are kept for scoring: a choice by seed, the same for every run."""

from __future__ import annotations

import hashlib

import numpy as np

from labelveil.common.arrays import Integers
from labelveil.common.errors import DataError
from labelveil.common.release.event_keys import key_text
from labelveil.feature_party.training.events import Events


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


def holdout_digest(events: Events) -> str:
    """SHA-256 of the keys of the events that are kept, in any order; empty where none are.

    They are drawn by their places: with a row more, or in another order, others would be.
    """
    if not events.holdout.size or not events.key:
        return ""
    keys = key_text(events.held_out()[0][events.key]).sort()
    return hashlib.sha256("\0".join(keys).encode()).hexdigest()
