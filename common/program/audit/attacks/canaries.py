"""Canaries: events whose label is a uniform secret bit, planted before a run or found after it.

*Planted.* The auditor replaces labels of some events by one of two values, by the toss of a coin,
before the labels party sees them.

*Found.* In a finished run whose true labels are known, event i's output z has law P_i = K[y_i, ·].
Accept the event with probability M(z) / (C P_i(z)), where M = (K[a, ·] + K[b, ·]) / 2 and C is the
largest ratio, and then toss a bit with P(s = b | z) = K[b, z] / (K[a, z] + K[b, z]). An accepted
event's (s, z) is distributed exactly as if its label had been a uniform secret among a and b that
was then randomized; everything that came after depends on the secret through z alone, so a guess is
right with probability at most e^ε / (e^ε + 1). This takes the channel for granted (certificate,
`mechanism` and `party` look at that) and asks what is made of its outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.arrays import Floats, Integers
from common.entropy import system_entropy
from common.program.audit.attacks.one_run import Secrets

Rows = Integers


@dataclass(frozen=True)
class Canaries:
    """Events with a secret bit.

    Attributes
    ----------
    rows
        (m,) their rows.
    secrets
        (m,) 0 for the lower of both values, 1 for the higher one.
    low, high
        Indices of both values in the grid.
    planted
        Whether the labels themselves were the secrets.
    """

    rows: Rows
    secrets: Secrets
    low: int
    high: int
    planted: bool


def label_rows(channel: Floats, grid: Floats, labels: Floats) -> Floats:
    """(n, d) output laws of labels, those between two grid points being rounded without bias."""
    clipped = np.clip(labels, grid[0], grid[-1])
    left = np.clip(np.searchsorted(grid, clipped, side="right") - 1, 0, grid.size - 2)
    share = ((clipped - grid[left]) / (grid[left + 1] - grid[left]))[:, None]
    return np.asarray((1 - share) * channel[left] + share * channel[left + 1])


def find_canaries(
    channel: Floats, grid: Floats, labels: Floats, codes: NDArray[np.integer], low: int, high: int
) -> Canaries:
    """Find canaries in a finished run.

    Parameters
    ----------
    channel
        (k, d) probabilities.
    grid
        (k,) labels.
    labels, codes
        (n,) true labels and outputs of the events.
    low, high
        Grid indices a and b of the two values.
    """
    mixture = (channel[low] + channel[high]) / 2
    entropy = system_entropy()
    coins = _uniform(entropy.words("accept", 0, labels.size))
    bits = _uniform(entropy.words("secret", 0, labels.size))
    accepted = np.zeros(labels.size, dtype=np.bool_)
    step = max((1 << 22) // channel.shape[1], 1)
    for start in range(0, labels.size, step):
        part = slice(start, start + step)
        laws = label_rows(channel, grid, labels[part])
        most = (mixture[None, :] / laws).max(axis=1)
        here = laws[np.arange(laws.shape[0]), codes[part]]
        accepted[part] = coins[part] < mixture[codes[part]] / (most * here)
    rows = np.flatnonzero(accepted)
    towards = channel[high] / (channel[low] + channel[high])
    secrets = (bits[rows] < towards[codes[rows]]).astype(np.int64)
    return Canaries(rows, secrets, low, high, planted=False)


def _uniform(words: NDArray[np.uint64]) -> Floats:
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
