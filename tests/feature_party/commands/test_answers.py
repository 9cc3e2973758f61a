"""What commands print and write of what was done, and what they ask to be done."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from labelveil.common.errors import ConfigError, LabelveilError
from labelveil.common.release.event_keys import hash_keys
from labelveil.feature_party.client.submission import Population
from labelveil.feature_party.commands.cli import app
from labelveil.feature_party.commands.options import start
from labelveil.feature_party.commands.submit import submitted
from labelveil.feature_party.config.labels_party import LabelsPartySection
from labelveil.feature_party.evaluation.group_means import GroupMean
from labelveil.feature_party.evaluation.intervals import Measured
from labelveil.feature_party.join.matches import MatchCounts
from labelveil.feature_party.model.drift import ColumnDrift
from labelveil.feature_party.pipeline.means import LabelMeans
from labelveil.feature_party.pipeline.stages import Stages
from labelveil.feature_party.torchrun import started_by_torchrun
from tests.feature_party.worlds import SECRET, World, model_facts

MATCHES = MatchCounts(3000, 2500, 2400)
PIPELINE = "labelveil.feature_party.pipeline"
ROUNDS = '[labels_party]\nsubmit = true\nepoch = "day"\n[rounds]\nshares = [0.5, 0.5]\n'
GROUPS = f"{ROUNDS}[groups]\nepsilon = 1.0\nlower = 0.0\nupper = 4.0\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def refusal(*arguments: str) -> str:
    with pytest.raises(LabelveilError) as caught:
        CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def written(text: str) -> None:
    Path("feature_party.toml").write_text(text)


def test_a_join_says_what_matched_and_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = ["one"]
    joined = SimpleNamespace(matches=MATCHES, shards=shards, directory=Path("out"))
    monkeypatch.setattr(f"{PIPELINE}.learning.Learning.join", lambda self: joined)
    document = json.loads(invoke("join", "--out", "out", "--json"))
    assert document == {
        "release_rows": 3000, "feature_rows": 2500, "matched": 2400, "shards": 1,
        "directory": "out", "parties": [], "right_secrets": False, "unmatched": [],
    }  # fmt: skip
    said = invoke("join", "--out", "out").splitlines()
    assert said == [str(MATCHES), "1 shard in out; feature-party train starts from there"]
    shards *= 1200
    assert "\n1,200 shards in out;" in invoke("join", "--out", "out")
    assert invoke("join", "--out", "out", "--quiet") == ""


def test_a_fetch_says_what_came_and_what_it_took_the_place_of(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = world.release.manifest
    release: dict[str, Any] = {
        "manifest": manifest, "directory": Path("release"), "rows": 1500, "received": 1200,
        "seconds": 2.34, "replaced": None, "withdrawn": None,
    }  # fmt: skip
    fetched = [SimpleNamespace(**release)]
    configs = []

    def fetch(self: Any) -> list[Any]:
        configs.append(self.config)
        return fetched

    monkeypatch.setattr(f"{PIPELINE}.transfer.Transfer.fetch", fetch)
    (document,) = json.loads(invoke("fetch", "--json"))
    guarantee = document.pop("guarantee")
    assert guarantee["epsilon"] == "9/2"
    assert document == {
        "data_set": "sales", "epoch": "one", "rows": 1500, "events": 1500, "received": 1200,
        "seconds": 2.34, "directory": "release", "replaced": None, "withdrawn": None,
    }  # fmt: skip
    first, last = invoke("fetch").splitlines()
    assert first == (
        f"1,500 rows of 'sales', epoch 'one', in release (1,200 received, 2.3 s);"
        f" {manifest.total_guarantee}"
    )
    assert last == "next: feature-party train"
    fetched[0].replaced = ("sales", "zero")
    assert invoke("fetch").splitlines()[1] == (
        "it took the place of 'sales', epoch 'zero', which can be fetched again at no cost;"
        " [labels_party] epochs keeps several"
    )
    fetched[0].withdrawn = "wrong"
    assert invoke("fetch").splitlines()[1].endswith("which was withdrawn; train again")
    # of rounds those are fetched that were submitted, and the score
    written(ROUNDS)
    for epoch in ("day-1", "day-3"):
        Path("release", epoch).mkdir(parents=True)
        Path("release", epoch, "population.keys").touch()
    invoke("fetch")
    assert configs[-1].only_labels_party.epochs == ["day-1", "day-3"]


def test_a_fetch_of_sums_counts_events(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = SimpleNamespace(
        data_set="sales", epoch="one", sums=object(),
        population=SimpleNamespace(rows=1500),
        total_guarantee=world.release.manifest.total_guarantee,
    )  # fmt: skip
    done = SimpleNamespace(
        manifest=manifest, directory=Path("r"), rows=12, received=0, seconds=0.0, replaced=None,
        withdrawn=None,
    )  # fmt: skip
    monkeypatch.setattr(f"{PIPELINE}.transfer.Transfer.fetch", lambda self: [done])
    assert invoke("fetch").startswith("12 sums over 1,500 events of 'sales', epoch 'one', in r (0 ")


class Learned:
    """The stages of a training: models of labels, of which one process says what came out."""

    def __init__(self, config: Any, quiet: bool, truth: Any = None) -> None:
        self.config, self.quiet, self.truth = config, quiet, truth
        Learned.made.append(self)
        self.workers = SimpleNamespace(first=Learned.first)
        self.prepared = SimpleNamespace(matches=MATCHES)
        self.labels = dict.fromkeys(Learned.names)

    made: ClassVar[list[Any]] = []
    first = True
    names = ("pay",)
    head = "gaussian"

    def train_together(self) -> Any:
        learned = {"training_rows": 1234, "seconds": 1.26, "head": Learned.head}
        facts = model_facts().model_copy(update=learned)
        models = {name: SimpleNamespace(facts=facts) for name in Learned.names}
        return SimpleNamespace(by_label=models)

    def prefix(self, label: str) -> str:
        return f"{label}: " if len(self.labels) > 1 else ""


def test_a_training_says_what_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{PIPELINE}.learning.Learning", Learned)
    monkeypatch.setattr(Learned, "made", [])
    first, second, third = invoke("train", "--model", "m", "--true-labels", "t.csv").splitlines()
    assert (first, third) == (str(MATCHES), "next: feature-party evaluate, or predict")
    assert second == ("objective likelihood, head gaussian, 1,234 training rows, 1.3 s; model in m")
    assert Learned.made[0].truth.true_labels == Path("t.csv")
    assert Learned.made[0].quiet is False
    document = json.loads(invoke("train", "--model", "m", "--json", "-q"))
    assert Learned.made[-1].quiet is True
    assert (document["model"], document["matched"], document["name"]) == ("m", 1, "pay")
    assert (document["training_rows"], document["head"]) == (1234, "gaussian")
    monkeypatch.setattr(Learned, "names", ("pay", "late"))
    document = json.loads(invoke("train", "--model", "m", "--json"))
    assert [label["name"] for label in document["labels"]] == ["pay", "late"]
    assert "head" not in document
    assert "\nlate: objective likelihood, head gaussian" in invoke("train", "--model", "m")
    monkeypatch.setattr(Learned, "head", "")  # a model of points has none
    assert "\npay: objective likelihood, head -, 1,234" in invoke("train", "--model", "m")
    monkeypatch.setattr(Learned, "first", False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert invoke("train", "--model", "m") == ""  # another of several workers says nothing


class OfSums:
    """The stages of a model of sums."""

    done: ClassVar[list[Any]] = []

    def __init__(self, config: Any, quiet: bool, truth: Any = None) -> None:
        self.config, self.quiet, self.truth = config, quiet, truth
        self.timings: dict[str, float] = {}
        sums = SimpleNamespace(answer=SimpleNamespace(sums=np.zeros(600)))
        self.learned_from = [sums, sums]

    def train(self) -> Any:
        from labelveil.feature_party.groups.saved import SumsFacts

        facts = SumsFacts(("ab",), 2400, 5.0, "", 7, "id", "y")
        return SimpleNamespace(facts=facts, model=SimpleNamespace(ridges=(1, 2, 3)))

    def with_config(self, config: Any) -> OfSums:
        return OfSums(config, self.quiet, self.truth)

    def load(self) -> str:
        return "the model"

    def trained(self) -> str:
        OfSums.done.append(("trained", self.config.only_labels_party.epochs))
        return "the model"

    final = trained
    learned_words = "1,200 sums"

    def check_asked(self, ask: list[str], by: list[str]) -> None:
        OfSums.done += [("checked", ask, by)] * bool(ask or by)

    def predict(self, model: str) -> None:
        OfSums.done.append(("predict", model))

    def train_on_truth(self, folder: Path) -> Path:
        OfSums.done.append(("train on truth", folder, self.truth.true_labels))
        return folder / "metrics.json"

    def write_metrics(self, scores: Any) -> dict[str, Any]:
        return {"metrics of": scores}

    def evaluate(self, model: str, *given: Any) -> str:
        OfSums.done.append(("evaluate", model, *filter(None, given)))
        self.config.output.metrics.write_text(json.dumps({"r2": 0.5}))
        return "good"

    def warn(self, text: str) -> None:
        OfSums.done.append(("warn", text))

    def told(self, scores: str) -> tuple[list[str], list[str]]:
        return ["take care"], [scores]


@pytest.fixture
def of_sums(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(f"{PIPELINE}.sums.SumStages", OfSums)
    monkeypatch.setattr(f"{PIPELINE}.sums_learning.SumLearning", OfSums)
    monkeypatch.setattr(OfSums, "done", [])
    return OfSums.done


def test_a_training_on_sums_counts_them(
    of_sums: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(GROUPS)
    document = json.loads(invoke("train", "--json"))
    assert document == {
        "releases": ["ab"], "events": 2400, "mean": 5.0, "columns": "", "seed": 7, "key": "id",
        "label": "y", "warnings": [], "sums": 1200, "model": "model",
    }  # fmt: skip
    assert invoke("train").splitlines() == [
        "1,200 sums over 2,400 events, 3 ridges; model in model",
        "next: feature-party submit, for the next round",
    ]
    (last := Path("release/day-2")).mkdir(parents=True)
    for name in ("manifest.json", "manifest.sig", "codes.bin", "keys.bin"):
        (last / name).touch()
    assert invoke("train").splitlines()[1] == "next: feature-party evaluate, or predict"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "WORLD_SIZE=2, but train alone takes several processes" in refusal("train")
    assert of_sums == []


def test_a_model_of_sums_is_evaluated_by_sums_alone(of_sums: list[Any]) -> None:
    written(GROUPS)
    assert invoke("evaluate").splitlines() == [
        "1,200 sums", "good", "metrics in metrics.json, report report.html",
    ]  # fmt: skip
    assert of_sums == [("evaluate", "the model"), ("warn", "take care")]
    assert json.loads(invoke("evaluate", "--json")) == {"r2": 0.5}
    of_sums.clear()
    invoke("evaluate", "--ask", "squared", "--by", "x", "--true-labels", "t", "--nonprivate", "n")
    assert of_sums[0] == ("checked", ["squared"], ["x"])  # before anything is trained


def test_a_model_of_sums_is_compared_with_one_of_true_labels(of_sums: list[Any]) -> None:
    written(GROUPS)
    invoke("evaluate", "--true-labels", "t.csv", "--nonprivate", "ideal")
    assert of_sums[:2] == [
        ("train on truth", Path("ideal"), Path("t.csv")),
        ("evaluate", "the model", Path("ideal/metrics.json")),
    ]
    of_sums.clear()
    invoke("evaluate", "--true-labels", "t.csv", "--nonprivate-metrics", "known.json")
    assert of_sums[0] == ("evaluate", "the model", Path("known.json"))


class ThroughRounds:
    """Rounds that send what they are told to."""

    made: ClassVar[list[Any]] = []

    def __init__(self, stages: Any, last: Any = None) -> None:
        self.stages, self.last = stages, last
        ThroughRounds.made.append(self)

    def _sent(self, epoch: str) -> tuple[LabelsPartySection, Population, str]:
        party = self.stages.config.only_labels_party.model_copy(update={"epoch": epoch})
        return party, Population(b"k" * 32, b"c"), "stored"

    def learn(self) -> Any:
        yield self._sent("day-1")
        yield self._sent("day-2")

    def score(self, model: Any) -> Any:
        OfSums.done.append(("score", model))
        yield self._sent("day-3")

    def submit_next(self) -> Any:
        return self._sent("day-1")


def test_a_run_of_rounds_says_what_it_sent_and_goes_on_with_all_of_them(
    of_sums: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{PIPELINE}.rounds.Rounds", ThroughRounds)
    monkeypatch.setattr(ThroughRounds, "made", [])
    written(GROUPS)
    lines = invoke("run").splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == [
        f"2 keys as the population of '', epoch 'day-{number}'" for number in (1, 2, 3)
    ]
    assert lines[3:] == ["1,200 sums", "good", "metrics in metrics.json, report report.html"]
    assert of_sums == [
        ("trained", ["day-1", "day-2"]), ("score", "the model"), ("predict", "the model"),
        ("evaluate", "the model"), ("warn", "take care"),
    ]  # fmt: skip
    (rounds,) = ThroughRounds.made
    assert rounds.stages.config.only_labels_party.epoch == "day"
    assert rounds.last.config.only_labels_party.epochs == ["day-1", "day-2"]
    assert json.loads(invoke("run", "--json")) == {"r2": 0.5}
    assert invoke("run", "--quiet") == ""
    of_sums.clear()
    unscored = invoke("run", "--no-evaluate", "--model", "m").splitlines()[3:]
    assert unscored == [
        "1,200 sums", "model in m, predictions in predictions.parquet",
        "next: feature-party evaluate",
    ]  # fmt: skip
    assert [each[0] for each in of_sums] == ["trained", "score", "predict"]
    assert json.loads(invoke("run", "--no-evaluate", "--json")) == {"metrics of": {}}


@dataclass
class All:
    """All stages of codes."""

    config: Any
    quiet: bool
    truth: Any = None
    done: list[Any] = field(default_factory=list)

    timings: dict[str, float] = field(default_factory=dict)

    last: ClassVar[Any] = None
    learned_words: ClassVar[str] = str(MATCHES)

    def __post_init__(self) -> None:
        All.last = self

    def with_config(self, config: Any) -> All:
        return All(config, self.quiet, self.truth, self.done)

    def check_asked(self, ask: list[str], by: list[str]) -> None:
        self.done += [("checked", ask, by)] * bool(ask or by)

    def final(self) -> str:
        self.done.append(("train", self.config.labels_party[0].epochs))
        return "models"

    def load(self) -> str:
        self.done.append(("load",))
        return "models"

    def predict(self, models: str) -> None:
        self.done.append(("predict", models))

    def train_on_truth(self, folder: Path) -> Path:
        self.done.append(("train on truth", folder))
        return folder / "metrics.json"

    def evaluate(self, models: str, *given: Any) -> dict[str, Any]:
        self.done.append(("evaluate", models, *given))
        self.config.output.metrics.write_text(json.dumps({"mse": 2}))
        scores = SimpleNamespace(warnings=["take care"], summary=["good"])
        return {"pay": scores} if not given or not given[-1] else {"pay": scores, "late": scores}

    def told(self, scores: Any) -> tuple[list[str], list[str]]:
        return Stages.told(cast(Any, self), scores)

    def prefix(self, label: str) -> str:
        return f"{label}> "

    def warn(self, text: str) -> None:
        self.done.append(("warn", text))

    def write_metrics(self, scores: Any) -> dict[str, Any]:
        return {"metrics of": scores}


class Moved:
    """What goes to a labels party and comes from it."""

    done: ClassVar[list[str]] = []

    def __init__(self, config: Any, quiet: bool) -> None:
        self.timings = {"fetch": 1.0}

    def submit_all(self) -> tuple[Population, str]:
        Moved.done.append("submit")
        return Population(b"k" * 48, b"c"), "stored before"

    def fetch(self) -> None:
        Moved.done.append("fetch")


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{PIPELINE}.stages.Stages", All)
    monkeypatch.setattr(f"{PIPELINE}.transfer.Transfer", Moved)
    monkeypatch.setattr(Moved, "done", [])
    monkeypatch.setattr(f"{PIPELINE}.rounds.Rounds", ThroughRounds)
    monkeypatch.setattr(ThroughRounds, "made", [])
    monkeypatch.setattr(OfSums, "done", [])


@pytest.mark.usefixtures("everything")
def test_a_run_does_one_stage_after_another() -> None:
    assert invoke("run").splitlines() == [
        str(MATCHES), "good", "metrics in metrics.json, report report.html",
    ]  # fmt: skip
    assert All.last.done == [
        ("train", []), ("predict", "models"), ("evaluate", "models"), ("warn", "pay> take care"),
    ]  # fmt: skip
    assert (Moved.done, All.last.timings) == (["fetch"], {"fetch": 1.0})
    assert json.loads(invoke("run", "--json")) == {"mse": 2}
    said = invoke("run", "--no-evaluate", "--true-labels", "t.csv", "--model", "m", "-q")
    assert said == ""
    assert (All.last.quiet, All.last.truth.true_labels) == (True, Path("t.csv"))
    assert [each[0] for each in All.last.done] == ["train", "predict"]
    assert invoke("run", "--no-evaluate", "--model", "m").splitlines() == [
        str(MATCHES), "model in m, predictions in predictions.parquet",
        "next: feature-party evaluate",
    ]  # fmt: skip
    assert json.loads(invoke("run", "--no-evaluate", "--json")) == {"metrics of": {}}
    written('[labels_party]\nsubmit = true\nepoch = "day"\ndata_set = "sales"\n')
    first, *_ = invoke("run").splitlines()
    assert first.startswith("3 keys as the population of 'sales', epoch 'day': stored before; SHA")
    assert Moved.done[-2:] == ["submit", "fetch"]


@pytest.mark.usefixtures("everything")
def test_a_run_of_rounds_of_codes() -> None:
    written(ROUNDS)
    lines = invoke("run").splitlines()
    assert [line[-40:] != "" for line in lines[:3]] == [True] * 3
    assert lines[3:] == [str(MATCHES), "good", "metrics in metrics.json, report report.html"]
    assert ("score", "models") in OfSums.done
    assert All.last.done[0] == ("train", ["day-1", "day-2"])
    (rounds,) = ThroughRounds.made
    assert rounds.stages.config.only_labels_party.epoch == "day"


@pytest.mark.usefixtures("everything")
def test_an_evaluation_is_compared_with_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = invoke("evaluate", "--by", "shop", "--by", "x", "--ask", "squared").splitlines()
    assert lines == [
        str(MATCHES), "pay:", "good", "late:", "good",
        "metrics in metrics.json, report report.html",
    ]  # fmt: skip
    assert All.last.done == [
        ("checked", ["squared"], ["shop", "x"]), ("load",),
        ("evaluate", "models", None, ["squared"], ["shop", "x"]),
        ("warn", "pay> take care"), ("warn", "late> take care"),
    ]  # fmt: skip
    invoke("evaluate", "--nonprivate", "taught")
    assert All.last.done[:3] == [
        ("load",), ("train on truth", Path("taught")),
        ("evaluate", "models", Path("taught/metrics.json"), [], []),
    ]  # fmt: skip
    invoke("evaluate", "--nonprivate-metrics", "known.json")
    assert All.last.done[1] == ("evaluate", "models", Path("known.json"), [], [])
    done = CliRunner().invoke(
        app, ["evaluate", "--nonprivate", "taught", "--wait"], input="go\n", catch_exceptions=False
    )
    assert done.exit_code == 0
    assert [each[0] for each in All.last.done[:2]] == ["train on truth", "load"]
    assert refusal("evaluate", "--nonprivate=a", "--nonprivate-metrics=b").startswith(
        "--nonprivate"
    )
    assert "folder of the model itself" in refusal(
        "evaluate", "--nonprivate", f"{Path.cwd()}/model"
    )


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    sent: list[bytes] = []

    def submit_all(self: Any, question: bytes = b"") -> tuple[Population, str]:
        sent.append(question)
        return Population(b"k" * 32, b"c", question), "stored"

    monkeypatch.setattr(f"{PIPELINE}.transfer.Transfer.submit_all", submit_all)
    return sent


def test_a_question_of_a_file_goes_with_the_keys(sending: list[bytes]) -> None:
    Path("asked.bin").write_bytes(b"what?")
    named = ("--data-set", "sales", "--epoch", "one")
    document = json.loads(invoke("submit", *named, "--question", "asked.bin", "--json"))
    digest = Population(b"k" * 32, b"c").digest.hex()
    assert document == {
        "data_set": "sales", "epoch": "one", "rows": 2, "sha256": digest, "asked": True,
        "ending": "stored",
    }  # fmt: skip
    assert invoke("submit", *named) == (
        f"2 keys as the population of 'sales', epoch 'one': stored; SHA-256 {digest}\n"
    )
    assert sending == [b"what?", b""]
    assert "none.bin cannot be read" in refusal("submit", "--question", "none.bin")
    both = refusal("submit", "--question", "asked.bin", "--ask")
    assert both.startswith("--question asked.bin and --ask exclude each other")
    written(ROUNDS)
    rounds = refusal("submit", "--question", "asked.bin")
    assert "--question asked.bin and [rounds] shares=[0.5, 0.5] exclude" in rounds
    assert len(sending) == 2


def test_a_model_of_codes_asks_and_one_of_sums_does_not(
    sending: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = "labelveil.feature_party.model.several_labels.LabelModels.load"
    monkeypatch.setattr(models, lambda folder: folder)
    asked = f"{PIPELINE}.rounds.question_of"
    monkeypatch.setattr(asked, lambda models, config: f"what {models} asks".encode())
    said = invoke("submit", "--ask", "--model", "m")
    assert said.startswith("2 keys with a question as the population")
    assert sending == [b"what m asks"]
    monkeypatch.setattr("labelveil.feature_party.groups.saved.is_of_sums", lambda folder: True)
    assert "--ask is for models of codes, and that in m has learned from sums" in refusal(
        "submit", "--ask", "--model", "m"
    )
    assert len(sending) == 1


@pytest.mark.parametrize("names", [("",), ("pay", "late")])
def test_means_are_a_document_of_each_label(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [GroupMean(("a",), 12, Measured(1.0, 0.5, 1.5))]
    found = [LabelMeans(name, ["x"], 0.5, MATCHES, True, groups) for name in names]
    monkeypatch.setattr(f"{PIPELINE}.means.means_by", lambda *given, quiet: found)
    document = json.loads(invoke("means", "--by", "x", "--json"))
    wanted = [json.loads(json.dumps(each.to_json(), default=str)) for each in found]
    assert document == (wanted if len(names) > 1 else wanted[0])
    shown = invoke("means", "--by", "x")
    assert shown.count(str(MATCHES)) == len(names)
    assert [f"{name}:" in shown.splitlines() for name in names] == [bool(n) for n in names]


@pytest.mark.parametrize("text", [ROUNDS, GROUPS])
@pytest.mark.usefixtures("everything")
def test_of_rounds_the_next_is_submitted(
    text: str, of_sums: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(text)
    assert "epoch 'day-1': stored" in invoke("submit")
    (rounds,) = ThroughRounds.made
    assert type(rounds.stages) is (OfSums if text == GROUPS else All)
    assert of_sums == []


def test_what_was_submitted_is_said_in_a_line_and_as_values() -> None:
    party = LabelsPartySection(data_set="sales", epoch="one")
    document, line = submitted(party, Population(b"k" * 16 * 1200, b"c", b"what?"), "stored")
    assert line.startswith("1,200 keys with a question as the population of 'sales', epoch 'one':")
    assert (document["rows"], document["asked"], document["ending"]) == (1200, True, "stored")
    document, line = submitted(party, Population(b"k" * 16, b"c"), "stored")
    assert line.startswith("1 keys as the population of 'sales', epoch 'one': stored; SHA-256 ")
    assert (document["rows"], document["asked"]) == (1, False)
    assert submitted(party, Population(b"", b"c"), "no need")[1] == "nothing to submit: no need"


def test_predictions_end_a_script_where_a_column_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same, other = (
        ColumnDrift(name, "number", (0.0, now), (0.0, 0.0), (0.0, 0.0), 0.0)
        for name, now in (("a", 0.0), ("b", 0.9))
    )
    done = SimpleNamespace(rows=1200, drift=[same, other])
    loaded = "labelveil.feature_party.model.several_labels.LabelModels.load"
    monkeypatch.setattr(loaded, lambda folder: folder)
    asked = []

    def predict(config: Any, model: Any, *, quiet: bool) -> Any:
        asked.append((model, quiet))
        return done

    monkeypatch.setattr(f"{PIPELINE}.predicting.predict", predict)
    given = ("predict", "--model", "m", "--output", "p.csv", "--features", "f.csv")
    assert invoke(*given) == "1,200 predictions in p.csv\n"
    document = json.loads(invoke(*given, "--json", "-q"))
    assert (document["rows"], document["predictions"]) == (1200, "p.csv")
    assert [column["column"] for column in document["drift"]] == ["a", "b"]
    assert asked == [(Path("m"), False), (Path("m"), True)]
    assert refusal(*given, "--fail-on-drift") == (
        "columns of f.csv are unlike what the model was trained on ('b'), as said above; the"
        " predictions are in p.csv"
    )
    done.drift = [same]
    invoke(*given, "--fail-on-drift")


@pytest.mark.parametrize("method", ["unbiased", "low-variance"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_labels_are_written_with_their_channel(world: World, method: str, suffix: str) -> None:
    output = f"out/labels{suffix}"
    given = ("--release", str(world.directory), "--features", str(world.features))
    given = (*given, "--key", "event", "--secret-file", str(world.secret_file))
    document = json.loads(
        invoke("labels", *given, "-o", output, "--method", method, "--json", "-q")
    )
    assert document == {
        "release_rows": 1500, "feature_rows": 1500, "matched": 1500, "labels": output,
        "channel": "out/labels.json", "parties": [], "right_secrets": True, "unmatched": [],
    }  # fmt: skip
    facts = json.loads(Path("out/labels.json").read_text())
    assert facts.keys() == {"grid", "prior", "channel"}
    channel = np.array(facts["channel"])
    np.testing.assert_allclose(channel, world.release.manifest.channel.probabilities, atol=1e-12)
    read = pl.read_csv if suffix == ".csv" else pl.read_parquet
    table = read(output)
    assert table.columns == ["event", "code", "target", "weight"]
    # each key has the code that was sent of it
    sent = {world.keys[16 * i : 16 * i + 16]: code for i, code in enumerate(world.codes)}
    ours = hash_keys(table["event"], SECRET)
    assert table["code"].to_list() == [sent[ours[16 * i : 16 * i + 16]] for i in range(1500)]
    if method == "unbiased":
        by_code = dict(zip(table["code"], table["target"], strict=True))
        targets = np.array([by_code.get(code, 0.0) for code in range(channel.shape[1])])
        np.testing.assert_allclose(channel @ targets, facts["grid"], atol=1e-6)
    said = invoke("labels", *given, "-o", output, "--method", method).splitlines()
    assert said[-1] == f"1,500 labels in {output}; the channel in out/labels.json"


def test_only_tables_are_written() -> None:
    assert "labels.txt" in refusal("labels", "-o", "labels.txt")


@pytest.mark.parametrize(
    ("size", "said"), [("0", "WORLD_SIZE='0'"), ("two", "WORLD_SIZE='two'"), ("-1", "'-1'")]
)
def test_how_many_workers_there_are(size: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert started_by_torchrun() == 1
    for many in (1, 3):
        monkeypatch.setenv("WORLD_SIZE", str(many))
        assert started_by_torchrun() == many
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(ConfigError, match=said):
        started_by_torchrun()


def test_whatever_will_be_written_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    start({"--output": Path("a/b.csv")}, {"--model": Path("c/d")})
    Path("file").touch()
    with pytest.raises(ConfigError, match="--output"):
        start({"--output": Path("file/b.csv")})
    with pytest.raises(ConfigError, match="--model"):
        start({}, {"--model": Path("file")})
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="run this command without torchrun"):
        start()
    start(together=True)


def test_an_export_says_what_was_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    column = SimpleNamespace(name="x", input="in_0", kind="number")
    exported = SimpleNamespace(
        files=(Path("m.pt2"), Path("m.pt2.json")), columns=(column,), rows=1234, difference=1.23e-7,
        runtime="torch",
    )  # fmt: skip
    seen = []
    encoder = SimpleNamespace(columns=("x",), check=lambda names: seen.append(names))
    models = SimpleNamespace(encoder=encoder, for_source=lambda name: seen.append(name) or models)
    several = "labelveil.feature_party.model.several_labels.LabelModels.load"
    monkeypatch.setattr(several, lambda folder: models)

    def export(of: Any, output: Path, wanted: str, sample: Any) -> Any:
        seen.append((output, wanted, None if sample is None else sample.shape))
        return exported

    monkeypatch.setattr("labelveil.feature_party.export.run.export_model", export)
    given = ("export", "--model", "m", "-o", "m.pt2")
    assert invoke(*given) == (
        "1 inputs; 1,234 rows agree to 1e-07 in torch; in m.pt2 and m.pt2.json\n"
    )
    pl.DataFrame({"x": range(3000), "z": range(3000)}).write_csv("f.csv")
    document = json.loads(
        invoke(
            *given, "--features", "f.csv", "--format", "torch", "--set", "output.source=a", "--json"
        )
    )
    assert document == {
        "inputs": [{"name": "x", "input": "in_0", "kind": "number"}],
        "files": ["m.pt2", "m.pt2.json"], "runtime": "torch", "rows_compared": 1234,
        "largest_difference": 1.23e-7,
    }  # fmt: skip
    assert seen == [
        "", (Path("m.pt2"), "auto", None), "a", ["x", "z"], (Path("m.pt2"), "torch", (2000, 1)),
    ]  # fmt: skip
    exported.runtime = ""
    assert "1 inputs; not compared: no runtime for it is installed here" in invoke(*given)
    assert json.loads(invoke(*given, "--json")).keys() == {"inputs", "files"}


@pytest.mark.parametrize(
    "name",
    ["init", "doctor", "submit", "fetch", "join", "train", "labels", "means", "evaluate", "predict",
     "export", "run"],
)  # fmt: skip
def test_each_command_is_the_function_of_its_name(name: str) -> None:
    function = getattr(import_module(f"labelveil.feature_party.commands.{name}"), name)
    shown = " ".join(CliRunner().invoke(app, [name, "--help"]).output.replace("│", " ").split())
    first, _, _ = str(function.__doc__).partition("\n")
    assert first in shown
    assert f"feature-party {name}" in shown
    listed = " ".join(CliRunner().invoke(app, ["--help"]).output.replace("│", " ").split())
    assert first.partition(",")[0].partition(";")[0].removesuffix(".") in listed


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("doctor", ()), ("submit", ()), ("fetch", ()), ("join", ()), ("labels", ()),
        ("means", ("--by", "x")), ("evaluate", ()), ("predict", ()), ("export", ()), ("run", ()),
    ],
)  # fmt: skip
def test_what_takes_one_process_is_refused_to_several(
    name: str, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "WORLD_SIZE=2, but train alone takes several processes" in refusal(name, *more)
