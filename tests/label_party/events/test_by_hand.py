"""Completing events, against plain Python over a dictionary of rows; columns; warnings."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.engine.local import InProcess
from labelveil.common.engine.shuffle import KEY_TYPE
from labelveil.common.engine.task import Secrets
from labelveil.common.entropy import Entropy, seeded_entropy
from labelveil.common.errors import DataError
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.strata import Strata
from labelveil.common.release.manifest import block_digest
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events import row_ranges
from labelveil.label_party.events.columns import (
    NONE,
    Column,
    list_digest,
    one_per_event,
    read_category_list,
)
from labelveil.label_party.events.completion import (
    NOBODY,
    Rules,
    beyond_limit,
    complete_part,
    hash_column,
    label_values,
)
from labelveil.label_party.events.epoch import rows_of_epoch
from labelveil.label_party.events.intention import Spread, _of_categories, _of_keys, _of_label
from labelveil.label_party.events.steps import Sizes, Work
from labelveil.label_party.events.tally import LabelTally, Tally
from labelveil.label_party.events.tasks import ROW, Complete
from labelveil.label_party.sources.tables import KEY, LABEL, PLACE, USER
from tests.label_party.made_up import numbered

MISSING = (-1.0, 7.0)


def key(number: int) -> bytes:
    return (number + 1).to_bytes(16, "big")


def keys_of(numbers: Any) -> np.ndarray:
    return np.array([key(int(n)) for n in numbers], dtype=KEY_TYPE)


def plainly(
    events: list[int],
    labels: np.ndarray,
    users: list[int] | None,
    listed: list[int] | None,
    rule: str,
) -> dict[int, list[float]]:
    """(m,) labels of each event, as the rules say, one event at a time."""
    rows = defaultdict[int, list[int]](list)
    for place, event in enumerate(events):
        rows[event].append(place)
    found = {}
    for event in sorted({*(events if listed is None else listed)}):
        mine = rows.get(event, [])
        if users is not None:
            mine = [place for place in mine if users[place] == users[mine[0]]]
        found[event] = []
        for column, missing in enumerate(MISSING):
            values = [labels[place, column] for place in mine]
            known = [value for value in values if not math.isnan(value)]
            if not known or (rule == "missing" and len(mine) > 1):
                value = missing
            else:
                one = {"missing": known[-1], "last": known[-1], "sum": sum(known)}
                value = (one | {"mean": sum(known) / len(known)})[rule]
            found[event].append(value)
    return found


@pytest.mark.parametrize("rule", ["missing", "last", "sum", "mean"])
@pytest.mark.parametrize("mode", ["listed", "own", "users"])
def test_labels_are_those_that_a_dictionary_gives(mode: str, rule: Any) -> None:
    rng = np.random.default_rng([len(mode), len(rule)])
    for _ in range(40):
        count = int(rng.integers(0, 25))
        events = rng.integers(0, 8, count).tolist()
        labels = np.round(rng.uniform(-2, 12, (count, 2)), 1)
        labels[rng.random((count, 2)) < 0.25] = np.nan
        users = rng.integers(0, 2, count).tolist() if mode == "users" else None
        listed = rng.permutation(10)[: rng.integers(1, 10)].tolist() if mode == "listed" else None
        rows: dict[str, Any] = {
            KEY: keys_of(events),
            LABEL: labels,
            PLACE: np.arange(2, count + 2),
        }
        if users is not None:
            rows[USER] = keys_of(users)
        columns, order, tally = complete_part(
            rows,
            None if listed is None else keys_of(listed),
            Rules(MISSING, ((0.0, 10.0), (0.0, 10.0)), rule),
        )
        expected = plainly(events, labels, users, listed, rule)
        assert columns[KEY].tolist() == [key(event) for event in expected]
        np.testing.assert_allclose(
            columns[LABEL], np.array([*expected.values()]).reshape(-1, 2), atol=1e-12
        )
        if listed is not None:
            assert [listed[place] for place in order] == [*expected]
        elif count:
            assert [events[place] for place in order] == [*expected]
            assert [events.index(event) for event in expected] == order.tolist()
        assert tally.rows == len(expected)
        assert tally.label_rows == count
        if not expected:
            continue
        there = {*events} & {*expected}
        own = {
            e: [p for p in range(count) if events[p] == e
                and (users is None or users[p] == users[events.index(e)])]
            for e in {*events}
        }  # fmt: skip
        assert tally.left_out == len({*events} - there)
        assert tally.merged == sum(len(own[e]) > 1 for e in there)
        assert tally.most_rows == max(map(len, own.values()), default=0)
        for column, of in enumerate(tally.labels):
            values = [values[column] for values in expected.values()]
            assert (of.smallest, of.largest) == pytest.approx((min(values), max(values)))
            assert of.outside == sum(not 0 <= value <= 10 for value in values)
            unlabelled = sum(
                all(math.isnan(labels[p, column]) for p in own.get(e, []))
                or (rule == "missing" and len(own[e]) > 1)
                for e in expected
            )
            assert of.unlabelled == unlabelled


def test_the_first_events_of_a_user_are_within_the_limit() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        users = rng.integers(-1, 4, rng.integers(1, 30)).tolist()
        hashed = np.array([NOBODY if u < 0 else key(u) for u in users], dtype=KEY_TYPE)
        for limit in (1, 2, 3):
            seen = defaultdict[int, int](int)
            expected = []
            for user in users:
                seen[user] += 1
                expected.append(user < 0 or seen[user] > limit)
            assert beyond_limit(hashed, limit).tolist() == expected


def test_keys_are_hashed_one_by_one_and_nobody_is_nobody() -> None:
    secret = bytes(range(32))
    column = pl.Series(["a", None, "b", "a"])
    hashed = hash_column(column, secret)
    assert hashed[1] == NOBODY
    assert hashed[0] == hashed[3] != hashed[2]
    assert hash_column(pl.Series(["b"]), secret)[0] == hashed[2]
    assert hash_column(pl.Series(["b"]), bytes(32))[0] != hashed[2]
    frame = pl.DataFrame({"label": [1.5, None], "label 1": [None, 2.0], "other": [3.0, 4.0]})
    np.testing.assert_array_equal(label_values(frame, 2), [[1.5, np.nan], [np.nan, 2.0]])
    assert label_values(frame, 1).shape == (2, 1)


def test_an_event_has_the_category_that_its_rows_agree_on() -> None:
    rng = np.random.default_rng(4)
    for _ in range(100):
        count = int(rng.integers(0, 12))
        at, codes = rng.integers(0, 4, count), rng.integers(-1, 3, count)
        for last in (False, True):
            expected = []
            for event in range(5):
                own = [c for a, c in zip(at, codes, strict=True) if a == event and c != NONE]
                agreed = own[-1] if own and (last or len({*own}) == 1) else NONE
                expected.append(agreed)
            assert one_per_event(at, codes, 5, last=last).tolist() == expected


def test_codes_are_places_in_the_list_or_hashes_of_text() -> None:
    texts = pl.Series(["b", None, "z", "a", ""])
    listed = Column("c", pl.Series(["a", "b"]))
    assert listed.codes(texts, bytes(32)).tolist() == [1, NONE, 2, 0, 2]
    assert listed.places(texts).tolist() == [1, 2, 2, 0, 2]
    free = Column("c")
    one, other = (free.codes(texts, secret) for secret in (bytes(32), b"\1" * 32))
    assert one[1] == other[1] == NONE
    assert len({*one.tolist()}) == 5
    assert (np.delete(one, 1) >= 0).all()
    assert (np.delete(one, 1) != np.delete(other, 1)).all()
    assert free.codes(pl.Series(["a"]), bytes(32))[0] == one[3]
    digest = hashlib.sha256(b"a\nb").hexdigest()
    assert list_digest(["a", "b"]) == list_digest(pl.Series(["a", "b"])) == digest


def test_a_list_of_categories_is_sorted_and_has_two_at_least(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text(" b \n\na\nc\r\n")
    assert read_category_list(path, "--x").to_list() == ["a", "b", "c"]
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")  # as an editor on Windows writes it
    assert read_category_list(path, "--x").to_list() == ["a", "b"]
    for text, said in (
        ("a\n", "1 categories, 1 of them"),
        ("a\nb\na\n", "3 categories, 2 of them"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=f"lists {said} different; list at least 2, each once"):
            read_category_list(path, "--x")
    path.write_bytes(b"\xff\n")
    for unreadable, why in ((path, "it is not UTF-8 text"), (tmp_path / "none", "No such file")):
        with pytest.raises(DataError, match=f"{why}.*; set --x"):
            read_category_list(unreadable, "--x")


def label_tally(unlabelled: int = 0, outside: int = 0, largest: float = 5.0) -> LabelTally:
    return LabelTally(unlabelled, outside, 0.0, largest)


@pytest.mark.parametrize(
    ("rows", "tally", "said"),
    [
        (1000, label_tally(), []),
        (1000, label_tally(largest=0.0), ["all 1,000 events have the same label, 0"]),
        (1, label_tally(largest=0.0), []),
        (1000, label_tally(1000, largest=0.0), ["only 0 of 1,000 events (0.00%) have a label"]),
        (
            1000,
            label_tally(outside=500),
            ["500 of 1,000 labels (50.00%) lie outside lower … upper"],
        ),
        (1000, label_tally(unlabelled=500, outside=500), ["500 of 500 labels (100.00%) lie"]),
    ],
)
def test_labels_that_tell_little_are_named_with_their_numbers(
    rows: int, tally: LabelTally, said: list[str]
) -> None:
    found = _of_label(rows, tally)
    assert len(found) == len(said)
    assert all(line.startswith(words) for line, words in zip(found, said, strict=True))


def test_keys_outside_the_population_and_placeholders_are_named() -> None:
    usual = Tally(1000, labels=(label_tally(),), label_rows=1000, most_rows=1)
    assert _of_keys(usual) == []
    half = Tally(1000, left_out=1000, labels=(label_tally(),), label_rows=2000, most_rows=1)
    assert _of_keys(half) == []
    (line,) = _of_keys(replace(half, left_out=1001))
    assert line.startswith("1,001 of 2,001 keys of labels (50.02%) are not in the population")
    assert _of_keys(replace(half, left_out=1001), in_rounds=True) == []
    # of 2,000 rows of 1,000 keys more than 5 %, and of 200 of 100 more than ten times the average
    many = Tally(1000, labels=(label_tally(),), label_rows=2000, most_rows=100)
    assert _of_keys(many) == []
    (line,) = _of_keys(replace(many, most_rows=101))
    assert line.startswith("101 of 2,000 rows of labels (5.05%) have one and the same key")
    few = Tally(100, labels=(label_tally(),), label_rows=200, most_rows=20)
    assert _of_keys(few) == []
    assert len(_of_keys(replace(few, most_rows=21))) == 1


def test_tallies_of_ranges_add_up() -> None:
    one = Tally(10, 1, 2, 3, 4, 5, 6, (LabelTally(1, 2, -1.0, 4.0),))
    other = Tally(100, 10, 20, 30, 40, 50, 3, (LabelTally(3, 4, 0.0, 5.0),))
    whole = one + other
    assert whole == other + one == Tally(110, 11, 22, 33, 44, 55, 6, (LabelTally(4, 6, -1.0, 5.0),))
    assert whole.labelled == 106
    assert Tally() + one == one + Tally() == one
    told = whole.to_json()
    assert (told["unlabelled"], told["smallest"], told["rows"]) == (4, -1.0, 110)
    two = Tally(10, labels=(LabelTally(4), LabelTally(1)))
    assert two.labelled == 9
    assert [each["unlabelled"] for each in two.to_json()["labels"]] == [4, 1]


def test_categories_that_nobody_has_are_named() -> None:
    assert _of_categories(Spread("c", 100, 90, 30)) == []
    assert _of_categories(Spread("c", 100, 90, 90)) == ["all 90 listed values of 'c' are the same"]
    (line,) = _of_categories(Spread("c", 100, 0, 0))
    assert line == "only 0 of 100 events (0.00%) have a value of 'c' that is on its list"


def test_what_placing_on_a_grid_does_is_summed_over_events() -> None:
    values = np.array([[0.0], [0.25], [2.0], [3.5], [9.0], [-4.0], [14.0]])
    (moved,) = numbered(values).rounding_effects([Grid.from_edges([0.0, 1.0, 4.0, 10.0])])
    inside = np.clip(values[:, 0], 0, 10)
    # a label between a and b goes to either without bias: (x - a)(b - x) of variance
    added = 0.25 * 0.75 + 1.0 * 2.0 + 2.5 * 0.5 + 5.0 * 1.0
    assert (moved.labels, moved.between) == (7, 4)
    assert moved.added == pytest.approx(added)
    assert moved.total == pytest.approx(inside.sum())
    assert moved.squares == pytest.approx((inside**2).sum())
    assert moved.share == pytest.approx(added / (7 * inside.var()))


def test_work_is_cut_as_its_sizes_say_or_stays_in_memory(tmp_path: Path) -> None:
    source = tmp_path / "labels.csv"
    source.write_text("id,amount\n" + "".join(f"k{i},{i}\n" for i in range(10)))
    sections = {
        "data": {"labels": str(source), "key": "id"},
        "privacy": {"epsilon": 1.0},
        "label": [{"name": "amount", "lower": 0, "upper": 9}],
    }
    wanted, _ = rows_of_epoch(LabelPartyConfig.model_validate(sections), (), None)
    folder = tmp_path / "work"
    folder.mkdir()

    cut = Work(InProcess(), folder, b"j" * 32, Sizes(slice_rows=4, bucket_rows=3))
    table = cut.open_table(wanted, "labels")
    assert (table.rows, [each.part for each in table.slices]) == (10, [(0, 4), (4, 8), (8, 10)])
    assert all(each.loaded is None for each in table.slices)
    assert [path.name.startswith("copied-labels") for path in folder.iterdir()] == [True]
    assert [cut.bucket_count(rows) for rows in (0, 3, 4, 10)] == [1, 1, 2, 4]
    assert cut.ranges(10) == [(0, 3), (3, 6), (6, 9), (9, 10)]

    whole = Work.in_memory(b"j" * 32)
    table = whole.open_table(wanted, "labels")
    (only,) = table.slices
    assert (table.rows, only.part, only.loaded is None) == (10, None, False)
    assert (whole.bucket_count(10), whole.ranges(10)) == (1, [(0, 10)])
    assert len(list(tmp_path.rglob("*"))) == 3  # no file more


def test_tasks_draw_from_the_releases_key_and_know_whether_it_is_the_systems() -> None:
    told: list[Secrets] = []

    def stream(tasks: Any, secrets: Secrets) -> Any:
        told.append(secrets)
        return iter(())

    work = Work(SimpleNamespace(stream=stream), None, b"j" * 32, Sizes())
    for entropy in (None, Entropy(b"k" * 32), Entropy(b"s" * 32, secure=False)):
        assert work.run([], entropy) == []
    assert told == [
        Secrets(b"j" * 32),
        Secrets(b"j" * 32, b"k" * 32, secure=True),
        Secrets(b"j" * 32, b"s" * 32, secure=False),
    ]


class Handed:
    """What one step hands to the next, by bucket."""

    def __init__(self, **columns: Any) -> None:
        self.columns = columns
        self.sent: list[tuple[int, list[int], dict[str, Any]]] = []

    def receive(self, bucket: int) -> dict[str, Any]:
        assert bucket == 5
        return dict(self.columns)

    def send(self, bucket: int, where: Any, columns: dict[str, Any]) -> None:
        self.sent.append((bucket, np.asarray(where).tolist(), columns))


@pytest.mark.parametrize(("range_rows", "where"), [(0, [0, 0, 0]), (3, [2, 0, 1]), (8, [0, 0, 0])])
def test_completed_events_go_to_ranges_of_the_rows_submitted(
    range_rows: int, where: list[int]
) -> None:
    labels = Handed(
        **{KEY: keys_of([1, 9]), LABEL: np.array([[4.0, 3.0], [1.0, 1.0]]), PLACE: np.array([2, 3])}
    )
    population = Handed(**{KEY: keys_of([2, 0, 1]), ROW: np.array([5, 7, 2])})
    out = Handed()
    rules = Rules(MISSING, ((0.0, 10.0), (0.0, 10.0)), "last")
    done: Any = Complete(5, labels, population, rules, out, range_rows)  # type: ignore[arg-type]
    tally = done.run(Secrets(b"j" * 32))
    ((bucket, at, columns),) = out.sent
    assert (bucket, at, tally.rows, tally.left_out) == (5, where, 3, 1)
    assert columns[KEY].tolist() == [key(0), key(1), key(2)]
    assert columns[ROW].tolist() == [7, 2, 5]
    assert columns[LABEL].tolist() == [[*MISSING], [4.0, 3.0], [*MISSING]]


@pytest.mark.parametrize("at_once", [1, 3, 8, 100])
def test_every_event_of_a_range_is_counted_once_where_its_codes_will_say(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its stratum, too; labels between points go where they go when they are randomized."""
    monkeypatch.setattr(row_ranges, "_ROWS_AT_ONCE", at_once)
    labels = np.column_stack([[0.5, 1.5, 2, 0.5, 2.5, 1.5, 2.25, 0.5], [9.0, 0] * 4])
    of, grids = np.arange(8) % 3, (Grid(np.arange(4.0)), Grid(np.array([0.0, 9.0])))
    groups = tuple(Group((place,), Cells((grid,))) for place, grid in enumerate(grids))
    rows: Any = SimpleNamespace(
        start=70, labels=lambda: labels, strata=lambda strata: of if strata else None
    )
    secrets: Any = SimpleNamespace(entropy=lambda: seeded_entropy(4))
    strata = Strata(("a", "b", "c"), (3, 3, 2), np.arange(3))
    cells = groups[0].round(labels, seeded_entropy(4), 70)
    first, second = row_ranges.Count(rows, groups, None).run(secrets)
    assert first.tolist() == np.bincount(cells, minlength=4).tolist()
    assert second.tolist() == [4, 4]
    first, second = row_ranges.Count(rows, groups, strata).run(secrets)
    expected = np.zeros((3, 4), dtype=int)
    np.add.at(expected, (of, cells), 1)
    assert first.tolist() == expected.tolist()
    assert second.sum(axis=1).tolist() == [3, 3, 2]


@pytest.mark.parametrize("submitted", [False, True])
@pytest.mark.parametrize("at_once", [None, 1, 9, 100])
def test_a_range_is_written_block_by_block_each_with_its_digest(
    submitted: bool, at_once: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of strata (``at_once`` rows, in whole blocks) a code says which, and the row that it is."""
    monkeypatch.setattr(row_ranges, "_STRATA_ROWS", at_once or 100)
    of, start, block = np.arange(11) % 3, 72, 4
    strata = None if at_once is None else Strata(("a", "b", "c"), (4, 4, 3), np.arange(3))

    def randomize(labels: Any, own: Any, entropy: Any, first: int) -> Any:
        own = 0 if own is None else own
        return (labels[:, 0] + 20 * own + 61 * (first + np.arange(len(labels)))).astype(np.uint16)

    rows: Any = SimpleNamespace(
        start=start,
        labels=lambda: np.arange(11.0)[:, None],
        keys=lambda: keys_of(range(11)),
        strata=lambda strata: of if strata else None,
    )
    books: Any = SimpleNamespace(randomize=randomize, code_bytes=2)
    files = tmp_path / "keys", tmp_path / "codes"
    secrets: Any = SimpleNamespace(entropy=lambda: None)
    digests = row_ranges.Randomize(rows, books, block, submitted, strata, *files).run(secrets)
    keys = b"" if submitted else b"".join(map(key, range(11)))
    codes = b"".join(
        (n + 20 * (n % 3 if strata else 0) + 61 * (start + n)).to_bytes(2, "little")
        for n in range(11)
    )
    assert [path.read_bytes() for path in files] == [keys, codes]
    assert digests == [
        block_digest(keys[16 * a : 16 * a + 64], codes[2 * a : 2 * a + 8]) for a in (0, 4, 8)
    ]
