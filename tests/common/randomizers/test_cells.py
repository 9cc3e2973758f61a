"""Several labels as one cell, several codes as one."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers.base import LABEL_STREAM, ROUNDING_STREAM
from labelveil.common.randomizers.cells import Cells, Group, stream
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.codebooks import Codebook, Codebooks

RETURNED = Grid.from_edges([0.0, 1.0])
AMOUNT = Grid.from_edges([0.0, 5.0, 20.0, 100.0])
STARS = Grid.from_edges([1.0, 2.0, 3.0])
CELLS = Cells((RETURNED, AMOUNT, STARS))


def response(size: int, epsilon: float) -> FiniteChannel:
    points = np.arange(float(size))
    return FiniteChannel(points, points, randomized_response_rows(size, epsilon))


def codebook() -> Codebook:
    """Stars and returned share a channel, in that order; the amount has its own."""
    shared = Group((2, 0), Cells((STARS, RETURNED)))
    alone = Group((1,), Cells((AMOUNT,)))
    names = ("returned", "amount", "stars")
    return Codebook(names, (shared, alone), (response(6, 0.7), response(4, 0.4)))


def test_cells_are_numbered_with_the_last_label_fastest() -> None:
    numbers = np.arange(len(CELLS))
    assert np.array_equal(CELLS.number(CELLS.indices(numbers)), numbers)
    assert CELLS.points[:4].tolist() == [[0, 0, 1], [0, 0, 2], [0, 0, 3], [0, 5, 1]]
    weights = np.arange(2.0 * len(CELLS)).reshape(2, -1)
    for label, grid in enumerate(CELLS.grids):
        sums = [weights[:, CELLS.points[:, label] == y].sum(axis=1) for y in grid.points]
        assert np.array_equal(CELLS.marginal(weights, label), np.column_stack(sums))


def test_every_combined_code_has_the_product_of_its_parts_probabilities() -> None:
    book = codebook()
    codes = np.arange(book.outputs)
    columns = book.split(codes)
    assert np.array_equal(np.ravel_multi_index(columns.T, book.radices), codes)
    assert [book.column_of(name) for name in book.names] == [0, 1, 0]
    for cell, labels in enumerate(book.cells.points):
        product = np.ones(book.outputs)
        for column, (group, channel) in enumerate(zip(book.groups, book.channels, strict=True)):
            fits = np.all(group.cells.points == labels[[*group.labels]], axis=1)
            (row,) = channel.probabilities[fits]
            product *= row[columns[:, column]]
        assert np.allclose(book.likelihood[cell], product, rtol=1e-13)


def test_epsilon_of_all_labels_is_the_sum_of_the_channels() -> None:
    """Neighbours differ in all labels of an event: the worst ratio over pairs of cells."""
    book = codebook()
    shared, alone = book.channels
    worst = max(
        Fraction(
            shared.weights[a // 4][z] * alone.weights[a % 4][w],
            shared.weights[b // 4][z] * alone.weights[b % 4][w],
        )
        for a in range(24)
        for b in range(24)
        for z in range(6)
        for w in range(4)
    )
    assert worst == shared.ratio * alone.ratio


def test_one_label_draws_the_bytes_that_it_draws_alone() -> None:
    """And the second label's words are not the first's."""
    entropy, channel = seeded_entropy(3), response(4, 0.4)
    book = Codebook(("amount",), (Group((0,), Cells((AMOUNT,))),), (channel,))
    labels = np.linspace(-1, 110, 500)
    words = entropy.words(ROUNDING_STREAM, 7, 500)
    indices = book.groups[0].round(labels[:, None], entropy, 7)
    assert np.array_equal(indices, AMOUNT.round(labels, words))
    expected = channel.sample(indices, entropy.words(LABEL_STREAM, 7, 500))
    assert np.array_equal(Codebooks((book,)).randomize(labels[:, None], None, entropy, 7), expected)
    both = Group((0, 1), Cells((AMOUNT, AMOUNT)))
    twice = both.cells.indices(both.round(np.column_stack([labels, labels]), entropy))
    assert np.any(twice[:, 0] != twice[:, 1])


def test_events_are_sampled_by_their_own_rows() -> None:
    """Where nothing is random, codes are the cells; and parts of the rows agree with the whole."""
    points = np.arange(24.0)
    sure = FiniteChannel(points, points, randomized_response_rows(24, 40.0))
    book = Codebook(("r", "a", "s"), (Group((0, 1, 2), CELLS),), (sure,))
    labels = CELLS.points[np.arange(1000) % 24]
    entropy = seeded_entropy(1)
    codes = Codebooks((book,)).randomize(labels, None, entropy)
    assert np.array_equal(codes, np.arange(1000) % 24)
    noisy = codebook()
    books = Codebooks((noisy,))
    whole = books.randomize(labels, None, entropy)
    assert np.array_equal(whole[300:], books.randomize(labels[300:], None, entropy, 300))
    text = json.dumps(noisy.to_json())
    assert json.dumps(Codebook.from_json(json.loads(text)).to_json()) == text
    assert len({stream(LABEL_STREAM, i) for i in range(8)}) == 8


def test_codes_that_do_not_fit_two_bytes_are_refused() -> None:
    wide = Grid.from_count(0, 1, 300)
    groups = tuple(Group((j,), Cells((wide,))) for j in range(2))
    with pytest.raises(ConfigError, match=r"300 × 300 combined codes are more than 65,536"):
        Codebook(("a", "b"), groups, (response(300, 1.0),) * 2)


def test_laws_of_labels_are_those_of_what_they_are_rounded_to() -> None:
    book = codebook()
    on_grid = book.cells.points
    assert np.allclose(book.laws(on_grid), book.likelihood)
    between = book.laws(np.array([[-1.0, 2.0, 2.25]]))  # clipped to 0, 2/5 of the way, 1/4
    corners = np.array([[0, amount, stars] for amount in (0, 1) for stars in (1, 2)])
    shares = np.array([0.6 * 0.75, 0.6 * 0.25, 0.4 * 0.75, 0.4 * 0.25])
    assert np.allclose(between, shares @ book.likelihood_of(corners))
    assert np.allclose(book.at_the_ends, book.likelihood[[0, -1]])


def test_codes_of_strata_lie_one_behind_the_other() -> None:
    """Two strata of two labels with channels of 3 × 4 and of 2 × 5 codes, by hand."""
    groups = Group((0,), Cells((RETURNED,))), Group((1,), Cells((STARS,)))

    def book(first: int, second: int) -> Codebook:
        channels = [
            FiniteChannel(
                group.cells.inputs, np.arange(float(d)), [_even(d)], np.zeros(k, dtype=np.int64)
            )
            for group, k, d in zip(groups, (2, 3), (first, second), strict=True)
        ]
        return Codebook(("returned", "stars"), groups, tuple(channels))

    books = Codebooks((book(3, 4), book(2, 5)))
    assert (books.starts, books.outputs, books.code_bytes) == ((0, 12, 22), 22, 1)
    pairs = [(a, b) for a in range(3) for b in range(4)]
    others = [(3 + a, 4 + b) for a in range(2) for b in range(5)]
    assert books.codes_of("returned").tolist() == [a for a, _ in pairs + others]
    assert books.codes_of("stars").tolist() == [b for _, b in pairs + others]
    counts = np.arange(22)
    sums = [each.tolist() for each in books.counts_by_channel(counts)]
    assert sums == [[6, 22, 38], [12, 15, 18, 21], [70, 95], [29, 31, 33, 35, 37]]
    assert books.rows_by_stratum(np.array([0, 11, 12, 21, 3])) == [3, 2]

    labels = np.zeros((1000, 2))
    strata = np.arange(1000) % 2
    codes = books.randomize(labels, strata, seeded_entropy(2))
    assert set(codes[strata == 0].tolist()) == set(range(12))
    assert set(codes[strata == 1].tolist()) == set(range(12, 22))
    with pytest.raises(ConfigError, match="2 strata are sent by channels of their own"):
        _ = books.only
    wide = book(256, 128)
    assert Codebooks((wide, wide)).code_bytes == 2  # 65,536 codes, the most
    with pytest.raises(ConfigError, match="2 strata have 65,664 codes together, more than 65,536;"):
        Codebooks((wide, book(257, 128)))
    assert Codebooks((book(16, 16),)).code_bytes == 1
    assert Codebooks((book(16, 17),)).code_bytes == 2


def _even(outputs: int) -> list[int]:
    """Whole weights that sum to 2⁶⁴."""
    return [(1 << 64) // outputs + (j < (1 << 64) % outputs) for j in range(outputs)]
