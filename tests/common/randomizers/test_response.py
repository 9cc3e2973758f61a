"""Randomized response over all labels and over the likeliest few."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.common.exact.channel import TOTAL
from labelveil.common.randomizers import build_randomizer


def test_rr_with_prior_picks_the_best_m() -> None:
    built = build_randomizer("rr-with-prior", labels=[0, 1, 2], prior=[0.55, 0.3, 0.15], epsilon=1)
    assert built.details["m"] == 2
    assert built.channel.outputs.tolist() == [0, 1]
    e = np.e
    wanted = [[e / (e + 1), 1 / (e + 1)], [1 / (e + 1), e / (e + 1)], [0.5, 0.5]]
    np.testing.assert_allclose(built.channel.probabilities, wanted, atol=1e-15)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0])
def test_rr_with_prior_against_every_m(epsilon: float) -> None:
    rng = np.random.default_rng(7)
    for _ in range(20):
        prior = rng.dirichlet(np.full(6, 0.5))
        built = build_randomizer("rr-with-prior", labels=np.arange(6), prior=prior, epsilon=epsilon)
        mass = np.sort(prior)[::-1]
        accuracy = [
            np.exp(epsilon) / (np.exp(epsilon) + m - 1) * mass[:m].sum() for m in range(1, 7)
        ]
        assert accuracy[built.details["m"] - 1] == pytest.approx(max(accuracy))
        hits = [
            built.channel.probabilities[y, z] * prior[y]
            for z, y in enumerate(built.channel.outputs.astype(int))
        ]
        assert sum(hits) == pytest.approx(max(accuracy))


def test_rr_with_prior_may_say_nothing_at_all() -> None:
    built = build_randomizer("rr-with-prior", labels=[0, 1], prior=[1, 0], epsilon=0.1)
    assert built.channel.outputs.tolist() == [0]
    assert built.channel.epsilon == 0


def test_of_labels_that_are_as_likely_the_lowest_are_sent() -> None:
    """513 of them at most: here all odd ones, which are likelier, and 213 of the others."""
    prior = np.tile([1.0, 2.0], 300)
    channel = build_randomizer("rr-with-prior", labels=range(600), prior=prior, epsilon=8).channel
    assert channel.outputs.tolist() == sorted([*range(1, 600, 2), *range(0, 426, 2)])


def test_rows_of_unlikely_labels_are_uniform_to_one_unit() -> None:
    prior = [0.3, 0.3, 0.3, 0.05, 0.05]
    channel = build_randomizer("rr-with-prior", labels=range(5), prior=prior, epsilon=2).channel
    assert channel.outputs.size == 3
    assert sum(channel.weights[4]) == TOTAL
    assert max(channel.weights[4]) - min(channel.weights[4]) == 1


def test_randomized_response_closed_form() -> None:
    channel = build_randomizer(
        "randomized-response", labels=np.arange(5), prior=np.ones(5), epsilon=1.3
    ).channel
    keep = np.exp(1.3) / (np.exp(1.3) + 4)
    wanted = np.full((5, 5), (1 - keep) / 4) + np.eye(5) * (keep - (1 - keep) / 4)
    np.testing.assert_allclose(channel.probabilities, wanted, atol=1e-15)
