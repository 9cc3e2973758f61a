"""The runbook: its table of refusals is complete, its first ten minutes and its paths are right."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from labelveil.label_party.monitoring.calls import REASONS
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


@pytest.mark.slow
def test_the_join_key_is_rotated_as_it_says(tmp_path: Path) -> None:
    """Of both epochs every event is joined, each under its own key."""
    before, _, _ = RUNBOOK.text.partition("### As a service")
    first = RUNBOOK.typed[: before.count("\n$ ")]
    setting_up, _, after = RUNBOOK.text.partition("**Rotate the join key.**")
    section = after.partition("## Refusals")[0]
    place = setting_up.count("\n$ ")
    rotating = RUNBOOK.typed[place : place + section.count("\n$ ")]
    assert [" ".join(line.split()[:2]) for line in rotating] == [
        "label-party init", "label-party release", "feature-party fetch", "feature-party join",
    ]  # fmt: skip
    example_data(tmp_path)
    with terminal(tmp_path) as run:
        for line in first:
            if not line.startswith("feature-party"):
                run(line)
        run(
            "feature-party init --features clicks.parquet --key click_id --data-set conversions"
            " --address labels.example.com:50051"
        )
        run("label-party budget raise --to 2 --reason 'a second epoch was agreed'")
        for line in rotating[:3]:
            run(line)
        with pytest.raises(AssertionError, match="the keys of epoch '1' are hashed with another"):
            run("feature-party join --secret-file certificates/join-2.key")
        run(rotating[3])
    joined = json.loads((tmp_path / "joined" / "join.json").read_text())
    assert joined["matches"]["matched"] == joined["matches"]["release_rows"] == 2 * 3000


def test_its_paths_exist() -> None:
    for path in re.findall(r"deploy/(?:label|feature)-party/[\w./-]+", RUNBOOK.text):
        assert (ROOT / path).exists() or list(ROOT.glob(f"{path}*")), path
