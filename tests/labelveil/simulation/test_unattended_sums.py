"""`feature-party run` with [groups]: questions of sums in rounds by itself, each command alone, and
after kills; between two processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from labelveil.children import FEATURE_PROGRAM, LABEL_PROGRAM
from labelveil.common.mechanisms.group_sums import GroupQuestion
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.folder import POPULATION_FILE, QUESTION_FILE, is_complete
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.question import read_question
from labelveil.simulation import Settings
from labelveil.simulation.processes import Party, StageFailed
from tests.effort import some_of
from tests.label_party.conftest import eventually
from tests.labelveil.simulation import test_rounds
from tests.labelveil.simulation.test_rounds import World, opened

pytest.importorskip("torch", reason="the features party needs torch")

ROWS, EPSILON = 700, 40
EPOCHS = ("1-1", "1-2", "1-3")
ASKED = (
    *(f"groups.epsilon={EPSILON}", "groups.lower=0", "groups.upper=100"),
    "release.parquet=false",
)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(test_rounds, "QUICK", ASKED)
    rng = np.random.default_rng(3)
    x, kind = rng.normal(size=ROWS), rng.integers(0, 2, ROWS)
    label = np.clip(50 + 14 * x + 10 * kind + rng.normal(0, 4, ROWS), 0, 100)
    table = pl.DataFrame(
        {"id": [f"e{i}" for i in range(ROWS)], "x": x, "kind": np.array(["a", "b"])[kind]}
    ).with_columns(y=label)
    table.drop("y").write_parquet(tmp_path / "features.parquet")
    table.drop("x", "kind").write_parquet(tmp_path / "all.parquet")
    return Settings(
        labels=tmp_path / "all.parquet",
        features=tmp_path / "features.parquet",
        key="id",
        label="y",
        lower=0,
        upper=100,
        missing=50,
        epsilon=EPSILON,
        rounds="0.4,0.6",
        out=tmp_path / "out",
        nonprivate=False,
        quiet=True,
    )


def keys_of(world: World) -> list[set[bytes]]:
    """The hashed keys that were submitted, by round."""
    found = []
    for epoch in EPOCHS:
        data = (world.release / epoch / POPULATION_FILE).read_bytes()
        found.append({data[at : at + 16] for at in range(0, len(data), 16)})
    return found


def question_of(world: World, epoch: str) -> GroupQuestion:
    folder = world.release / epoch
    rows = Manifest.from_bytes((folder / "manifest.json").read_bytes()).population.rows
    question = read_question(folder / QUESTION_FILE, rows)
    assert isinstance(question, GroupQuestion)
    return question


def check_outcome(world: World) -> None:
    """What a whole run leaves, against the files that it began with."""
    settings, out = world.settings, world.settings.out
    assert all(is_complete(world.release / epoch) for epoch in EPOCHS)
    rounds = keys_of(world)
    assert sum(map(len, rounds)) == len(set.union(*rounds)) == ROWS  # each event is asked once
    squares = [question_of(world, epoch).squares for epoch in EPOCHS]
    assert squares[:2] == [0, 0]
    assert squares[2]  # the last one tells how good the model is
    predicted = pl.read_parquet(out / "predictions.parquet")
    secret = read_secret(next(out.rglob("join.key")))
    hashed = hash_keys(predicted["id"], secret)
    kept = [hashed[at : at + 16] in rounds[2] for at in range(0, len(hashed), 16)]
    assert predicted["held_out"].to_list() == kept
    truth = pl.read_parquet(settings.labels)["y"].to_numpy()
    assert predicted["id"].to_list() == pl.read_parquet(settings.labels)["id"].to_list()
    held = np.array(kept)
    missed = predicted["prediction"].to_numpy()[held] - truth[held]
    r2 = 1 - np.mean(missed**2) / truth[held].var()
    metrics = json.loads((out / "feature_party" / "metrics.json").read_text())
    assert r2 > 0.7  # it is .94 of what may be known
    assert metrics["holdout_rows"] == held.sum()
    assert metrics["training_rows"] == ROWS - held.sum()
    # noise is nothing at this ε; of 140 events a deviation of .08 is left in what two sums tell
    assert abs(metrics["estimated_r2"] - r2) < 0.5
    assert metrics["verdict"] == "better"
    page, card = (out / f"report.{form}" for form in ("html", "md"))
    assert "true labels" not in page.read_text("utf-8")
    assert "Model card: y" in card.read_text("utf-8")
    budget = test_rounds.run(settings, LABEL_PROGRAM, "label_party", "budget")
    assert budget.count(f"ε = {EPSILON}") >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "stops",
    some_of(
        3,
        [
            ["1-2/submission/population.keys", "1-3/submission/population.keys"],
            ["1-1/population.keys", "1-1/codes.bin"],
            ["1-2/question.bin", "1-3/codes.bin"],
        ],
    ),
)
def test_a_killed_run_goes_on_with_what_it_asked(settings: Settings, stops: Sequence[str]) -> None:
    with opened(settings) as world:
        ours, kept = settings.out / "feature_party", dict[Path, bytes]()
        sets = [part for each in ASKED for part in ("--set", each)]
        command = ["run", "--config", "feature_party.toml", "--address", world.address, *sets]
        log = settings.out / "logs" / "killed.log"
        for stop in stops:
            with Party(FEATURE_PROGRAM, command, ours, log) as party:
                eventually((world.release / stop).exists, 120, every=0.0005)
                party.kill()
            kept |= {
                world.release / path.relative_to(world.release).parts[0] / path.name: (
                    path.read_bytes()
                )
                for path in (
                    *world.release.glob("*/submission/*"),
                    *world.release.glob("*/*.*"),
                )
            }
        world.feature("run")
        for path, data in kept.items():
            assert path.read_bytes() == data, path
        check_outcome(world)
        model = (settings.out / "model" / "weights.pt").read_bytes()
        world.feature("run")  # harmless, and the same again
        assert (settings.out / "model" / "weights.pt").read_bytes() == model
        check_outcome(world)


@pytest.mark.slow
def test_each_command_alone_goes_through_the_rounds(settings: Settings) -> None:
    with opened(settings) as world:
        assert "with a question as the population of 'all', epoch '1-1'" in world.feature("submit")
        assert "feature-party train" in world.feature("fetch")
        with pytest.raises(StageFailed, match="holds no trained model"):
            world.feature("submit")
        assert "sums over" in world.feature("train")
        assert "epoch '1-2': stored" in world.feature("submit")
        world.feature("fetch")
        with pytest.raises(StageFailed, match="train again"):  # it is of one round
            world.feature("submit")
        world.feature("train")
        assert "epoch '1-3': stored" in world.feature("submit")
        asked = (world.release / "1-3" / QUESTION_FILE).read_bytes()
        world.feature("fetch")
        with pytest.raises(StageFailed, match="of all 2 rounds are in"):
            world.feature("submit")
        said = world.feature("evaluate")
        assert "better than a constant" in said
        world.feature("run")
        assert (world.release / "1-3" / QUESTION_FILE).read_bytes() == asked
        check_outcome(world)
        world.feature("train", "--set", "training.seed=5")
        with pytest.raises(StageFailed, match="or with another seed than 0"):
            world.feature("evaluate")
        assert "rows agree to" in world.feature("export", "--output", "served.pt2")
        with pytest.raises(StageFailed, match="--by cannot be had of a model of sums"):
            world.feature("evaluate", "--by", "kind")
        later = settings.out / "feature_party" / "later.parquet"
        events = pl.read_parquet(settings.features).head(20)
        events.write_parquet(later)
        world.feature("predict", "--features", "later.parquet", "--output", "later.csv")
        assert pl.read_csv(later.with_suffix(".csv")).height == 20
        events.drop("kind").write_parquet(later)
        with pytest.raises(StageFailed, match="lack the column 'kind'"):
            world.feature("predict", "--features", "later.parquet", "--output", "later.csv")
        events.with_columns(x=pl.lit("many")).write_parquet(later)
        with pytest.raises(StageFailed, match="column 'x' holds no number"):
            world.feature("predict", "--features", "later.parquet", "--output", "later.csv")
        few = ["--set", "training.holdout=0.01", "--set", "labels_party.epoch=2"]
        with pytest.raises(StageFailed, match=r"keeps \d+ of 700 events, and 20 are the fewest"):
            world.feature("run", *few)
