"""Randomized thresholds: the two-point randomizer in disguise, weights, partitions, decoding."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.common.errors import ConfigError
from labelveil.common.randomizers import build_randomizer, threshold_weights
from labelveil.common.randomizers.knots import thinned
from labelveil.common.randomizers.thresholds import systematic_partitions

LABELS = np.array([0.0, 1.0, 1.5, 4.0, 9.0])
PRIOR = np.array([0.4, 0.3, 0.1, 0.15, 0.05])


def test_summed_over_thresholds_it_is_the_two_point_randomizer() -> None:
    two_point = build_randomizer("two-point", labels=LABELS, prior=PRIOR, epsilon=1.2)
    thresholds = build_randomizer("randomized-thresholds", labels=LABELS, prior=PRIOR, epsilon=1.2)
    bins = np.array(thresholds.details["output_bin"])
    high = thresholds.channel.probabilities[:, bins == 1].sum(axis=1)
    np.testing.assert_allclose(high, two_point.channel.probabilities[:, 1], atol=1e-15)


def test_two_point_variance_formula() -> None:
    epsilon = 0.7
    randomizer = build_randomizer("two-point", labels=LABELS, prior=PRIOR, epsilon=epsilon)
    reach = 4.5 * (np.exp(epsilon) + 1) / (np.exp(epsilon) - 1)
    np.testing.assert_allclose(randomizer.channel.outputs, [4.5 - reach, 4.5 + reach])
    assert randomizer.details["reach"] == pytest.approx(reach)
    expected = PRIOR @ (reach**2 - (LABELS - 4.5) ** 2)
    assert randomizer.expected_loss == pytest.approx(expected, rel=1e-12)


def test_each_output_is_one_threshold_and_one_bit() -> None:
    epsilon = 1.0
    randomizer = build_randomizer(
        "randomized-thresholds", labels=LABELS, prior=PRIOR, epsilon=epsilon, weights="sqrt"
    )
    details, keep = randomizer.details, 1 / (1 + np.exp(-epsilon))
    assert (details["weights"], details["bins"]) == ("sqrt", 2)
    pairs = set(zip(details["output_partition"], details["output_bin"], strict=True))
    assert len(pairs) == randomizer.channel.outputs.size == 8
    for z, (t, b) in enumerate(
        zip(details["output_partition"], details["output_bin"], strict=True)
    ):
        above = details["thresholds"][t] < LABELS
        truth = np.where(above == bool(b), keep, 1 - keep) * details["threshold_weights"][t]
        np.testing.assert_allclose(randomizer.channel.probabilities[:, z], truth, atol=1e-15)


def test_decoding_has_the_least_variance_of_all_unbiased_ones() -> None:
    randomizer = build_randomizer(
        "randomized-thresholds", labels=LABELS, prior=PRIOR, epsilon=1.0, weights="prior"
    )
    matrix = randomizer.channel.probabilities
    weight = PRIOR @ matrix
    # minimise Σ weight u² subject to matrix u = labels
    best = (matrix.T / weight[:, None]) @ np.linalg.solve((matrix / weight) @ matrix.T, LABELS)
    np.testing.assert_allclose(randomizer.channel.outputs, best, rtol=1e-8)


def test_named_weights() -> None:
    gaps, mass = np.diff(LABELS), (PRIOR[1:] + PRIOR[:-1]) / 2
    for name, raw in (
        ("uniform", gaps),
        ("prior", mass),
        ("sqrt", np.sqrt(gaps * mass)),
        ("prior-label", mass * np.array([0.5, 1.25, 2.75, 6.5])),
    ):
        np.testing.assert_allclose(threshold_weights(LABELS, PRIOR, name), raw / raw.sum())
    even = threshold_weights(LABELS, np.zeros(LABELS.size), "prior")
    np.testing.assert_allclose(even, gaps / gaps.sum())
    many = build_randomizer(
        "randomized-thresholds", labels=np.arange(40), prior=np.ones(40), epsilon=1.0, bins=100
    )
    assert len(many.details["thresholds"]) == 8


def test_a_single_threshold_is_hard_and_decodes_to_the_means_of_its_sides() -> None:
    randomizer = build_randomizer(
        "randomized-thresholds", labels=LABELS, prior=PRIOR, epsilon=1.0, weights=[0, 1, 0, 0]
    )
    assert randomizer.details["weights"] == "explicit"
    assert randomizer.channel.outputs.size == 2
    assert len(randomizer.channel.rows) == 2
    means = randomizer.channel.probabilities @ randomizer.channel.outputs
    low, high = 0.3 / 0.7, (0.15 + 0.6 + 0.45) / 0.3
    np.testing.assert_allclose(means, [low, low, high, high, high])


@pytest.mark.parametrize("bins", [2, 3, 5, 9])
def test_systematic_partitions_contain_each_threshold_as_often_as_it_weighs(bins: int) -> None:
    rng = np.random.default_rng(bins)
    weights = rng.exponential(size=30)
    weights /= weights.sum()
    partitions = systematic_partitions(weights, bins)
    assert sum(partitions.values()) == pytest.approx(1)
    assert all(len(cuts) <= bins - 1 for cuts in partitions)
    included = np.zeros(30)
    for cuts, weight in partitions.items():
        included[list(cuts)] += weight
    np.testing.assert_allclose(included, np.minimum(1, (bins - 1) * weights), atol=1e-12)


def test_more_bins_carry_more_at_large_epsilon() -> None:
    labels = np.linspace(0, 1, 40)
    losses = [
        build_randomizer(
            "randomized-thresholds", labels=labels, prior=np.ones(40), epsilon=6.0, bins=bins
        ).expected_loss
        for bins in (2, 4, 8)
    ]
    assert losses[0] > losses[1] > losses[2]


def test_a_long_grid_stays_small_and_unbiased() -> None:
    labels = np.linspace(0, 1, 8_000)
    channel = build_randomizer(
        "randomized-thresholds", labels=labels, prior=np.ones(labels.size), epsilon=1.0
    ).channel
    assert channel.outputs.size <= 256
    assert np.abs(channel.probabilities @ channel.outputs - labels).max() < 1e-9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 1}, "bins=1 must be at least 2"),
        ({"weights": "flat"}, "must be one of uniform, prior, sqrt, prior-label"),
    ],
)
def test_unusable_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_randomizer(
            "randomized-thresholds", labels=LABELS, prior=PRIOR, epsilon=1.0, **options
        )


@pytest.mark.parametrize("weighting", ["uniform", "prior", "sqrt", "prior-label"])
def test_a_thinned_grid_has_the_rows_of_its_knots(weighting: str) -> None:
    """Also around labels that never occur."""
    labels = np.arange(61.0)
    prior = np.where((labels > 20) & (labels < 45), 0.0, 1.0)
    knots, places, mass = thinned(labels, prior / prior.sum(), 9)
    ask = {"epsilon": 1.0, "weights": weighting}
    fine = build_randomizer(
        "randomized-thresholds", labels=labels, prior=prior, thresholds=8, **ask
    ).channel
    coarse = build_randomizer("randomized-thresholds", labels=places, prior=mass, **ask).channel
    assert fine.outputs == pytest.approx(coarse.outputs, rel=1e-9)
    assert np.allclose(fine.probabilities[knots], coarse.probabilities, rtol=0, atol=1e-9)
