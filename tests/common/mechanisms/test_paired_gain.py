"""Paired differences: what one label can move, whoever chose the predictions, and exact noise."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import DataError, PrivacyError
from labelveil.common.guarantees import Adjacency, PureDP, Unit
from labelveil.common.mechanisms.paired_gain import RESOLUTION, NoisyAnswers, PairedGain, half_width
from tests.statistics import fits

GRID = np.linspace(-1, 4, 26)
PRIOR = np.exp(-0.5 * np.arange(26)) / np.exp(-0.5 * np.arange(26)).sum()
EXTREME = [-np.inf, np.inf, -1e308, 1e308, 5e-324, -1.0, 4.0, -0.0, np.nextafter(4.0, 5.0)]


@pytest.mark.parametrize("loss", ["squared", "absolute"])
@pytest.mark.parametrize("largest", [None, 1e-9, 0.3, 7.0, 1e300])
def test_no_label_moves_a_sum_by_more_than_its_span(loss: str, largest: float | None) -> None:
    """Over predictions that an attacker might choose, and labels in and out of the domain."""
    gain = PairedGain.of_prior(GRID, PRIOR, loss, largest)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    near = gain.constant + np.array([-1e-15, 0, 1e-15, 1e-8, 0.1, 3])
    chosen = np.concatenate([EXTREME, near, rng.uniform(-2, 5, 100)])
    labels = np.concatenate([GRID, [gain.constant, -1e300, 1e300], rng.uniform(-1, 4, 400)])
    reached = 0.0
    for point in chosen:
        moved = gain.differences(np.full(labels.size, point), labels)
        span = gain.span(np.array([point]))
        assert int(np.ptp(moved)) <= span <= 2 * RESOLUTION
        reached = max(reached, np.ptp(moved) / span)
    assert reached == 1  # attained: no less noise would do


def test_a_span_belongs_to_the_predictions_alone() -> None:
    gain = PairedGain.of_prior(GRID, PRIOR, "squared")
    near, far = np.array([gain.constant + 0.01]), np.array([4.0])
    assert gain.span(near) < gain.span(far) / 20
    assert gain.span(np.concatenate([near, far])) == gain.span(far)
    assert gain.span(np.array([gain.constant])) == 1  # nothing to tell, and still noise


def test_differences_are_those_of_the_losses_where_nothing_is_clipped() -> None:
    for loss, power in (("squared", 2), ("absolute", 1)):
        gain = PairedGain.of_prior(GRID, PRIOR, loss, 1e9)  # type: ignore[arg-type]
        points, labels = np.random.default_rng(1).uniform(-1, 4, (2, 500))
        true = np.abs(gain.constant - labels) ** power - np.abs(points - labels) ** power
        unit = gain.bound / RESOLUTION
        assert gain.differences(points, labels) * unit == pytest.approx(true, abs=unit)


def test_the_bound_is_what_few_released_labels_surpass() -> None:
    gain = PairedGain.of_prior(GRID, PRIOR, "squared")
    losses = (GRID - gain.constant) ** 2
    assert gain.constant == pytest.approx(PRIOR @ GRID)
    assert gain.constant_loss == pytest.approx(PRIOR @ losses)
    assert PRIOR[losses > gain.bound].sum() <= 1e-3 < PRIOR[losses >= gain.bound].sum()
    one = PairedGain.of_prior(GRID, PRIOR, "absolute", 0.5)
    assert one.bound == 0.5
    assert PRIOR[one.constant > GRID].sum() <= 0.5 <= PRIOR[one.constant >= GRID].sum()
    ends = PairedGain.of_ends(-1.0, 3.0)
    assert (ends.lower, ends.upper, ends.constant, ends.bound, ends.constant_loss) == (
        -1,
        3,
        1,
        4,
        4,
    )
    with pytest.raises(DataError, match="one label alone"):
        PairedGain.of_prior(np.array([0.0, 1.0]), np.array([1.0, 0.0]), "absolute")


@pytest.mark.slow
@pytest.mark.statistical
def test_noise_is_discrete_laplace_of_the_stated_scale() -> None:
    gain = PairedGain.of_prior(np.array([0.0, 1.0]), np.array([0.5, 0.5]), "squared", 1.0)
    answers = NoisyAnswers(Fraction(40_000), 2)
    points, labels = np.array([1.0]), np.array([1.0])
    total, scale = int(gain.differences(points, labels)[0]), float(answers.scale(gain.span(points)))
    entropy = seeded_entropy(2)
    found = [
        answers.draw(gain, points, labels, question=str(i), entropy=entropy) for i in range(1500)
    ]
    noise = np.rint(np.array(found) * RESOLUTION / gain.bound).astype(np.int64) - total
    ratio = np.exp(-1 / scale)
    assert fits(noise, lambda x: (1 - ratio) / (1 + ratio) * ratio ** np.abs(x))
    twin = np.exp(-1 / (2 * scale))  # half the guarantee
    assert not fits(noise, lambda x: (1 - twin) / (1 + twin) * twin ** np.abs(x))
    reach = half_width(answers.unsure(gain, gain.span(points), 1))
    assert np.mean(np.abs(noise) * gain.bound / RESOLUTION <= reach) > 0.93


def test_a_scale_is_never_rounded_down() -> None:
    for epsilon, most, group, span in ((Fraction(1, 3), 7, 2, 9), (Fraction(10), 1, 1, 1)):
        answers = NoisyAnswers(epsilon, most, group)
        assert answers.scale(span) >= group * span * most / epsilon
        assert answers.scale(span) - group * span * most / epsilon < Fraction(1, 4000)
    # of labels 0 … 1 in squares, 1 predicted: from 1/4 - 0 a label moves a sum to 1/4 - 1, which is
    # clipped to -1/4
    gain = PairedGain.of_ends(0.0, 1.0)
    answers = NoisyAnswers(Fraction(1, 2), 3, 2)
    unsure = answers.unsure(gain, gain.span(np.ones(60)), 60)
    assert unsure == pytest.approx(0.5 * 2 * 3 / 0.5 / 60, rel=1e-6)
    users = NoisyAnswers(Fraction(1, 2), group=3, unit=Unit.USER)
    assert users.guarantee == PureDP.of(Fraction(1, 2), Adjacency.REPLACE_LABEL, Unit.USER)


def test_mistakes_are_one_line() -> None:
    with pytest.raises(PrivacyError, match="epsilon=0 must be > 0"):
        NoisyAnswers(Fraction(0))
    gain = PairedGain.of_prior(GRID, PRIOR, "squared")
    with pytest.raises(DataError, match="at least one record"):
        NoisyAnswers(Fraction(1)).draw(
            gain, np.empty(0), np.empty(0), question="", entropy=seeded_entropy(1)
        )
