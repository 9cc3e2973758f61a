"""What stands in for the stages of a command, and a command that is run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from typer.testing import CliRunner

from labelveil.common.errors import LabelveilError
from labelveil.feature_party.client.submission import Population
from labelveil.feature_party.commands.cli import app
from labelveil.feature_party.config.labels_party import LabelsPartySection
from labelveil.feature_party.join.matches import MatchCounts
from labelveil.feature_party.pipeline.stages import Stages

MATCHES = MatchCounts(3000, 2500, 2400)
PIPELINE = "labelveil.feature_party.pipeline"
ROUNDS = '[labels_party]\nsubmit = true\nepoch = "day"\n[rounds]\nshares = [0.5, 0.5]\n'
GROUPS = f"{ROUNDS}[groups]\nepsilon = 1.0\nlower = 0.0\nupper = 4.0\n"


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

    def summary(self, scores: str) -> tuple[list[str], list[str]]:
        return ["take care"], [scores]


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

    def summary(self, scores: Any) -> tuple[list[str], list[str]]:
        return Stages.summary(cast(Any, self), scores)

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
