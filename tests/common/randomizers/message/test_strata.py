"""Strata and questions: channels of their own for public classes, or for like predictions."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labelveil.common.arrays import Floats, Indices
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.guarantees import PureDP, Unit
from labelveil.common.randomizers import build_randomizer
from labelveil.common.randomizers.base import LABEL_STREAM
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message import plan as planning
from labelveil.common.randomizers.message import questions as asking
from labelveil.common.randomizers.message.codebooks import Codebook, Codebooks
from labelveil.common.randomizers.message.message import Message, Released
from labelveil.common.randomizers.message.plan import plan_message
from labelveil.common.randomizers.message.private_labels import (
    PrivateEvents,
    randomize,
    randomize_labels,
)
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.randomizers.message.strata import (
    MOST_STRATA,
    OTHERS,
    Strata,
    StratumTable,
    bins_of,
    count_cells,
    keep_strata,
    stratum_law,
)
from labelveil.common.randomizers.message.terms import Division, LabelTerms
from labelveil.common.randomizers.prior import NoisyPrior, expected_prior
from tests.effort import one_in
from tests.statistics import counts_fit

GRID = Grid.from_count(0.0, 30.0, 16)
TERMS = LabelTerms("label", 0.0, 30.0, GRID)
PAIR = [LabelTerms("returned", 0, 1, Grid.from_edges([0.0, 1.0]), values=True), TERMS]
VALUES = ["high", "low"]


def in_strata(rows: int = 6000) -> tuple[Floats, Indices]:
    """Labels that are near 24 in the first stratum and near 6 in the second."""
    words = seeded_entropy(5)
    spread, which = (words.words(name, 0, rows) / 2.0**64 for name in ("spread", "which"))
    strata = (which < 0.5).astype(np.int64)
    return np.where(strata == 0, 18 + 12 * spread, 12 * spread), strata


def sent(epsilon: float = 2.0, records: int = 1, seed: int = 1) -> tuple[PrivateEvents, Indices]:
    labels, strata = in_strata()
    plan = plan_message([TERMS], labels.size, epsilon, records=records)
    plan = plan.by_stratum(VALUES, np.bincount(strata, minlength=3))
    return randomize(labels[:, None], plan, seeded_entropy(seed), strata), strata


@pytest.mark.slow
@pytest.mark.parametrize("records", [1, 3])
def test_the_message_spends_what_its_integers_say_and_no_more(records: int) -> None:
    message = sent(2.0, records)[0].message
    tables = [table.histogram for table in message.released.tables.values()]
    counted = [*(prior for _, prior in message.histograms), *tables]
    paid = sum((2 * records / histogram.scale for histogram in counted), Fraction(0))
    worst = max(
        PureEpsilon.of(channel.weights)
        for book in message.codebooks.books
        for channel in book.channels
    )
    spent = message.guarantee
    assert spent.unit == (Unit.RECORD if records == 1 else Unit.USER)
    assert paid + records * worst <= spent.exact_epsilon <= Fraction(2.0)
    assert spent.exact_epsilon > Fraction(1.9)


@pytest.mark.parametrize("records", [1, 3])
def test_all_that_is_counted_has_noise_for_all_records_of_a_unit(records: int) -> None:
    plan = plan_message([TERMS], 6000, 2.0, records=records)
    plan = plan.by_stratum(VALUES, np.array([3000, 3000, 0]))
    (share,) = plan.histograms
    released = plan.release([np.full((2, 16), 187)], seeded_entropy(1))
    counted = [*released.priors.values(), *(each.histogram for each in released.tables.values())]
    # half of what is paid for a histogram, to each of both
    scale = float(2 * records / (share.epsilon / 2))
    assert [float(each.scale) for each in counted] == pytest.approx([scale] * 2, rel=1e-5)


class PureEpsilon:
    """ε of a matrix of integers, by every pair of its rows: a lower bound to 1e-12."""

    @staticmethod
    def of(weights: list[list[int]]) -> Fraction:
        table = np.array(weights, dtype=object)
        ratio = max(Fraction(max(column), min(column)) for column in table.T)
        epsilon = Fraction(float(np.log(float(ratio)))) - Fraction(1, 10**12)
        assert exp_lower_bound(epsilon) < ratio
        return epsilon


def test_a_message_spends_what_the_worst_stratum_does() -> None:
    """And of one stratum the sum over its channels, each with its own labels."""
    grid = Grid.from_edges([0.0, 1.0])
    groups = [Group((place,), Cells((grid,))) for place in range(2)]

    def channel(epsilon: float) -> FiniteChannel:
        return build_randomizer(
            "randomized-response", labels=grid.points, prior=[1, 1], epsilon=epsilon
        ).channel

    for budgets in ([(0.5, 0.5), (0.25, 1.0)], [(0.25, 1.0), (0.5, 0.5)], [(1.0, 0.25)]):
        books = [Codebook(("a", "b"), (*groups,), (*map(channel, each),)) for each in budgets]
        worst = sum(PureDP.of_channel(channel(each)).exact_epsilon for each in (0.25, 1.0))
        for records in (1, 3):
            message = Message((), Codebooks((*books,)), (), Released({}), records)
            spent = message.labels_guarantee
            assert spent.exact_epsilon == records * worst
            assert spent.unit == (Unit.RECORD if records == 1 else Unit.USER)
            assert message.guarantee == spent


def test_replacing_a_label_moves_two_units_of_each_histogram() -> None:
    labels, strata = in_strata(50)
    cells = GRID.round(labels, seeded_entropy(1).coins("rounding", 0, 50))
    before = count_cells(cells, len(GRID), strata, 2)
    for row in range(50):
        moved = cells.copy()
        moved[row] = (cells[row] + 7) % len(GRID)
        after = count_cells(moved, len(GRID), strata, 2)
        assert np.abs(after - before).sum() == 2
        assert np.abs(after.sum(axis=0) - before.sum(axis=0)).sum() == 2


def test_a_label_moves_no_code_but_its_own_and_the_stratum_is_seen() -> None:
    labels, strata = in_strata(400)
    message = sent()[0].message
    books = message.codebooks
    codes = books.randomize(labels[:, None], strata, seeded_entropy(3))
    starts = np.array(books.starts)
    assert np.all((starts[strata] <= codes) & (codes < starts[strata + 1]))
    for row in (0, 123, 399):
        other = labels.copy()
        other[row] = 30.0 - other[row]
        again = books.randomize(other[:, None], strata, seeded_entropy(3))
        assert np.flatnonzero(again != codes).tolist() in ([], [row])
    halves = [
        books.randomize(labels[a:b, None], strata[a:b], seeded_entropy(3), a)
        for a, b in ((0, 150), (150, 400))
    ]
    assert np.array_equal(np.concatenate(halves), codes)


@pytest.mark.parametrize("stratum", [0, 1])
def test_codes_follow_the_channel_of_their_stratum(stratum: int) -> None:
    rows = 40_000
    books = sent()[0].message.codebooks
    mixed = np.arange(rows) % 2
    codes = books.randomize(np.full((rows, 1), 12.0), mixed, seeded_entropy(9))
    own = codes[mixed == stratum] - books.starts[stratum]
    counts = np.bincount(own, minlength=books.books[stratum].outputs)
    laws = [book.laws(np.array([[12.0]]))[0] for book in books.books]
    assert counts_fit(counts, laws[stratum])
    assert laws[0].size != laws[1].size or not counts_fit(counts, laws[1 - stratum])


def test_without_strata_codes_are_those_of_the_only_codebook() -> None:
    labels, _ = in_strata(500)
    plan = plan_message([TERMS], 500, 1.0)
    events = randomize(labels[:, None], plan, seeded_entropy(2))
    book = events.message.codebook
    (group,), (channel,) = book.groups, book.channels
    entropy = seeded_entropy(2)
    cells = group.round(labels[:, None], entropy)
    again = channel.sample(cells, entropy.words(LABEL_STREAM, 0, cells.size))
    assert np.array_equal(events.codes, again)
    assert events.counts.sum() == 500
    few = randomize(labels[:2, None], plan, seeded_entropy(2))
    assert few.counts.size == few.message.codebook.channels[0].outputs.size
    assert np.flatnonzero(few.counts).tolist() == np.unique(few.codes).tolist()


def test_a_stratum_has_the_law_of_its_own_labels_and_a_noisy_one_that_of_all() -> None:
    events, strata = sent(8.0)
    labels, _ = in_strata()
    of_strata = events.message.released.laws_of_strata
    means = [float(next(iter(laws.values())) @ GRID.points) for laws in of_strata]
    assert np.allclose(means, [labels[strata == s].mean() for s in (0, 1)], atol=2.0)
    pooled = np.full(16, 1 / 16)
    bins = bins_of(Cells((GRID,)), pooled)
    noise = np.array([3, -2, 4, 0, 1, -1, 2, 3])
    assert np.allclose(stratum_law(pooled, bins, noise, 10, 100.0), pooled)
    uneven = np.array([0.25, 0.75, 0.0])
    both = np.array([0, 1, 1])
    assert np.allclose(stratum_law(uneven, both, np.array([5, 15]), 20, 0.0), uneven)
    nobody, one = (stratum_law(uneven, both, np.array([3, -2]), rows, 2.0) for rows in (0, 1))
    assert np.allclose(nobody, one)
    assert stratum_law(uneven, np.arange(3), np.array([5, 15, 1]), 20, 1.0).sum() == pytest.approx(
        1
    )


def test_bins_are_ranges_of_about_equal_mass_and_two_of_each_of_many_labels() -> None:
    assert bins_of(Cells((Grid(np.arange(3.0)),)), np.array([0.9, 0.1, 0.0])).tolist() == [0, 1, 1]
    four = Cells((Grid(np.arange(2.0)),) * 4)
    assert np.unique(bins_of(four, np.full(16, 1 / 16))).size == 16


@pytest.mark.parametrize("count", [1, 2, 32, 33, 10_000])
def test_at_most_32_strata_are_kept_the_largest_and_all_others_are_one(count: int) -> None:
    rows = np.r_[np.arange(1, count + 1) * 1000, 0]
    strata = keep_strata([f"c{i}" for i in range(count)], rows, 1.0)
    assert len(strata.names) == min(count, MOST_STRATA)
    assert sum(strata.rows) == rows.sum()
    assert (strata.names[-1] == OTHERS) == (count > MOST_STRATA)
    plan = plan_message(PAIR, int(rows.sum()), 1.0).in_strata(strata)
    assert plan.most_outputs * len(strata.names) <= 1 << 16  # two bytes tell stratum and code
    if count > MOST_STRATA:
        assert strata.of_value[0] == strata.of_value[-1] == MOST_STRATA - 1
        assert strata.names[0] == f"c{count - MOST_STRATA + 1}"


def test_events_of_no_value_are_a_stratum_and_of_equal_ones_the_first_are_kept() -> None:
    with_none = keep_strata(["a", "b"], np.array([500, 400, 7]), 1.0)
    assert (with_none.names, with_none.rows) == (("a", "b", OTHERS), (500, 400, 7))
    alike = keep_strata([f"c{i}" for i in range(100)], np.r_[[1000, 2000] * 50, 0], 1.0)
    assert alike.names == (*(f"c{i}" for i in range(1, 63, 2)), OTHERS)


@pytest.mark.parametrize("row", [[80, 10], [110, -40], [51, 49]])
def test_a_stratums_law_is_shrunk_as_the_formula_says(row: list[int]) -> None:
    """Two bins of 50 expected events each, noise of scale 2; rows do not add up to the events."""
    variance = 2 * np.exp(-0.5) / (1 - np.exp(-0.5)) ** 2
    ratios = [count / 50 - 1 for count in row]
    left = max(1 - 2 * (variance + 25) / 50 / sum(50 * ratio**2 for ratio in ratios), 0)
    first, second = (max(1 + left * ratio, 1 / 20) for ratio in ratios)
    expected = np.array([first / 4, first / 4, second / 2]) / (first / 2 + second / 2)
    pooled, bins = expected_prior(np.array([1.0, 1.0, 2.0])), np.array([0, 0, 1])
    noisy = NoisyPrior(np.array(row), Fraction(1), 100)
    table = StratumTable(Strata(("all",), (100,), np.zeros(2, dtype=np.int64)), bins, noisy)
    (law,) = table.laws(pooled)
    np.testing.assert_allclose(law, expected, rtol=1e-12)


def test_few_events_are_no_stratum_of_their_own() -> None:
    least = keep_strata(["15", "16", "17"], np.array([15, 16, 17, 0]), 1.0)
    assert least.names == ("16", "17", OTHERS)
    strata = keep_strata(["many", "one", "none"], np.array([5000, 1, 0, 2]), 0.1)
    assert strata.names == ("many", OTHERS)
    assert strata.rows == (5000, 3)
    labels = np.linspace(0, 30, 40)
    made = randomize_labels(labels, lower=0, upper=30, epsilon=1, strata=["a", "b"] * 20)
    assert made.events.message.strata is None


def test_labels_are_sent_alone_where_strata_have_no_room_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terms = [LabelTerms(name, 0, 1, Grid(np.arange(2.0))) for name in "ab"]
    _, strata = in_strata(6000)
    labels = np.column_stack([strata, np.arange(6000) % 2]).astype(np.float64)
    plan = plan_message(terms, 6000, 2.0, division="joint")
    plan = plan.by_stratum(VALUES, np.bincount(strata, minlength=3))
    monkeypatch.setattr(planning, "MAX_WEIGHTS", 100)
    events = randomize(labels, plan, seeded_entropy(4), strata)
    assert [len(book.channels) for book in events.message.codebooks.books] == [2, 2]
    assert 1.9 < events.guarantee.exact_epsilon <= 2


@pytest.mark.parametrize(("choice", "count"), [("joint_channel", 1), ("split_channels", 2)])
def test_labels_are_sent_in_strata_as_in_all_events_together(
    choice: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one channel, or each by its own, but of the stratum's law."""

    def built(kind: str, channels: int) -> Any:
        made = SimpleNamespace(outputs=np.zeros(2), stated=[0])
        return lambda terms, cells, law, *_: [
            ((kind, law.tolist()), SimpleNamespace(channel=made)) for _ in range(channels)
        ]

    for kind, channels in (("joint_channel", 1), ("split_channels", 2)):
        monkeypatch.setattr(planning, kind, built(kind, channels))
    monkeypatch.setattr(planning, "divide", getattr(planning, choice))
    plan = plan_message(PAIR, 4000, 2.0)
    assert isinstance(plan, planning.JointPlan)
    ((group, _),) = plan.budgets
    laws = [{group: np.array([float(n), 9.0 - n])} for n in range(3)]
    found = plan.channels_of(laws[0], laws[1:])
    assert [[said for said, _ in part] for part in found] == [
        [(choice, [n, 9.0 - n])] * count for n in (1.0, 2.0)
    ]
    ((same, *_),) = plan.channels_of(laws[0], laws[:1])
    assert same[0] == (choice, [0.0, 9.0])


@pytest.mark.slow
@pytest.mark.parametrize("division", one_in(3, ["auto", "split", "joint"], first=1))
def test_several_labels_are_sent_by_channels_of_their_stratum(division: Division) -> None:
    labels, strata = in_strata(4000)
    both = np.column_stack([labels > 15, labels]).astype(np.float64)
    plan = plan_message(PAIR, 4000, 2.0, division=division)
    plan = plan.by_stratum(VALUES, np.bincount(strata, minlength=3))
    events = randomize(both, plan, seeded_entropy(4), strata)
    assert len(events.message.codebooks.books) == 2
    assert events.guarantee.exact_epsilon <= 2
    assert not events.message.decodes
    for name in events.names:
        assert events[name].codes.max() < sum(
            book.radices[book.column_of(name)] for book in events.message.codebooks.books
        )


def test_every_histogram_that_codes_tell_is_decoded_by_its_own_channel() -> None:
    """Codes of all strata count; those of two labels say more about each than those of three."""
    labels, strata = in_strata(3001)
    rating = LabelTerms("rating", 1, 3, Grid.from_edges([1.0, 2.0, 3.0]), values=True)
    terms = [LabelTerms("label", 0.0, 30.0, Grid.from_count(0, 30, 5)), rating, PAIR[0]]
    all_three = np.column_stack([labels, 1 + labels // 12, labels > 20]).astype(np.float64)
    plan = plan_message(terms, 3001, 3.0, division="split")
    plan = plan.by_stratum(VALUES, np.bincount(strata, minlength=3))
    events = randomize(all_three, plan, seeded_entropy(4), strata)
    books = events.message.codebooks.books
    assert len(books) == 2
    for place, points in ((1, 3), (2, 2)):
        _, told = events.message.histograms[place]
        chances = books[0].channels[place].probabilities
        keep, lie = chances[0, 0], chances[0, 1]
        seen = np.zeros(points)
        for book, first in zip(books, events.message.codebooks.starts, strict=False):
            own = events.codes[(events.codes >= first) & (events.codes < first + book.outputs)]
            seen += np.bincount(book.split(own - first)[:, place], minlength=points)
        assert seen.sum() == 3001
        assert np.abs(told.noisy_counts - (seen - 3001 * lie) / (keep - lie)).max() < 0.51
        spread = np.sqrt(3001 * lie * (1 - lie) * points / (points - 1)) / (keep - lie)
        assert told.code_noise == pytest.approx(spread, rel=1e-9)


def test_a_question_on_other_points_expects_the_same_means_of_each_stratum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "_ROWS_AT_ONCE", 4)
    strata = np.array([2, 0, 0, 2, 1, 2, 0, 0, 0, 2], dtype=np.uint8)
    laws = np.array([[5, 0, 0, 1], [0, 3, 0, 0], [1 << 37, 1 << 37, 7 << 37, 1 << 37]])
    question = Question(strata, Grid.from_edges([0.0, 10.0, 11.0, 30.0]), laws)
    assert question.on(Grid.from_edges([0.0, 10.0, 11.0, 30.0])) is question
    assert question.classes.rows == (5, 1, 4)
    grid = Grid.from_edges([0.0, 4.0, 10.5, 30.0])
    moved = question.on(grid)
    assert moved.grid == grid
    shares = moved.laws / moved.laws.sum(axis=1, keepdims=True)
    means = laws @ question.grid.points / laws.sum(axis=1)
    assert shares @ grid.points == pytest.approx(means, rel=1e-6)
    assert shares[0] == pytest.approx([5 / 6, 0, 0, 1 / 6], abs=1e-8)
    assert shares[1] == pytest.approx([0, 0.5 / 6.5, 6 / 6.5, 0], abs=1e-8)
    terms = LabelTerms("label", 0.0, 30.0, grid)
    assert question.plan(terms, 1.0).channels[0].group.cells.grids == (grid,)
    asked = question.plan(LabelTerms("label", 0.0, 30.0), 1.0)
    assert asked.channels[0].group.cells.grids == (question.grid,)


def test_a_notebook_asks_by_the_channels_that_the_question_expects() -> None:
    strata = np.arange(400) % 2
    question = Question(strata, GRID, np.stack([np.arange(16) ** 2 + 1, 16 - np.arange(16)]))
    made = randomize_labels(strata * 20.0, lower=0, upper=30, epsilon=2, question=question)
    plan = question.plan(LabelTerms("label", 0, 30), 2.0)
    (share,) = plan.channels
    expected = plan.build(question.released(share.group)).codebooks.books
    books = made.events.message.codebooks.books
    assert len(books) == len(expected) == 2
    for book, own in zip(books, expected, strict=True):
        assert np.array_equal(book.channels[0].weights, own.channels[0].weights)
    assert not np.array_equal(books[0].channels[0].outputs, books[1].channels[0].outputs)
    rows = made.events.message.codebooks.rows_by_stratum(made.events.codes)
    assert rows == [200, 200]
    with pytest.raises(ConfigError, match="about 400 events, and there are 401 labels"):
        randomize_labels(np.zeros(401), lower=0, upper=30, epsilon=2, question=question)


def test_what_no_channel_depends_on_is_sent_alike_in_all_strata() -> None:
    plan = plan_message([PAIR[0]], 6000, 2.0)
    assert plan.histograms == ()
    assert plan.by_stratum(VALUES, np.array([3000, 3000, 0])) is plan


ADVERSARIAL = {
    "a point mass": np.eye(16, dtype=np.int64)[[3, 12]],
    "the largest weights": np.full((2, 16), 1 << 40, dtype=np.int64),
    "one event alone": np.ones((3, 16), dtype=np.int64),
}


@pytest.mark.parametrize("laws", ADVERSARIAL.values(), ids=ADVERSARIAL)
def test_epsilon_holds_whatever_is_asked(laws: Indices) -> None:
    labels, strata = in_strata(2000)
    strata[0] = len(laws) - 1
    question = Question(strata, GRID, laws)
    answer = randomize_labels(labels, lower=0, upper=30, epsilon=1, question=question)
    message = answer.events.message
    assert message.guarantee.exact_epsilon <= 1
    for book in message.codebooks.books:
        (channel,) = book.channels
        assert PureEpsilon.of(channel.weights) <= 1
    assert not answer.events.message.released.tables
    assert question.plan(TERMS, 1.0).histograms == ()
    assert message.guarantee.exact_epsilon > Fraction(99, 100)  # nothing is paid for a histogram


def test_two_values_are_sent_the_same_whatever_is_asked() -> None:
    grid = Grid.from_edges([0.0, 1.0])
    question = Question(np.array([0, 1, 1]), grid, np.array([[1, 9], [9, 1]]))
    with pytest.raises(ConfigError, match="labels of 2 values are asked in the same way"):
        randomize_labels([0, 1, 1], lower=0, upper=1, epsilon=1, question=question)


def law(*weights: int) -> Indices:
    return np.array([weights], dtype=np.int64)


@pytest.mark.parametrize(
    ("strata", "laws", "message"),
    [
        ([0, 0], law(1, 1), "16 whole weights"),
        ([0, 1], np.ones((1, 16), np.int64), "one of 0 … 0"),
        ([-1, 0], np.ones((1, 16), np.int64), "one of 0 … 0"),
        ([0.0, 1.0], np.ones((2, 16), np.int64), "whole numbers"),
        ([], np.ones((2, 16), np.int64), "one for each event"),
        ([0], np.zeros((1, 16), np.int64), "not all of them 0"),
        ([0], -np.ones((1, 16), np.int64), "weights must be 0"),
        ([0], np.ones((33, 16), np.int64), "33 strata"),
    ],
)
def test_what_is_no_question_is_refused(strata: list[float], laws: Indices, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Question(np.array(strata), GRID, laws)


def test_a_question_about_other_events_or_bounds_is_refused() -> None:
    question = Question(np.zeros(3, np.int64), GRID, np.ones((1, 16), np.int64))
    with pytest.raises(ConfigError, match="3 events, and there are 2 labels"):
        randomize_labels([1, 2], lower=0, upper=30, epsilon=1, question=question)
    with pytest.raises(ConfigError, match=r"labels in 0 … 30, not in 0 … 50"):
        randomize_labels([1, 2, 3], lower=0, upper=50, epsilon=1, question=question)
    with pytest.raises(ConfigError, match="leave strata out"):
        randomize_labels(
            [1, 2, 3], lower=0, upper=30, epsilon=1, question=question, strata=["a", "b", "c"]
        )
