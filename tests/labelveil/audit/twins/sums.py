"""Sums over groups of one event each, as a mechanism from labels to outputs: right, and broken."""

from __future__ import annotations

import numpy as np

from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import system_entropy
from labelveil.common.exact.noise import discrete_laplace_each
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice, group_sums


def question(rows: int) -> GroupQuestion:
    """Ask about labels of 0 and 1."""
    return GroupQuestion(Lattice(0.0, 1.0, 1), np.arange(rows), np.ones(rows, dtype=np.int64))


def right(labels: Floats) -> Integers:
    """As it is."""
    return group_sums(labels, question(labels.size), epsilon=1).sums


def half_the_scale(labels: Floats) -> Integers:
    """Claims 1, is 2."""
    return group_sums(labels, question(labels.size), epsilon=2).sums


def _noise(rows: int) -> Integers:
    ones = np.ones(rows, dtype=np.int64)
    return discrete_laplace_each(ones, 1, system_entropy().source("sums"))


def even_noise(labels: Floats) -> Integers:
    """The sum's parity is the label's."""
    return labels.clip(0, 1).astype(np.int64) + 2 * _noise(labels.size)


def shared_noise(labels: Floats) -> Integers:
    """Two groups have one noise, so that their difference has none."""
    noise = np.repeat(_noise(-(-labels.size // 2)), 2)[: labels.size]
    return labels.clip(0, 1).astype(np.int64) + noise


def not_clipped(labels: Floats) -> Integers:
    """A label far outside the bounds counts as it is."""
    return np.rint(labels).astype(np.int64) + _noise(labels.size)
