"""Canaries as they are planted, and their sums, of numbers that are made up."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelveil.audit.attacks.laws import detectable_probability, shift_probability, two_sided
from labelveil.audit.attacks.one_run import OneRun
from labelveil.audit.canaries import codes, noises, planting, sums
from labelveil.audit.canaries.noises import decisions_check
from labelveil.audit.settings import Planting
from labelveil.common.errors import LabelveilError
from tests.labelveil.audit.checks import FAIL, PASS, UNKNOWN, numbers

RNG = np.random.default_rng


def planted(**more: Any) -> planting.Planted:
    return planting.draw(Planting(events=64_000, lower=1002.0, upper=1012.0, **more))


def test_canaries_have_the_planned_shares() -> None:
    made = planted(values=3)
    # of 64: 1 below, 1 above, 8 between, 4 with several rows, 8 without; the rest planned
    assert made.shares * 64 == pytest.approx([14, 14, 14, 1, 1, 8, 4, 8])
    counts = np.bincount(made.secrets, minlength=8)
    assert counts / 1000 == pytest.approx(made.shares * 64, rel=0.15)
    labels = made.labels[:, 0]
    assert labels[:3].tolist() == [1002.0, 1007.0, 1012.0]
    below, above, between, several, none = labels[3:]
    assert 971 <= below <= 1001
    assert 1013 <= above <= 1043
    assert 1002.5 <= between <= 1011.5
    assert several == 1012.0
    assert math.isnan(none)
    assert made.repeated == 6
    assert made.counted([7.0])[:, 0].tolist()[-2:] == [7.0, 7.0]
    last = planted(values=3, duplicates="last")
    assert last.counted([7.0])[:, 0].tolist()[-2:] == [1012.0, 7.0]
    assert [made.in_words(at) for at in (1, 6, 7, 8)] == [
        "1007", "several rows", "no label", "above the limit of a user",
    ]  # fmt: skip
    two = planted(also=["paid:0:1"])
    assert two.labels[:4].tolist() == [[1002, 0], [1002, 1], [1012, 0], [1012, 1]]
    assert two.in_words(1) == "1002 with 1"
    users = planted(users=100)
    assert np.bincount(users.users).tolist() == [200] * 320
    assert len(set(made.keys.to_list())) == 64_000
    assert {len(key) for key in made.keys.to_list()} == {32}
    dated = planted(date="day:2026-03-01")
    assert dated.public.columns == ["key", "day"]
    assert dated.public["day"].unique().to_list() == ["2026-03-01"]


def test_tables_hold_every_label_once_but_for_those_twice() -> None:
    made = planting.draw(Planting(events=1000, lower=2.0, upper=12.0))
    known, population = made.tables()
    assert population["key"].to_list() == made.keys.to_list()
    rows = dict(known.group_by("key").agg("label").iter_rows())
    for key, secret in zip(made.keys, made.secrets.tolist(), strict=True):
        expected = [made.labels[secret, 0]] * (2 if secret == made.repeated else 1)
        assert rows.get(key, []) == ([] if secret == len(made.labels) - 1 else expected)
    less = made.without(3)
    assert less.secrets[3] == len(made.labels) - 1
    assert np.array_equal(np.delete(less.secrets, 3), np.delete(made.secrets, 3))
    turned = made.mirrored(2.0, 12.0)
    assert turned.labels[0].tolist() == [12.0]
    ends = planting.at_the_ends(np.array([0, 1]), ["a", "b"], 2.0, 3.0, {"c": ["x", "y"]})
    table, population = ends.tables()
    assert population.columns == ["key", "c"]
    assert sorted(table.select("a", "b", "c").rows()) == [(2.0, 2.0, "x"), (3.0, 3.0, "y")]
    assert table.columns == ["key", "a", "b", "c"]


@dataclass
class Group:
    """Sums of canaries, of which noise alone is known."""

    noise: Any
    scales: Any
    sizes: Any
    kinds: Any
    groups: Any = None
    before: Any = ()

    class planted:
        in_words = str


def test_a_kind_of_label_that_is_counted_otherwise_moves_its_sums() -> None:
    rng = RNG(10)
    kinds = np.repeat([0, 1, 2, -1], 60)
    sizes = np.tile([1, 2, 5, 20], 60)
    noise = np.rint(rng.laplace(0, 30, 240)).astype(np.int64)
    of = Group(noise, np.full(240, 30.0), sizes, kinds)
    right = sums.kinds_check(of)  # type: ignore[arg-type]
    tails = {
        (kind, size): shift_probability(
            noise[(kinds == kind) & (sizes >= size)],
            np.full(int(((kinds == kind) & (sizes >= size)).sum()), 30.0),
        )
        for kind in (0, 1, 2)
        for size in (1, 2, 5, 20)
    }
    (kind, size), least = min(tails.items(), key=lambda each: each[1])
    assert right.verdict is PASS
    assert right.found.endswith(f"has probability at most {min(1, least * 12):.3g} in all.")
    assert f"at least {size} canaries of {kind}:" in right.found
    assert "of 3 kinds" in right.tried
    assert right.power[0].least == right.power[1].least > 0
    moved = noise + np.where(kinds == 1, 75, 0)
    found = sums.kinds_check(Group(moved, np.full(240, 30.0), sizes, kinds))  # type: ignore[arg-type]
    assert (found.verdict, found.bound) == (FAIL, math.inf)
    assert "canaries of 1:" in found.found


def test_noise_of_sums_is_looked_at_by_size_and_kind() -> None:
    rng = RNG(11)
    kinds, sizes = np.repeat([0, 1], 200), np.tile([1, 20], 200)
    noise = np.rint(rng.laplace(0, 30, 400)).astype(np.int64)
    right = sums.sums_check(Group(noise, np.full(400, 30.0), sizes, kinds))  # type: ignore[arg-type]
    assert right.verdict is PASS
    assert right.tried.startswith("The canaries' labels, those beyond the bounds")
    assert "off 400 sums, of groups of 1 to 20." in right.tried
    narrow = np.where(sizes == 20, noise // 3, noise)
    found = sums.sums_check(Group(narrow, np.full(400, 30.0), sizes, kinds))  # type: ignore[arg-type]
    assert found.verdict is FAIL
    assert "groups of 20 events" in found.found


def test_signs_of_two_releases_agree_by_chance() -> None:
    rng = RNG(12)
    groups = np.arange(300)
    first, second = (np.rint(rng.laplace(0, 30, 300)).astype(np.int64) for _ in range(2))
    ones = np.ones(300)
    before = Group(second[10:], ones, ones, ones, groups[10:])
    right = sums.epochs_check(Group(first, ones, ones, ones, groups, (before,)))  # type: ignore[arg-type]
    signs = np.sign(first[10:]) * np.sign(second[10:])
    p = two_sided(int((signs > 0).sum()), int((signs != 0).sum()), 0.5)
    assert (right.verdict, right.bound) == (PASS, 0.0)
    assert right.found == f"As many agree, or as few, with probability {p:.3g} by chance."
    assert f"noise of {int((signs != 0).sum())} groups were compared with those of 1" in right.tried
    runs = int((signs != 0).sum())
    assert right.power[0].least == pytest.approx(
        2 * (detectable_probability(runs, 1, 1e-6, 0.5) - 0.5)
    )
    same = Group(first, ones, ones, ones, groups)
    found = sums.epochs_check(Group(first, ones, ones, ones, groups, (before, same)))  # type: ignore[arg-type]
    assert (found.verdict, found.bound) == (FAIL, math.inf)
    # of as many groups as were compared with some release
    most = 2 * (detectable_probability(int((first != 0).sum()), 1, 0.5e-6, 0.5) - 0.5)
    assert found.power[0].least == pytest.approx(most)
    opposite = Group(-first, ones, ones, ones, groups)
    assert sums.epochs_check(Group(first, ones, ones, ones, groups, (opposite,))).verdict is FAIL  # type: ignore[arg-type]
    assert sums.epochs_check(same).verdict is UNKNOWN  # type: ignore[arg-type]


def test_a_question_asks_of_canaries_whose_labels_are_known() -> None:
    made = planting.draw(Planting(events=4000, lower=0.0, upper=10.0))
    question = sums.ask(made, 21)
    assert question.lattice.steps == 20
    asked = question.groups < question.half_widths.size
    assert not (made.secrets[asked] == 4).any()  # between two points
    assert asked.sum() == (made.secrets != 4).sum()
    sizes = np.bincount(question.groups[asked].astype(int), minlength=question.half_widths.size)
    assert set(sizes.tolist()) - {0} >= {1, 2, 5, 20}
    empty = int((sizes == 0).sum())
    assert empty == pytest.approx(question.half_widths.size / 11, abs=2)
    assert question.squares == question.half_widths.size // 8
    assert question.half_widths[-question.squares :].max() <= 32
    assert set(question.half_widths.tolist()) <= {1, 5, 20}
    assert question.weights is not None
    assert set(np.unique(question.weights)) == {-2, -1, 1, 2}
    alike = [
        group
        for group in range(sizes.size)
        if len(set(made.secrets[question.groups == group].tolist())) == 1 and sizes[group] > 1
    ]
    assert len(alike) > 0.3 * (sizes > 1).sum()
    assert question.offsets.tolist() == [0, 10]


@pytest.mark.parametrize(("points", "offsets", "widths"), [
    (2, [0], {1}), (3, [0, 1], {1, 2}), (22, [0, 10], {1, 5, 21}), (81, [0, 40], {1, 20, 80}),
])  # fmt: skip
def test_a_question_has_widths_of_a_few_steps(
    points: int, offsets: list[int], widths: set[int]
) -> None:
    question = sums.ask(planting.draw(Planting(events=1000, lower=2.0, upper=12.0)), points)
    assert question.offsets.tolist() == offsets
    assert (question.levels is None) is (len(offsets) == 1)
    squares = question.half_widths[-question.squares :]
    assert set(question.half_widths[: -question.squares].tolist()) == widths
    assert set(squares.tolist()) <= {min(width, 32) for width in widths}


def test_canaries_of_another_format_are_not_read(tmp_path: Path) -> None:
    planting.plant(tmp_path, Planting(events=1000, lower=2.0, upper=12.0))
    (path,) = tmp_path.glob("*.json")
    plan = json.loads(path.read_bytes())
    assert planting.read_planted(tmp_path).planting.upper == 12.0
    for changed, said in (
        ({"format": "older"}, "is not of format"),
        ({"lower": "low"}, "no canaries"),
        ({"events": 1}, "no canaries"),
    ):
        path.write_text(json.dumps(plan | changed))
        with pytest.raises(LabelveilError, match=said):
            planting.read_planted(tmp_path)


def test_decisions_are_coins_of_the_stated_odds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noises, "DECISIONS", 300)
    found = decisions_check([], 1)
    assert found.verdict is PASS
    drifted, of, expected, named, _, likelier = numbers(found.found)[:6]
    q = math.exp(-1)
    assert (of, expected) == (300, round(300 * q / (1 + q)))
    assert likelier == round(300 / (1 + math.exp(-1.5)))
    assert abs(drifted - expected) < 45
    assert abs(named - likelier) < 45
    assert found.power[0].least == pytest.approx(detectable_probability(300, 2, 1e-6, 0.5) - 0.5)


def test_pairs_of_worlds_are_fair_coins_and_few_are_tested() -> None:
    rng = RNG(13)
    shares = np.array([0.5, 0.3, 0.2])
    secrets = rng.choice(3, 30_000, p=shares)
    pairs: list[Any] = [((a,), (b,)) for a, b in itertools.combinations(range(3), 2)]
    told = codes.distinguish(secrets, secrets, pairs, shares)
    assert set(told) == set(pairs)
    for (low, high), run in told.items():
        rarer = min(shares[low[0]], shares[high[0]])
        assert run.correct == run.guesses == pytest.approx(0.9 * 30_000 * 2 * rarer, rel=0.05)
        assert run.tests == codes.TESTED
    many: list[Any] = [((a,), (b,)) for a, b in itertools.permutations(range(5), 2)]
    blind = codes.distinguish(
        np.zeros(9000, np.int64), rng.integers(0, 5, 9000), many, np.full(5, 0.2)
    )
    assert len(blind) <= codes.TESTED
    assert all(isinstance(run, OneRun) and run.bound == 0 for run in blind.values())
