"""Training rows in shards: the same network as from memory, whatever the files are read by."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from labelveil.common.errors import ConfigError, DataError
from labelveil.feature_party import tables as streaming
from labelveil.feature_party.commands.cli import app
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.join import on_disk as external_join
from labelveil.feature_party.join.matches import JoinInputs, Party
from labelveil.feature_party.learning.objectives import PointObjective, build_objective
from labelveil.feature_party.model.encoding import Encoded, Encoder
from labelveil.feature_party.model.facts import FitSettings
from labelveil.feature_party.model.network import NetworkShape
from labelveil.feature_party.pipeline.stages import Stages
from labelveil.feature_party.schema import Stated
from labelveil.feature_party.training import encoded_shards as shards
from labelveil.feature_party.training import fitting
from labelveil.feature_party.training import prepare as prepare_module
from labelveil.feature_party.training.batches import MemoryParts, Rows
from labelveil.feature_party.training.encoded_shards import RowStream, Shards, fit_encoder
from labelveil.feature_party.training.events import TrainingSetup
from labelveil.feature_party.training.fitting import Fitter
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.prepare import Preparation
from labelveil.feature_party.training.streamed import PreparedShards
from tests.feature_party.learn import prepare, train
from tests.feature_party.worlds import SECRET, World, build_world

CPU = torch.device("cpu")


def config(world: World, folder: Path, **training: object) -> FeaturePartyConfig:
    settings = {"ensemble": 4, "epochs": 3, "hidden": [8], "head": "gaussian", **training}
    return FeaturePartyConfig.model_validate(
        {
            "data": {"key": "event", "features": world.features},
            "keys": {"secret_file": world.secret_file},
            "release": {"directory": world.directory},
            "training": settings,
            "output": {
                "model": folder / "model",
                "metrics": folder / "metrics.json",
                "report": folder / "report.html",
                "predictions": folder / "predictions.parquet",
            },
            "join": {"directory": folder / "joined", "shard_rows": 256},
        }
    )


class CutParts(MemoryParts):
    """Rows in memory in several parts."""

    def __init__(self, inputs: Encoded, targets: torch.Tensor, sizes: tuple[int, ...]) -> None:
        super().__init__(inputs, targets, CPU)
        self.sizes = sizes

    def part(self, index: int) -> Rows:
        start = sum(self.sizes[:index])
        return self.rows.take(torch.arange(start, start + self.sizes[index]))


@pytest.mark.slow
def test_shards_train_what_memory_trains(world: World, tmp_path: Path) -> None:
    """Parts of the same rows and sizes, from disk and from memory: the same fit."""
    settings = config(world, tmp_path, shards=str(tmp_path / "shards"), shard_rows=200)
    streamed = train(prepare(world.directory, world.features, settings), settings)
    manifest = json.loads((tmp_path / "shards" / shards.ENCODED_MANIFEST).read_text())
    found = Shards.open(tmp_path / "shards", manifest["content"])
    assert found is not None
    assert len(found.sizes) == 6
    assert sum(found.sizes) == 1200

    parts = [found.read(part) for part in range(6)]
    together = Encoded(
        np.concatenate([rows.numeric for rows, _ in parts]),
        np.concatenate([rows.categories for rows, _ in parts]),
    )
    objective = build_objective("likelihood", streamed.problem, streamed.support, "gaussian")
    targets = objective.targets(np.concatenate([codes for _, codes in parts]))
    memory = CutParts(together, targets, found.sizes)
    shape = NetworkShape(
        found.encoder.inputs, found.encoder.cardinalities, (8,), objective.outputs, 4
    )
    (fit,) = Fitter(objective, memory, shape, streamed.facts.settings, CPU).run()
    for name, value in fit.learned.state_dict().items():
        torch.testing.assert_close(
            streamed.experts[0].learned.state_dict()[name], value, atol=1e-5, rtol=0
        )
    history = [[r.training, r.validation] for r in fit.history]
    wanted = [[r.train_loss, r.validation_loss] for r in streamed.facts.history]
    np.testing.assert_allclose(history, wanted, atol=1e-5)
    # one part is another order: the test would see if the parts' sizes did not matter
    whole = MemoryParts(together, targets, CPU)
    (other,) = Fitter(objective, whole, shape, streamed.facts.settings, CPU).run()
    assert abs(other.history[-1].training - fit.history[-1].training) > 1e-5


def test_training_keeps_the_weights_of_the_best_of_three_epochs_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of losses that are given, averaged over an epoch and the two before it; and training ends
    where it cannot come below what there is already."""
    losses = [9.0, 3.0, 3.0, 7.0, 2.0, 3.0, 8.0, 8.0, 0.0]  # the sixth is as good as the fifth
    honest = Fitter._out_of_fold

    def numbered(self: Fitter, epoch: int, *given: object) -> None:
        for weights in self.network.parameters():
            weights.data.fill_(epoch)

    def given(self: Fitter, points: bool = False) -> object:
        return honest(self, points) if points else [honest(self)[0]._replace(losses=loss(self))]

    def loss(self: Fitter) -> torch.Tensor:
        return torch.tensor([losses[len(self.history)]])

    monkeypatch.setattr(Fitter, "_train_part", numbered)
    monkeypatch.setattr(Fitter, "_out_of_fold", given)
    objective = PointObjective("raw", "squared", np.zeros(0), 0.0, 1.0, 0.0, 1.0)
    numbers = np.random.default_rng(1).normal(size=(40, 2)).astype(np.float32)
    inputs = Encoded(numbers, np.zeros((40, 0), np.int32))
    parts = CutParts(inputs, torch.zeros(40), (24, 16))
    settings = FitSettings(2, 9, 8, 0.1, "adamw", 0.0, (3,), 0.0, 0.25, 3, 1)
    shape = NetworkShape(2, (), (3,), 1, 2)
    (fit,) = Fitter(objective, parts, shape, settings, CPU).run()
    assert [record.best for record in fit.history] == [True] * 5 + [False] * 3
    kept = {each for weights in fit.learned.parameters() for each in weights.flatten().tolist()}
    assert kept == {4.0}
    # of each part a quarter is left out by each of two networks
    left_out = np.sort(fit.rows)
    assert left_out.size == 20
    assert (np.diff(left_out) > 0).all()
    assert np.sum(left_out < 24) == 12
    assert left_out[-1] < 40
    losses[:] = [3.0 - 0.01 * epoch for epoch in range(9)]
    ends = {}
    for beat in (2.0, 2.95):
        (fit,) = Fitter(objective, parts, shape, settings, CPU, beat=beat).run()
        ends[beat] = len(fit.history), fit.history[-1].ended
    assert ends == {2.0: (4, "behind what is trained already"), 2.95: (9, "")}


def test_shards_hold_every_training_row_once_with_its_code(world: World, tmp_path: Path) -> None:
    settings = config(world, tmp_path, shards=str(tmp_path / "shards"), shard_rows=200, epochs=1)
    data = prepare(world.directory, world.features, settings)
    train(data, settings)
    memory = prepare(world.directory, world.features, config(world, tmp_path, shards="never"))
    assert isinstance(data, PreparedShards)
    assert isinstance(memory, Prepared)
    assert np.array_equal(memory.holdout, data.holdout)
    assert np.array_equal(memory.problem.prior, data.problem.prior)  # codes told it, too
    assert np.array_equal(memory.trained(100, 900), data.trained(100, 900))
    assert data.held_out()[0].equals(memory.held_out()[0])
    assert np.array_equal(data.held_out()[1], memory.held_out()[1])
    assert data.keys().equals(memory.keys())
    assert np.array_equal(data.all_codes(), memory.all_codes())
    manifest = json.loads((tmp_path / "shards" / shards.ENCODED_MANIFEST).read_text())
    found = Shards.open(tmp_path / "shards", manifest["content"])
    assert found is not None
    rows = memory.table[memory.training]
    fitted = Encoder.fit(
        rows, stated=Stated(ignored=("event",)), pieces=len(found.encoder.numeric[0].edges) - 1
    )
    assert found.encoder == fitted
    encoded = fitted.encode(rows)
    wanted = np.column_stack([encoded.numeric, encoded.categories, memory.codes[memory.training]])
    parts = [found.read(part) for part in range(len(found.sizes))]
    stored = np.concatenate(
        [np.column_stack([part.numeric, part.categories, codes]) for part, codes in parts]
    )
    assert np.array_equal(_sorted(stored), _sorted(wanted))
    assert not np.array_equal(stored, wanted)  # scattered, not cut


def _sorted(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort(rows.T)]


@pytest.mark.slow
def test_stages_train_score_and_predict_from_shards(world: World, tmp_path: Path) -> None:
    errors = {}
    for name, training in (
        ("memory", {"shards": "never"}),
        ("shards", {"shards": str(tmp_path / "rows"), "shard_rows": 300}),
    ):
        stages = Stages(config(world, tmp_path / name, epochs=8, **training), quiet=True)
        stages.train()
        (scores,) = stages.evaluate(stages.load()).values()
        assert stages.predict(stages.load()).rows == 1500
        errors[name] = scores.explained.loss.value
        assert scores.points.size == 300
    assert errors["shards"] == pytest.approx(errors["memory"], abs=0.15)


def test_auto_streams_what_is_too_large_and_removes_its_shards(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(world, tmp_path, epochs=1)
    assert isinstance(prepare(world.directory, world.features, settings), Prepared)
    monkeypatch.setattr(streaming, "_BYTES_A_VALUE", 1 << 40)
    assert isinstance(prepare(world.directory, world.features, settings), PreparedShards)
    written: list[str] = []
    plain = shards.write_shards
    monkeypatch.setattr(
        "labelveil.feature_party.training.streamed.write_shards",
        lambda folder, *rest: (written.append(folder.name), plain(folder, *rest)),
    )
    Stages(settings, quiet=True).train()
    assert written == ["shards"]
    assert (tmp_path / "model" / "model.json").is_file()
    assert [*(tmp_path / "model" / "amount").iterdir()]
    assert not (tmp_path / "model" / "amount" / "shards").exists()


@pytest.mark.slow
def test_shards_are_used_again_only_for_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = build_world(tmp_path / "world", rows=400)
    folder = tmp_path / "rows"
    written: list[int] = []
    plain = shards.write_shards
    monkeypatch.setattr(
        "labelveil.feature_party.training.streamed.write_shards",
        lambda *given: (written.append(1), plain(*given)),
    )

    def prepared(**training: object) -> PreparedShards:
        settings = config(world, tmp_path, shards=str(folder), **training)
        found = prepare(world.directory, world.features, settings)
        assert isinstance(found, PreparedShards)
        return found

    def encoded(data: PreparedShards, *ignored: str, **training: object) -> int:
        settings = config(world, tmp_path, shards=str(folder), **training)
        named = settings.data.model_copy(update={"ignore": [*ignored]})
        stated = Stated(ignored=("event", *ignored))
        written.clear()
        data.encoded(TrainingSetup(settings.training, named), partial(Encoder.fit, stated=stated))
        return len(written)

    data = prepared()
    assert [encoded(data), encoded(prepared()), encoded(data, learning_rate=1e-3)] == [1, 0, 0]
    for other in ({"seed": 1}, {"holdout": 0.3}, {"shard_rows": 150}):
        assert [encoded(data, **other), encoded(data, **other)] == [1, 0]
    assert [encoded(data), encoded(data, "income")] == [1, 1]
    table = pl.read_parquet(world.features)
    table.with_columns(pl.col(pl.Float64) * 2).write_parquet(world.features)
    assert [encoded(other, "income") for other in (prepared(), prepared(), data)] == [1, 0, 1]
    part = folder / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"part-00000.parquet is missing or damaged; remove"):
        encoded(data, "income")


def test_shards_need_a_file_a_folder_and_privatized_labels(world: World, tmp_path: Path) -> None:
    settings = config(world, tmp_path, shards=str(tmp_path / "rows"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "part-1.csv").touch()
    settings = config(world, tmp_path, shards=str(tmp_path / "mine"))
    with pytest.raises(DataError, match="holds other files than shards"):
        train(prepare(world.directory, world.features, settings), settings)
    assert (tmp_path / "mine" / "part-1.csv").is_file()
    settings = config(world, tmp_path, shards=str(tmp_path / "rows"), objective="true", epochs=1)
    data = prepare(world.directory, world.features, settings)
    with pytest.raises(ConfigError, match="trains in memory alone"):
        train(data, settings, true_labels=np.zeros(1500))
    settings = config(world, tmp_path, shards=str(tmp_path / "rows"), learner="linear")
    with pytest.raises(ConfigError, match="learner='linear' trains in memory alone"):
        train(prepare(world.directory, world.features, settings), settings)


@pytest.mark.slow
def test_of_very_many_events_as_many_are_held_out_as_memory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In rounds each event by itself, of all that may still come."""
    world = build_world(tmp_path, rows=400)
    table = pl.read_parquet(world.features)
    more = table.with_columns(event=pl.col("event") + "more")
    table = pl.concat([table, more])[::-1]
    table.write_parquet(world.features)
    settings = config(world, tmp_path, shards=str(tmp_path / "rows"), holdout=0.5, seed=3)
    inputs = JoinInputs((world.directory,), world.features, "event", (Party(SECRET),))
    sections = settings.training, settings.join, settings.engine
    matched = np.flatnonzero(~table["event"].str.ends_with("more").to_numpy())
    for in_rounds, most in ((False, 50), (False, 1 << 20), (True, 50), (True, 1 << 20)):
        monkeypatch.setattr(prepare_module, "MOST_HELD_OUT", most)
        (events,) = Preparation(inputs, *sections, in_rounds).events().values()
        if in_rounds:
            share = min(0.5, most / 800)
            held = matched[np.random.default_rng(3).random(800)[matched] < share]
            names = table["event"][held].to_list()
            assert sorted(events.held_out()[0]["event"].to_list()) == sorted(names)
        else:
            assert events.holdout.size == min(200, most)
        assert events.training_rows == 400 - events.holdout.size


def test_a_worker_that_sees_no_shards_says_which_it_is(world: World, tmp_path: Path) -> None:
    settings = config(world, tmp_path, shards=str(tmp_path / "rows"))
    blind: Any = SimpleNamespace(first=False, rank=2, wait=lambda: None)
    data = prepare(world.directory, world.features, settings)
    with pytest.raises(DataError, match=r"worker 2 does not see the shards in .*rows; set .train"):
        train(data, settings, workers=blind)
    inputs = JoinInputs((world.directory,), world.features, "event", (Party(SECRET),))
    elsewhere = settings.join.model_copy(update={"directory": tmp_path / "elsewhere"})
    sections = settings.training, elsewhere, settings.engine
    with pytest.raises(DataError, match=r"worker 2 does not see the join in .*elsewhere; set"):
        Preparation(inputs, *sections, workers=blind).events()


def stream_of(rows: int, at_once: int = 7) -> tuple[RowStream, Encoder, np.ndarray]:
    """Rows of a number and a category, some at a time, and the code of each."""
    rng = np.random.default_rng(2)
    table = pl.DataFrame({"x": rng.normal(size=rows), "kind": rng.choice(["a", "b"], rows)})
    codes = rng.permutation(rows).astype(np.uint16)

    def walk(columns: Sequence[str]) -> Iterator[tuple[pl.DataFrame, np.ndarray]]:
        starts = range(0, rows, at_once)
        return ((table[a : a + at_once].select(columns), codes[a : a + at_once]) for a in starts)

    return RowStream(walk, rows, seed=3), Encoder.fit(table, pieces=0), codes


@pytest.mark.parametrize(("group", "pending"), [(1 << 30, 1 << 30), (40, 1 << 30), (1 << 30, 200)])
def test_shards_are_written_some_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int, pending: int
) -> None:
    """As soon as all that is pending is as much as each shard's group, or as memory is to hold."""
    monkeypatch.setattr(shards, "_GROUP_BYTES", group)
    monkeypatch.setattr(shards, "_PENDING_BYTES", pending)
    stream, encoder, codes = stream_of(100)
    shards.write_shards(tmp_path, "content", stream, encoder, 30)
    found = Shards.open(tmp_path, "content")
    assert found is not None
    assert (len(found.sizes), sum(found.sizes)) == (3, 100)
    paths = sorted(tmp_path.glob("*.parquet"))
    groups = [pq.ParquetFile(path).num_row_groups for path in paths]
    assert (max(groups) > 1) == (group < 1 << 30 or pending < 1 << 30)
    # each row with its own code, by chunks or whole
    (table,) = (pl.concat([rows for rows, _ in stream.walk(encoder.columns)]).rechunk(),)
    wanted = encoder.encode(table)
    order, at, read = np.argsort(codes), 0, []
    for part, size in enumerate(found.sizes):
        rows, own = found.read(part)
        assert np.array_equal(found.codes_of(np.arange(at, at + size)), own)
        places = order[own]
        assert np.array_equal(rows.numeric, wanted.numeric[places])
        assert np.array_equal(rows.categories, wanted.categories[places])
        assert np.all(np.diff(places) > 0)  # in the stream's order
        at += size
        read += own.tolist()
    assert sorted(read) == [*range(100)]
    picked = np.array([99, 0, 50])
    assert found.codes_of(picked).tolist() == [read[place] for place in picked]


@pytest.mark.parametrize(
    ("size", "rows", "most", "count"),
    [
        (33, 1, 512, 3), (41, 1, 512, 2), (10, 1, 4, 4), (1000, 1, 512, 1),
        (None, 40, 512, 2), (None, 1000, 512, 1), (None, 0.5, 512, 100), (None, 0.5, 9, 9),
    ],
)  # fmt: skip
def test_there_are_as_many_shards_as_rows_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int | None, rows: float, most: int,
    count: int,
) -> None:  # fmt: skip
    """By default of bytes: a row has four for each input, two of its code and 48 of its order."""
    stream, encoder, _ = stream_of(100)
    width = 4 * (encoder.inputs + 1) + 2 + 48
    monkeypatch.setattr(shards, "_SHARD_BYTES", int(rows * width))
    monkeypatch.setattr(shards, "_MOST_SHARDS", most)
    shards.write_shards(tmp_path, "content", stream, encoder, size)
    assert len(list(tmp_path.glob("*.parquet"))) == count


def test_shards_that_are_not_what_was_written_are_refused(tmp_path: Path) -> None:
    stream, encoder, _ = stream_of(100)
    shards.write_shards(tmp_path, "content", stream, encoder, 50)
    assert Shards.open(tmp_path / "elsewhere", "content") is None
    assert Shards.open(tmp_path, "other") is None
    first, second = sorted(tmp_path.glob("*.parquet"))
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())  # of another number of rows
    sizes = [pq.ParquetFile(path).metadata.num_rows for path in (second, tmp_path / first.name)]
    assert sizes[0] != 100 - sizes[0]
    with pytest.raises(DataError, match=rf"holds {sizes[0]} rows, not {100 - sizes[0]}; remove"):
        Shards.open(tmp_path, "content")
    first.write_bytes(kept)
    second.write_bytes(second.read_bytes()[:-20])
    for _ in range(2):
        with pytest.raises(DataError, match=rf"{second} is missing or damaged; remove {tmp_path}"):
            Shards.open(tmp_path, "content")
        second.unlink(missing_ok=True)
    manifest = tmp_path / shards.ENCODED_MANIFEST
    whole = json.loads(manifest.read_text())
    for wrong in ("{", "[]", json.dumps({"content": "content"}), json.dumps(whole | {"sizes": 3})):
        manifest.write_text(wrong)
        with pytest.raises(DataError, match=r"shards.json is damaged; remove .* and train again"):
            Shards.open(tmp_path, "content")


@pytest.mark.parametrize("words", ["no space", None])
def test_shards_that_cannot_be_written_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str | None
) -> None:
    stream, encoder, _ = stream_of(1000)
    shards.write_shards(tmp_path / "rows", "content", stream, encoder)
    error = OSError(28, words) if words else OSError("a pipe")

    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(shards._Writer, "add", full)
    size = 1000 * (4 * (encoder.inputs + 1) + 2)
    said = rf"rows cannot be written: {words or 'a pipe'}; {size:,} bytes are needed, see .training"
    with pytest.raises(DataError, match=said):
        shards.write_shards(tmp_path / "rows", "content", stream, encoder)
    assert not (tmp_path / "rows").exists()


def test_an_epoch_goes_on_after_the_last_part(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "KEEP_SECONDS", 0.0)
    folder = str(tmp_path / "rows")
    settings = config(world, tmp_path, shards=folder, shard_rows=300, epochs=2, dropout=0.1)
    data = prepare(world.directory, world.features, settings)
    whole = train(data, settings)
    plain, seen = Fitter._train_part, []

    class Killed(Exception):
        pass

    def part(self: Fitter, epoch: int, number: int, rows: object, step: int) -> None:
        seen.append((epoch, number))
        if len(seen) == 7:  # the third of four parts of the second epoch
            raise Killed
        plain(self, epoch, number, rows, step)  # type: ignore[arg-type]

    monkeypatch.setattr(Fitter, "_train_part", part)
    with pytest.raises(Killed):
        train(data, settings, folder=tmp_path)
    resumed = train(data, settings, folder=tmp_path)
    assert len(seen) == 9  # seven, the last of them again, and one more
    assert seen[6] == seen[7]
    for name, value in whole.experts[0].learned.state_dict().items():
        assert torch.equal(value, resumed.experts[0].learned.state_dict()[name])
    assert whole.facts.history == resumed.facts.history


def test_large_streams_are_sampled_for_numbers_and_counted_for_categories(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(0)
    table = pl.DataFrame(
        {
            "x": generator.normal(3.0, 2.0, 20_000),
            "shop": generator.choice(["a", "b", "c"], 20_000, p=[0.2, 0.7997, 0.0003]),
        }
    )
    codes = np.zeros(20_000, np.uint16)

    def walk(columns: Sequence[str]) -> Iterator[tuple[pl.DataFrame, np.ndarray]]:
        return ((table[at : at + 3000], codes[at : at + 3000]) for at in range(0, 20_000, 3000))

    stream = RowStream(walk, 20_000, seed=0)

    fit = lambda rows: Encoder.fit(rows, pieces=8)  # noqa: E731
    exact = fit(table)
    monkeypatch.setattr(shards, "SAMPLE_ROWS", 20_000)
    assert fit_encoder(stream, table.columns, fit) == exact  # as many are all taken
    monkeypatch.setattr(shards, "SAMPLE_ROWS", 5000)
    sampled = fit_encoder(stream, table.columns, fit)
    assert sampled.categorical == exact.categorical
    assert sampled.numeric != exact.numeric
    # 5 standard errors of a median of 5000 rows
    assert sampled.numeric[0].middle == pytest.approx(exact.numeric[0].middle, abs=0.18)
    monkeypatch.setattr(shards, "MOST_VALUES", 2)
    pruned = fit_encoder(stream, table.columns, fit)
    assert pruned.categorical[0].vocabulary == ("b",)


@pytest.mark.slow
def test_the_join_command_leaves_what_train_evaluate_and_predict_use(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    common = [
        *("--features", str(world.features), "--key", "event"),
        *("--secret-file", str(world.secret_file)),
    ]
    release = ["--release", str(world.directory), "--set", "join.shard_rows=400"]

    def command(*arguments: str) -> str:
        ended = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert ended.exit_code == 0
        return ended.output

    said = command("join", *common, *release, "--set", "engine.workers=2")
    assert "1,500 events match, of 1,500 in the features and 1,500 in the release" in said
    assert "4 shards in joined" in said
    joined: list[object] = []
    monkeypatch.setattr(external_join._Join, "join", lambda *given: joined.append(given))
    small = ["--ensemble", "2", "--epochs", "2", "--head", "gaussian"]
    command("train", *common, *release, *small)
    assert "estimated test MSE" in command("evaluate", *common, *release)
    assert not joined  # not again
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    command("train", *common, *release, *small, "--set", "training.shards=never")
