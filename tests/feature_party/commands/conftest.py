"""Commands that are run in a folder of their own, with stages that only note what is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labelveil.feature_party.client.submission import Population
from tests.feature_party.commands.stand_ins import PIPELINE, All, Moved, OfSums, ThroughRounds


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def of_sums(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(f"{PIPELINE}.sums.SumStages", OfSums)
    monkeypatch.setattr(f"{PIPELINE}.sums_learning.SumLearning", OfSums)
    monkeypatch.setattr(OfSums, "done", [])
    return OfSums.done


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{PIPELINE}.stages.Stages", All)
    monkeypatch.setattr(f"{PIPELINE}.transfer.Transfer", Moved)
    monkeypatch.setattr(Moved, "done", [])
    monkeypatch.setattr(f"{PIPELINE}.rounds.Rounds", ThroughRounds)
    monkeypatch.setattr(ThroughRounds, "made", [])
    monkeypatch.setattr(OfSums, "done", [])


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    sent: list[bytes] = []

    def submit_all(self: Any, question: bytes = b"") -> tuple[Population, str]:
        sent.append(question)
        return Population(b"k" * 32, b"c", question), "stored"

    monkeypatch.setattr(f"{PIPELINE}.transfer.Transfer.submit_all", submit_all)
    return sent
