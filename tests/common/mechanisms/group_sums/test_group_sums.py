"""Sums over groups: what one label can move, against a reckoning in fractions of its own."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

import labelveil as lv
from labelveil.common.arrays import Integers
from labelveil.common.entropy import seeded_entropy, system_entropy
from labelveil.common.errors import ConfigError, DataError, PrivacyError
from labelveil.common.exact.noise import discrete_laplace_each
from labelveil.common.mechanisms.group_sums import NO_GROUP, GroupQuestion, Lattice, NoisySums
from labelveil.common.mechanisms.group_sums import noisy_sums as module
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.terms import LabelTerms
from tests.statistics import DRAWS, fits, laplace_mass, repeatable_entropy

LOWER, STEP, STEPS = Fraction(3, 10), Fraction(1, 2), 5
LATTICE = Lattice(0.3, 2.8, STEPS)
ENDS = (0, STEPS)


def asked(
    groups: list[int],
    half_widths: list[int],
    offsets: list[int],
    weights: list[int] | None = None,
    squares: int = 0,
) -> GroupQuestion:
    """A question with an offset for each event, in steps."""
    values, levels = np.unique(offsets, return_inverse=True)
    one = values.size == 1
    return GroupQuestion(
        LATTICE,
        np.array(groups),
        np.array(half_widths),
        values,
        None if one else levels,
        None if weights is None else np.array(weights),
        squares,
    )


QUESTIONS = {
    "one group": asked([0, 0], [2], [2, 2]),
    "groups of one": asked([0, 1], [1, STEPS], [0, 3]),
    "widths at the ends": asked([0, 1], [1, STEPS], [STEPS, STEPS]),
    "negative weights": asked([0, 0], [2], [2, 4], [-3, 2]),
    "a weight of 0": asked([0, 0], [2], [1, 1], [0, 1]),
    "nobody": asked([NO_GROUP, 0], [3], [0, STEPS]),
    "an empty group": asked([1, 1], [2, 2], [0, 0]),
    "squares": asked([0, 0], [3], [2, 5], squares=1),
    "a sum and weighed squares": asked([0, 1], [2, STEPS], [2, 0], [-3, 3], squares=1),
}


def exact_sums(question: GroupQuestion, places: tuple[int, ...]) -> list[Fraction]:
    """The sums in units of the label, from labels, offsets and widths in those units."""
    sums = [Fraction(0)] * question.half_widths.size
    for event, place in enumerate(places):
        group = int(question.groups[event])
        if group == NO_GROUP:
            continue
        level = 0 if question.levels is None else int(question.levels[event])
        label, offset = (LOWER + STEP * int(p) for p in (place, question.offsets[level]))
        width = STEP * int(question.half_widths[group])
        clipped = max(-width, min(width, label - offset))
        if group >= question.half_widths.size - question.squares:
            clipped *= clipped
        sums[group] += clipped * (1 if question.weights is None else int(question.weights[event]))
    return sums


def units(question: GroupQuestion) -> list[Fraction]:
    """A step of each group's sum, in units of the label or of its square."""
    plain = question.half_widths.size - question.squares
    return [STEP] * plain + [STEP * STEP] * question.squares


def drawn_scales(noisy: NoisySums, monkeypatch: pytest.MonkeyPatch) -> list[Fraction]:
    """The scales of the noise that is really drawn, in units of the sums."""
    seen: list[Fraction] = []
    steps = units(noisy.question)

    def draw(numerators: Integers, denominator: int, source: Any) -> Integers:
        found = zip(steps, numerators.tolist(), strict=True)
        seen.extend(step * Fraction(n, denominator) for step, n in found)
        return discrete_laplace_each(numerators, denominator, source)

    monkeypatch.setattr(module, "discrete_laplace_each", draw)
    noisy.draw(np.zeros(len(noisy.question), dtype=np.int64), seeded_entropy(0))
    return seen


def neighbours(changed: int = 1) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for one, other in product(product(range(STEPS + 1), repeat=2), repeat=2):
        if sum(a != b for a, b in zip(one, other, strict=True)) == changed:
            yield one, other


def worst_ratio(question: GroupQuestion, scales: list[Fraction], changed: int = 1) -> Fraction:
    """The largest log-ratio of an answer's probabilities: exact, as noise is on every lattice
    point.
    """
    exact = {places: exact_sums(question, places) for places in product(range(STEPS + 1), repeat=2)}
    return max(
        sum(abs(a - b) / s for a, b, s in zip(exact[one], exact[other], scales, strict=True))
        for one, other in neighbours(changed)
    )


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("epsilon", ["0.1", "0.7", "4", "1/3"])
def test_no_label_changes_the_odds_of_an_answer_by_more(
    name: str, epsilon: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = NoisySums(QUESTIONS[name], Fraction(epsilon))
    scales = drawn_scales(noisy, monkeypatch)
    worst = worst_ratio(noisy.question, scales)
    assert worst <= noisy.guarantee.exact_epsilon == Fraction(epsilon)
    tight = {"one group", "groups of one", "negative weights", "squares"}
    tight.add("a sum and weighed squares")
    assert worst == Fraction(epsilon) or name not in tight
    half = [scale / 2 for scale in scales]
    assert worst_ratio(noisy.question, half) > Fraction(epsilon) or name not in tight


def test_two_events_of_a_user_and_an_event_asked_twice_cost_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noisy = NoisySums(asked([0, 1], [1, 2], [1, 3]), Fraction(1))
    scales = drawn_scales(noisy, monkeypatch)
    both = worst_ratio(noisy.question, scales, changed=2)
    assert both == noisy.guarantee.scale(2).exact_epsilon == 2
    other = asked([0, 0], [2], [2, 2])
    more = drawn_scales(NoisySums(other, Fraction(1)), monkeypatch)
    twice = max(
        sum(
            abs(a - b) / s
            for question, own in ((noisy.question, scales), (other, more))
            for a, b, s in zip(exact_sums(question, x), exact_sums(question, y), own, strict=True)
        )
        for x, y in neighbours()
    )
    assert twice == 2


@pytest.mark.parametrize("name", QUESTIONS)
def test_sums_are_of_clipped_differences(name: str) -> None:
    question = QUESTIONS[name]
    for places in product(range(STEPS + 1), repeat=2):
        found = question.sums(np.array(places))
        found_here = zip(units(question), found.tolist(), strict=True)
        assert [step * s for step, s in found_here] == exact_sums(question, places)


def _twin(name: str) -> GroupQuestion:
    """A question whose sums move further than its noise pays for."""
    question = replace(QUESTIONS[name])
    wide = replace(question, half_widths=np.full_like(question.half_widths, STEPS))
    object.__setattr__(question, "sums", wide.sums)  # labels are not clipped to the widths
    return question


def test_a_sum_that_is_not_clipped_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for build, most in ((QUESTIONS.__getitem__, 1), (_twin, STEPS)):
        question = build("one group")
        (scale,) = drawn_scales(NoisySums(question, Fraction(1)), monkeypatch)
        moved = [
            abs(int((question.sums(np.array(one)) - question.sums(np.array(other)))[0]))
            for one, other in neighbours()
        ]
        assert STEP * max(moved) / scale == Fraction(max(4, most), 4)


@pytest.mark.parametrize("weights", [None, [2, -2]])
def test_sums_lie_on_every_step_of_the_lattice(weights: list[int] | None) -> None:
    """Even noise, or noise on a coarser lattice than the labels', would tell a sum's rest."""
    noisy = NoisySums(asked([0, 0], [2], [1, 1], weights), Fraction(1))
    with repeatable_entropy():
        drawn = [int(noisy.draw(np.array([2, 3]), system_entropy())[0]) for _ in range(300)]
    assert {value % 3 for value in drawn} == {0, 1, 2}
    assert {value % 2 for value in drawn} == {0, 1}


@pytest.mark.statistical
def test_every_group_has_noise_of_its_own_scale() -> None:
    widths = np.array([1, 2])
    groups = np.full(DRAWS, NO_GROUP)  # but for a few, groups are empty
    groups[:100] = np.arange(100)
    question = GroupQuestion(Lattice(0.0, 9.0, 9), groups, np.resize(widths, DRAWS))
    noisy = NoisySums(question, Fraction(1, 2))
    places = np.zeros(groups.size, dtype=np.int64)
    noise = noisy.draw(places, seeded_entropy(4))  # labels of 0 and offsets of 0
    for at, width in enumerate(widths.tolist()):
        scale = 2 * width / 0.5
        assert fits(noise[at::2], laplace_mass(scale))
        assert not fits(noise[at::2], laplace_mass(scale / 1.3))
        assert noisy.scales[at] == scale
    exact = [
        sum(2 * z * z * laplace_mass(s)(np.array([z]))[0] for z in range(1, 3000))
        for s in noisy.scales[:2]
    ]
    assert noisy.variances[:2] == pytest.approx(exact, rel=1e-9)


def test_the_noise_is_bound_to_all_that_is_asked() -> None:
    base = asked([0, 1] * 50, [2, 3] * 25, [1, 4] * 50, [1, 2] * 50)
    assert base.levels is not None
    last = np.arange(100) == 99
    others = [
        replace(base, lattice=Lattice(0.3, 2.9, STEPS)),
        replace(base, groups=np.where(last, 0, base.groups)),
        replace(base, groups=np.where(last, NO_GROUP, base.groups)),
        replace(base, half_widths=np.where(last[50:], 4, base.half_widths)),
        replace(base, offsets=np.array([1, 3])),
        replace(base, levels=np.where(last, 0, base.levels)),
        replace(base, weights=np.where(last, -2, base.weights)),
        replace(base, weights=None),
        replace(base, squares=1),
    ]
    places = np.ones(100, dtype=np.int64)
    streams = {NoisySums(question, Fraction(1)).stream for question in [base, *others]}
    streams.add(NoisySums(base, Fraction(1, 2)).stream)
    assert len(streams) == len(others) + 2
    entropy = system_entropy()
    noisy = NoisySums(base, Fraction(1))
    noisy.draw(places, entropy)
    NoisySums(others[0], Fraction(1)).draw(places, entropy)
    with pytest.raises(PrivacyError, match="have been drawn"):
        NoisySums(replace(base), Fraction(1)).draw(places, entropy)
    # what is the same question has the same bytes, whatever types its numbers have
    same = replace(base, groups=base.groups.astype(np.uint32))
    assert same.encode() == base.encode()
    assert same.digest == base.digest


def test_what_was_checked_is_what_is_summed() -> None:
    """An array that changes after its question was checked would move a sum beyond its noise."""
    groups, widths, weights = np.array([0, 0]), np.array([2]), np.array([1, 1])
    question = GroupQuestion(LATTICE, groups, widths, weights=weights)
    before = question.sums(np.array([5, 5])).tolist(), question.digest, question.spans.tolist()
    groups[:], widths[:], weights[:] = NO_GROUP, 5, 1000
    assert (question.sums(np.array([5, 5])).tolist(), replace(question).digest) == before[:2]
    assert question.spans.tolist() == before[2]
    for kept in (question.groups, question.half_widths, question.offsets, question.weights):
        assert kept is not None
        with pytest.raises(ValueError, match="read-only"):
            kept[0] = 1
    data = bytearray(question.encode())
    read = GroupQuestion.decode(bytes(data), 2)
    assert read.digest == question.digest
    shared = GroupQuestion.decode(data, 2)  # type: ignore[arg-type]
    data[:] = bytes(len(data))
    assert shared.encode() == question.encode()
    # a place that no label has is moved to the lattice's end
    assert question.sums(np.array([10**6, -(10**6)])).tolist() == [2 + 0]


def test_two_cold_starts_differ() -> None:
    groups = np.arange(40)
    question = GroupQuestion.on_grid(Grid.from_step(0, 9, 1), groups, 9, 0)
    labels = np.zeros(40)
    first, second = (lv.group_sums(labels, question, epsilon=0.1) for _ in range(2))
    # 40 noises of scale 90 agree with a chance below 2**-200
    assert first.sums.tolist() != second.sums.tolist()


def test_scales_are_those_of_the_decimal_number_and_never_less() -> None:
    question = QUESTIONS["one group"]
    labels = np.array([0.3, 0.3])
    for written in (0.1, 0.3, 0.7, 1.1):
        answer = lv.group_sums(labels, question, epsilon=written)
        assert answer.guarantee.exact_epsilon == Fraction(str(written))
    third = lv.group_sums(labels, question, epsilon=Fraction(1, 3))
    assert third.guarantee.exact_epsilon == Fraction(1, 3)
    # a fraction whose terms are too large is rounded to noise that is wider, not narrower
    odd = Fraction(10**17 + 1, 3 * 10**17)
    rounded = NoisySums(question, odd).guarantee.exact_epsilon
    assert odd * Fraction(9999, 10000) < rounded <= odd


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"half_widths": np.array([0])}, "half-widths from 0 to 0 must be 1 … 5 steps"),
        ({"half_widths": np.array([6])}, "half-widths from 6 to 6 must be 1 … 5"),
        ({"half_widths": np.array([1, 1, 1])}, "3 groups of 2 events must be 1 … 2"),
        ({"half_widths": np.array([1.5])}, "must be steps"),
        ({"offsets": np.array([6])}, "offsets from 6 to 6 must be 0 … 5"),
        ({"offsets": np.array([-1])}, "offsets from -1 to -1"),
        ({"offsets": np.arange(257) % 6}, "257 levels of offsets must be 1 … 256"),
        ({"offsets": np.array([1, 2])}, "levels say which of several offsets"),
        ({"groups": np.array([0, 1])}, "group 1 must be one of 0 … 0"),
        ({"groups": np.array([0, -1])}, "group -1 must be"),
        ({"groups": np.array([0.0, 0.0])}, "one whole number for each event"),
        ({"weights": np.array([0, 0])}, "weights must not all be 0"),
        ({"weights": np.array([1, 1 << 21])}, "weights from 1 to 2,097,152"),
        ({"weights": np.array([1])}, "weights of shape"),
        ({"squares": 2}, "squares are asked of 2 groups, and of 0 … 1"),
        ({"squares": -1}, "squares are asked of -1 groups"),
    ],
)
def test_what_is_no_question_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(QUESTIONS["one group"], **change)


def test_what_lies_off_the_lattice_is_refused() -> None:
    grid = Grid.from_step(0, 9, 1)
    groups = np.zeros(3, dtype=np.int64)
    for offsets, widths in ((0.3, 1), (0, 1.5), (2, 0.3), (2.8, 2.5), ([0, 1, 1.5], 1)):
        with pytest.raises(ConfigError, match="is none of 0, 1, … 9"):
            GroupQuestion.on_grid(grid, groups, widths, offsets)
    with pytest.raises(ConfigError, match="width of 0"):
        GroupQuestion.on_grid(grid, groups, 0, 2)
    high = GroupQuestion.on_grid(Grid.from_step(3, 9, 1), [-1, 0, 1], [2, 6], [4, 9, 4], [5, 1, -1])
    assert (high.half_widths.tolist(), high.offsets.tolist()) == ([2, 6], [1, 6])
    assert high.levels is not None
    assert high.weights is not None
    assert (high.levels.tolist(), high.weights.tolist()) == ([0, 1, 0], [5, 1, -1])
    assert repr(high) == "<a question about 3 events in 2 groups, 2 offsets>"
    nobody = GroupQuestion.on_grid(grid, [-1, -1], 3, 0)
    assert (nobody.groups.tolist(), nobody.half_widths.tolist()) == ([NO_GROUP] * 2, [3])
    ends = Lattice(-1.0, 3.0, 8)
    assert ends.places(np.array([-1.0, 0.5, 3.0]), "label").tolist() == [0, 3, 8]
    for beyond in (-1.5, 3.5, 0.4, np.nan):
        with pytest.raises(ConfigError, match=r"is none of -1, -0\.5, … 3"):
            ends.places(np.array([0.0, beyond]), "label")
    uneven = Lattice.from_grid(Grid.from_edges([0, 0.5, 2, 7]))
    assert (uneven.steps, uneven.step) == (14, 0.5)
    assert Lattice.from_grid(Grid.from_step(0, 1, 0.1)).steps == 10
    assert Lattice.from_grid(Grid.from_count(0.1, 0.7, 512)).steps == 511
    assert Lattice.from_grid(Grid.from_edges([0, 1, 8191])).steps == 8191
    with pytest.raises(ConfigError, match="not whole steps of a common one apart"):
        Lattice.from_grid(Grid.from_edges([0, 1, 8192]))
    with pytest.raises(ConfigError, match="not whole steps of a common one apart"):
        Lattice.from_grid(Grid.from_log(0, 400, 32, 5))


@pytest.mark.parametrize(("lower", "upper"), [(0, 1), (0, 77), (-3, 400), (0, 1000), (1, 8192)])
def test_whole_numbers_between_whole_bounds_are_on_the_lattice(lower: int, upper: int) -> None:
    """A labels party may have its labels on whole numbers; a question must be about these."""
    whole = np.arange(lower, upper + 1.0)
    lattice = Lattice.between(lower, upper)
    assert np.isin(whole, np.round(lattice.points(np.arange(lattice.steps + 1)), 9)).all()
    assert lattice.steps % Lattice.from_grid(Grid.from_step(lower, upper, 1)).steps == 0
    assert Lattice.between(0, 8191).steps == 8191  # the most; of more, whole numbers are not kept
    assert Lattice.between(0, 8192).steps == 511
    assert Lattice.between(lower, 20_000.0).steps == Lattice.between(0, 0.3).steps == 511


def test_too_large_sums_and_noise_are_refused_before_anything_is_drawn() -> None:
    wide = Lattice(0.0, 1.0, 8191)
    rows = 1 << 12
    groups, weights = np.zeros(rows, dtype=np.int64), np.full(rows, 1 << 20)
    question = GroupQuestion(wide, groups, np.array([8191]), weights=weights)
    highest = question.sums(np.full(rows, 8191))
    assert highest.tolist() == [rows * 8191 << 20]  # no overflow below the bound
    with pytest.raises(PrivacyError, match="is too much to draw"):
        NoisySums(question, Fraction(1, 10**9))
    for epsilon in (Fraction(0), Fraction(-1), Fraction(41)):
        with pytest.raises(PrivacyError, match="epsilon"):
            NoisySums(question, epsilon)
    # terms of scales are taken up to 2**48: beyond it, noise is rounded up, or refused
    one, top = GroupQuestion(Lattice(0.0, 1.0, 1), np.array([0]), np.array([1])), 1 << 48
    for epsilon in (Fraction(1, top), Fraction(top, top - 1)):
        assert NoisySums(one, epsilon).guarantee.exact_epsilon == epsilon
    assert NoisySums(one, Fraction(top + 1, top)).guarantee.exact_epsilon == 1
    with pytest.raises(PrivacyError, match="is too much to draw"):
        NoisySums(one, Fraction(1, top + 1))
    for rows in ((1 << 18) - 1, 1 << 18):  # of squares 2**24 and weights 2**20, these are 2**62
        weights = np.broadcast_to(np.int32(1 << 20), (rows,))
        given = wide, np.zeros(rows, dtype=np.int64), np.array([1 << 12])
        if rows < 1 << 18:
            assert len(GroupQuestion(*given, weights=weights, squares=1)) == rows
        else:
            with pytest.raises(ConfigError, match=r"must be below 2\*\*62"):
                GroupQuestion(*given, weights=weights, squares=1)
    many, heavy = (np.broadcast_to(np.int32(value), (1 << 30,)) for value in (0, 1 << 20))
    with pytest.raises(ConfigError, match=r"must be below 2\*\*62"):
        GroupQuestion(wide, many, np.array([8191]), weights=heavy)


def test_bytes_are_a_question_or_refused() -> None:
    rng = np.random.default_rng(0)
    plain = GroupQuestion(LATTICE, np.array([0, 1, NO_GROUP]), np.array([1, 5]))
    squared = asked([0, 1, 1], [2, 3], [1, 1, 4], [1, -7, 0], squares=1)
    for question in (plain, replace(squared, squares=0), squared):
        data = question.encode()
        again = GroupQuestion.decode(data, 3)
        assert again.encode() == data
        assert again.digest == question.digest
        assert NoisySums(again, Fraction(1)).stream == NoisySums(question, Fraction(1)).stream
        refused = 0
        for rows in (0, 1, 2, 4, 1 << 40):
            with pytest.raises(ConfigError):
                GroupQuestion.decode(data, rows)
        for cut in range(len(data)):
            with pytest.raises(ConfigError):
                GroupQuestion.decode(data[:cut], 3)
        with pytest.raises(ConfigError):
            GroupQuestion.decode(data + b"\0", 3)
        for _ in range(2000):
            changed = bytearray(data)
            changed[rng.integers(len(data))] = rng.integers(256)
            try:
                read = GroupQuestion.decode(bytes(changed), 3)
            except ConfigError:
                refused += 1
            else:  # another question, with bytes and noise of its own
                assert read.encode() == changed
                assert (read.digest == question.digest) == (bytes(changed) == data)
        assert 0 < refused < 2000


def test_labels_are_summed_as_a_release_would_place_them() -> None:
    question = GroupQuestion.on_grid(Grid.from_step(0, 10, 1), [0, 0, 1, -1], [5, 2], 5)
    wide = lv.group_sums([-1e9, 3, 10, 7], question, epsilon=40)
    # noise of scale 1/4 and 1/10 steps: more than 6 steps off less often than once in 10**10
    assert np.abs(wide.sums - [-5 - 2, 2]).max() <= 6
    assert wide.values.tolist() == wide.sums.tolist()
    assert repr(wide) == (
        "<noisy sums of 4 events in 2 groups: ε = 40 (replace-label, per record)>"
    )
    for labels in ([0, 1, np.nan, 2], [0, 1, np.inf, 2]):
        with pytest.raises(DataError, match="1 of 4 are missing"):
            lv.group_sums(labels, question, epsilon=1)
    for epsilon in (0.0, -1.0, float("nan"), float("inf"), 40.5):
        with pytest.raises(PrivacyError, match="epsilon="):
            lv.group_sums([0, 1, 2, 3], question, epsilon=epsilon)
    with pytest.raises(DataError, match="about 4 events, and there are 3"):
        lv.group_sums([0, 1, 2], question, epsilon=1)


def test_squares_are_in_units_of_their_own() -> None:
    lattice = Lattice(0.0, 5.0, 10)
    question = GroupQuestion(lattice, np.array([0, 1, 1]), np.full(2, 10), np.array([4]), squares=1)
    assert question.spans.tolist() == [10, 100]
    answer = lv.group_sums([5, 0, 4], question, epsilon=40)
    # y - o is 3, -2 and 2; noise of scale 1/4 and 5/2 steps: beyond 20 of its scales once in 10**8
    assert answer.values == pytest.approx([3, 8], abs=12.5)
    assert answer.deviations == pytest.approx(
        [0.5, 0.25] * np.sqrt(answer.noisy.variances), rel=1e-12
    )


@pytest.mark.slow
def test_ten_million_events_are_answered_in_seconds() -> None:
    rows, groups = 10**7, 10**5
    rng = np.random.default_rng(0)
    data = GroupQuestion(
        Lattice(0.0, 100.0, 511),
        rng.integers(0, groups, rows).astype(np.uint32),
        rng.integers(1, 512, groups),
        np.arange(16) * 30,
        rng.integers(0, 16, rows).astype(np.uint8),
        rng.integers(-5, 6, rows).astype(np.int32),
    ).encode()
    labels = rng.uniform(0, 100, rows)
    tracemalloc.start()
    start = time.process_time()
    question = GroupQuestion.decode(data, rows)
    answer = lv.group_sums(labels, question, epsilon=0.1)
    taken, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answer.sums.size == groups
    assert taken < 15
    assert peak < 1 << 30


@pytest.mark.parametrize("digits", ["0.123456789012345", "3.00000000000001", "0.333333333333333"])
def test_an_epsilon_of_many_digits_is_never_passed(digits: str) -> None:
    """Scales are rounded up to what can be drawn."""
    asked = GroupQuestion(Lattice(0.0, 30.0, 30), np.arange(40) % 3, np.array([1, 7, 20]))
    for epsilon in (Fraction(digits), 1 / (3 + Fraction(digits))):
        noisy = NoisySums(asked, epsilon)
        for span, scale in zip(asked.spans, noisy.scales, strict=True):
            assert 0 <= scale - int(span) / float(epsilon) <= 1 / 4096
        assert epsilon * Fraction(99, 100) < noisy.guarantee.exact_epsilon <= epsilon


@pytest.mark.parametrize(
    ("bounds", "points", "said"),
    [
        ((0.0, 6.0), None, ""),
        ((0.0, 6.0), [0, 2, 4, 6], ""),  # every other one of the question's
        ((0.0, 6.0), [0, 2, 6], ""),  # unequal, but of its lattice
        ((0.0, 6.0), [0, 1.5, 3, 4.5, 6], "on 6 steps, and they are on 4 of 1.5; ask on these, or"),
        ((0.0, 6.0), [0, 0.5, 6], "on 6 steps, and they are on 12 of 0.5; ask on these, or"),
        ((1.0, 6.0), None, "labels in 0 … 6, not in 1 … 6; name the same bounds"),
        ((0.0, 5.0), None, "labels in 0 … 6, not in 0 … 5; name the same bounds"),
    ],
)
def test_a_question_is_about_labels_as_they_are_configured(
    bounds: tuple[float, float], points: list[float] | None, said: str
) -> None:
    question = GroupQuestion(Lattice(0.0, 6.0, 6), np.zeros(2, np.int64), np.array([3]))
    terms = LabelTerms("y", *bounds, None if points is None else Grid.from_edges(points))
    if not said:
        assert NoisySums.for_label(question, terms, Fraction(1)).question is question
        return
    with pytest.raises(ConfigError, match=said):
        NoisySums.for_label(question, terms, Fraction(1))
