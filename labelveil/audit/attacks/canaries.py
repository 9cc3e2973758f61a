"""Canaries: events whose label is a uniform secret bit, planted before a run or found after it.

*Planted.* The auditor replaces labels of some events by one of two values, by the toss of a coin,
before the labels party sees them; of several labels of an event, all at once.

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
from common.randomizers.cells import Codebook
from labelveil.audit.attacks.one_run import uniform


@dataclass(frozen=True)
class Canaries:
    """Events with a secret bit: which of two labels, or of two sets of all labels of an event."""

    rows: Integers  # (m,) where they are
    secrets: Integers  # (m,) their bits
    laws: Floats  # (2, d) stated probabilities of their codes, for either secret
    planted: bool  # whether the labels themselves were the secrets


def find_canaries(
    codebook: Codebook, labels: Floats, codes: NDArray[np.integer], laws: Floats
) -> Canaries:
    """Find canaries in a finished run, from (n, m) true labels and the (n,) codes sent of them."""
    mixture = laws.mean(axis=0)
    coins, bits = uniform(codes.size), uniform(codes.size)
    accepted = np.zeros(codes.size, dtype=np.bool_)
    step = max((1 << 22) // mixture.size, 1)
    for start in range(0, codes.size, step):
        part = slice(start, start + step)
        own = codebook.laws(labels[part])
        largest = (mixture / own).max(axis=1)
        sent = own[np.arange(len(own)), codes[part]]
        accepted[part] = coins[part] < mixture[codes[part]] / (largest * sent)
    rows = np.flatnonzero(accepted)
    towards = laws[1] / laws.sum(axis=0)
    secrets = (bits[rows] < towards[codes[rows]]).astype(np.int64)
    return Canaries(rows, secrets, laws, planted=False)
