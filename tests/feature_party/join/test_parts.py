"""The parts of a join: what its tasks read and write, what its counts say, what identifies it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelveil.common.engine.shuffle import Exchange, Files
from labelveil.common.engine.task import EngineError, Secrets
from labelveil.common.errors import DataError, ReleaseError
from labelveil.common.formats import JOIN
from labelveil.common.release.event_keys import hash_keys
from labelveil.common.release.table import write_release
from labelveil.feature_party.join import on_disk
from labelveil.feature_party.join.key_secrets import released_keys, spelling_that_matches
from labelveil.feature_party.join.matches import JoinInputs, MatchCounts, Party
from labelveil.feature_party.join.on_disk import JoinSizes, join_content, join_to_shards
from labelveil.feature_party.join.shards import JoinedShards
from labelveil.feature_party.join.tasks import (
    CODE,
    CODES_OF_ROWS,
    KEYED_CODES,
    ROW,
    ROWS_OF_KEYS,
    DiskFull,
    Match,
    Once,
    WriteShard,
    slices_of,
    with_source,
)
from labelveil.feature_party.schema import Stated
from labelveil.feature_party.tables import SOURCE
from tests.feature_party.worlds import SECRET, World, four_codes

RIGHT = ", and how keys are written; the key secret is the right one"
WRONG = ", and that secret_file is the one that both parties use"
OLD = (
    "; the key secret is the right one",
    ", and whether keys were hashed with another secret then: name its file in [keys]"
    " old_secret_files",
)


def test_counts_are_added_up_by_labels_party_and_epochs_without_a_match_named() -> None:
    given = ([10, 20, 30], [0, 5, 7], ["a", "b", "a"], ["e1", "e2", "e3"])
    found = MatchCounts.by_release(50, *given, True)
    assert found == MatchCounts(60, 50, 12, (("a", 40, 7), ("b", 20, 5)), ("e1",))
    assert found.right_secrets
    assert found.for_source("b") == MatchCounts(20, 50, 5)
    assert found.for_source("a") == MatchCounts(40, 50, 7)
    alone = MatchCounts.by_release(50, [10, 20], [4, 5], ["", ""], ["e1", "e2"], False)
    assert alone == MatchCounts(30, 50, 9)
    assert not alone.right_secrets
    assert not MatchCounts(1, 1, 1).right_secrets  # nobody has said so


@pytest.mark.parametrize(("right", "said"), [(True, RIGHT), (False, WRONG)])
def test_poor_matches_are_said_from_the_share_on_that_is_asked_for(right: bool, said: str) -> None:
    counts = MatchCounts(2000, 1000, 900, right_secrets=right)
    assert counts.poor(0.45) is None  # 45 % of the release, 90 % of the features
    assert counts.poor(0.4501) == (
        "only 900 events match: 90.0% of the 1,000 in the features and 45.0% of the 2,000 in the"
        f" release; check key column and epoch{said}"
    )
    swapped = MatchCounts(1000, 2000, 900, right_secrets=right)
    assert swapped.poor(0.45) is None
    assert (swapped.poor(0.4501) or "").startswith("only 900 events match: 45.0% of the 2,000 in")
    parties = MatchCounts(2000, 1000, 900, (("a", 1500, 750), ("b", 500, 150)), (), right)
    assert parties.poor(0.3) is None
    assert parties.poor(0.31) == (
        f"only 150 of the 500 events of 'b' are in the features; check key column and epoch{said}"
    )
    parties.check()
    with pytest.raises(DataError) as caught:
        replace(parties, parties=(("a", 1500, 900), ("b", 500, 0))).check()
    assert str(caught.value) == (
        "none of the 500 events of 'b' are in the features; check the key column and its epoch"
        + said
    )


@pytest.mark.parametrize("right", [True, False])
def test_epochs_of_which_nothing_matches_are_named(right: bool) -> None:
    counts = MatchCounts(10, 10, 10, (), ("e1",), right)
    assert counts.poor(0.5) == (
        "no event of epoch 'e1' is in the features; check [labels_party] epochs" + OLD[not right]
    )
    assert (replace(counts, unmatched=("e1", "e2")).poor(0.5) or "").startswith(
        "no event of epochs 'e1', 'e2' is in the features"
    )
    assert counts.poor(0.0) is None  # most events are still to be asked about
    assert str(counts) == "10 events match, of 10 in the features and 10 in the release"


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 12))
def test_slices_are_all_rows_in_their_order(counts: list[int], rows: int) -> None:
    files = [(Path(str(number)), count) for number, count in enumerate(counts)]
    slices = slices_of(files, rows, "id")
    every = [(path, row) for path, count in files for row in range(count)]
    cut = [every[at : at + rows] for at in range(0, len(every), rows)]
    found = [
        [(path, row) for path, first, last in part.pieces for row in range(first, last)]
        for part in slices
    ]
    assert found == cut
    assert all(first < last for part in slices for _, first, last in part.pieces)
    assert [(part.start, part.stop) for part in slices] == [
        (at, min(at + rows, len(every))) for at in range(0, len(every), rows)
    ]
    assert {part.key for part in slices} <= {"id"}


def exchange(folder: Path, name: str, count: int, buckets: int, types: dict[str, str]) -> Exchange:
    return Exchange(Files(folder / name, count), buckets, types, durable=False)


def keys_of(*names: int) -> np.ndarray[Any, Any]:
    raw = b"".join(name.to_bytes(16, "big") for name in names)
    return np.frombuffer(raw, dtype=ROWS_OF_KEYS["key"])


def matching(
    folder: Path, ours: dict[int, int], theirs: list[dict[int, int]], offsets: tuple[int, ...]
) -> tuple[int, Exchange]:
    """Match rows by key, given as numbers: ours with their row, theirs with their code."""
    mine = exchange(folder, "ours", 1, 1, ROWS_OF_KEYS)
    zeros = np.zeros(len(ours), dtype=np.int64)
    mine.send(0, zeros, {"key": keys_of(*ours), "row": np.array([*ours.values()])})
    sent = []
    for number, labels in enumerate(theirs):
        sent.append(exchange(folder, f"theirs-{number}", 1, 1, KEYED_CODES))
        columns = {"key": keys_of(*labels), "code": np.array([*labels.values()], dtype=np.uint16)}
        sent[-1].send(0, np.zeros(len(labels), dtype=np.int64), columns)
    matched = exchange(folder, "matched", 1, 3, CODES_OF_ROWS)
    task = Match(0, mine, tuple(sent), offsets, matched, 0, slice_rows=10)
    return task.run(Secrets(b"")), matched


def test_codes_go_back_to_the_slices_of_their_rows(tmp_path: Path) -> None:
    ours = {7: 25, 3: 0, 9: 12, 4: 9}
    theirs: list[dict[int, int]] = [{9: 1, 3: 2, 8: 0}, {}, {7: 0, 3: 1}]  # one has none of them
    repeated, matched = matching(tmp_path, ours, theirs, (0, 2, 3))
    assert repeated == 0
    found = [
        sorted(zip(part["row"].tolist(), part["code"].tolist(), strict=True))
        for part in map(matched.receive, range(3))
    ]
    assert found == [[(0, 2), (0, 4)], [(12, 1)], [(25, 3)]]


def test_an_event_that_a_release_names_twice_is_refused(tmp_path: Path) -> None:
    sent = exchange(tmp_path, "theirs", 1, 1, KEYED_CODES)
    twice = {"key": keys_of(5, 6, 5), "code": np.zeros(3, dtype=np.uint16)}
    sent.send(0, np.zeros(3, dtype=np.int64), twice)
    mine = exchange(tmp_path, "ours", 1, 1, ROWS_OF_KEYS)
    mine.send(0, np.zeros(1, dtype=np.int64), {"key": keys_of(5), "row": np.zeros(1, np.int64)})
    matched = exchange(tmp_path, "matched", 1, 1, CODES_OF_ROWS)
    task = Match(0, mine, (sent,), (0,), matched, 0, 10)
    with pytest.raises(ReleaseError, match="names an event twice; fetch again"):
        task.run(Secrets(b""))
    again = exchange(tmp_path, "again", 1, 1, ROWS_OF_KEYS)
    rows = {"key": keys_of(5, 6, 5, 5), "row": np.arange(4)}
    again.send(0, np.zeros(4, dtype=np.int64), rows)
    assert Match(0, again, (sent,), (0,), matched, 0, 10).run(Secrets(b"")) == 2


def test_a_shard_has_its_events_in_the_features_order_with_whose_labels_they_are(
    tmp_path: Path,
) -> None:
    table = pl.DataFrame({"id": [f"e{i}" for i in range(6)], "x": range(6)})
    table.write_parquet(tmp_path / "t.parquet")
    _, part = slices_of([(tmp_path / "t.parquet", 6)], 3, "id")
    matched = exchange(tmp_path, "matched", 1, 2, CODES_OF_ROWS)
    rows, codes = np.array([5, 3, 5, 3]), np.array([4, 5, 0, 2], dtype=np.uint32)
    matched.send(0, np.ones(4, dtype=np.int64), {"row": rows, "code": codes})
    out = tmp_path / "shard.parquet"
    task = WriteShard(part, 1, matched, (0, 3), ("a", "b"), out)
    assert task.run(Secrets(b"")) == {"events": 2, "labels": [2, 2]}
    assert pl.read_parquet(out).to_dicts() == [
        {"id": "e3", "x": 3, SOURCE: "a", ROW: 3, CODE: 2},
        {"id": "e3", "x": 3, SOURCE: "b", ROW: 3, CODE: 5},
        {"id": "e5", "x": 5, SOURCE: "a", ROW: 5, CODE: 0},
        {"id": "e5", "x": 5, SOURCE: "b", ROW: 5, CODE: 4},
    ]


def test_whose_a_label_is_follows_from_its_code() -> None:
    table, codes = pl.DataFrame({"x": range(5)}), np.array([0, 2, 3, 4, 9])
    found = with_source(table, codes, (0, 3, 4), ("a", "b", "a"))
    assert found[SOURCE].to_list() == ["a", "a", "b", "a", "a"]
    assert with_source(table, codes, (0, 3, 4), ("a", "a", "a")) is table


@dataclass(frozen=True)
class Noted:
    """A task that counts, or fails."""

    path: Path
    fails: int = 0

    def run(self, secrets: Secrets) -> int:
        if self.fails:
            raise OSError(self.fails, os.strerror(self.fails))
        before = int(self.path.read_text()) if self.path.exists() else 0
        self.path.write_text(str(before + 1))
        return before + 1


def test_a_task_is_done_once(tmp_path: Path) -> None:
    once = Once(Noted(tmp_path / "count"), tmp_path / "done")
    assert [once.run(Secrets(b"")) for _ in range(3)] == [1, 1, 1]
    assert json.loads((tmp_path / "done").read_text()) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES])
def test_a_full_disk_is_told_from_other_errors(tmp_path: Path, number: int) -> None:
    once = Once(Noted(tmp_path / "count", number), tmp_path / "done")
    if number == errno.EACCES:
        with pytest.raises(PermissionError):
            once.run(Secrets(b""))
        return
    with pytest.raises(DiskFull) as caught:
        once.run(Secrets(b""))
    said = f"{tmp_path} cannot be written: {os.strerror(number)}; free some space and join again"
    assert str(caught.value).startswith(said)
    kind, arguments = caught.value.__reduce__()  # it crosses processes
    assert str(kind(*arguments)) == str(caught.value)


@pytest.mark.parametrize(
    ("columns", "rows"), [(1, 1 << 19), (16, 1 << 19), (17, 493_447), (8192, 1024), (20_000, 1024)]
)
def test_wide_tables_have_smaller_slices(columns: int, rows: int) -> None:
    assert JoinSizes.suiting(columns) == JoinSizes(rows, 1 << 19)


def inputs_of(world: World, **changes: Any) -> JoinInputs:
    values = {
        "releases": (world.directory,),
        "features": world.features,
        "key": "event",
        "parties": (Party(SECRET, "a"),),
    }
    return JoinInputs(**(values | changes))


def test_a_join_is_identified_by_all_that_it_is_made_of(world: World, tmp_path: Path) -> None:
    sizes = JoinSizes(256, 300)
    two = {"releases": (world.directory,) * 2, "parties": (Party(SECRET, "a"),) * 2}
    copy = tmp_path / "features.parquet"
    copy.write_bytes(world.features.read_bytes())
    made = [
        inputs_of(world),
        inputs_of(world, key="x"),
        inputs_of(world, parties=(Party(bytes(32), "a"),)),
        inputs_of(world, features=copy),
        inputs_of(world, stated=Stated.from_settings({}, ignored=["x"])),
        inputs_of(world, **two),
        inputs_of(world, **{**two, "parties": (Party(SECRET, "a"), Party(SECRET, "b"))}),
        inputs_of(world, **{**two, "parties": (Party(SECRET, "b"), Party(SECRET, "a"))}),
        inputs_of(world, **{**two, "parties": (Party(SECRET, "a"), Party(bytes(32), "a"))}),
    ]
    found = [join_content(each, sizes) for each in made]
    found.append(join_content(made[0], replace(sizes, slice_rows=255)))
    os.utime(copy, ns=(1, 1))
    found.append(join_content(made[3], sizes))
    assert len(set(found)) == len(found)
    # what comes out does not depend on how many rows are matched at a time, nor on a party's name
    assert join_content(made[0], replace(sizes, bucket_rows=1)) == found[0]
    assert join_content(inputs_of(world, parties=(Party(SECRET),)), sizes) == found[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "buckets"), [(1500, 2), (3000, 1), (2999, 2), (100, 30), (1 << 20, 1)]
)
def test_keys_of_both_sides_go_into_as_few_ranges_as_hold_them(
    world: World, tmp_path: Path, rows: int, buckets: int
) -> None:
    steps: dict[str, list[tuple[int, int]]] = {}

    def note(step: str, done: int, total: int) -> None:
        steps.setdefault(step, []).append((done, total))

    sizes = JoinSizes(700, rows)
    joined = join_to_shards(inputs_of(world), tmp_path / "out", sizes=sizes, progress=note)
    assert joined.matches == MatchCounts(1500, 1500, 1500)
    totals = {step: seen[-1] for step, seen in steps.items()}
    assert totals == {
        "look at columns": (1, 1), "hash keys": (3, 3), "read labels": (3, 3),
        "match": (buckets, buckets), "write shards": (3, 3),
    }  # fmt: skip
    for step, seen in steps.items():
        assert [done for done, _ in seen] == [*range(totals[step][1] + 1)]
    assert joined.matches.right_secrets
    assert [path.name for path in joined.shards] == [f"shard-0000{i}.parquet" for i in range(3)]
    assert sum(joined.events) == joined.rows == 1500


def test_shards_are_opened_as_they_were_written_and_no_others(world: World, tmp_path: Path) -> None:
    out, sizes = tmp_path / "out", JoinSizes(700, 3000)
    joined = join_to_shards(inputs_of(world), out, sizes=sizes)
    content = join_content(inputs_of(world), sizes)
    again = JoinedShards.open(out, content)
    assert again == joined
    assert JoinedShards.open(out, "other") is None
    assert JoinedShards.open(tmp_path, content) is None
    path = out / "join.json"
    facts = json.loads(path.read_bytes())
    assert facts.keys() == {"format", "software", *(f.name for f in fields(joined))} - {"directory"}
    oldest = JOIN.oldest - 1
    for format_ in (None, "labelveil-join/0", f"labelveil-join/{oldest}", "other/1"):
        path.write_text(json.dumps(facts | {"format": format_}))
        assert JoinedShards.open(out, content) is None  # it is made again
    path.write_text(json.dumps(facts | {"format": "labelveil-join/99"}))
    with pytest.raises(DataError, match=r"set \[join\] directory to another folder, or update"):
        JoinedShards.open(out, content)
    for text in ("[]", "{", json.dumps({**facts, "events": "many"})):
        path.write_text(text)
        with pytest.raises(DataError, match=r"is damaged; remove .* and join again"):
            JoinedShards.open(out, content)


def test_a_shard_of_other_rows_is_refused(world: World, tmp_path: Path) -> None:
    joined = join_to_shards(inputs_of(world), tmp_path / "out", sizes=JoinSizes(700, 3000))
    assert joined.columns == ["event", "x", "income", "shop"]
    rows = [part.height for part in joined.tables([CODE])]
    assert rows == [700, 700, 100]
    first = joined.read(0, [CODE, ROW])
    assert first.columns == [CODE, ROW]
    shard = pl.read_parquet(joined.shards[1])
    for rows_there in (699, 701):
        pl.concat([shard, shard]).head(rows_there).write_parquet(joined.shards[1])
        with pytest.raises(DataError, match=f"holds {rows_there} rows, not 700; remove"):
            joined.read(1, [CODE])
    joined.shards[2].unlink()
    with pytest.raises(DataError, match="is missing or damaged; remove"):
        joined.read(2, [CODE])


def with_keys(world: World, spell: Callable[[pl.Expr], pl.Expr], folder: Path) -> Path:
    path = folder / "spelled.parquet"
    pl.read_parquet(world.features).with_columns(event=spell(pl.col("event"))).write_parquet(path)
    return path


@pytest.mark.parametrize(
    ("spell", "said"),
    [
        (lambda key: " " + key + "\n", "without white space around them"),
        (lambda key: key.str.to_uppercase(), "in lower case"),
        (lambda key: "00" + key, "without zeros in front"),
        (lambda key: key + ".00", "without decimals"),
        (lambda key: key + ".05", ""),
        (lambda key: key + "?", ""),
    ],
)
def test_the_spelling_that_would_match_is_found(
    world: World, tmp_path: Path, spell: Callable[[pl.Expr], pl.Expr], said: str
) -> None:
    features = with_keys(world, spell, tmp_path)
    found = spelling_that_matches(features, "event", world.directory, SECRET)
    of_first = f"; written {said}, 1,000 of the first 1,000 are among them"
    assert found == (of_first if said else "")
    with pytest.raises(DataError) as caught:
        join_to_shards(inputs_of(world, features=features), tmp_path / "out")
    assert str(caught.value) == (
        "none of the 1,500 events in the features is among the 1,500 in the release; check the key"
        f" column 'event', the epoch{RIGHT}{found}"
    )


def test_keys_of_a_release_are_read_in_parts(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labelveil.feature_party.join.key_secrets._COMPARED", 400)
    parts = list(released_keys(world.directory))
    assert [part.len() for part in parts] == [400, 400, 400, 300]
    assert b"".join(pl.concat(parts).to_list()) == world.keys
    assert hash_keys(pl.Series(["e0"]), SECRET) in pl.concat(parts).to_list()


@pytest.mark.parametrize(("outputs", "said"), [(4, "none of the 1,500 events"), (3, "code 3 is")])
def test_a_code_that_is_no_output_is_refused(
    world: World, tmp_path: Path, outputs: int, said: str
) -> None:
    manifest, keys, codes = four_codes(outputs)
    write_release(tmp_path / "release", manifest.to_bytes(), keys, codes)
    with pytest.raises((DataError, ReleaseError), match=said):
        join_to_shards(inputs_of(world, releases=(tmp_path / "release",)), tmp_path / "out")


def fails_within(work: Path, error: Exception) -> None:
    with on_disk._working(work, "content"):
        assert (work / "shards").is_dir()
        (work / "shards" / "one").touch()
        raise error


def test_an_engine_that_fails_leaves_its_work_and_a_refusal_nothing(tmp_path: Path) -> None:
    work = tmp_path / ".out.work"
    for error, kept in ((EngineError("lost"), True), (DataError("no"), False)):
        with pytest.raises(type(error)):
            fails_within(work, error)
        assert work.exists() == kept
    with on_disk._working(work, "content"):
        (work / "shards" / "one").touch()
        (work / "file").touch()
    with on_disk._working(work, "content"):  # of the same it goes on
        assert (work / "shards" / "one").exists()
    with on_disk._working(work, "other"):
        assert not (work / "file").exists()
        assert not list((work / "shards").iterdir())
        assert (work / "content").read_text() == "other"


@settings(max_examples=30)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 99), st.integers(1, 30))
def test_blocks_of_rows_are_whole(sizes: list[int], first: int, count: int) -> None:
    """Rows of a part lie in the blocks that are read for it, and no others are."""
    block, total = sizes[0], sum(sizes) * 7
    start, stop = min(first, total - 1), min(first + count, total)
    if start >= stop:
        return
    blocks = tuple(str(number) for number in range(-(-total // block)))
    content = type("Content", (), {"block_rows": block, "blocks": blocks, "code_bytes": 1})
    manifest: Any = type(
        "Manifest",
        (),
        {
            "content": content,
            "population": type("Population", (), {"rows": total}),
            "codebooks": type("Books", (), {"outputs": 4}),
        },
    )
    plain = on_disk.open_rows
    on_disk.open_rows = lambda *_: None  # type: ignore[assignment, misc]
    try:
        found = on_disk._blocks(Path(), manifest, None, start, stop)
    finally:
        on_disk.open_rows = plain  # type: ignore[misc]
    edges = [*range(0, total, block), total]
    inside = [(a, b) for a, b in pairwise(edges) if a < stop and b > start]
    assert (found.start, found.stop) == (inside[0][0], inside[-1][1])
    assert found.blocks == tuple(str(a // block) for a, _ in inside)
    assert (found.block_rows, found.code_bytes, found.outputs) == (block, 1, 4)
