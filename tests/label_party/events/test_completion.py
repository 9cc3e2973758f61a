"""Completing the population: one label for every event, in an order that ignores labels."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.engine.local import InProcess
from labelveil.common.engine.shuffle import Keys, count_repeated
from labelveil.common.errors import DataError
from labelveil.common.release.event_keys import hash_keys
from labelveil.label_party.events import completion, steps
from labelveil.label_party.events.completion import NOBODY, SEVERAL, Rules
from labelveil.label_party.events.epoch import Rows
from labelveil.label_party.events.steps import Events, Sizes, Sources, Table, Work
from labelveil.label_party.events.tally import Duplicates
from labelveil.label_party.events.tasks import Slice, SubmittedRows
from labelveil.label_party.sources.anomalies import NOTHING, Anomaly, anomaly
from labelveil.label_party.sources.tables import KEY, LABEL, PLACE, USER
from labelveil.label_party.store.fingerprints import fingerprint_hashed

SECRET = bytes(range(32))


def complete(
    labels: pl.DataFrame,
    listed: pl.DataFrame | Path | None,
    *,
    missing: float,
    duplicates: Duplicates = "missing",
    max_records_per_user: int | None = None,
    work: Work | None = None,
) -> Events:
    """Complete rows that were read; a path leads to keys that were submitted."""

    def table(frame: pl.DataFrame, *labels: str) -> Table:
        wanted = Rows(Path("read"), KEY, labels, USER if USER in frame.columns else None)
        slice_ = Slice(wanted, loaded=(frame, NOTHING))
        return Table((slice_,), frame.height, slice_.types)

    submitted: SubmittedRows | None = None
    if isinstance(listed, Path):
        submitted, listed = SubmittedRows(listed, listed.stat().st_size // 16), None
    named = None if listed is None else table(listed)
    sources = Sources(table(labels.with_row_index(PLACE, 1), LABEL), named, submitted)
    rules = Rules((missing,), ((-1e9, 1e9),), duplicates)
    work = Work.in_memory(SECRET) if work is None else work
    return steps.complete(sources, work, rules, max_records_per_user)


def labels_of(completed: Events) -> list[list[float]]:
    return np.concatenate([labels for _, labels in completed.keys_and_labels()]).tolist()


def keys_of(completed: Events) -> bytes:
    return b"".join(keys.tobytes() for keys, _ in completed.keys_and_labels())


def labels(pairs: list[tuple[str, float | None]], users: list[str] | None = None) -> pl.DataFrame:
    columns: dict[str, Any] = {"key": [k for k, _ in pairs], "label": [v for _, v in pairs]}
    if users is not None:
        columns["user"] = users
    return pl.DataFrame(columns, schema_overrides={"label": pl.Float64, "key": pl.String})


def population(keys: list[str]) -> pl.DataFrame:
    return pl.DataFrame({"key": keys}, schema_overrides={"key": pl.String})


def by_key(completed: Events, keys: list[str]) -> dict[str, float]:
    hashed = hash_keys(pl.Series(keys), SECRET)
    names = {hashed[i * 16 : i * 16 + 16]: key for i, key in enumerate(keys)}
    raw = keys_of(completed)
    rows = [names[raw[i * 16 : i * 16 + 16]] for i in range(completed.rows)]
    return dict(zip(rows, completed.labels(0).tolist(), strict=True))


def test_rows_are_ordered_by_hashed_key_whatever_the_labels_and_the_files_say() -> None:
    keys = [f"k{i}" for i in range(300)]
    generator = random.Random(5)
    given = labels([(key, 1.0) for key in keys])
    expected = keys_of(complete(given, population(keys), missing=0.0))
    hashed = [expected[i : i + 16] for i in range(0, len(expected), 16)]
    assert sorted(hashed) == hashed
    for _ in range(5):
        listed = generator.sample(keys, len(keys))
        some = [(key, generator.random()) for key in generator.sample(keys, 100)]
        done = complete(labels(some), population(listed), missing=0.0)
        assert keys_of(done) == expected


@pytest.mark.parametrize(
    ("rule", "value"), [("missing", 0.0), ("sum", 7.0), ("mean", 3.5), ("last", 5.0)]
)
def test_several_rows_become_one_label_by_the_rule(rule: Any, value: float) -> None:
    given = labels([("a", 2.0), ("b", 1.0), ("a", 5.0), ("a", None)])
    for listed in (population(["a", "b"]), None):
        done = complete(given, listed, missing=0.0, duplicates=rule)
        assert by_key(done, ["a", "b"]) == {"a": value, "b": 1.0}
        assert done.tally.merged == 1
        odd = [f"{SEVERAL}: 2 (at 3, 4)"] if rule == "missing" else []  # else it is as configured
        assert [str(one) for one in done.tally.odd] == odd


def test_a_population_with_repeated_events_is_refused() -> None:
    for names, said in (("aa", "1 row of the population repeats"), ("abaab", "3 rows .* repeat")):
        with pytest.raises(DataError, match=f"^{said} a key"):
            complete(labels([("a", 2.0)]), population([*names]), missing=0.0)


def test_events_beyond_a_users_limit_lose_their_labels_in_an_order_that_ignores_them(
    tmp_path: Path,
) -> None:
    """Wherever they are: one after another in memory, or in pieces of some three each."""
    keys = [f"k{i}" for i in range(60)]
    users = [f"u{i % 4}" for i in range(60)]

    def kept(values: list[float], work: Work | None = None) -> tuple[set[int], int]:
        given = labels(list(zip(keys, values, strict=True)), users)
        done = complete(given, None, missing=-1.0, max_records_per_user=5, work=work)
        found = np.concatenate([labels[:, 0] for _, labels in done.keys_and_labels()])
        return set(np.flatnonzero(found != -1.0).tolist()), done.tally.over_limit

    rows, over = kept([float(i) for i in range(60)])
    assert len(rows) == 20
    assert over == 40
    cut = Work(InProcess(), tmp_path, SECRET, Sizes(slice_rows=4, bucket_rows=3))
    assert kept([float(60 - i) for i in range(60)]) == (rows, over)
    assert kept([float(i) for i in range(60)], cut) == (rows, over)


@pytest.mark.parametrize("rule", ["missing", "sum", "mean", "last"])
def test_an_event_is_its_first_rows_users_and_nobody_elses_row_counts(rule: Any) -> None:
    """Else a user could change what is released of events that another one pays for."""

    def done(of_v: float | None) -> Events:
        given = labels([("a", 1.0), ("a", of_v), ("b", 4.0)], ["u", "v", "v"])
        limit = {"duplicates": rule, "max_records_per_user": 1}
        return complete(given, None, missing=0.0, **limit)

    for value in (2.0, None, 1e300):
        assert by_key(done(value), ["a", "b"]) == {"a": 1.0, "b": 4.0}
        assert [one.count for one in done(value).tally.odd] == [1]


def test_an_event_of_nobody_has_no_label_and_takes_no_place_of_anybodys() -> None:
    keys = [f"k{i}" for i in range(9)]
    users = [None, "", "u"] * 3
    given = labels([(key, 1.0) for key in keys]).with_columns(user=pl.Series(users))
    for listed in (None, given.select("key", "user")):
        done = complete(given, listed, missing=0.0, max_records_per_user=3)
        assert by_key(done, keys) == {
            k: float(u is not None) for k, u in zip(keys, users, strict=True)
        }
        assert done.tally.over_limit == 3


def raw_keys(*values: bytes) -> Keys:
    return np.frombuffer(b"".join(values), dtype="S16")


@pytest.mark.parametrize("at_once", [1, 3, 1 << 24])
def test_repeated_keys_are_counted_whatever_their_bytes(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labelveil.common.engine.shuffle._SORTED_AT_ONCE", at_once)
    generator = random.Random(3)
    # few different halves, zeros at the end among them, so that many first halves are alike
    halves = [bytes(8), b"\0" * 7 + b"\1", b"\1" + b"\0" * 7, *map(generator.randbytes, [8] * 9)]
    for _ in range(50):
        rows = generator.randrange(1, 60)
        drawn = [generator.choice(halves) + generator.choice(halves) for _ in range(rows)]
        assert count_repeated(raw_keys(*drawn)) == rows - len(set(drawn))


@pytest.mark.parametrize("bucket_rows", [None, 1, 3, 4])
def test_a_submitted_population_keeps_its_order(tmp_path: Path, bucket_rows: int | None) -> None:
    """In memory, and on disk in ranges of some rows."""
    names = ["d", "nobody", "a", "c"]
    hashed = hash_keys(pl.Series(names), SECRET)
    (tmp_path / "keys").write_bytes(hashed)
    given = labels([("a", 1.0), ("b", 2.0), ("c", None), ("d", 4.0)])
    work = None
    if bucket_rows is not None:
        work = Work(InProcess(), tmp_path, SECRET, Sizes(bucket_rows=bucket_rows))
    done = complete(given, tmp_path / "keys", missing=-1.0, work=work)
    assert done.submitted
    assert keys_of(done) == hashed
    known = fingerprint_hashed(raw_keys(hashed), bytes(32))
    assert np.concatenate([*done.fingerprints(bytes(32))]).tolist() == sorted(known.tolist())
    assert labels_of(done) == [[4.0], [-1.0], [1.0], [-1.0]]
    assert (done.tally.rows, done.tally.labels[0].unlabelled, done.tally.left_out) == (4, 2, 1)
    by_file = complete(given, population(names), missing=-1.0)
    assert not by_file.submitted
    assert by_key(by_file, names) == dict(zip(names, done.labels(0).tolist(), strict=True))


def test_what_is_odd_about_either_source_is_counted_whole() -> None:
    """What was found when it was copied, and in each of its slices; no row of it is lost."""
    keys = [f"k{n}" for n in range(6)]
    rows = labels([(key, 1.0) for key in keys]).with_row_index(PLACE, 1)

    def table(frame: pl.DataFrame, first: int, *labels: str) -> Table:
        wanted = Rows(Path("read"), KEY, labels)
        halves = [frame[:3], frame[3:]]
        slices = [
            Slice(wanted, loaded=(half, anomaly("label", "odd", (first + n,), 1)))
            for n, half in enumerate(halves)
        ]
        copied = anomaly("label", "odd", (first + 2,), 1) + anomaly("day", "no date", (first,), 1)
        return Table(tuple(slices), frame.height, slices[0].types, copied)

    sources = Sources(table(rows, 10, LABEL), table(population(keys), 20), None)
    rules = Rules((0.0,), ((-1e9, 1e9),), "missing")
    tally = steps.complete(sources, Work.in_memory(SECRET), rules, None).tally
    for first, found in ((10, tally.odd), (20, tally.odd_population)):
        assert [*found] == [
            Anomaly("day", "no date", 1, (first,)),
            Anomaly("label", "odd", 3, (first, first + 1, first + 2)),
        ]
    assert (tally.rows, tally.label_rows) == (6, 6)


def test_keys_are_hashed_slice_by_slice_each_to_its_own_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys, secret = pl.Series([*map(str, range(43)), None, "last"]), bytes(range(32))
    each = [
        NOBODY if key is None else hash_keys(pl.Series([key]), secret).rstrip(b"\0") for key in keys
    ]  # NumPy leaves zeros at the end out
    for rows in (1, 7, 43, 44, 1 << 16):
        monkeypatch.setattr(completion, "_SLICE", rows)
        assert completion.hash_column(keys, secret).tolist() == each
