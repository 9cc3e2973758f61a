"""Finite channels: the sampler is the matrix, the matrix is the claim, and nothing else gets in."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import accumulate, pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.exact import channel as channels
from labelveil.common.exact.channel import (
    BETWEEN,
    MAX_OUTPUTS,
    TOTAL,
    FiniteChannel,
    mixtures,
    randomized_response_rows,
)
from labelveil.common.exact.rational import exp_lower_bound


def channel_of(rows: list[list[int]], row_of: list[int] | None = None) -> FiniteChannel:
    k = len(rows) if row_of is None else len(row_of)
    return FiniteChannel(np.arange(k), np.arange(len(rows[0])), rows, row_of)


def sampled(channel: FiniteChannel, label: int, words: list[int]) -> list[int]:
    found = channel.sample(np.full(len(words), label), np.array(words, dtype=np.uint64))
    return [int(code) for code in found]


def weights_from_the_sampler(channel: FiniteChannel, label: int) -> list[int]:
    """Count the words that give each output, by bisection for the first word beyond it."""
    codes = range(channel.outputs.size)
    low, high = [0 for _ in codes], [TOTAL for _ in codes]  # words below low[c] give at most c
    while low != high:
        middle = [min((a + b) // 2, TOTAL - 1) for a, b in zip(low, high, strict=True)]
        found = sampled(channel, label, middle)
        for code, (word, code_of_it) in enumerate(zip(middle, found, strict=True)):
            if low[code] == high[code]:
                continue
            if code_of_it <= code:
                low[code] = word + 1
            else:
                high[code] = word
    return [end - start for start, end in zip([0, *low], low, strict=False)]


@st.composite
def matrices(draw: st.DrawFn) -> list[list[int]]:
    """Weights from balanced to extreme: cut points anywhere, also one word apart."""
    outputs = draw(st.integers(1, 12))
    cut = st.one_of(
        st.integers(1, TOTAL - 1),
        st.integers(1, 30),
        st.integers(TOTAL - 30, TOTAL - 1),
        st.integers(1, 4095).map(lambda cell: cell << 52),
    )
    cuts = st.lists(cut, min_size=outputs - 1, max_size=outputs - 1, unique=True).map(sorted)
    rows = draw(st.lists(cuts, min_size=1, max_size=3))
    return [[b - a for a, b in zip([0, *points], [*points, TOTAL], strict=True)] for points in rows]


@settings(max_examples=40)
@given(matrices())
def test_the_sampler_is_the_published_matrix(rows: list[list[int]]) -> None:
    channel = channel_of(rows)
    for label, row in enumerate(rows):
        assert weights_from_the_sampler(channel, label) == row
        ends = list(accumulate(row))  # every boundary word, from both sides
        assert sampled(channel, label, [0, *ends[:-1]]) == list(range(len(row)))
        assert sampled(channel, label, [end - 1 for end in ends]) == list(range(len(row)))


@pytest.mark.parametrize(("outputs", "epsilon"), [(2, 0.01), (3, 8.0), (200, 1.0), (1000, 0.5)])
def test_words_fall_where_the_cumulative_weights_say(outputs: int, epsilon: float) -> None:
    first_rows = randomized_response_rows(outputs, epsilon)[:2]
    channel = channel_of(first_rows)
    words = seeded_entropy(1).words("w", 0, 50_000)
    for label, row in enumerate(first_rows):
        ends = np.cumsum(np.array(row[:-1], dtype=np.uint64), dtype=np.uint64)
        expected = np.searchsorted(ends, words, side="right")
        codes = channel.sample(np.full(words.size, label), words)
        assert np.array_equal(codes, expected)


@given(
    start=st.integers(0, 300),
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=6),
    seed=st.integers(0, 3),
)
def test_a_rows_code_depends_on_its_label_and_word_alone(
    start: int, sizes: list[int], seed: int
) -> None:
    channel = channel_of(randomized_response_rows(7, 0.7))
    entropy = seeded_entropy(seed)
    labels = np.arange(2000) % 7
    whole = channel.sample(labels, entropy.words("labels", 0, labels.size))
    at = start
    for size in sizes:
        part = channel.sample(labels[at : at + size], entropy.words("labels", at, size))
        assert np.array_equal(part, whole[at : at + size])
        at += size


def test_large_inputs_agree_with_small_ones() -> None:
    channel = channel_of(randomized_response_rows(3, 1.0))
    labels = np.arange(100_001) % 3
    words = seeded_entropy(0).words("labels", 0, labels.size)
    whole = channel.sample(labels, words)
    assert np.array_equal(whole[70_000:], channel.sample(labels[70_000:], words[70_000:]))
    assert channel.sample(labels[:0], words[:0]).size == 0


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_the_inputs_is_refused(index: int) -> None:
    channel = channel_of(randomized_response_rows(3, 1.0))
    with pytest.raises(ValueError, match="outside"):
        channel.sample(np.array([0, index]), np.zeros(2, dtype=np.uint64))
    with pytest.raises(ValueError, match="words"):
        channel.sample(np.array([0, 1]), np.zeros(1, dtype=np.uint64))


@given(
    outputs=st.integers(1, 40),
    epsilon=st.one_of(st.floats(1e-300, 40.0), st.sampled_from([1e-19, 1e-17, 40.0])),
)
def test_randomized_response_is_the_tightest_that_epsilon_allows(
    outputs: int, epsilon: float
) -> None:
    rows = randomized_response_rows(outputs, epsilon)
    channel = channel_of(rows)
    limit = exp_lower_bound(epsilon)
    assert channel.ratio <= limit
    assert channel.ratio <= exp_lower_bound(epsilon)
    assert channel.epsilon <= epsilon
    if outputs > 1 and rows[0] != rows[1]:
        lie = rows[0][1]
        keep = TOTAL - (outputs - 1) * (lie - 1)  # one unit less on every lie breaks the bound
        assert keep > limit * (lie - 1)


def test_a_tiny_epsilon_says_nothing_rather_than_too_much() -> None:
    # rounding the lie up would make it the larger weight, by far more than e^ε allows
    rows = randomized_response_rows(60_000, 1e-15)
    assert rows[0] == rows[-1]
    assert sum(rows[0]) == TOTAL
    for outputs in (0, -1):
        with pytest.raises(PrivacyError, match="at least 1"):
            randomized_response_rows(outputs, 1.0)


@settings(max_examples=60)
@given(matrices())
def test_epsilon_is_the_logarithm_of_the_worst_ratio(rows: list[list[int]]) -> None:
    channel = channel_of(rows)
    worst = max(
        Fraction(a[z], b[z]) for a, b in product(rows, repeat=2) for z in range(len(rows[0]))
    )
    assert channel.ratio == worst
    assert math.log(worst) <= channel.epsilon * (1 + 1e-15) + 1e-300
    if channel.epsilon < 40:
        assert channel.ratio <= exp_lower_bound(Fraction(channel.epsilon) + Fraction(1, 10**40))


def test_of_ratios_that_floats_put_in_the_other_order_the_larger_one_counts() -> None:
    """They differ in the eighteenth digit, and the smaller one's quotient is the larger float."""
    smaller, larger = (
        (2221544966186783499, 1481029977457855668),
        (2176783488741758028, 1451188992494505351),
    )
    quotients = [float(most) / float(least) for most, least in (smaller, larger)]
    assert quotients[0] > quotients[1]
    assert Fraction(*smaller) < Fraction(*larger)
    rows = [[smaller[0], larger[1]], [smaller[1], larger[0]]]
    rest = [[*row, TOTAL - sum(row)] for row in rows]
    channel = FiniteChannel([0, 1], [0, 1, 2], rest)
    assert channel.ratio == Fraction(*larger)


def test_rows_that_no_label_uses_do_not_count() -> None:
    rows = randomized_response_rows(2, 2.0)
    assert channel_of(rows, [0, 0, 0]).epsilon == 0.0
    assert channel_of(rows, [0, 0, 0]).to_json() == channel_of(rows[:1], [0, 0, 0]).to_json()
    assert channel_of([*rows, rows[0]], [2, 1, 0]).rows == (tuple(rows[0]), tuple(rows[1]))
    assert channel_of(rows, [0, 1, 1]).epsilon == pytest.approx(2.0, rel=1e-15)
    assert channel_of(rows, [0, 1, 1]).weights == (tuple(rows[0]), tuple(rows[1]), tuple(rows[1]))
    assert np.allclose(channel_of(rows, [1, 0]).probabilities.sum(axis=1), 1)


@pytest.mark.parametrize(
    ("inputs", "outputs", "rows", "row_of"),
    [
        ([], [0.0], [[TOTAL]], []),
        ([1.0, 0.0], [0.0], [[TOTAL], [TOTAL]], None),
        ([0.0, math.nan], [0.0], [[TOTAL], [TOTAL]], None),
        ([0.0], [math.inf], [[TOTAL]], None),
        ([0.0], [1.0, 0.0], [[TOTAL - 1, 1]], None),
        ([0.0, 0.0], [0.0], [[TOTAL], [TOTAL]], None),
        ([[0.0]], [0.0], [[TOTAL]], None),
        ([-1.5e308, 1.5e308], [0.0], [[TOTAL], [TOTAL]], None),
        ([0.0], [[0.0]], [[TOTAL]], None),
        ([0.0], [], [[]], None),
        ([0.0], [0.0, 1.0], [[TOTAL - 1, 2]], None),
        ([0.0], [0.0, 1.0], [[TOTAL + 1, -1]], None),
        ([0.0, 1.0], [0.0, 1.0], [[TOTAL, 0], [TOTAL - 1, 1]], None),
        ([0.0], [0.0, 1.0], [[TOTAL, 0]], None),
        ([0.0, 1.0], [0.0, 1.0, 2.0], [[TOTAL - 5, 0, 5], [TOTAL - 5, 1, 4]], None),
        ([0.0, 1.0], [0.0, 1.0, 2.0], [[TOTAL - 5, 0, 5], [TOTAL - 4, 0, 4]], None),
        ([0.0], [0.0, 1.0], [[TOTAL]], None),
        ([0.0, 1.0], [0.0], [[TOTAL]], [0, 1]),
        ([0.0, 1.0], [0.0], [[TOTAL]], [0, -1]),
        ([0.0, 1.0], [0.0], [[TOTAL]], [0]),
    ],
)
def test_what_is_not_a_channel_is_refused(
    inputs: list[float], outputs: list[float], rows: list[list[int]], row_of: list[int] | None
) -> None:
    with pytest.raises(PrivacyError):
        FiniteChannel(inputs, outputs, rows, row_of)


@settings(max_examples=30)
@given(matrices(), st.sampled_from([1, -1, 1 << 32, -(1 << 32), (1 << 32) - 1, 1 << 63]))
def test_words_that_do_not_sum_to_the_whole_are_no_channel(rows: list[list[int]], by: int) -> None:
    """Of a file, where weights come as 64-bit words, whose sum wraps around."""
    assume(len(rows[0]) > 1)
    words = np.array(rows, dtype=object)
    place = int(words[-1].argmax())
    words[-1, place] += by
    assume(0 < words[-1, place] < TOTAL)
    labels, outputs = np.arange(len(rows), dtype=float), np.arange(len(rows[0]), dtype=float)
    with pytest.raises(PrivacyError, match=r"must sum to 2\*\*64"):
        FiniteChannel(labels, outputs, words.astype(np.uint64))


def test_a_table_has_a_column_for_each_output_and_fits_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = np.array(randomized_response_rows(3, 1.0), dtype=np.uint64)
    for table in (rows[0], rows[:, :2], rows[None]):
        with pytest.raises(PrivacyError, match=r"rows of shape .* must sum to 2\*\*64"):
            FiniteChannel(np.arange(3), np.arange(3), table)
    monkeypatch.setattr(channels, "MAX_TABLE", 9)
    assert FiniteChannel(np.arange(3), np.arange(3), rows).outputs.size == 3
    monkeypatch.setattr(channels, "MAX_TABLE", 8)
    with pytest.raises(PrivacyError, match="3 inputs and 3 outputs make more than 8 weights"):
        FiniteChannel(np.arange(3), np.arange(3), rows)


@pytest.mark.parametrize("outputs", [MAX_OUTPUTS - 1, MAX_OUTPUTS])
def test_codes_have_two_bytes_and_one_of_them_is_none(outputs: int) -> None:
    rows = [[1] * (outputs - 1) + [TOTAL - outputs + 1]]
    if outputs < MAX_OUTPUTS:
        made = FiniteChannel([0.0], np.arange(outputs), rows)
        assert sampled(made, 0, [outputs - 2, TOTAL - 1]) == [outputs - 2, outputs - 1]
        return
    with pytest.raises(PrivacyError, match="65536 outputs must be between 1 and 65535"):
        FiniteChannel([0.0], np.arange(outputs), rows)


def test_arrays_are_frozen() -> None:
    channel = channel_of(randomized_response_rows(2, 1.0))
    for array in (channel.inputs, channel.outputs, channel.row_of, channel.probabilities):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_a_code_takes_a_byte_while_one_can_name_every_output() -> None:
    for outputs, size in ((256, 1), (257, 2)):
        assert channel_of(randomized_response_rows(outputs, 1.0)).code_bytes == size


def test_json_round_trip_is_exact() -> None:
    channel = channel_of(randomized_response_rows(5, 0.3), [0, 1, 1, 4])
    again = FiniteChannel.from_json(json.loads(json.dumps(channel.to_json())), channel.inputs)
    assert again.rows == channel.rows
    assert again.weights == channel.weights
    assert again.outputs.tolist() == channel.outputs.tolist()
    assert again.ratio == channel.ratio


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rows", None),
        ("rows", "12"),
        ("rows", []),
        ("rows", [[]]),
        ("rows", ["12", "21"]),
        ("rows", [[TOTAL - 1, 1], [1, TOTAL - 1]]),
        ("rows", [[1e19, 1.0], [1.0, 1e19]]),
        ("rows", ["A" * 24, "A" * 24]),
        ("rows", ["////////////////////AA==", "////////////////////AA=="]),
        ("rows", ["AQAAAAAAAAD//////////w=="]),
        ("rows", ["AQAAAAAAAAD//////////w==", "AQAAAAAAAAA="]),
        ("rows", [" AQAAAAAAAAD//////////w==", "AQAAAAAAAAD//////////w=="]),
        ("rows", ["é", "é"]),
        ("row_of", [0.5, 1]),
        ("row_of", [0, 10**30]),
        ("row_of", [0, True]),
        ("row_of", [0, -1]),
        ("row_of", [-1, 1]),
        ("row_of", [0, -2]),
        ("row_of", [0]),
        ("outputs", [math.nan, 1.0]),
        ("outputs", [0.0, math.inf]),
        ("outputs", 7),
    ],
)
def test_hostile_json_is_refused_in_one_line(field: str, value: Any) -> None:
    data = channel_of(randomized_response_rows(2, 1.0)).to_json()
    with pytest.raises(PrivacyError) as caught:
        FiniteChannel.from_json({**data, field: value}, [0, 1])
    assert "\n" not in str(caught.value)
    with pytest.raises(PrivacyError, match="not a channel"):
        FiniteChannel.from_json({name: data[name] for name in data if name != field}, [0, 1])


@settings(max_examples=60)
@given(matrices(), st.integers(0, 1 << 48))
def test_a_mixture_is_the_exact_one_rounded(rows: list[list[int]], share: int) -> None:
    """Each cumulative weight is rounded down, so each weight is rounded down or up."""
    low, high = rows[0], rows[-1]
    if len(low) == 1:
        return
    words = [np.array([row], dtype=np.uint64) for row in (low, high)]
    mixed = mixtures(words[0], words[1], np.array([share], dtype=np.uint64))[0].tolist()
    below = [((1 << 48) - share) * a + share * b for a, b in zip(low, high, strict=True)]
    sums = [total >> 48 for total in accumulate(below)]
    assert mixed == [b - a for a, b in pairwise([0, *sums])]
    assert sum(mixed) == TOTAL
    each = zip(low, high, mixed, strict=True)
    assert all(min(a, b) <= weight <= max(a, b) for a, b, weight in each)


@settings(max_examples=40)
@given(matrices(), st.integers(0, 20))
def test_labels_between_rows_spend_nothing_more(rows: list[list[int]], between: int) -> None:
    """ε is that of the rows that are stated, as if all were; the broken twin extrapolates."""
    k = len(rows) + between * (len(rows) - 1)
    row_of = np.full(k, BETWEEN)
    row_of[:: between + 1] = np.arange(len(rows))
    channel = FiniteChannel(
        np.sort(np.random.default_rng(1).normal(size=k)), range(len(rows[0])), rows, row_of
    )
    every = FiniteChannel(channel.inputs, channel.outputs, channel.weights)
    assert every.ratio == channel.ratio
    again = FiniteChannel.from_json(json.loads(json.dumps(channel.to_json())), channel.inputs)
    assert again.weights == channel.weights
    words = seeded_entropy(1).words("mixtures", 0, k)
    assert np.array_equal(channel.sample(np.arange(k), words), every.sample(np.arange(k), words))
    steep = np.array(
        [[TOTAL - TOTAL // 10, TOTAL // 10], [TOTAL // 10, TOTAL - TOTAL // 10]], dtype=np.uint64
    )
    past = mixtures(steep[:1], steep[1:], np.array([(1 << 48) + (1 << 44)], dtype=np.uint64))
    assert channel_of([*steep.tolist(), past[0].tolist()]).ratio > channel_of(steep.tolist()).ratio


def test_a_mixture_is_where_the_label_lies() -> None:
    ends = [0.0, 0.3, 3.0 + 2.0**-30]  # their share of a step of 2⁻⁴⁸ is rounded down
    rows = randomized_response_rows(2, 1.0)
    made = FiniteChannel(ends, [0.0, 1.0], rows, [0, BETWEEN, 1])
    share = math.floor(Fraction(0.3 / (3.0 + 2.0**-30)) * (1 << 48))
    first = (((1 << 48) - share) * rows[0][0] + share * rows[1][0]) >> 48
    assert made.weights[1] == (first, TOTAL - first)
    channel = FiniteChannel(
        [0.0, 1.0, 4.0],
        [0.0, 1.0],
        [[TOTAL // 4, 3 * (TOTAL // 4)], [3 * (TOTAL // 4), TOTAL // 4]],
        [0, BETWEEN, 1],
    )
    assert channel.probabilities[1].tolist() == [0.375, 0.625]
    assert channel.row_of.tolist() == [0, 2, 1]
    with pytest.raises(PrivacyError, match="first and the last input"):
        FiniteChannel([0.0, 1.0], [0.0, 1.0], [[1, TOTAL - 1]], [0, BETWEEN])


def test_each_label_between_has_a_mixture_of_its_own() -> None:
    quarter = TOTAL // 4
    rows = [[3 * quarter, quarter], [quarter, 3 * quarter]]
    made = FiniteChannel([0, 1, 3, 4], [0.0, 1.0], rows, [0, BETWEEN, BETWEEN, 1])
    eighths = [[6, 2], [5, 3], [3, 5], [2, 6]]
    assert made.probabilities.tolist() == [[share / 8 for share in row] for row in eighths]
    assert [list(row) for row in made.weights] == [[n * TOTAL // 8 for n in row] for row in eighths]
    assert made.row_of.tolist() == [0, 2, 3, 1]


def test_a_single_output_has_one_row_for_all_labels() -> None:
    made = FiniteChannel([0, 1, 2], [5.0], [[TOTAL]], [0, 0, 0])
    assert (made.rows, made.row_probabilities.tolist()) == (((TOTAL,),), [[1.0]])
    assert made.probabilities.tolist() == [[1.0]] * 3
