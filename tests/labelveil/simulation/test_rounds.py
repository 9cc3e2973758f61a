"""Rounds between two processes that trust each other with nothing: `simulate --rounds`, by hand,
and after kills."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.children import FEATURE_PROGRAM, LABEL_PROGRAM
from labelveil.common.errors import ConfigError
from labelveil.common.release.event_keys import hash_keys
from labelveil.common.release.folder import POPULATION_FILE, QUESTION_FILE, is_complete
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.question import read_question
from labelveil.common.release.sums import read_sums
from labelveil.simulation import Settings, run_simulation
from labelveil.simulation.inputs import read_inputs
from labelveil.simulation.processes import Party, StageFailed, serving
from labelveil.simulation.workspace import Workspace, furnish
from tests.effort import some_of
from tests.label_party.conftest import eventually
from tests.programs import fork_party

pytest.importorskip("torch", reason="the features party needs torch")

from labelveil.feature_party.pipeline.rounds import deal
from labelveil.feature_party.training.holdout import deal_holdout

pytestmark = pytest.mark.usefixtures("forked")

ROWS, MANY = 1500, 5000
QUICK = (
    *("training.ensemble=5", "training.learner=linear", "training.checkpoint=false"),
    "rounds.strata=4",
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return of_events(tmp_path, ROWS)


@pytest.fixture
def scored(tmp_path: Path) -> Settings:
    """So many events held out, at so small an ε, that sums tell far more of errors than codes do.

    And labels that vary so much that noise on the sums leaves room for errors: where it refutes
    every R² below 1, codes tell.
    """
    return of_events(tmp_path, MANY, 1.2).model_copy(update={"epsilon": 1.0, "holdout": 0.4})


def of_events(tmp_path: Path, rows: int, spread: float = 0.5) -> Settings:
    generator = np.random.default_rng(3)
    x = generator.normal(size=rows)
    label = np.clip(np.round(5 + 2.5 * x + generator.normal(0, spread, rows)), 0, 12)
    table = pl.DataFrame({"id": [f"e{i}" for i in range(rows)], "x": x, "y": label})
    table.drop("y").write_parquet(tmp_path / "features.parquet")
    table[rows // 10 :].drop("x").write_parquet(tmp_path / "all.parquet")  # some have no label
    return Settings(
        labels=tmp_path / "all.parquet",
        features=tmp_path / "features.parquet",
        key="id",
        label="y",
        lower=0,
        upper=12,
        epsilon=3,
        rounds="0.4,0.6",
        out=tmp_path / "out",
        feature_settings=QUICK,
        nonprivate=False,
        quiet=True,
    )


def manifests(folder: Path) -> list[Manifest]:
    return [
        Manifest.from_bytes((folder / epoch / "manifest.json").read_bytes())
        for epoch in ("1-1", "1-2")
    ]


@pytest.mark.slow
def test_each_event_is_in_one_round_and_pays_once(scored: Settings) -> None:
    settings = scored
    outcome = run_simulation(settings)
    metrics, release = outcome.metrics, settings.out / "release"
    first, second = manifests(release)
    assert not first.strata
    assert len(second.strata) == 4
    assert not second.priors
    keys = [(release / epoch / POPULATION_FILE).read_bytes() for epoch in ("1-1", "1-2", "1-3")]
    events = [{data[at : at + 16] for at in range(0, len(data), 16)} for data in keys]
    assert sum(map(len, events)) == len(set().union(*events)) == MANY == metrics["rows"]
    assert metrics["matched"] == len(events[0]) + len(events[1])
    score = read_sums(release / "1-3").noisy  # of who is held out nobody asked anything before
    assert score.guarantee.exact_epsilon <= 1
    assert len(score.question) == len(events[2])
    assert all(manifest.total_guarantee.epsilon <= 1 for manifest in (first, second))
    assert (metrics["epochs"], metrics["priors_paid"]) == (2, 1)
    ledger = [
        (manifest.prior_guarantee.epsilon * manifest.prior_paid, manifest.labels_guarantee.epsilon)
        for manifest in (first, second)
    ]
    assert ledger == [(of["epsilon_prior"], of["epsilon_labels"]) for of in metrics["spent"]]
    assert ledger[0] == (metrics["epsilon_prior"], metrics["epsilon_labels"])
    assert sum(ledger[0]) <= 1 + 1e-9
    assert ledger[1][0] == 0
    assert metrics["scored_rows"] <= len(events[0])  # those who were asked about do not judge
    assert (metrics["told_by"], metrics["verdict"]) == ("sums", "better")
    low, high = metrics["estimated_r2_low"], metrics["estimated_r2_high"]
    assert high - low < metrics["codes_r2_high"] - metrics["codes_r2_low"]
    assert abs(metrics["test_r2"] - metrics["estimated_r2"]) < 1.5 * (high - low)  # 6 deviations
    for page in ("report.html", "report.md"):  # one interval is shown, wherever one is
        shown = f"(95%: {low:.0%} … {high:.0%})"
        assert shown in (settings.out / page).read_text("utf-8")
    held_out = deal_holdout(np.arange(MANY), settings.holdout, settings.seed).size
    assert metrics["holdout_rows"] == held_out == MANY - metrics["training_rows"]
    predicted = pl.read_parquet(settings.out / "predictions.parquet")
    assert predicted.height == MANY
    assert np.isclose((~predicted["held_out"]).sum(), metrics["training_rows"])
    budget = run(settings, LABEL_PROGRAM, "label_party", "budget")
    assert budget.count("ε = 1") >= 3


def run(settings: Settings, program: str, party: str, *command: str) -> str:
    """Run a command of a party; return what it printed."""
    log = settings.out / "logs" / "command.log"
    log.unlink(missing_ok=True)
    sets = [part for each in QUICK for part in ("--set", each)]
    sets = sets if program == FEATURE_PROGRAM else []
    config = ["--config", f"{party}.toml"]
    fork_party(program, [*command, *sets, *config], settings.out / party, log)
    return log.read_text("utf-8")


@dataclass(frozen=True)
class World:
    """A labels party that serves and watches, and the commands of the features party."""

    settings: Settings
    address: str

    @property
    def release(self) -> Path:
        return self.settings.out / "release"

    def feature(self, command: str, *options: str) -> str:
        connected = ["--address", self.address] if command in ("submit", "fetch", "run") else []
        return run(self.settings, FEATURE_PROGRAM, "feature_party", command, *options, *connected)


@contextmanager
def opened(settings: Settings) -> Iterator[World]:
    workspace = Workspace(settings.out)
    workspace.claim(overwrite=False)
    furnish(workspace, read_inputs(settings), settings)
    with served(settings) as world:
        yield world


@contextmanager
def served(settings: Settings, *sets: str, watched: bool = True) -> Iterator[World]:
    """The labels party of a workspace that was opened before, which may not release any more."""
    workspace = Workspace(settings.out)
    workspace.port_file.unlink(missing_ok=True)
    logs, theirs = workspace.logs, workspace.label_party
    config = ["--config", "label_party.toml", *(part for each in sets for part in ("--set", each))]
    serve = ["serve", *config, "--port-file", str(workspace.port_file)]
    watch = ["watch", *config, "--quiet"]
    with serving(serve, theirs, logs / "serve.log", workspace.port_file) as port, ExitStack() as on:
        if watched:
            on.enter_context(Party(LABEL_PROGRAM, watch, theirs, logs / "watch.log"))
        yield World(settings, f"127.0.0.1:{port}")


@pytest.mark.slow
def test_each_command_alone_goes_through_the_rounds(scored: Settings) -> None:
    with opened(scored) as world:
        with pytest.raises(StageFailed, match="no round has been submitted yet"):
            world.feature("fetch")
        assert "epoch '1-1': stored" in world.feature("submit")
        world.feature("fetch")
        with pytest.raises(StageFailed, match="holds no trained model"):
            world.feature("submit")
        world.feature("train")
        assert "with a question as the population of 'all', epoch '1-2'" in world.feature("submit")
        asked = (world.release / "1-2" / QUESTION_FILE).read_bytes()
        assert "1-2" in world.feature("submit")  # harmless, and the same again
        assert (world.release / "1-2" / QUESTION_FILE).read_bytes() == asked
        world.feature("fetch")
        with pytest.raises(StageFailed, match="train again"):  # it is of one round
            world.feature("evaluate")
        world.feature("train")
        assert "from codes alone" not in world.feature("evaluate")
        assert "with a question as the population of 'all', epoch '1-3'" in world.feature("submit")
        world.feature("fetch")
        with pytest.raises(StageFailed, match="of all 2 rounds are in"):
            world.feature("submit")
        assert "from codes alone" in world.feature("evaluate")
    first, second = manifests(world.release)
    question = read_question(world.release / "1-2" / QUESTION_FILE, second.population.rows)
    assert [s.law for s in second.strata] == question.laws.tolist()
    assert second.label.grid == first.label.grid


@pytest.mark.slow
def test_yesterdays_model_asks_about_todays_events(settings: Settings) -> None:
    with opened(settings) as world:
        events = pl.read_parquet(settings.out / "feature_party" / "features.parquet")
        for day, part in (("monday", events[:700]), ("tuesday", events[700:])):
            part.write_parquet(settings.out / "feature_party" / f"{day}.parquet")

        def on(day: str, command: str, *options: str) -> str:
            sets = ("rounds.shares=[]", f"labels_party.epoch={day}", f"release.directory={day}")
            given = [part for each in sets for part in ("--set", each)]
            return world.feature(command, "--features", f"{day}.parquet", *given, *options)

        assert "with a question" not in on("monday", "submit")
        with pytest.raises(StageFailed, match="holds no trained model"):
            on("tuesday", "submit", "--ask")
        on("monday", "run", "--set", "labels_party.submit=false")
        assert "800 keys with a question" in on("tuesday", "submit", "--ask")
        on("tuesday", "run", "--set", "labels_party.submit=false")
    released = settings.out / "feature_party" / "tuesday" / "manifest.json"
    assert len(Manifest.from_bytes(released.read_bytes()).strata) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop",
    some_of(
        4,
        [
            "1-2/question.bin",
            "1-1/population.keys",
            "1-1/codes.bin",
            "1-2/submission/population.keys",
        ],
    ),
)
def test_a_killed_run_goes_on_with_what_it_asked(settings: Settings, stop: str) -> None:
    with opened(settings) as world:
        ours = settings.out / "feature_party"
        sets = [part for each in QUICK for part in ("--set", each)]
        command = ["run", "--config", "feature_party.toml", "--address", world.address, *sets]
        with Party(FEATURE_PROGRAM, command, ours, settings.out / "logs" / "killed.log") as party:
            # what is on its way to the labels party is there for milliseconds
            eventually((world.release / stop).exists, 120, every=0.0005)
            party.kill()
        kept = {
            world.release / path.relative_to(world.release).parts[0] / path.name: path.read_bytes()
            for path in (*world.release.glob("*/submission/*"), *world.release.glob("*/*.*"))
        }
        world.feature("run")
    assert all(is_complete(world.release / epoch) for epoch in ("1-1", "1-2"))
    for path, data in kept.items():
        assert path.read_bytes() == data, path
    # a model that noise has left with too little to tell asks nothing
    asked = (world.release / "1-2" / QUESTION_FILE).read_bytes()
    assert len(manifests(world.release)[1].strata) == (4 if asked else 0)


def metrics_of(world: World) -> dict[str, Any]:
    """What a command of the features party wrote."""
    path = world.settings.out / "feature_party" / "metrics.json"
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop", some_of(3, ["submission/population.keys", "population.keys", "codes.bin"])
)
def test_a_run_that_is_killed_while_it_asks_for_its_score_goes_on(
    scored: Settings, stop: str
) -> None:
    with opened(scored) as world:
        ours, folder = scored.out / "feature_party", world.release / "1-3"
        sets = [part for each in QUICK for part in ("--set", each)]
        command = ["run", "--config", "feature_party.toml", "--address", world.address, *sets]
        with Party(FEATURE_PROGRAM, command, ours, scored.out / "logs" / "killed.log") as party:
            eventually((folder / stop).exists, 120, every=0.0005)
            party.kill()
        asked = [
            path.read_bytes()
            for path in (*folder.glob(f"submission/{QUESTION_FILE}"), *folder.glob(QUESTION_FILE))
        ]
        assert asked
        said = world.feature("run")
        assert "no sums tell" not in said
        assert (folder / QUESTION_FILE).read_bytes() == asked[0]
        assert metrics_of(world)["told_by"] == "sums"  # of the model that was asked about
        budget = run(scored, LABEL_PROGRAM, "label_party", "budget")
        assert budget.count("ε = 1") >= 3


@pytest.mark.slow
def test_without_a_score_codes_tell(scored: Settings) -> None:
    """A labels party that is away, takes no such question or does not release it: the model is
    there, and is judged."""
    quick = ("--set", "labels_party.wait=0")
    with opened(scored) as world:
        world.feature("submit")
        world.feature("fetch")
        world.feature("train")
        world.feature("submit")
        world.feature("fetch")
    folder = world.release / "1-3"

    def runs(at: World, why: str, kept: bool) -> None:
        said = at.feature("run", *quick)
        (line,) = (part for part in said.splitlines() if "no sums tell how good" in part)
        assert why in line
        assert "of the label's variance that is explained" in said
        metrics = metrics_of(at)
        assert metrics["told_by"] == "codes"
        assert "codes_r2" not in metrics
        assert any("without a question" in warning for warning in metrics["warnings"])
        assert (
            metrics["holdout_rows"]
            == deal_holdout(np.arange(MANY), scored.holdout, scored.seed).size
        )
        assert bool(list(folder.rglob(POPULATION_FILE))) is kept
        assert not is_complete(folder)

    runs(world, "cannot be reached", kept=True)  # whether it arrived is not known
    with served(scored, "rounds.questions=false", watched=False) as refusing:
        runs(refusing, "questions", kept=False)
    with served(scored, watched=False) as silent:
        runs(silent, "1-3", kept=True)
    with served(scored) as world:
        world.feature("run")
        assert metrics_of(world)["told_by"] == "sums"
        budget = run(scored, LABEL_PROGRAM, "label_party", "budget")
        assert budget.count("ε = 1") >= 3
        assert "rows agree" in world.feature("export")
    assert sum(read_sums(folder).question.sizes) == len(read_sums(folder).question)


@pytest.mark.slow
def test_labels_of_two_values_are_sent_without_a_question(settings: Settings) -> None:
    table = pl.read_parquet(settings.labels)
    table.with_columns(y=pl.col("y") > 5).write_parquet(settings.labels)
    given: dict[str, Any] = {"upper": 1.0, "loss": "squared"}
    outcome = run_simulation(settings.model_copy(update=given))
    assert outcome.metrics["epochs"] == 2
    assert not any(manifest.strata for manifest in manifests(settings.out / "release"))
    # all held-out events have codes, which tell errors as those of one message do
    assert (outcome.metrics["told_by"], outcome.metrics["epochs"]) == ("codes", 2)
    assert not (settings.out / "release" / "1-3").exists()


@pytest.mark.slow
def test_models_of_shards_on_disk_are_told_by_sums(scored: Settings) -> None:
    quick = (*QUICK, "training.shards=kept", "training.learner=networks", "training.epochs=2")
    outcome = run_simulation(scored.model_copy(update={"feature_settings": quick}))
    assert (scored.out / "feature_party" / "kept").is_dir()
    asked = read_sums(scored.out / "release" / "1-3").question
    held_out = deal_holdout(np.arange(MANY), scored.holdout, scored.seed).size
    assert len(asked) < held_out == outcome.metrics["holdout_rows"]
    assert outcome.metrics["told_by"] == "sums"
    low, high = outcome.metrics["estimated_r2_low"], outcome.metrics["estimated_r2_high"]
    assert abs(outcome.metrics["test_r2"] - outcome.metrics["estimated_r2"]) < 1.5 * (high - low)


@pytest.mark.slow
def test_several_labels_are_told_by_their_codes(settings: Settings) -> None:
    table = pl.read_parquet(settings.labels).with_columns(z=12 - pl.col("y"))
    table.write_parquet(settings.labels)
    labels = ["y:0:12", "z:0:12"]
    given = {"label": labels, "lower": None, "upper": None}
    outcome = run_simulation(settings.model_copy(update=given))
    assert [each["told_by"] for each in outcome.metrics["labels"]] == ["codes", "codes"]
    assert not (settings.out / "release" / "1-3").exists()


def test_events_are_dealt_by_their_keys_alone() -> None:
    keys = hash_keys(pl.Series([f"event-{number}" for number in range(20_000)]), bytes(32))
    shares = [0.15, 0.25, 0.6]
    rounds = deal(keys, shares)
    assert np.allclose(np.bincount(rounds) / rounds.size, shares, atol=0.02)
    some = b"".join(keys[16 * at : 16 * at + 16] for at in range(0, 20_000, 7))
    assert deal(some, shares).tolist() == rounds[::7].tolist()


def test_who_is_held_out_is_held_out_of_every_round() -> None:
    rows = np.arange(5000)
    of_all = set(rows[deal_holdout(rows, 0.2, 4)].tolist())
    some = rows[np.random.default_rng(0).random(rows.size) < 0.3]
    assert set(some[deal_holdout(some, 0.2, 4)].tolist()) == of_all & set(some.tolist())
    assert 900 < len(of_all) < 1100


@pytest.mark.parametrize("rounds", ["0", "10", "1.5", "0.5,0.6", "a", "", "0.5,-0.5,1", "1,"])
def test_what_is_no_number_of_rounds_is_refused(settings: Settings, rounds: str) -> None:
    with pytest.raises(ConfigError, match="--rounds"):
        _ = settings.model_copy(update={"rounds": rounds}).shares
