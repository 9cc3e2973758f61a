"""Which files, commands and options each party is given, and how its release is scored."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import ConfigError, DataError
from labelveil.common.release.event_keys import hash_keys
from labelveil.common.release.folder import POPULATION_FILE
from labelveil.common.release.rows import keys_column
from labelveil.common.release.table import write_release
from labelveil.common.security.pilot_certificates import FEATURE_PARTY, LABEL_PARTY
from labelveil.simulation import Settings, run_simulation
from labelveil.simulation import run as runs
from labelveil.simulation.inputs import read_inputs
from labelveil.simulation.run import label_error, placed
from labelveil.simulation.workspace import Workspace, furnish
from tests.common.release.releases import make_release
from tests.labelveil.audit.conftest import in_key_order

Small = Callable[..., Settings]


def told(settings: Settings) -> tuple[Workspace, dict[str, Any], dict[str, Any]]:
    """What both parties are configured with."""
    workspace = Workspace(settings.out)
    workspace.claim(overwrite=False)
    furnish(workspace, read_inputs(settings), settings)
    both = (
        tomllib.loads((folder / f"{folder.name}.toml").read_text())
        for folder in (workspace.label_party, workspace.feature_party)
    )
    return workspace, *both


CERTIFICATES = "../certificates"


def test_each_party_is_told_what_its_part_is(small: Small) -> None:
    settings = small(key="id", seed=7, holdout=0.25, objective="raw", head="auto", epsilon=1.5)
    _, labels, features = told(settings)
    assert labels == {
        "data": {
            "labels": "labels.parquet", "key": "id", "data_set": "all", "epoch": "1",
            "duplicates": "missing", "label": "y", "missing": 0.0,
        },
        "domain": {"lower": 0.0, "upper": 10.0, "grid": "auto"},
        "randomizer": {"name": "rr-on-bins", "loss": "squared"},
        "privacy": {"epsilon": 1.5},
        "keys": {"secret_file": f"{CERTIFICATES}/join.key"},
        "store": {"directory": "store"},
        "server": {
            "listen": "127.0.0.1:0",
            "certificate": f"{CERTIFICATES}/{LABEL_PARTY}.pem",
            "private_key": f"{CERTIFICATES}/{LABEL_PARTY}.key",
            "client_ca": f"{CERTIFICATES}/ca.pem",
            "client_san": FEATURE_PARTY,
            "grace_seconds": 2.0,
        },
    }  # fmt: skip
    assert features == {
        "data": {"features": "features.parquet", "key": "id", "columns": {}},
        "labels_party": {
            "server_name": LABEL_PARTY,
            "ca": f"{CERTIFICATES}/ca.pem",
            "certificate": f"{CERTIFICATES}/{FEATURE_PARTY}.pem",
            "private_key": f"{CERTIFICATES}/{FEATURE_PARTY}.key",
            "data_set": "all", "epoch": "1", "submit": False, "wait": 3600.0,
        },
        "rounds": {"shares": []},
        "keys": {"secret_file": f"{CERTIFICATES}/join.key"},
        "release": {"directory": "../release", "parquet": True},
        "training": {"objective": "raw", "head": "auto", "holdout": 0.25, "seed": 7},
        "output": {
            "model": "../model", "predictions": "../predictions.parquet",
            "metrics": "metrics.json", "report": "../report.html",
        },
    }  # fmt: skip


def test_rounds_strata_and_several_labels_are_told_to_both(small: Small, tmp_path: Path) -> None:
    workspace, labels, features = told(
        small(key="id", rounds="2", randomizer="auto", duplicates="sum", missing=3.0)
    )
    assert labels["data"]["population"] == "submitted"
    assert (labels["data"]["duplicates"], labels["data"]["missing"]) == ("sum", 3.0)
    assert labels["rounds"] == {"questions": True}
    assert labels["watch"] == {"interval": 0.2}
    assert labels["privacy"] == {"epsilon": 1.0, "epochs": "disjoint"}
    assert features["labels_party"]["submit"] is True
    assert features["rounds"]["shares"] == pytest.approx([1 / 3, 2 / 3])
    assert not (workspace.label_party / "population.parquet").exists()
    whole = {"label": "y:0:10:whole", "lower": None, "upper": None, "randomizer": "auto"}
    _, labels, features = told(
        small(key="id", ask="groups", rounds="1", epsilon=0.25, out=tmp_path / "g", **whole)
    )
    assert (labels["data"]["population"], labels["rounds"]) == ("submitted", {"questions": True})
    assert labels["domain"] == {"lower": 0.0, "upper": 10.0, "grid": "auto"}  # the question says it
    assert features["rounds"] == {"shares": [1.0]}
    assert features["groups"] == {"epsilon": 0.25, "lower": 0.0, "upper": 10.0}
    assert features["release"]["parquet"] is False
    workspace, labels, features = told(small(key="id", strata="leak", out=tmp_path / "b"))
    assert labels["strata"] == {"column": "leak", "values": "strata.txt"}
    assert (workspace.label_party / "strata.txt").read_text() == "0\n1"
    assert "rounds" not in labels
    table = pl.DataFrame({"id": ["a", "b"], "x": [1, 2], "y": [3, None], "z": [0.5, 0.0]})
    table.write_parquet(tmp_path / "all.parquet")
    ends = {"label": ["y:2:8", "z:-1:1:whole"], "lower": None, "upper": None}
    _, labels, _ = told(
        small(key="id", out=tmp_path / "c", randomizer="auto", rounds="2", loss="absolute", **ends)
    )
    assert labels["label"] == [
        {"name": "y", "lower": 2.0, "upper": 8.0, "grid": "whole", "missing": 2.0,
         "loss": "absolute"},
        {"name": "z", "lower": -1.0, "upper": 1.0, "grid": "whole", "missing": 0.0,
         "loss": "absolute"},
    ]  # fmt: skip
    assert labels["randomizer"] == {"name": "auto"}
    assert labels["rounds"] == {"questions": False}
    assert "domain" not in labels
    assert "label" not in labels["data"]


@pytest.mark.parametrize(("file", "name"), [
    ("a b/ß.x.parquet", "x"), ("-.--.parquet", "simulation"), ("é.csv", "simulation"),
    ("two  words.csv", "two-words"), ("x" * 80 + ".csv", "x" * 64),
])  # fmt: skip
def test_a_data_set_is_named_after_its_file(
    small: Small, tmp_path: Path, file: str, name: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    table = pl.read_parquet(small().labels)
    (table.write_csv if path.suffix == ".csv" else table.write_parquet)(path)
    _, labels, features = told(small(labels=path, features=path))
    assert labels["data"]["data_set"] == features["labels_party"]["data_set"] == name


def test_releases_lie_in_a_folder_or_in_one_a_round(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert workspace.releases(0) == [tmp_path / "release"]
    assert workspace.releases(2) == [tmp_path / "release" / name for name in ("1-1", "1-2")]


def test_whole_and_binary_labels_are_told_by_their_type_and_bounds(
    small: Small, tmp_path: Path
) -> None:
    columns = {"i": [1, 2], "f": [1.0, 2.0], "b": [True, False], "x": [1, 2]}
    pl.DataFrame(columns).write_parquet(tmp_path / "all.parquet")

    def of(label: str) -> tuple[bool, bool]:
        settings = small(label=label, lower=None, upper=None)
        inputs, (column,) = read_inputs(settings), settings.label_columns
        return inputs.whole(column), inputs.binary(column)

    assert of("i:0:5") == (True, False)
    assert of("i:0:1") == of("b:0:1") == of("i:4:5") == (True, True)
    assert of("f:0:1") == of("i:0.5:1.5") == (False, False)
    assert of("f:0:1:whole") == (True, True)
    assert of("i:0:1.5") == of("i:0.5:2") == (False, False)


@pytest.mark.parametrize(
    ("rounds", "shares"),
    [
        ("1", []),
        ("2", [1 / 3, 2 / 3]),
        ("3", [1 / 7, 2 / 7, 4 / 7]),
        ("9", [2**at / 511 for at in range(9)]),
        ("0.5,0.25,0.25", [0.5, 0.25, 0.25]),
        ("0.5,0.5000000005", [0.5, 0.5000000005]),
    ],
)
def test_each_round_has_twice_the_events_of_the_one_before(
    small: Small, rounds: str, shares: list[float]
) -> None:
    settings = small(randomizer="auto", rounds=rounds)
    assert settings.shares == pytest.approx(shares)
    assert settings.submitted is bool(shares)
    grouped = small(randomizer="auto", ask="groups", rounds=rounds)
    assert grouped.shares == pytest.approx(shares or [1.0])
    assert grouped.submitted
    open_ = small(randomizer="auto", ask="groups", rounds="auto")
    assert open_.submitted
    assert open_.decided(100).shares == [0.25, 0.3, 0.45]
    assert small(randomizer="auto", rounds="auto").shares == []
    with pytest.raises(ConfigError, match="--rounds"):
        small(randomizer="auto", rounds="0.5,0.500000002")


def test_what_was_decided_is_said_with_its_reasons(
    small: Small, capfd: pytest.CaptureFixture[str]
) -> None:
    auto = {"randomizer": "auto", "rounds": "auto"}
    rest = "; --rounds 1 sends one message, as two companies do unless they agree on rounds"
    for epsilon, rows, decision in (
        (
            2, 3_999,
            "one message, as 3,999 events are fewer than the 4,000 of rounds, and sums over groups"
            " tell 1.2 times as much as codes of 3,999 events at ε = 2, below 2",
        ),
        (
            2, 4_000,
            "codes in three rounds, as sums over groups tell 0.9 times as much as codes of 4,000"
            f" events at ε = 2, below 2{rest}",
        ),
        (
            0.5, 4_000,
            "sums over groups in three rounds, as they tell 3.0 times as much as codes of 4,000"
            f" events at ε = 0.5{rest}",
        ),
        (
            1, 8_000,  # codes of so many are worth 1,088 labels
            "sums over groups in five rounds, as they tell 1.5 times as much as codes of 8,000"
            f" events at ε = 1{rest}",
        ),
        (
            1, 10_000,
            "codes in three rounds, as sums over groups tell 1.5 times as much as codes of 10,000"
            f" events at ε = 1, below 2{rest}",
        ),
        (
            1.1, 6_000,
            "codes in three rounds, as sums over groups tell 1.3 times as much as codes of 6,000"
            f" events at ε = 1.1, below 1.4{rest}",
        ),
        (
            0.5, 8_000,
            "sums over groups in five rounds, as they tell 3.0 times as much as codes of 8,000"
            f" events at ε = 0.5{rest}",
        ),
    ):  # fmt: skip
        decided = small(**auto, epsilon=epsilon).decided(rows)
        assert decided.decision_facts == {"decision": decision}
        assert capfd.readouterr().err == f"{decision}\n"
    assert small(**auto, quiet=True).decided(4_000).decision_facts
    assert not capfd.readouterr().err


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"label_settings": ["data.key=x"]}, "--set-label 'data.key=x': use --key instead"),
        (
            {"feature_settings": [" training.seed =1"]},
            "--set-feature ' training.seed =1': use --seed instead",
        ),
        ({"rounds": "2", "randomizer": "laplace"}, "--randomizer laplace and --rounds 2 exclude"),
        ({"rounds": "2", "randomizer": "auto", "population": Path("p")}, "and --rounds 2 exclude"),
        ({"submit_population": True, "strata": "x"}, "--strata x and a submitted population"),
        ({"missing": 10.5}, "--missing 10.5 must lie in 0 … 10"),
        ({"missing": -0.5}, "--missing -0.5 must lie in 0 … 10"),
    ],
)
def test_what_excludes_each_other_is_named(small: Small, option: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        small(**option)
    assert said in str(caught.value)
    assert small(missing=10.0).missing == 10.0


class Parties:
    """In place of both programs: what they were started with, and what they leave."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[list[str]] = []
        self.events: list[str] = []
        self.fails = ""
        self.polls = 0  # before the run is over
        self._root = root
        outer = self

        class Process:
            returncode = 0

            def __init__(
                self, module: str, arguments: Sequence[str], folder: Path, log: Path, *,
                waits: bool = False,
            ) -> None:  # fmt: skip
                outer.start(module, arguments, folder, log, waits)
                self._name = arguments[0]
                self.returncode = int(outer.fails == self._name)

            def __enter__(self) -> Self:
                return self

            def __exit__(self, *_: object) -> None:
                outer.events.append(f"{self._name} ended")

            def ended_within(self, seconds: float) -> bool:
                outer.polls -= 1
                return outer.polls < 0

            def go_on(self) -> None:
                outer.events.append(f"{self._name} goes on")

            def wait(self) -> int:
                timings = {"timings": {"evaluate": 1.23456, "report": 2.0}, "test_mse": 3.0}
                outer.metrics("scores.json", **timings)
                return self.returncode

            def failure(self) -> Exception:
                return DataError(f"{self._name} failed")

        @contextmanager
        def serving(
            arguments: Sequence[str], folder: Path, log: Path, port_file: Path
        ) -> Iterator[int]:
            outer.start("labelveil.label_party.__main__", arguments, folder, log, False)
            yield 4711
            outer.events.append("server ended")

        def run_party(module: str, arguments: Sequence[str], folder: Path, log: Path) -> None:
            outer.start(module, arguments, folder, log, False)

        label = SimpleNamespace(name="y", grid=[0.0, 5.0, 10.0])
        release = SimpleNamespace(manifest=SimpleNamespace(labels=[label]))
        monkeypatch.setattr(runs, "Party", Process)
        monkeypatch.setattr(runs, "serving", serving)
        monkeypatch.setattr(runs, "run_party", run_party)
        monkeypatch.setattr(runs, "read_release", self._read(release))
        monkeypatch.setattr(runs, "label_error", lambda folders, truth, secret: 1.5)
        monkeypatch.setattr(runs, "is_complete", lambda folder: True)

    def _read(self, release: Any) -> Callable[[Path], Any]:
        def read(folder: Path) -> Any:
            self.events.append(f"read {folder.name}")
            return release

        return read

    def start(
        self, module: str, arguments: Sequence[str], folder: Path, log: Path, waits: bool
    ) -> None:
        assert folder.is_absolute()
        program = module.split(".")[1]
        assert (folder, log.parent) == (self._root / program, self._root / "logs")
        said = [each.replace(str(self._root), "OUT") for each in arguments]
        self.started.append([program, log.name, *said, *(["(waits)"] if waits else [])])
        self.events.append(f"{arguments[0]} started")
        if arguments[0] == "run":
            self.metrics("metrics.json", timings={"train": 4.0})

    def metrics(self, name: str, **figures: Any) -> None:
        (self._root / "feature_party" / name).write_text(json.dumps(figures))

    def leave_model(self) -> None:
        (self._root / "model").mkdir(parents=True)
        (self._root / "model" / "model.json").write_text("{}")


SET_LABEL, SET_FEATURE = ["store.directory=s"], ["training.epochs=2"]
SERVE = ["label_party", "serve.log", "serve", "--config", "label_party.toml", "--set",
         "store.directory=s", "--port-file", "OUT/label_party/port"]  # fmt: skip
RELEASE = ["label_party", "label_party-release.log", "release", "--set", "store.directory=s",
           "--config", "label_party.toml"]  # fmt: skip
OF_FEATURES = ["--set", "training.epochs=2"]
ADDRESSED = ["--address", "127.0.0.1:4711", "--config", "feature_party.toml"]
RUN = ["feature_party", "feature_party-run.log", "run", *OF_FEATURES, "--no-evaluate", *ADDRESSED]
EVALUATE = [
    *("feature_party", "feature_party-evaluate.log", "evaluate", *OF_FEATURES, "--wait"),
    *("--set", "join.directory=../nonprivate/joined", "--metrics", "scores.json"),
    *("--true-labels", "OUT/truth/labels.parquet", "--true-key", "key", "--true-label", "label"),
]
END = ["--config", "feature_party.toml", "(waits)"]


@pytest.fixture
def parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parties:
    return Parties(tmp_path / "out", monkeypatch)


def simulated(small: Small, **more: Any) -> Any:
    return run_simulation(
        small(key="id", label_settings=SET_LABEL, feature_settings=SET_FEATURE, **more)
    )


def test_commands_of_a_run_come_in_their_order(
    small: Small, parties: Parties, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = simulated(small, seed=3)
    compared = ["--nonprivate", "../nonprivate"]
    assert parties.started == [SERVE, RUN, RELEASE, [*EVALUATE, *compared, *END]]
    # the server may go once the run has ended, before anything is scored
    assert parties.events.index("server ended") < parties.events.index("evaluate goes on")
    assert parties.events.index("run ended") < parties.events.index("server ended")
    assert "read release" in parties.events
    timings = outcome.metrics.pop("timings")
    parts = {name: timings[f"features_party.{name}"] for name in ("train", "evaluate", "report")}
    assert parts == {"train": 4.0, "evaluate": 1.235, "report": 2.0}
    assert {*timings} >= {"prepare", "release", "features_party", "verify", "score"}
    truth = np.array([1.0, 0.0, 10.0, 0.0])
    grid = "3 points, 5 apart; "
    assert outcome.metrics.pop("grid").startswith(grid)
    assert outcome.metrics == {
        "test_mse": 3.0, "label_mse": 1.5, "seed": 3, "points": 3,
        "labels_between": int((truth % 5 > 0).sum()),
        "variance_added": outcome.metrics["variance_added"],
    }  # fmt: skip
    kept = json.loads((outcome.report.parent / "metrics.json").read_text())
    assert kept["timings"] == timings
    said = capfd.readouterr().err
    assert said.count("✓") == len([name for name in timings if "." not in name])
    assert "train on true labels, too; evaluate, score" in said


@pytest.mark.parametrize(("rounds", "beside"), [("1", True), ("2", False)])
def test_a_model_is_scored_while_the_run_still_predicts_but_not_while_it_asks(
    small: Small, parties: Parties, monkeypatch: pytest.MonkeyPatch, rounds: str, beside: bool
) -> None:
    parties.polls = 3
    start = parties.start

    def started(module: str, arguments: Sequence[str], *rest: Any) -> None:
        start(module, arguments, *rest)
        if arguments[0] == "evaluate":
            parties.leave_model()

    monkeypatch.setattr(parties, "start", started)
    outcome = simulated(small, rounds=rounds, randomizer="auto", duplicates="sum")
    order = [parties.events.index(event) for event in ("evaluate goes on", "run ended")]
    assert (order == sorted(order)) is beside
    # what the run wrote of itself is kept beside the scores
    assert outcome.metrics["timings"]["features_party.train"] == 4.0
    assert outcome.metrics["test_mse"] == 3.0
    assert not (outcome.report.parent / "feature_party" / "scores.json").exists()


def test_a_run_without_a_reference_is_scored_alone_and_quietly(
    small: Small, parties: Parties, capfd: pytest.CaptureFixture[str]
) -> None:
    simulated(small, nonprivate=False, quiet=True)
    assert parties.started[-1] == [*EVALUATE, *END]
    assert capfd.readouterr().err == ""


def test_a_reference_of_another_kind_is_made_once_the_run_is_over(
    small: Small, parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def reference() -> Path:
        parties.events.append("reference")
        return Path("ideal.json")

    settings = small(key="id", label_settings=SET_LABEL, feature_settings=SET_FEATURE)
    outcome = run_simulation(settings, reference)
    given = ["--nonprivate-metrics", str(tmp_path / "ideal.json")]
    assert parties.started[-1] == [*EVALUATE, *given, *END]
    order = [
        parties.events.index(event) for event in ("run ended", "reference", "evaluate started")
    ]
    assert order == sorted(order)
    assert "nonprivate" in outcome.metrics["timings"]


def test_a_population_is_submitted_before_its_release(small: Small, parties: Parties) -> None:
    simulated(small, submit_population=True)
    submit = ["feature_party", "feature_party-submit.log", "submit", *OF_FEATURES, *ADDRESSED]
    assert parties.started[:4] == [SERVE, submit, RELEASE, RUN]


def test_rounds_are_released_by_who_watches(small: Small, parties: Parties) -> None:
    outcome = simulated(small, rounds="2", randomizer="auto")
    watch = ["label_party", "watch.log", "watch", "--config", "label_party.toml", "--quiet",
             "--set", "store.directory=s"]  # fmt: skip
    assert parties.started[:3] == [SERVE, watch, RUN]
    assert RELEASE not in parties.started
    assert "read 1-2" in parties.events
    assert "decision" not in outcome.metrics
    auto = simulated(small, rounds="auto", randomizer="auto", overwrite=True)
    assert auto.metrics["decision"] == "one message, as nothing is asked beside --set-label"


@pytest.mark.parametrize("command", ["run", "evaluate"])
def test_a_failing_command_ends_the_run_with_its_words(
    small: Small, parties: Parties, command: str
) -> None:
    parties.fails = command
    with pytest.raises(DataError, match=f"{command} failed"):
        simulated(small)
    assert not (small().out / "metrics.json").exists()


SECRET = bytes(32)


def released(folder: Path, events: Sequence[str]) -> float:
    """Write a release of events; return the sum of its squared values."""
    manifest, _, codes = make_release(len(events))
    keys = bytes(hash_keys(pl.Series(events), SECRET))
    manifest, keys, codes = in_key_order(manifest, keys, codes)
    write_release(folder, manifest.to_bytes(), keys, codes)
    values = manifest.channel.outputs[np.frombuffer(codes, np.uint8)]
    return float((values**2).sum())


def test_the_labels_error_is_a_mean_over_all_releases(tmp_path: Path) -> None:
    """Squared differences to true labels, by keys and not by places."""
    events = [f"e{i}" for i in range(30)]
    total = sum(released(tmp_path / str(n), events[10 * n :][:10]) for n in range(3))
    truth = pl.DataFrame({"key": events[::-1], "label": [0.0] * 30})
    folders = [tmp_path / str(n) for n in range(3)]
    assert label_error(folders, truth, SECRET) == pytest.approx(total / 30)
    half = pl.DataFrame({"key": events, "label": [1.0] * 10 + [0.0] * 20})
    assert label_error(folders[1:], half, SECRET) == pytest.approx(
        sum(released(tmp_path / str(n), events[10 * n :][:10]) for n in (1, 2)) / 20
    )
    with pytest.raises(DataError, match="10 rows of the release are of unknown events"):
        label_error(folders, truth[:20], SECRET)


def test_a_submitted_population_says_whose_rows_they_are(tmp_path: Path) -> None:
    manifest, _, codes = make_release(4, keyed=False)
    keys = bytes(hash_keys(pl.Series([*"abcd"]), SECRET))
    write_release(tmp_path, manifest.to_bytes(), b"", codes)
    (tmp_path / POPULATION_FILE).write_bytes(keys)
    values = manifest.channel.outputs[np.frombuffer(codes, np.uint8)]
    truth = pl.DataFrame({"key": [*"dcba"], "label": values[::-1]})
    assert label_error([tmp_path], truth, SECRET) == 0
    assert keys_column(keys).len() == 4


def test_labels_between_points_add_variance() -> None:
    """A label 1 from 0 among points 5 apart goes to 5 in one of five cases: variance 4."""
    label: Any = SimpleNamespace(grid=[0.0, 5.0, 10.0])
    facts = placed(label, np.array([0.0, 1.0, 10.0, 5.0]))
    assert (facts["points"], facts["labels_between"]) == (3, 1)
    assert facts["variance_added"] == pytest.approx(4 / 4 / np.var([0.0, 1.0, 10.0, 5.0]), rel=0.4)
    assert facts["grid"].startswith("3 points, 5 apart; 1 of 4 labels")
