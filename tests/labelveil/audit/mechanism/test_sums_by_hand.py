"""What probes of noisy sums try and say, of answers that are known beforehand."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from labelveil.audit.mechanism import sums
from labelveil.audit.mechanism.subject import (
    Answered,
    SumsSubject,
    answer_exactly,
)
from labelveil.audit.mechanism.trial import Trial
from labelveil.audit.verdict import Check
from labelveil.common.arrays import Words
from labelveil.common.entropy import Entropy, seeded_entropy
from labelveil.common.mechanisms.group_sums import NO_GROUP, GroupQuestion, Lattice, NoisySums
from tests.labelveil.audit.checks import FAIL, PASS, UNKNOWN
from tests.labelveil.audit.twins.library import TINY

HERE = __name__
LATTICE = Lattice(101.0, 105.0, 4)


def test_a_worst_loss_is_the_largest_move_over_its_scale() -> None:
    """Of two labels with three values, and two sums of different scales: by all neighbours."""
    sums_of = np.array([[[a + b, 3 * a] for b in (0, 1, 5)] for a in (0, 2, 4)])
    scales = [10, 8], 2
    worst = max(
        sum(
            Fraction(abs(int(x) - int(y))) / Fraction(scale, 2)
            for x, y, scale in zip(one, other, (10, 8), strict=True)
        )
        for one, other in [
            *((sums_of[a, b], sums_of[c, b]) for b in range(3) for a in range(3) for c in range(3)),
            *((sums_of[a, b], sums_of[a, c]) for b in range(3) for a in range(3) for c in range(3)),
        ]
    )
    assert sums._worst_loss(sums_of, scales) == worst == Fraction(4, 5) + 3


def test_noise_on_a_coarser_grid_is_named() -> None:
    rng = np.random.default_rng(0)
    noise = np.rint(rng.laplace(0, 5, (400, 4))).astype(np.int64)
    assert sums._coarse(noise, "groups", 5.0) == []
    noise[:, 2] *= 3
    assert sums._coarse(noise, "groups", 5.0) == ["noise of groups is always a multiple of 3 steps"]
    noise[:, 2] = 0  # no noise at all is another check's
    assert sums._coarse(noise, "groups", 5.0) == []
    few = 6 * np.ones((2, 4), dtype=np.int64)  # chance makes two of these
    assert sums._coarse(few, "groups", 5.0) == []
    values = np.arange(-900, 901)
    mass = np.exp(-np.abs(values) / 7.5)
    assert sums._table_variance(7.5) == pytest.approx(float((mass * values**2).sum() / mass.sum()))


def test_questions_differ_in_one_thing_alone() -> None:
    question = sums._big_question(LATTICE, 1.0, weights=True)
    sizes = np.bincount(question.groups.astype(np.int64), minlength=question.half_widths.size)
    assert sizes.tolist() == [size for size in sums.SIZES for _ in range(sums.ALIKE)] * 2
    assert question.squares == sizes.size // 2
    assert question.weights is not None
    assert np.abs(question.weights).max() <= sums.MOST_WEIGHT
    others = dict(sums._others(question))
    assert {"an event's group", "whether an event is asked about", "a weight", "a width"} < {
        *others
    }
    assert {"whether it is of squares", "the bounds"} < {*others}
    assert question.digest not in {other.digest for other in others.values()}
    for name, other in others.items():
        changed = [
            field
            for field in ("groups", "half_widths", "offsets", "levels", "weights")
            if not np.array_equal(getattr(question, field), getattr(other, field))
        ]
        changed += ["squares"] * (question.squares != other.squares)
        changed += ["lattice"] * (question.lattice != other.lattice)
        assert len(changed) == 1, (name, changed)
    for epsilon, squared in ((1e-3, 1), (1e-5, 1), (1.5e-3, 2)):  # √(10,000 ε / 3)
        narrow = sums._big_question(LATTICE, epsilon, weights=False)
        half = narrow.half_widths.size // 2
        assert narrow.half_widths[:half].max() == max(int(1e4 * epsilon / 6), 1)
        assert narrow.half_widths[half:].max() == squared


def test_small_questions_have_the_ends_of_everything() -> None:
    asked = [*sums._small_questions(LATTICE)]
    assert len(asked) == sums.QUESTIONS
    assert all(len(question) == sums.EVENTS for question in asked)
    assert asked[0].half_widths.tolist() == [4]
    assert asked[1].weights.tolist() == [-3, 1, -3]  # type: ignore[union-attr]
    assert asked[1].offsets.tolist() == [0, 4]
    assert asked[2].groups.tolist() == [0, 1, NO_GROUP]
    assert asked[3].squares == 1
    assert {question.squares for question in asked[4:]} == {0, 1, 2}
    assert [question.weights is not None for question in asked[4:]] == [False, True] * 4
    labels, places = sums._labels(LATTICE)
    assert places[:2].tolist() == [0, places[1]]
    assert places[-3:].tolist() == [0, 4, -1]
    assert labels[-1] == 101.5
    assert 101 - 21 * 4 <= labels[-3] <= 101 - 4
    assert 105 + 4 <= labels[-2] <= 105 + 21 * 4
    two, at = sums._labels(Lattice(0.0, 1.0, 1))
    assert (two[:2].tolist(), at[:2].tolist()) == ([0.0, 1.0], [0, 1])


def test_sums_are_counted_from_what_is_asked() -> None:
    question = GroupQuestion(
        LATTICE,
        np.array([0, 1, NO_GROUP]),
        np.array([4, 1]),
        np.array([1]),
        weights=np.array([2, -3, 5]),
    )
    assert sums.true_sums(question, np.array([4, 0, 3])).tolist() == [2 * 3, -3 * -1]
    entropy = seeded_entropy(0)
    found = answer_exactly(np.array([105.0, 101.0, 104.0]), question, Fraction(1, 2), entropy)
    noisy = NoisySums(question, Fraction(1, 2))
    assert found.sums.tolist() == noisy.draw(np.array([4, 0, 3]), seeded_entropy(0)).tolist()
    assert found.epsilon == Fraction(1, 2)
    numerators, denominator = found.scales
    # 8 steps of weight 3 for one group is 4 · 3 · 2; min(2h, steps) = 4 and 2
    assert [Fraction(int(n), denominator) for n in numerators] == [
        scale for _, scale in sorted(noisy.widths, reverse=True)
    ]
    subject = SumsSubject("group-sums", np.arange(5.0), 0.1)
    assert (subject.exact, subject.own) == (Fraction(1, 10), True)
    assert (subject.lattice.steps, subject.title) == (4, "group-sums")
    other = SumsSubject("a.b:c", np.arange(5.0), 0.1)
    assert (other.own, other.title) == (False, "sums over groups a.b:c")


CHANGE: list[Any] = [lambda found, labels: found]


def changed_sums(labels: Any, question: Any, epsilon: Any, entropy: Entropy) -> Answered:
    """Our own sums, but for one thing."""
    return CHANGE[0](answer_exactly(labels, question, epsilon, entropy), labels)  # type: ignore[no-any-return]


def judged(probe: Any, change: Any, points: int = 3) -> Check:
    CHANGE[0] = change
    subject = SumsSubject(f"{HERE}:changed_sums", np.arange(float(points)), 0.5)
    return probe(Trial(subject, TINY))  # type: ignore[no-any-return]


def scaled(found: Answered, by: Fraction) -> Answered:
    numerators, denominator = found.scales
    return replace(found, scales=(numerators * by.numerator, denominator * by.denominator))


def test_what_is_wrong_with_sums_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "EVENTS", 2)
    few = [*sums._small_questions(Lattice(0.0, 2.0, 2))][:2]
    monkeypatch.setattr(sums, "_small_questions", lambda lattice: few)
    right = judged(sums.sensitivity_check, lambda found, labels: found)
    assert (right.verdict, right.bound, right.found) == (PASS, 0.5, "The worst log-ratio is 0.5.")
    # two questions of two labels, each of six kinds
    assert "all 72 data sets of 2 labels" in right.tried
    half = judged(sums.sensitivity_check, lambda found, labels: scaled(found, Fraction(1, 2)))
    assert (half.verdict, half.bound) == (FAIL, 1.0)
    assert half.found == "The worst log-ratio is 1, which is 0.5 too much."
    wide = judged(sums.sensitivity_check, lambda found, labels: scaled(found, Fraction(2)))
    assert (wide.verdict, wide.bound) == (PASS, 0.25)
    stated = judged(
        sums.sensitivity_check, lambda found, labels: replace(found, epsilon=Fraction(3, 4))
    )
    assert "more ε is stated than is claimed (2 of the questions)" in stated.found
    assert stated.verdict is FAIL
    less = judged(
        sums.sensitivity_check, lambda found, labels: replace(found, epsilon=Fraction(1, 4))
    )
    assert less.verdict is PASS
    fresh = np.random.default_rng(0)
    drawn = judged(
        sums.sensitivity_check,
        lambda found, labels: replace(found, sums=found.sums + fresh.integers(1 << 40)),
    )
    assert drawn.verdict is UNKNOWN
    fraction = judged(
        sums.sensitivity_check,
        lambda found, labels: replace(found, sums=found.sums + 0.5 * (labels[0] == 2)),
    )
    assert "a sum is no whole number of steps (2 of the questions)" in fraction.found
    depends = judged(
        sums.sensitivity_check,
        lambda found, labels: replace(found, sums=found.sums + int(labels[0] == 2)),
    )
    assert "noise, or what is summed, depends on labels" in depends.found
    assert (depends.verdict, depends.bound) == (FAIL, math.inf)
    widths = judged(
        sums.sensitivity_check,
        lambda found, labels: scaled(found, Fraction(2 if labels[0] == 2 else 1)),
    )
    assert "the stated scales depend on labels" in widths.found
    assert (widths.verdict, widths.bound) == (FAIL, math.inf)

    def refuses(found: Answered, labels: Any) -> Answered:
        if labels[0] > 2:  # its words are its own, whatever they are
            raise ValueError("too high: sums depend on labels")
        return found

    refused = judged(sums.sensitivity_check, refuses)
    assert (refused.verdict, refused.bound) == (FAIL, 0.0)
    assert "sums depend on labels (1 of the questions)" in refused.found
    assert "all 0 data sets" in refused.tried


def test_noise_is_drawn_again_and_its_variance_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = judged(sums.exact_noise_check, lambda found, labels: found)
    assert right.verdict is PASS
    assert right.found.startswith("It is the same; the variances differ by ")
    assert right.tried.startswith("The noise on 80 sums")
    off = judged(
        sums.exact_noise_check,
        lambda found, labels: replace(found, variances=found.variances * (1 + 1e-5)),
    )
    assert (off.verdict, off.found) == (
        FAIL, "It is the same; the variances differ by 1e-05 at most.",
    )  # fmt: skip
    near = judged(
        sums.exact_noise_check,
        lambda found, labels: replace(found, variances=found.variances * (1 + 1e-7)),
    )
    assert near.verdict is PASS
    other = judged(
        sums.exact_noise_check, lambda found, labels: replace(found, sums=found.sums + 1)
    )
    assert other.verdict is UNKNOWN  # of another's own sampler the law decides
    shared = judged(sums.two_questions_check, lambda found, labels: found)
    assert (shared.verdict, shared.bound, shared.found) == (PASS, 0.0, "None is shared.")
    assert shared.tried.startswith("9 questions") or shared.tried.startswith("8 questions")
    assert "the bounds, ε) were answered" in shared.tried

    class OneInCommon(sums.RecordedEntropy):
        def words(self, stream: str, start: int, count: int) -> Words:
            self.drawn.add("common")
            return super().words(stream, start, count)

    monkeypatch.setattr(sums, "RecordedEntropy", OneInCommon)
    some = judged(sums.two_questions_check, lambda found, labels: found)
    assert (some.verdict, some.bound) == (FAIL, math.inf)


def test_noise_that_is_always_even_is_told_from_chance() -> None:
    """Of 3 cells, four primes and twenty kinds of groups one is so once in a million."""
    q = math.exp(-1 / 6.0)
    even = (1 + q * q) / (1 + q) ** 2
    enough = math.ceil(math.log(1e-6 / (3 * 4 * 20)) / math.log(even))
    for answers, found in ((enough, True), (enough - 1, False)):
        noise = np.tile([[2, 1, 5]], (answers, 1)) + 2 * (np.arange(answers) % 7)[:, None]
        assert bool(sums._coarse(noise, "one", 6.0)) is found


def test_questions_that_may_share_no_noise_differ_in_all_that_a_question_says() -> None:
    lattice = Lattice(0.0, 10.0, 20)
    columns = {"levels": np.arange(9) % 2, "weights": np.arange(9) - 4, "squares": 1}
    question = GroupQuestion(lattice, np.arange(9) % 3, np.full(3, 4), np.array([0, 7]), **columns)
    others = [other for _, other in sums._others(question)]
    assert len({question.digest, *(other.digest for other in others)}) == 1 + len(others)
    differ = {
        field.name
        for field in fields(GroupQuestion)
        for other in others
        if not np.array_equal(getattr(other, field.name), getattr(question, field.name))
    }
    assert differ == {field.name for field in fields(GroupQuestion)}
    # a width of one step becomes one of two; an offset moves to where no other is, if it can
    for steps, offsets, names in (
        (20, [20], {"a width", "an offset"}), (20, [0, 1], {"a width"}), (1, [0], {"an offset"}),
    ):  # fmt: skip
        narrow = replace(
            question,
            lattice=Lattice(0.0, 10.0, steps),
            half_widths=np.ones(3, int),
            offsets=np.array(offsets),
            levels=question.levels if len(offsets) > 1 else None,
        )
        moved = dict(sums._others(narrow))
        assert {"a width", "an offset"} & {*moved} == names
        if "a width" in moved:
            assert moved["a width"].half_widths.tolist() == [2, 1, 1]


@pytest.mark.parametrize("name", ["noise_law_check", "shared_noise_check"])
def test_noise_of_groups_is_judged_by_its_law(name: str) -> None:
    probe = getattr(sums, name)
    right = judged(probe, lambda found, labels: found)
    assert right.verdict is PASS
    answers = {"noise_law_check": "answered 8 times", "shared_noise_check": "in 16 answers"}[name]
    assert answers in right.tried
    if name == "noise_law_check":  # signs alone need more answers
        constant = judged(probe, lambda found, labels: replace(found, sums=found.sums * 0))
        assert constant.verdict is FAIL
        half = judged(probe, lambda found, labels: replace(found, sums=found.sums + 0.5))
        assert (half.verdict, " sums are no whole steps" in half.found) == (FAIL, True)


def test_of_many_pairs_of_groups_some_agree_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups with one sign in 16 answers: of so many pairs, on either side."""
    signs = np.random.default_rng(0).choice([-1, 1], (16, 400))
    signs[:, 1] = signs[:, 0]
    monkeypatch.setattr(sums, "_noise", lambda s, q, run: (signs[run, : q.half_widths.size], None))
    check = judged(sums.shared_noise_check, lambda found, labels: found)
    groups = int(check.tried.partition("noise on ")[2].partition(" ")[0])
    chance = 2 * groups * (groups - 1) / 2 / 2**16
    assert 0.01 < chance < 1
    assert f"16 of 16 agree, which has probability at most {chance:.3g} in all" in check.found
