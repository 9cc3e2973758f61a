"""The runbook: its table of refusals is complete, its first ten minutes and its paths are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from label_party.monitoring.calls import REASONS
from tests.deploy.documents import DEPLOY, ROOT
from tests.docs.pages import Page, example_data, terminal

RUNBOOK = Page(DEPLOY / "RUNBOOK.md")


def test_it_tells_every_refusal() -> None:
    table = RUNBOOK.text.partition("## Refusals")[2].partition("## The log")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert named == list(REASONS)


@pytest.mark.slow
def test_the_first_ten_minutes_are_as_it_says(tmp_path: Path) -> None:
    before, _, _ = RUNBOOK.text.partition("### As a service")
    lines = RUNBOOK.typed[: before.count("\n$ ")]
    assert [line.split()[1] for line in lines if line.startswith("label-party")] == [
        "init", "release", "budget", "serve",
    ]  # fmt: skip
    example_data(tmp_path)
    with terminal(tmp_path) as run:
        for line in lines:
            run(line)


def test_its_paths_exist() -> None:
    for path in re.findall(r"deploy/(?:label|feature)-party/[\w./-]+", RUNBOOK.text):
        assert (ROOT / path).exists() or list(ROOT.glob(f"{path}*")), path
