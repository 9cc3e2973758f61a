"""The label grid: what its constructors give; rounding is unbiased and record by record."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.randomizers.grid import LEAST_GAP, MAX_POINTS, Grid, RoundingEffect

bounds = st.tuples(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9)).map(
    lambda pair: (round(pair[0], 40), round(pair[0], 40) + pair[1])
)


@given(bounds, st.integers(2, 300))
def test_a_count_gives_that_many_points_from_bound_to_bound(
    ends: tuple[float, float], count: int
) -> None:
    grid = Grid.from_count(*ends, count)
    assert len(grid) == count
    assert (grid.lower, grid.upper) == ends


@given(bounds, st.floats(1.0, 300.0))
def test_a_step_is_kept_but_for_the_last(ends: tuple[float, float], parts: float) -> None:
    lower, upper = ends
    step = (upper - lower) / parts
    grid = Grid.from_step(lower, upper, step)
    assert (grid.lower, grid.upper) == ends
    steps = np.diff(grid.points)
    noise = 1e-6 * step + 4 * math.ulp(max(abs(lower), abs(upper)))
    assert np.all(np.abs(steps[:-1] - step) <= noise)
    assert steps[-1] <= step + noise


def test_a_step_of_one_gives_the_integers() -> None:
    assert Grid.from_step(0, 77, 1).points.tolist() == list(range(78))
    assert Grid.from_step(0, 1, 0.1).points.tolist() == pytest.approx(np.arange(11) / 10)
    assert Grid.from_step(0, 1, 0.4).points.tolist() == [0, 0.4, 0.8, 1.0]


@given(bounds, st.integers(2, 200), st.floats(0.01, 100))
def test_log_steps_grow(ends: tuple[float, float], count: int, scale: float) -> None:
    lower, upper = ends
    grid = Grid.from_log(lower, upper, count, scale * (upper - lower))
    assert len(grid) == count
    assert (grid.lower, grid.upper) == ends
    steps = np.diff(grid.points)
    noise = 1e-6 * (upper - lower) + 4 * math.ulp(max(abs(lower), abs(upper)))
    assert np.all(steps[1:] >= steps[:-1] - noise)


@given(st.integers(-100, 100), st.integers(1, 2000), st.integers(1, 10**7), st.floats(0.05, 8.0))
def test_the_default_grid_stays_small(lower: int, span: int, rows: int, epsilon: float) -> None:
    grid = Grid.default(lower, lower + span, rows, epsilon)
    whole = Grid.default(lower, lower + span, rows, epsilon, whole=True)
    assert 2 <= len(grid) <= 513
    if span <= 128:
        assert whole.points.tolist() == list(range(lower, lower + span + 1))
        assert np.isin(whole.points, np.round(grid.points, 9)).all()
    assert (grid == whole) == (span >= 10)


@pytest.mark.parametrize(
    ("upper", "points"), [(1, 11), (2, 11), (3, 16), (4, 21), (5, 11), (9, 19), (10, 11)]
)
def test_labels_that_may_lie_anywhere_have_ten_steps(upper: int, points: int) -> None:
    assert len(Grid.default(0, upper, 1000, 1.0)) == points


def test_points_from_0_are_denser_there() -> None:
    """Amounts are mostly small: of 16 points a quarter and seven quarters of an even gap."""
    points = Grid.default(0, 20_000, 1_000, 0.5).points
    t = np.arange(16) / 15
    assert points.tolist() == (20_000 * (t * (1 + 3 * t) / 4)).tolist()
    assert points[1] == pytest.approx(20_000 / 15 * 0.3)
    assert points[-1] - points[-2] == pytest.approx(20_000 / 15 * 1.7)
    assert np.ptp(np.diff(Grid.default(1, 20_001, 1_000, 0.5).points)) < 1e-9
    # 64 points of 200 whole numbers: some would lie between two neighbouring ones
    assert np.ptp(np.diff(Grid.default(0, 200, 16_384, 1.0).points)) < 1e-9
    assert np.diff(Grid.default(0, 252, 16_384, 1.0).points)[0] >= 1


def test_what_placing_labels_does_to_them() -> None:
    grid, labels = Grid.from_step(0, 1, 0.1), np.array([0.0, 0.1, 0.3, 0.25, 0.99, 2.0, -1.0])
    moved = sum(map(grid.rounding_effect, (labels[:3], labels[3:])), RoundingEffect())
    assert (moved.labels, moved.between, moved.fractional) == (7, 2, 4)
    many = np.tile(labels, 20_000)
    placed = grid.points[grid.round(many, seeded_entropy(5).words("round", 0, many.size))]
    added = float(np.mean((placed - np.clip(many, 0, 1)) ** 2))
    assert moved.added / moved.labels == pytest.approx(added, rel=0.02)
    assert moved.share == pytest.approx(added / np.clip(labels, 0, 1).var(), rel=0.02)
    assert (
        str(moved) == f"2 of 7 labels lie between, which adds {moved.share:.1%} to their variance"
    )
    assert str(grid) == "11 points, 0.1 apart"
    assert str(Grid.from_log(0, 9, 5, 1.0)) == "5 points"
    assert str(Grid.from_edges([0, 1, 2.00001])) == "3 points"
    assert str(Grid.from_edges([0, 1, 2.0000001])) == "3 points, 1 apart"


def test_many_labels_far_from_0_add_up_as_one_sum_has_it() -> None:
    """Over several chunks, the last of odd length; heights are counted from the lowest point."""
    base = 2.0**32  # whose square has no bits left for those of a variance
    grid = Grid.from_edges(base + np.array([90.0, 91.0, 93.5, 100.0]))
    labels = base + np.random.default_rng(2).uniform(89, 101, 20_001)
    moved, inside = grid.rounding_effect(labels), np.clip(labels, base + 90, base + 100)
    at, shares = grid.neighbours(labels)
    places = grid.points[at]
    assert (places * shares).sum(axis=1) == pytest.approx(inside)
    added = (shares * (places - inside[:, None]) ** 2).sum(axis=1)
    assert moved.added == pytest.approx(added.sum())
    assert moved.labels == labels.size
    assert moved.between == np.count_nonzero((inside > base + 90) & (inside < base + 100))
    assert moved.share == pytest.approx(added.mean() / (inside - base).var())
    assert grid.outside(labels) == np.count_nonzero(inside != labels)
    alike = Grid.from_edges([90, 95]).rounding_effect(np.full(7, 92.5))
    assert (alike.between, alike.share) == (7, 0.0)  # no variance that anything could add to


@pytest.mark.parametrize(
    "make",
    [
        lambda: Grid.from_step(1, 1, 1),
        lambda: Grid.from_step(0, 1, 0),
        lambda: Grid.from_step(0, 1, -1),
        lambda: Grid.from_step(0, 1, math.nan),
        lambda: Grid.from_step(0, 1, 2),
        lambda: Grid.from_step(0, 1, 1e-9),
        lambda: Grid.from_step(0, 1, 5e-324),
        lambda: Grid.from_step(-1e308, 1e308, 1),
        lambda: Grid.from_step(1e17, 1e17 + 100, 1),
        lambda: Grid.from_count(0, math.inf, 3),
        lambda: Grid.from_count(math.nan, 1, 3),
        lambda: Grid.from_count(0, 1, 1),
        lambda: Grid.from_count(0, 1, 10**15),
        lambda: Grid.from_log(0, 1, 5, 0),
        lambda: Grid.from_log(0, 1, 5, 1e-320),
        lambda: Grid.from_edges([]),
        lambda: Grid.from_edges([1]),
        lambda: Grid.from_edges([1, 1]),
        lambda: Grid.from_edges([2, 1]),
        lambda: Grid.from_edges([1, math.nan]),
        lambda: Grid.from_edges([-1e308, 1e308]),
        lambda: Grid.from_edges([0, 1e101]),
        lambda: Grid.from_edges([0, 5e-324, 1]),
        lambda: Grid.from_edges([-1e-101, 1]),
        lambda: Grid.from_edges([-1e-100, 1e-100, np.nextafter(1e-100, 1)]),
        lambda: Grid.from_count(0, 5e-324, 2),
        lambda: Grid.from_count(0, 1e-100, 3),
        lambda: Grid.from_log(0, 1, 8000, 1e-99),
        lambda: Grid.from_count(0, 1, MAX_POINTS + 1),
    ],
)
def test_an_impossible_grid_is_refused_in_one_line(make: Callable[[], Grid]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_an_empty_domain_is_called_so() -> None:
    for lower, upper in ((5, 5), (5, 4)):
        with pytest.raises(ConfigError, match=f"lower={lower} must be below upper={upper}"):
            Grid.from_count(lower, upper, 3)


def test_grids_compare_by_their_points_and_are_frozen() -> None:
    assert Grid.from_step(0, 2, 1) == Grid.from_edges([0, 1, 2])
    assert hash(Grid.from_step(0, 2, 1)) == hash(Grid.from_edges([0, 1, 2]))
    assert Grid.from_step(0, 2, 1) != Grid.from_edges([0, 1, 3])
    with pytest.raises(ValueError, match="read-only"):
        Grid.from_step(0, 2, 1).points[0] = 5


def plainly_rounded(points: np.ndarray, values: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Rounding by its definition: bisection, then a coin of 53 bits."""
    clipped = np.clip(values, points[0], points[-1])
    left = np.clip(np.searchsorted(points, clipped, side="right") - 1, 0, points.size - 2)
    share = (clipped - points[left]) / (points[left + 1] - points[left])
    coin = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (left + (coin < share)).astype(np.int64)


finite = st.floats(-1e100, 1e100).filter(lambda point: not 0 < abs(point) < 1e-99)
grids = st.one_of(
    st.lists(finite, min_size=2, max_size=40, unique=True).map(sorted),
    # close together, hardly a number, and of both signs
    st.lists(st.integers(-60, 60), min_size=2, max_size=20, unique=True).map(
        lambda steps: [2 * LEAST_GAP * step for step in sorted(steps)]
    ),
    st.tuples(bounds, st.integers(2, 600)).map(lambda g: np.linspace(*g[0], g[1]).tolist()),
    st.integers(2, 200).map(lambda count: Grid.from_log(-3, 1e4, count, 0.1).points.tolist()),
)


@given(
    points=grids,
    values=st.lists(st.one_of(st.floats(-1e300, 1e300), st.integers(0, 700)), max_size=40),
    seed=st.integers(0, 9),
)
def test_rounding_is_as_defined_for_every_float(
    points: list[float], values: list[float], seed: int
) -> None:
    grid = Grid.from_edges(points)
    # points themselves, their neighbours among floats, the middles; what was drawn as it is, and
    # as places between the ends
    ends = grid.points
    inside = ends[0] + (ends[-1] - ends[0]) * np.array([value % 1 for value in values if value % 1])
    drawn = np.array([*values, 0.0, -0.0, math.inf, -math.inf], dtype=np.float64)
    near = [np.nextafter(ends, -math.inf), ends, np.nextafter(ends, math.inf)]
    every = np.concatenate([*near, ends[:-1] / 2 + ends[1:] / 2, inside, drawn])
    words = seeded_entropy(seed).words("words", 0, every.size)
    for some in (words, np.zeros_like(words), ~np.zeros_like(words)):
        np.testing.assert_array_equal(
            grid.round(every, some), plainly_rounded(grid.points, every, some)
        )
        with pytest.raises(DataError, match="NaN"):
            grid.round(np.append(every, math.nan), np.append(some, some[:1]))


@given(
    points=st.lists(st.integers(-50, 50), min_size=2, max_size=8, unique=True).map(sorted),
    value=st.floats(-60, 60),
)
def test_rounding_is_unbiased_to_a_float(points: list[int], value: float) -> None:
    grid = Grid.from_edges(points)
    # the share of words that go up, exactly: bisect for the first word that does not
    low, high = 0, 2**64
    base = int(grid.round([value], np.array([2**64 - 1], dtype=np.uint64))[0])
    while low < high:
        middle = (low + high) // 2
        if int(grid.round([value], np.array([middle], dtype=np.uint64))[0]) > base:
            low = middle + 1
        else:
            high = middle
    up = Fraction(low, 2**64)
    top = min(base + 1, len(grid) - 1)
    mean = points[base] + up * (points[top] - points[base])
    clipped = Fraction(min(max(value, points[0]), points[-1]))
    gap = points[top] - points[base]
    assert abs(mean - clipped) <= gap * Fraction(1, 2**51) + Fraction(math.ulp(60.0))


def test_a_label_on_a_point_stays_there() -> None:
    grid = Grid.from_edges([-1.5, 0.0, 0.1, 7.0])
    words = np.array([0, 2**63, 2**64 - 1], dtype=np.uint64)
    for index, point in enumerate(grid.points.tolist()):
        assert grid.round([point] * 3, words).tolist() == [index] * 3
    assert grid.round([-math.inf, -9.0, math.inf], words).tolist() == [0, 0, 3]
    assert grid.outside(np.array([-2.0, -1.5, 7.0, 7.1])) == 2


def test_rounding_a_part_gives_that_part() -> None:
    grid = Grid.from_count(0, 1, 7)
    values = np.linspace(-0.2, 1.2, 150_000)
    words = seeded_entropy(0).words("rounding", 0, values.size)
    whole = grid.round(values, words)
    for part in (slice(0, 10), slice(65_530, 65_600), slice(131_000, None)):
        assert np.array_equal(grid.round(values[part], words[part]), whole[part])


def test_labels_that_cannot_be_rounded_are_refused() -> None:
    grid = Grid.from_count(0, 1, 3)
    with pytest.raises(DataError, match="NaN"):
        grid.round([0.5, math.nan], np.zeros(2, dtype=np.uint64))
    for values in ([0.5], [[0.5, 0.5]], [0.1, 0.2, 0.3]):
        with pytest.raises(ValueError, match="words"):
            grid.round(values, np.zeros(2, dtype=np.uint64))


def test_labels_whose_neighbours_are_one_number_are_told_so() -> None:
    with pytest.raises(ConfigError, match="subtract a constant from labels") as caught:
        Grid.from_count(1e16, 1e16 + 2, 5)
    assert "10000000000000000 is followed by" in str(caught.value)
    with pytest.raises(ConfigError, match=r"remove repetitions$"):
        Grid.from_edges([100, 100])
