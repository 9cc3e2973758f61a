"""A release that answered a question: the channels of all strata are certified, and rebuilt."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from labelveil.audit.certificate.evidence import read_evidence
from labelveil.audit.certificate.manifest_checks import channel_check
from labelveil.audit.certificate.run import certificate
from labelveil.audit.verdict import Verdict
from labelveil.common.release.manifest import Manifest
from tests.labelveil.audit.certificate.answers import Change, answered
from tests.labelveil.audit.conftest import evidence_of


def failed(folder: Path) -> set[str]:
    checks = certificate(read_evidence(folder)).checks
    assert "rows of each stratum" in {check.name for check in checks}
    return {check.name for check in checks if check.verdict is Verdict.FAIL}


def test_an_answer_is_certified(tmp_path: Path) -> None:
    folder = answered(tmp_path / "release")
    assert not failed(folder)
    # three strata of as many events
    assert read_evidence(folder).manifest.question_bits == pytest.approx(math.log2(3))


def other_rows(data: dict[str, Any]) -> None:
    data["strata"][0]["rows"] += 1
    data["strata"][1]["rows"] -= 1


def other_law(data: dict[str, Any]) -> None:
    data["strata"][0]["law"][2] += 30


def other_channel(data: dict[str, Any]) -> None:
    data["randomizers"][0]["channel"] = data["randomizers"][1]["channel"]


def smaller_claim(data: dict[str, Any], stratum: int = 2) -> None:
    small = {"kind": "pure", "adjacency": "replace-label", "unit": "record", "epsilon": "1/2"}
    data["randomizers"][stratum]["guarantee"] = small


def smaller_total(data: dict[str, Any]) -> None:
    data["privacy"]["total"]["epsilon"] = "1/2"


CONSISTENT, REBUILT = "manifest is consistent", "channel is a function of the noisy histogram"


@pytest.mark.parametrize(
    ("change", "caught"),
    [
        (other_rows, {"rows of each stratum"}),
        (other_law, {REBUILT}),
        (other_channel, {REBUILT}),
        (smaller_claim, {CONSISTENT, "exact ε of the labels"}),
        (smaller_total, {CONSISTENT, "arithmetic of the ε split"}),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_a_lie_about_a_stratum_is_caught(tmp_path: Path, change: Change, caught: set[str]) -> None:
    assert caught <= failed(answered(tmp_path / "release", change))


def test_each_stratum_is_held_to_its_own_claim(tmp_path: Path) -> None:
    """Not the worst one's: its channel claims no less than it spends."""
    data = json.loads((answered(tmp_path / "release") / "manifest.json").read_bytes())
    assert channel_check(evidence_of(Manifest.model_validate(data))).verdict is Verdict.PASS
    for stratum in range(3):
        changed = json.loads(json.dumps(data))
        smaller_claim(changed, stratum)
        found = channel_check(evidence_of(Manifest.model_validate(changed)))
        assert found.verdict is Verdict.FAIL, stratum
