"""The released bytes do not depend on where and how they are computed."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.engine.local import InProcess, Pool
from labelveil.common.engine.task import EngineError, Secrets
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.knots import interpolation
from labelveil.label_party.events import open as opening
from labelveil.label_party.events.steps import Sizes
from labelveil.label_party.events.tasks import SubmittedRows
from labelveil.label_party.release.prior_knowledge import from_raw_labels
from labelveil.label_party.store.disk import clean, scratch
from tests.effort import one_in
from tests.engines import Dies
from tests.label_party import engines
from tests.label_party.conftest import Party
from tests.label_party.engines import JOIN, LEDGER, RELEASE_KEY, SMALL, Message, settings


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    engines.write_events(folder)
    return folder


@pytest.fixture(scope="module")
def expected(events: Path, tmp_path_factory: pytest.TempPathFactory) -> Message:
    return engines.in_memory(tmp_path_factory.mktemp("expected"), settings(events))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    one_in(3, [SMALL, Sizes(), Sizes(slice_rows=7_777, bucket_rows=11_111, part_rows=3 << 16)]),
    ids=["small", "usual", "odd"],
)
def test_one_process(events: Path, expected: Message, tmp_path: Path, sizes: Sizes) -> None:
    assert engines.with_engine(tmp_path, settings(events), InProcess(), sizes) == expected


@pytest.mark.slow
def test_four_workers(events: Path, expected: Message, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(4, mp_context=context) as executor:
        done = engines.with_engine(tmp_path, settings(events), Pool(executor, 4))
    assert done == expected


@pytest.mark.slow
@pytest.mark.parametrize("rule", one_in(3, ["missing", "last", "mean"]))
def test_duplicates(events: Path, tmp_path: Path, rule: str) -> None:
    chosen = settings(events, data__duplicates=rule)
    one = engines.in_memory(tmp_path / "one", chosen)
    assert engines.with_engine(tmp_path / "other", chosen, InProcess()) == one


@pytest.mark.slow
def test_users_beyond_their_limit(events: Path, tmp_path: Path) -> None:
    chosen = settings(
        events, privacy__unit="user", privacy__user="who", privacy__max_records_per_user=3
    )
    one = engines.in_memory(tmp_path / "one", chosen)
    assert one.tally.over_limit > 10_000
    assert engines.with_engine(tmp_path / "other", chosen, InProcess()) == one


@pytest.mark.slow
def test_the_labels_own_keys(events: Path, tmp_path: Path) -> None:
    chosen = settings(events, data__population="labels.parquet").model_copy()
    data = chosen.data.model_copy(update={"population": None})
    users = {"unit": "user", "user": "who", "max_records_per_user": 2}
    privacy = chosen.privacy.model_copy(update=users)
    chosen = chosen.model_copy(update={"data": data, "privacy": privacy})
    one = engines.in_memory(tmp_path / "one", chosen)
    assert engines.with_engine(tmp_path / "other", chosen, InProcess()) == one


@pytest.mark.slow
def test_one_day_of_a_stream_and_csv(events: Path, tmp_path: Path) -> None:
    pl.read_parquet(events / "labels.parquet").with_columns(
        pl.when(pl.col("id") % 3 == 0).then(pl.lit("2024-06-02")).otherwise(pl.lit("2024-06-03"))
        .alias("date")
    ).select("id", "date", "y").write_csv(tmp_path / "labels.csv")  # fmt: skip
    chosen = settings(
        events,
        data__labels=str(tmp_path / "labels.csv"),
        data__date="date",
        data__epoch="2024-06-02",
        data__population="submitted",
    )
    data = chosen.data.model_copy(update={"population": None})
    chosen = chosen.model_copy(update={"data": data})
    one = engines.in_memory(tmp_path / "one", chosen)
    assert 10_000 < one.tally.rows < 40_000
    assert engines.with_engine(tmp_path / "other", chosen, InProcess()) == one


@pytest.mark.slow
def test_a_submitted_population_keeps_its_order(events: Path, tmp_path: Path) -> None:
    keys = engines.in_memory(tmp_path / "keys", settings(events)).files["keys"]
    chosen = settings(events, data__population="submitted")
    listed = np.frombuffer(keys, dtype="S16").copy()
    np.random.default_rng(8).shuffle(listed)
    (tmp_path / "submitted.keys").write_bytes(listed.tobytes())
    one = engines.in_memory(tmp_path / "one", chosen, tmp_path / "submitted.keys")
    other = engines.with_engine(
        tmp_path / "other", chosen, InProcess(), submitted=tmp_path / "submitted.keys"
    )
    assert other == one
    assert not one.files["keys"]


def test_a_worker_that_dies_is_one_line() -> None:
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, mp_context=context) as executor,
        pytest.raises(EngineError, match=r"worker process died.*\[engine\] workers"),
    ):
        Pool(executor, 1).run([Dies()], Secrets(JOIN))


def test_neither_tasks_nor_reprs_hold_a_secret(events: Path, tmp_path: Path) -> None:
    seen = engines.Watching()
    engines.with_engine(tmp_path, settings(events), seen)
    assert seen.steps == 6  # exchange, complete, count, randomize; fingerprint, merge
    for secret in (JOIN, RELEASE_KEY, LEDGER):
        assert secret not in seen.pickled
    assert "100" not in repr(Secrets(JOIN, RELEASE_KEY))


@pytest.mark.slow
def test_nothing_is_left_of_the_work_but_the_release(events: Path, tmp_path: Path) -> None:
    engines.with_engine(tmp_path, settings(events), InProcess())
    left = {path.name.split("-")[0] for path in (tmp_path / "work").iterdir()}
    assert left == {"completed", "codebooks.json"}


@pytest.mark.slow
def test_release_with_workers_equals_one_without(party: Party) -> None:
    """From files to the store: what the command does, and what it leaves behind."""
    one = party.release(randomizer__name="randomized-response")
    assert one.code == 0
    done = party.release(randomizer__name="randomized-response", engine__workers=2, data__epoch="2")
    assert (done.code, done.err) == (0, one.err)
    assert _facts(one.out) == _facts(done.out)
    folders = [party.store / "releases" / "labels" / epoch for epoch in ("1", "2")]
    assert sorted(os.listdir(folders[0])) == sorted(os.listdir(folders[1]))
    keys = [(folder / "keys.bin").read_bytes() for folder in folders]
    assert keys[0] == keys[1]
    assert not list((party.store / "scratch").iterdir())


def _facts(text: str) -> list[str]:
    lines = text.splitlines()[1:5]  # below data set and epoch, above what noise decides
    assert "events" in lines[0]
    return lines


def test_a_refusal_with_workers_spends_and_leaves_nothing(party: Party) -> None:
    party.write_labels({"key": ["a", "b"], "amount": ["1", "secret"]})
    error = party.release(engine__workers=2).error
    assert "no column 'label'" in error
    assert "secret" not in error
    assert party.nothing_left()
    assert not list(party.store.glob("scratch/*"))


def test_any_later_release_removes_what_a_killed_one_left(party: Party) -> None:
    folder = party.store / "scratch" / "0123"
    folder.mkdir(parents=True)
    (folder / "labels-0").write_text("raw labels")
    folder.with_suffix(".lock").touch()
    assert party.release().code == 0
    assert not list((party.store / "scratch").iterdir())


def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "scratch"
    with scratch(root) as living:
        (root / "dead").mkdir()
        (root / "dead" / "labels-0").write_text("raw labels")
        (root / "dead.lock").touch()
        with scratch(root) as other:
            clean(root)
            assert {path.name for path in root.iterdir() if path.is_dir()} == {
                living.name,
                other.name,
            }
            assert living.stat().st_mode & 0o077 == 0
    assert not list(root.iterdir())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine__workers": 0}, "workers"),
        ({"engine__master": "local[2]"}, "master has no effect"),
        ({"engine__name": "spark", "engine__workers": 2}, "workers has no effect"),
    ],
)
def test_impossible_engines_are_one_line(party: Party, given: dict[str, Any], said: str) -> None:
    error = party.release(**given).error
    assert said in error
    assert "[engine]" in error or "engine.workers" in error


def test_rows_are_held_in_memory_where_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pl.DataFrame({"id": [1, 2, 3], "y": [1.0] * 3}).write_parquet(tmp_path / "labels.parquet")
    listed = tmp_path / "population.csv"
    listed.write_text("id\n1\n2\n3\n")
    (tmp_path / "unlike").mkdir()
    for name, kind in (("a", pl.Int64), ("b", pl.Int32)):
        numbers = pl.DataFrame({"id": [1]}, schema={"id": kind})
        numbers.write_parquet(tmp_path / "unlike" / f"{name}.parquet")
    monkeypatch.setattr(opening, "_IN_MEMORY_ROWS", 7)
    monkeypatch.setattr(opening, "_CSV_IN_MEMORY_BYTES", 9)

    def fits(submitted: int = 0, **changes: Any) -> bool:
        chosen = settings(tmp_path, **({"data__population": str(listed)} | changes))
        rows = SubmittedRows(listed, submitted) if submitted else None
        return opening._fits(chosen.data, chosen.engine, rows)

    assert fits()
    assert fits(4)
    assert not fits(5)
    assert not fits(engine__workers=2)
    assert not fits(engine__name="spark")
    assert not fits(data__population=str(tmp_path / "unlike"))
    assert fits(data__population=str(tmp_path / "none"))
    listed.write_text("id\n1\n2\n31\n")
    assert not fits()


def test_what_workers_lost_before_the_purchase_cost_nothing(
    events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*given: Any) -> None:
        raise EngineError("a worker is gone")

    (tmp_path / "join.key").write_text(JOIN.hex())
    (tmp_path / "join.key").chmod(0o600)
    monkeypatch.setattr(opening, "complete", lost)
    chosen = settings(events, keys__secret_file=tmp_path / "join.key")
    with (
        pytest.raises(EngineError, match=r"^a worker is gone; nothing was spent$"),
        opening.open_events(chosen, quiet=True),
    ):
        pass


@pytest.mark.slow
def test_who_looks_at_labels_reads_the_same_from_memory_and_in_parts(
    events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "join.key").write_text(JOIN.hex())
    (tmp_path / "join.key").chmod(0o600)
    changes = {"keys__secret_file": tmp_path / "join.key", "store__directory": tmp_path / "store"}
    chosen = settings(events, **changes)
    found, known = [], []
    for rows in (1 << 30, 1):
        monkeypatch.setattr(opening, "_IN_MEMORY_ROWS", rows)
        monkeypatch.setattr(opening, "Sizes", lambda: SMALL)
        with opening.open_events(chosen, quiet=True) as opened:
            parts = list(opened.keys_and_labels())
        found.append([np.concatenate(column) for column in zip(*parts, strict=True)])
        known.append(from_raw_labels(chosen))
    assert len(parts) > 1
    for whole, in_parts in zip(*found, strict=True):
        assert np.array_equal(whole, in_parts)
    assert known[0].rows == known[1].rows == found[0][1].size
    (one,), (other,) = (each.known for each in known)
    assert np.array_equal(one.values, other.values)
    assert np.array_equal(one.weights, other.weights)
    grid = Grid(np.linspace(0, 100, 11))
    clipped = np.clip(found[0][1][:, 0], 0, 100)
    expected = (interpolation(clipped, grid.points)).mean(axis=0)
    np.testing.assert_allclose(known[1].over(Group((0,), Cells((grid,)))), expected, rtol=1e-10)
    left = {path.name for path in (tmp_path / "store").rglob("*")}
    assert left <= {"releases", "scratch"}  # both empty, and no ledger
