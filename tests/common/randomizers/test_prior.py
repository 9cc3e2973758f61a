"""The prior's histogram by its formulas, at its limits, and decoded from codes."""

import math
from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.exact.rounding import float_below
from labelveil.common.guarantees import Unit
from labelveil.common.randomizers import build_randomizer
from labelveil.common.randomizers.budget import split_budget
from labelveil.common.randomizers.cells import row_products, stream
from labelveil.common.randomizers.grid import Grid, whole_step
from labelveil.common.randomizers.message.codebooks import check_outputs
from labelveil.common.randomizers.prior import (
    NoisyPrior,
    decoded_prior,
    expected_prior,
    private_prior,
    rational_epsilon,
)


def noisy(*counts: int, epsilon: Fraction = Fraction(1, 2), **more: object) -> NoisyPrior:
    return NoisyPrior(np.array(counts), epsilon, sum(counts), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("group", [1, 3])
def test_the_noise_of_a_histogram_by_its_formulas(group: int) -> None:
    prior = noisy(5, 4, 1, group=group)
    assert prior.scale == 4 * group
    ratio = math.exp(-1 / (4 * group))  # P(z) is proportional to ratio^|z|
    z = np.arange(-2000, 2001)
    mass = ratio ** abs(z)
    assert prior.deviation == pytest.approx(math.sqrt(mass @ z**2 / mass.sum()), rel=1e-9)
    assert prior.guarantee.exact_epsilon == Fraction(1, 2)
    assert prior.guarantee.unit is (Unit.RECORD if group == 1 else Unit.USER)
    assert not prior.public


def test_what_was_decoded_or_expected_has_no_noise_of_its_own() -> None:
    decoded = noisy(5, 4, 1, code_noise=2.5)
    assert (decoded.scale, decoded.deviation, decoded.public) == (0, 2.5, False)
    expected = expected_prior(np.array([1.0, 0.0, 3.0]), group=2)
    assert (expected.scale, expected.deviation, expected.public) == (0, 0.0, True)
    assert expected.noisy_counts.tolist() == [1 << 38, 0, 3 << 38]
    assert (expected.rows, expected.group, expected.exact_epsilon) == (1 << 40, 2, 0)
    channel = build_randomizer(
        "randomized-response", labels=[0, 1], prior=[1, 1], epsilon=1
    ).channel
    of_records = noisy(5, 4), decoded_prior(channel, np.array([5, 4])), expected_prior(np.ones(2))
    assert [each.guarantee.unit for each in of_records] == [Unit.RECORD] * 3


def test_clipping_as_the_paper_has_it() -> None:
    assert noisy(-3, 1, 3).clipped.tolist() == [0, 0.25, 0.75]
    assert noisy(-3, -1).clipped.tolist() == [0.5, 0.5]


def test_cells_in_another_order_stay_the_same_cells() -> None:
    order = np.array([2, 0, 3, 1])
    counts, start = np.array([400, 50, 9, 120]), np.array([8, 1, 1, 2])
    prior = NoisyPrior(counts, Fraction(1, 100), 579, start=start)
    moved = prior.reordered(order)
    assert moved.noisy_counts.tolist() == [9, 400, 120, 50]
    assert moved.expected is not None
    assert moved.expected.tolist() == [1 / 12, 8 / 12, 2 / 12, 1 / 12]
    assert moved.probabilities == pytest.approx(prior.probabilities[order], rel=1e-9)
    assert noisy(1, 2).reordered(np.array([1, 0])).expected is None


@pytest.mark.parametrize("counts", [(900, 100), (100, 900), (-60, 1060), (1000, 0), (500, 500)])
def test_two_decoded_shares_are_expected_ones(counts: tuple[int, int]) -> None:
    """The mean of a share s in 0 … 1 given its noisy value, by a sum over s."""
    prior = NoisyPrior(np.array(counts), Fraction(0), 1000, code_noise=50.0)
    s = (np.arange(200_000) + 0.5) / 200_000
    weights = np.exp(-((counts[0] / 1000 - s) ** 2) / (2 * (0.05**2 / 2)))
    mean = float(weights @ s / weights.sum())
    assert prior.probabilities == pytest.approx([mean, 1 - mean], abs=1e-6)


def test_codes_tell_the_histogram_without_bias() -> None:
    """Randomized response over four values, decoded by its own probabilities."""
    channel = build_randomizer(
        "randomized-response", labels=np.arange(4), prior=np.full(4, 0.25), epsilon=1.2
    ).channel
    keep = math.exp(1.2) / (math.exp(1.2) + 3)
    lie, labels = (1 - keep) / 3, np.array([7000, 2000, 900, 100])
    codes = np.rint(labels * keep + (10_000 - labels) * lie).astype(np.int64)
    prior = decoded_prior(channel, codes, group=2)
    assert prior.noisy_counts == pytest.approx(labels, abs=3)
    assert (prior.rows, prior.group, prior.exact_epsilon) == (int(codes.sum()), 2, 0)
    spread = math.sqrt(codes.sum() * lie * (1 - lie) * 4 / 3) / (keep - lie)
    assert prior.deviation == pytest.approx(spread, rel=1e-9)
    faint = build_randomizer(
        "randomized-response", labels=np.arange(2), prior=[1, 1], epsilon=1e-15
    ).channel  # codes of 10⁶ events are 10²¹ events off
    assert decoded_prior(faint, np.array([10**6, 0])).noisy_counts.tolist() == [1 << 53, -(1 << 53)]
    none = decoded_prior(channel, np.zeros(4, dtype=np.int64))
    assert (none.rows, none.noisy_counts.tolist()) == (1, [0, 0, 0, 0])


def test_codes_that_say_nothing_leave_an_even_histogram() -> None:
    row = [1 << 62] * 4
    mute = FiniteChannel(np.arange(4.0), np.arange(4.0), [row], np.zeros(4, dtype=np.int64))
    prior = decoded_prior(mute, np.array([9, 1, 0, 0]))
    assert prior.noisy_counts.tolist() == [2, 3, 2, 3]
    assert (prior.rows, prior.deviation) == (10, 10.0)
    assert prior.probabilities == pytest.approx([0.25] * 4, abs=0.1)


def test_the_limits_of_what_a_histogram_may_spend_and_of_its_unit() -> None:
    assert rational_epsilon(2.0**-24) == Fraction(1, 2**24)
    assert rational_epsilon(1.5 * 2.0**-24) == Fraction(1, 2**24)
    with pytest.raises(PrivacyError, match=r"must be at least 2\*\*-24, about 6e-8"):
        rational_epsilon(0.99 * 2.0**-24)
    counts, entropy = np.array([3, 0]), seeded_entropy(1)
    assert private_prior(counts, 1.0, entropy, group=1 << 20).scale == 2 << 20
    with pytest.raises(PrivacyError, match=r"group=1\.04858e\+06 must lie in \[1, 1048576\]"):
        private_prior(counts, 1.0, entropy, group=(1 << 20) + 1)
    assert private_prior(np.array([0, 0]), 1.0, entropy).rows == 1
    first, second = (private_prior(counts, 0.1, entropy, words=w) for w in ("a", "b"))
    assert first.noisy_counts.tolist() != second.noisy_counts.tolist()


def test_theorem_7_by_hand() -> None:
    # sqrt(100 / 40000) = 1/20 is below an eighth of 1, and not below an eighth of 1/5
    split = split_budget(1.0, 100, 40_000)
    assert split.prior == Fraction(int(2**24 * 0.05), 2**24)
    assert split.labels == 1 - split.prior
    assert split_budget(0.25, 100, 40_000).prior == Fraction(1, 32)
    assert split_budget(0.25, 100, 40_000, largest_share=Fraction(1, 16)).prior == Fraction(1, 64)
    for points, rows in ((0, 5), (5, 0)):
        with pytest.raises(PrivacyError, match="must be at least 1"):
            split_budget(1.0, points, rows)
    with pytest.raises(PrivacyError, match=r"^epsilon=1e-09 leaves 5e-10 for the released hist"):
        split_budget(1e-9, 16, 100)
    assert split_budget(1.0, 1, 1, largest_share=0.125).prior == Fraction(1, 8)
    # few labels: 32 * 32 * (1/4) / 1024**2 is the cube of 1/16; never more than half
    assert split_budget(0.25, 32, 1024).prior == Fraction(1, 16)
    assert split_budget(0.25, 32, 8192, records=8).prior == Fraction(1, 16)
    assert split_budget(0.25, 32, 1024, records=8).prior == Fraction(1, 8)


def test_rounding_down_to_a_float() -> None:
    assert float_below(Fraction(1, 4)) == 0.25
    assert (
        float_below(Fraction(1, 3))
        <= Fraction(1, 3)
        < math.nextafter(float_below(Fraction(1, 3)), 1)
    )
    tenth = float_below(Fraction(1, 10))  # the nearest float lies above
    assert tenth == math.nextafter(0.1, 0)


def test_the_names_of_streams_and_products_of_rows() -> None:
    assert [stream("rounding", each) for each in range(3)] == [
        "rounding",
        "rounding 1",
        "rounding 2",
    ]
    left, right = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0, 6.0, 7.0], [1.0, 0.0, 2.0]])
    assert row_products(left, right).tolist() == [[5, 6, 7, 10, 12, 14], [3, 0, 6, 4, 0, 8]]


def test_codes_of_several_channels_fit_two_bytes() -> None:
    check_outputs([256, 256])
    with pytest.raises(ConfigError, match=r"^257 × 256 combined codes are more than 65,536;"):
        check_outputs([257, 256])


@pytest.mark.parametrize(
    ("ends", "whole", "step"),
    [
        ((0, 10), False, 1.0), ((0, 9), False, 0.5), ((0, 5), False, 0.5), ((0, 4), False, 0.2),
        ((0, 2), False, 0.2), ((0, 1), False, 0.1), ((0, 1), True, 1.0), ((3, 400), True, 1.0),
        ((0.5, 10), True, None), ((0, 10.5), False, None),
    ],
)  # fmt: skip
def test_steps_between_whole_bounds(
    ends: tuple[float, float], whole: bool, step: float | None
) -> None:
    assert whole_step(*ends, whole=whole) == step


@pytest.mark.parametrize(
    ("upper", "rows", "epsilon", "points"),
    [
        (128, 10, 1.0, 129),  # whole bounds up to 128 apart get one point each
        (129, 10, 1.0, 16),  # n (ε/16)² = 0.04, and 16 is the least
        (1000, 256 * 100, 1.0, 100),
        (1000, 256 * 100, 2.0, 400),
        (200, 256 * 200, 1.0, 201),  # affordable, so that each integer has one
        (200, 256 * 199, 1.0, 199),
        (5000, 10**9, 1.0, 512),
        (512, 10**9, 1.0, 513),
    ],
)
def test_the_default_grid_by_hand(upper: int, rows: int, epsilon: float, points: int) -> None:
    assert len(Grid.default(0, upper, rows, epsilon)) == points


def test_grids_at_their_limits() -> None:
    assert len(Grid.from_step(0, 8191, 1)) == len(Grid.from_count(0, 1, 8192)) == 8192
    with pytest.raises(ConfigError, match=r"^points=8,193 must lie in 2 … 8,192"):
        Grid.from_count(0, 1, 8193)
    with pytest.raises(ConfigError, match=r"^points=1 must lie in 2 … 8,192"):
        Grid.from_count(0, 1, 1)
    with pytest.raises(ConfigError, match=r"8,193 points may have at most 8,192;"):
        Grid.from_edges(range(8193))
    with pytest.raises(ConfigError, match=r"^step=1 gives more than 8,192 points"):
        Grid.from_step(0, 8193, 1)
    assert Grid.from_step(0, 3, 3).points.tolist() == [0, 3]
    with pytest.raises(ConfigError, match=r"^step=3\.1 must lie in 0 … 3"):
        Grid.from_step(0, 3, 3.1)
    assert Grid.from_step(0, 1, 0.4).points.tolist() == [0, 0.4, 0.8, 1]
    assert Grid.from_edges([-1e100, 0, 1e100]).upper == 1e100
    assert Grid.from_edges([0, 1e-100]).lower == 0
    for edges in ([0, 1.1e100], [-1.1e100, 0], [0, 0.9e-100], [1, math.nan], [0, math.inf]):
        with pytest.raises(ConfigError, match="must be finite numbers of at most 1e"):
            Grid.from_edges(edges)
    with pytest.raises(ConfigError, match="but 2 is followed by 2; sort them"):
        Grid.from_edges([1, 2, 2, 3])
    with pytest.raises(ConfigError, match="must be at least 1e-100 apart, but 1e-100 is followed"):
        Grid.from_edges([0, 1e-100, 1.5e-100])
    with pytest.raises(ConfigError, match=r"of 1 points must have at least 2"):
        Grid.from_edges([1])


def test_log_steps_by_hand() -> None:
    # ln(1 + (y - 1)/2) is 0, ln 2, 2 ln 2, 3 ln 2
    assert Grid.from_log(1, 15, 4, 2).points == pytest.approx([1, 3, 7, 15], rel=1e-12)
    for scale in (0.0, -1.0, math.inf):
        with pytest.raises(ConfigError, match="must be a number > 0, in units of the label"):
            Grid.from_log(0, 1, 3, scale)
    with pytest.raises(ConfigError, match="is too small for labels up to"):
        Grid.from_log(0, 1e100, 3, 1e-300)


def test_what_rounding_does_by_hand() -> None:
    grid = Grid.from_edges([0, 2, 6])
    values = np.array([-1.0, 0.5, 2.0, 5.0, 9.0])
    assert grid.outside(values) == 2
    indices, shares = grid.neighbours(values)
    assert indices.tolist() == [[0, 1], [0, 1], [1, 2], [1, 2], [1, 2]]
    assert shares.tolist() == [[1, 0], [0.75, 0.25], [1, 0], [0.25, 0.75], [0, 1]]
    moved = grid.rounding_effect(values)
    # 0.5 is a quarter of the way along 2: 4 · 3/16; 5 three quarters along 4: 16 · 3/16
    assert (moved.labels, moved.between, moved.fractional, moved.added) == (5, 2, 1, 3.75)
    assert (moved.total, moved.squares) == (13.5, 0.25 + 4 + 25 + 36)
    assert moved.share == pytest.approx(3.75 / (65.25 - 13.5**2 / 5), rel=1e-12)
    assert str(moved) == "2 of 5 labels lie between, which adds 13.0% to their variance"
    assert (moved + moved).added == 7.5
    assert str(grid) == "3 points"
    assert str(Grid.from_edges([0, 2, 4])) == "3 points, 2 apart"


@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_the_expected_loss_is_a_sum_over_labels_and_outputs(loss: str) -> None:
    labels, prior = np.array([0.0, 1.0, 4.0, 9.0]), np.array([0.4, 0.3, 0.2, 0.1])
    built = build_randomizer(
        "randomized-response", labels=labels, prior=2 * prior, epsilon=1.2, loss=loss
    )
    keep = math.exp(1.2) / (math.exp(1.2) + 3)
    power = 2 if loss == "squared" else 1
    expected = sum(
        p * (keep if y == z else (1 - keep) / 3) * abs(z - y) ** power
        for y, p in zip(labels, prior, strict=True)
        for z in labels
    )
    assert built.expected_loss == pytest.approx(expected, rel=1e-9)
    assert built.prior == pytest.approx(prior)
    assert built.guarantee.epsilon == pytest.approx(1.2)
    values = np.array([-3.0, 2.5, 8.0, 20.0] * 50)
    whole = built.randomize(values, seeded_entropy(5))
    assert whole[60:].tolist() == built.randomize(values[60:], seeded_entropy(5), 60).tolist()
    assert whole.tolist() != built.randomize(values, seeded_entropy(5), 1).tolist()
