"""Cents from 0 to 60: every randomizer takes them, and states few of the rows that it has."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.common.exact.channel import BETWEEN
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.randomizers import build_randomizer, randomizer_names
from labelveil.common.randomizers.exact_rows import MAX_WEIGHTS

CENTS = np.linspace(0.0, 60.0, 6001)
UNBIASED = ("auto", "unbiased", "two-point", "randomized-thresholds", "laplace", "discrete-laplace")


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 40.0])
@pytest.mark.parametrize("name", randomizer_names())
def test_cents_are_a_grid_like_others(name: str, epsilon: float) -> None:
    prior = np.exp(-CENTS / 8) + 1e-3
    channel = build_randomizer(name, labels=CENTS, prior=prior, epsilon=epsilon).channel
    assert channel.inputs.tolist() == CENTS.tolist()
    assert channel.ratio <= exp_lower_bound(epsilon)
    assert channel.stated.size <= MAX_WEIGHTS


@pytest.mark.parametrize("name", UNBIASED)
def test_labels_between_knots_keep_their_means(name: str) -> None:
    labels = CENTS[::10]
    channel = build_randomizer(name, labels=labels, prior=np.ones(601), epsilon=1.0).channel
    assert (channel.stated_of == BETWEEN).any()
    assert np.abs(channel.probabilities @ channel.outputs - labels).max() < 60 * 1e-7
