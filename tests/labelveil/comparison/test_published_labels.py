"""The published recipe: integers rounded down, √(4k/n) whatever ε is, clipped and normalised."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.exact.rounding import float_below
from labelveil.common.randomizers import LabelTerms, build_randomizer, private_prior
from labelveil.common.randomizers.additive import Laplace, Staircase, best_gamma
from labelveil.common.randomizers.prior import NoisyPrior, rational_epsilon
from labelveil.comparison.published_labels import (
    integers,
    randomize_as_published,
    with_noise,
)
from tests.statistics import follows

LABELS = np.random.default_rng(3).gamma(2.0, 3.0, 60_000)
GRID = integers(0.2 - 0.2, 30.9)
TERMS = LabelTerms("label", 0.0, 30.9, randomizer="rr-on-bins")


def test_the_grid_has_the_integers_within_the_bounds() -> None:
    assert GRID.points.tolist() == list(range(31))
    assert integers(0.5, 3.5).points.tolist() == [1.0, 2.0, 3.0]
    assert (len(integers(-1.0, 0.0)), len(integers(-9.0, 4086.0))) == (2, 4096)
    for lower, upper in ((-9.0, 4087.0), (0.0, 0.9), (-1.5, -0.5)):
        with pytest.raises(ConfigError, match="change the label's unit"):
            integers(lower, upper)


def test_both_steps_are_those_of_the_paper() -> None:
    """Against the same noise, put together by hand."""
    epsilon = 1.0
    found = randomize_as_published(LABELS, TERMS, epsilon, seeded_entropy(9))
    first = rational_epsilon(math.sqrt(4 * 31 / 60_000))
    assert found.epsilon_prior == first
    whole = np.minimum(np.floor(LABELS), 30)
    noisy = private_prior(np.bincount(whole.astype(int), minlength=31), first, seeded_entropy(9))
    positive = np.maximum(noisy.noisy_counts, 0)
    left = float_below(Fraction(epsilon) - first)
    made = build_randomizer(
        "rr-on-bins", labels=np.arange(31), prior=positive / positive.sum(), epsilon=left
    )
    # ε₁ + ε₂ <= ε in rational arithmetic, and the channel is ε₂-DP in integers
    assert first + Fraction(left) <= Fraction(epsilon)
    assert made.channel.ratio <= exp_lower_bound(left)
    codes = made.randomize_indices(whole.astype(int), seeded_entropy(9))
    assert np.array_equal(found.sent, made.channel.outputs[codes])
    assert found.outputs == made.channel.outputs.size


def test_bins_are_those_of_the_squared_error_under_poisson_loss_too() -> None:
    sent = [
        randomize_as_published(LABELS, replace(TERMS, loss=loss), 3.0, seeded_entropy(9)).sent
        for loss in ("squared", "poisson")
    ]
    assert np.array_equal(*sent)


def test_a_prior_that_takes_everything_is_refused() -> None:
    with pytest.raises(PrivacyError, match=r"√\(4·31/100\) = 1.11, which leaves nothing"):
        randomize_as_published(LABELS[:100], TERMS, 1.0, seeded_entropy(9))
    with pytest.raises(PrivacyError, match=r"√\(4·31/496\) = 0.5, which leaves nothing"):
        randomize_as_published(LABELS[:496], TERMS, 0.5, seeded_entropy(9))
    assert randomize_as_published(LABELS[:496], TERMS, 0.6, seeded_entropy(9)).epsilon_prior == 0.5


def test_noise_alone_spends_everything_on_the_labels() -> None:
    for options in ({}, {"clip": True}):
        terms = replace(TERMS, upper=30.0, randomizer="laplace", options=options)
        found = randomize_as_published(LABELS, terms, 2.0, seeded_entropy(9))
        assert found.epsilon_prior == 0
        floats = randomize_as_published(LABELS, terms, 2.0, seeded_entropy(9), continuous=True)
        assert floats.outputs is None
        assert np.ptp(floats.sent) <= 30 or not options
        own = np.minimum(np.floor(LABELS), 30), np.minimum(LABELS, 30)
        errors = [
            np.mean((one.sent - labels) ** 2)
            for one, labels in zip((found, floats), own, strict=True)
        ]
        clipped = randomize_as_published(
            LABELS, replace(terms, options={"clip": True}), 2.0, seeded_entropy(9), continuous=True
        )
        assert clipped.sent.min() >= 0
        assert clipped.sent.max() <= 30
        # a law on a lattice adds no more than its rounding
        assert errors[0] == pytest.approx(errors[1], rel=0.03)
        variance = 2 * (30 / 2.0) ** 2
        assert (errors[1] == pytest.approx(variance, rel=0.03)) is not bool(options)


@pytest.mark.parametrize("randomizer", ["rr-on-bins", "laplace", "staircase"])
@pytest.mark.parametrize("continuous", [False, True])
def test_labels_that_do_not_begin_at_0_are_sent_as_if_they_did(
    randomizer: str, continuous: bool
) -> None:
    labels = np.round(LABELS[:4000] * 64) / 64 - 2  # some are below the least
    first, moved = (
        randomize_as_published(
            labels + by,
            replace(TERMS, lower=by, upper=by + 30.0, randomizer=randomizer),
            2.0,
            seeded_entropy(9),
            continuous=continuous,
        ).sent
        for by in (0.0, -12.0)
    )
    assert moved + 12 == pytest.approx(first, abs=1e-9)


def test_continuous_noise_is_added_to_labels_that_are_not_rounded() -> None:
    """Rounding down is there for the bins alone; it would take half a unit off on average."""
    terms = replace(TERMS, upper=30.0, randomizer="laplace")
    made = randomize_as_published(LABELS, terms, 40.0, seeded_entropy(9), continuous=True)
    assert abs(np.mean(made.sent - np.minimum(LABELS, 30))) < 0.03
    assert np.mean(np.minimum(LABELS, 30) - np.minimum(np.floor(LABELS), 30)) > 0.3


def test_a_histogram_of_which_nothing_is_left_is_even() -> None:
    gone = NoisyPrior(np.array([-3, -1, 0]), Fraction(1), 5)
    assert gone.clipped.tolist() == [1 / 3] * 3
    assert NoisyPrior(np.array([-3, 1, 3]), Fraction(1), 5).clipped.tolist() == [0, 0.25, 0.75]


@pytest.mark.slow
@pytest.mark.statistical
def test_simulated_continuous_noise_follows_its_density() -> None:
    for law in (
        Laplace(2.0 / 0.8),
        Staircase(2.0, 0.8, best_gamma(0.8, squared=True)),
        Staircase(2.0, 3.0, best_gamma(3.0, squared=False)),
    ):
        sample = with_noise(np.full(200_000, 0.5), law, seeded_entropy(5)) - 0.5

        def cdf(x: Floats, law: Laplace | Staircase = law) -> Floats:
            tail = law.survival(np.abs(x))
            return np.where(x < 0, tail, 1 - tail)

        assert follows(sample, cdf)
        assert not follows(sample * 1.1, cdf)
