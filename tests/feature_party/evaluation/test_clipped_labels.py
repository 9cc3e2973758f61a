"""Where a tail hides how well a label is explained, clipped labels tell; nowhere else."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import not_none
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.prior import private_prior
from labelveil.feature_party.evaluation.clipped_labels import Clipped, explained_below
from labelveil.feature_party.evaluation.decoded_labels import Scored, tilted
from labelveil.feature_party.evaluation.explained import Explained
from labelveil.feature_party.evaluation.spread import ReleasedCodes, label_spread
from labelveil.feature_party.evaluation.unseen import Unseen
from labelveil.feature_party.learning.problem import LabelProblem, LabelSource
from labelveil.feature_party.learning.several_releases import join_problems
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Predictions
from tests.feature_party.evaluation.simulated import compared, sources
from tests.feature_party.evaluation.simulated import events as light_tailed
from tests.feature_party.worlds import thresholds_channel
from tests.one_label import one_label
from tests.statistics import binomial_range

ROWS, RELEASES = 4000, 20
HEAVY = Grid.from_step(0, 400, 8)


@cache
def heavy_tailed() -> tuple[np.ndarray, np.ndarray]:
    """Means that features tell, and labels around them of which a few are very large."""
    rng = np.random.default_rng(5)
    means = np.exp(rng.normal(2.6, 0.6, ROWS))
    return means, np.clip(means * np.exp(rng.normal(-0.7, 1.2, ROWS)), 0, 400)


@cache
def release(seed: int) -> ReleasedCodes:
    labels, entropy = heavy_tailed()[1], seeded_entropy(seed)
    places = HEAVY.round(labels, entropy.words("rounding", 0, ROWS))
    both = one_label(np.bincount(places, minlength=len(HEAVY)), HEAVY, 2.0, entropy)
    sent = both.channel
    codes = sent.sample(places, entropy.words("labels", 0, ROWS)).astype(np.int64)
    problem = LabelProblem.from_channel(sent, both.prior.probabilities)
    return ReleasedCodes(problem, both.prior, HEAVY.points, np.arange(ROWS), codes)


def unseen(source: ReleasedCodes, points: np.ndarray) -> Unseen:
    scored = Scored(Predictions(points, None), np.ones(points.size, dtype=np.bool_))
    rows = np.arange(points.size)
    return Unseen(None, source.codes, rows, scored, [], np.zeros((0, 0)))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.statistical
def test_features_are_seen_to_tell_something_before_it_is_known_how_much() -> None:
    means, _ = heavy_tailed()
    rng, found, dealt = np.random.default_rng(2), [], []
    for seed in range(RELEASES):
        source = release(seed)
        support = Support.from_problem(source.problem)
        for points, told in ((means, found), (rng.permutation(means), dealt)):
            told.append(compared([source], support, unseen(source, points).scored)[0])
    undecided = [one for one in found if one.verdict == "cannot tell"]
    assert len(undecided) > 0.2 * RELEASES
    assert all(one.associated for one in undecided)
    assert sum(one.associated for one in dealt) <= binomial_range(RELEASES, 0.025)[1]


def truth_below(
    told: Clipped, support: Support, prior: Floats, means: Floats, labels: Floats
) -> float:
    """R² of predictions that are clipped as labels are: of each law's mean below the bound."""
    below, laws = np.minimum(HEAVY.points, told.bound), tilted(support)
    values = np.bincount(support.cell_of, weights=support.within * below)
    points = np.interp(means, laws @ support.values, laws @ values)
    clipped = np.minimum(labels, told.bound)
    errors = (points - clipped) ** 2, (below @ prior - clipped) ** 2
    return float(1 - errors[0].mean() / errors[1].mean())


@pytest.mark.slow
@pytest.mark.statistical
def test_a_clipped_label_is_told_where_the_whole_is_not() -> None:
    means, labels = heavy_tailed()
    rng, hits, dealt = np.random.default_rng(1), 0, 0
    found: list[tuple[Explained, Explained]] = []
    for seed in range(RELEASES):
        source = release(seed)
        support, problem = Support.from_problem(source.problem), source.problem
        whole, _ = compared([source], support, unseen(source, means).scored)
        told = explained_below(problem, [source], support, unseen(source, means))
        if told is None:  # now and then a histogram's noise hides that the tail is heavy
            continue
        assert told.above == pytest.approx(problem.prior[problem.grid > told.bound].sum())
        assert 0.005 < told.above < 0.15
        truth, share = (
            truth_below(told, support, problem.prior, means, labels),
            told.explained.share,
        )
        hits += share.low <= truth <= share.high
        found.append((whole, told.explained))
        other = unseen(source, rng.permutation(means))
        none = explained_below(problem, [source], support, other)
        dealt += none is not None and none.explained.verdict == "better"
    assert len(found) > 0.7 * RELEASES
    assert hits >= binomial_range(len(found), 0.95)[0]
    assert dealt <= binomial_range(RELEASES, 0.025)[1]
    widths = [tuple(x.share.high - x.share.low for x in pair) for pair in found]
    assert np.median([narrow / wide for wide, narrow in widths]) < 0.5
    verdicts = [[x.verdict == "better" for x in pair] for pair in found]
    assert sum(after for _, after in verdicts) > sum(before for before, _ in verdicts)


def test_nothing_is_clipped_where_the_whole_label_will_do() -> None:
    means, labels = light_tailed()
    for epsilon in (1.0, 4.0):
        (source,) = sources(labels, thresholds_channel(np.linspace(0, 5, 11), epsilon), 1)
        told = explained_below(
            source.problem, [source], Support.from_problem(source.problem), unseen(source, means)
        )
        assert told is None


@pytest.mark.slow
def test_nothing_is_clipped_of_medians_or_without_a_common_unit() -> None:
    (means, labels), source = heavy_tailed(), release(0)
    problem, support = source.problem, Support.from_problem(source.problem)
    told = explained_below(problem, [source], support, unseen(source, means))
    assert told is not None
    # 4.7% exceed it, and more than 5% each lower point
    assert told.bound == 80
    assert told.above == pytest.approx(problem.prior[problem.grid > 80].sum())
    for own in (source, release(1)):
        of = Support.from_problem(own.problem)
        told = not_none(explained_below(own.problem, [own], of, unseen(own, means)))
        share = told.explained.share
        assert share.low <= truth_below(told, of, own.problem.prior, means, labels) <= share.high
    party = LabelSource("one", 0.0, 2.0, 0, len(HEAVY) - 1, problem.prior, 1)
    for other in (replace(problem, loss="absolute"), replace(problem, sources=(party,))):
        assert explained_below(other, [source], support, unseen(source, means)) is None


def in_four(source: ReleasedCodes) -> list[ReleasedCodes]:
    """The same codes from four releases, each half as large as the one before."""
    part = np.searchsorted([8, 12, 14], np.arange(ROWS) % 15, side="right")
    return [
        replace(source, rows=np.flatnonzero(part == one), codes=source.codes[part == one])
        for one in range(4)
    ]


@pytest.mark.parametrize(
    ("counts", "discrete", "bound"),
    [
        ([800, 800, 800, 800, 798, 2], False, 32),
        ([800, 800, 800, 800, 798, 2], True, None),
        ([1000, 1000, 1000, 998, 0, 2], False, None),  # four points: too few to place between
        # more than a quarter of what varies is the placing: 64/6 of 64 · .35 + 256 · .04
        ([80, 700, 2438, 700, 80, 2], False, None),
    ],
)
def test_labels_are_clipped_where_placing_them_hides_little(
    counts: list[int], discrete: bool, bound: float | None
) -> None:
    """Two of 4,000 labels are so large that nothing is known of the whole."""
    grid = Grid(np.array([0.0, 8.0, 16.0, 24.0, 32.0, 20_000.0]))
    channel = FiniteChannel(grid.points, grid.points, randomized_response_rows(6, 9.0))
    places = np.repeat(np.arange(6), counts)
    histogram = private_prior(np.array(counts), 9.0, seeded_entropy(1))
    codes = channel.sample(places, seeded_entropy(2).words("labels", 0, ROWS)).astype(np.int64)
    problem = replace(LabelProblem.from_channel(channel, np.array(counts)), discrete=discrete)
    source = ReleasedCodes(problem, histogram, grid.points, np.arange(ROWS), codes)
    points, parts = grid.points[places] * 0.9, in_four(source)
    told = explained_below(problem, parts, Support.from_problem(problem), unseen(source, points))
    assert (told and told.bound) == bound


def test_of_several_releases_each_counts_by_its_rows() -> None:
    """One release dealt to four of other sizes says the same; so does a support of fewer cells."""
    (means, _), whole = heavy_tailed(), release(1)
    problem = whole.problem
    parts = in_four(whole)
    both = join_problems([problem] * 4, [part.rows.size for part in parts])
    one, several, coarse = (
        explained_below(of, sources, Support.from_problem(of, cells), unseen(whole, means))
        for of, sources, cells in (
            (problem, [whole], 64),
            (both, parts, 64),
            (both, parts, 24),
        )
    )
    assert one is not None
    for other in (several, coarse):
        assert other is not None
        assert other.bound == one.bound == 88
        assert other.above == pytest.approx(one.above)
        share, same = one.explained.share, other.explained.share
        assert same.value == pytest.approx(share.value, abs=0.01)
        assert (same.low, same.high) == pytest.approx((share.low, share.high), abs=0.03)


def test_counts_over_another_grid_are_about_the_same_clipped_labels() -> None:
    """Of several releases each counts over its own grid, which the common one has twice as fine."""
    source = release(0)
    fine = np.linspace(0, 400, 2 * len(HEAVY) - 1)
    problem = source.problem
    (leg,) = problem.legs
    law = np.interp(np.arange(fine.size), 2 * np.arange(len(HEAVY)), problem.prior) / 2
    halves = leg.row_of[np.arange(fine.size) // 2]
    leg = replace(leg, prior=law / law.sum(), row_of=halves)
    finer = replace(problem, grid=fine, legs=(leg,))
    bound = 80.0
    spreads = []
    for one in (problem, finer):
        clipped = replace(one, grid=np.minimum(one.grid, bound))
        below = replace(source, problem=clipped, unclipped=one.grid)
        spreads.append(label_spread([below]).value)
    assert spreads[0] == pytest.approx(spreads[1], rel=0.25)
