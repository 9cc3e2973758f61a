"""The runbook: its tables are complete, its commands exist, its links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import polars as pl
import pytest
import typer

from common.program import cli as common_cli
from feature_party.commands import cli as feature_cli
from label_party.commands import cli as label_cli
from label_party.monitoring.calls import REASONS
from tests.deploy.documents import DEPLOY, ROOT

TEXT = (DEPLOY / "RUNBOOK.md").read_text()
COMMANDS = {
    "label-party": label_cli.app,
    "feature-party": feature_cli.app,
    "labelveil": common_cli.app,
}


def typed(text: str) -> list[str]:
    """Return the command lines of a text's blocks."""
    blocks = "".join(re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    return re.findall(r"^\$ (.*)$", blocks.replace("\\\n", " "), re.MULTILINE)


def commands() -> list[list[str]]:
    """Return every command line of ours, in blocks and in the text."""
    text = re.sub(r"^```.*?^```", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    lines = typed(TEXT) + [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text)]
    ours = [line for line in lines if line.split()[0] in COMMANDS and len(line.split()) > 1]
    return [shlex.split(line) for line in ours]


def options(program: str, *command: str) -> set[str]:
    """Return the options of a command; fail if there is none of that name."""
    found = typer.main.get_command(COMMANDS[program])
    for word in command:
        found = found.commands[word]  # type: ignore[attr-defined]
    return {option for parameter in found.params for option in parameter.opts}


def test_it_tells_every_refusal() -> None:
    table = TEXT.partition("## Refusals")[2].partition("## Metrics")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert named == list(REASONS)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_its_commands_exist(words: list[str]) -> None:
    given = {word.partition("=")[0] for word in words[2:] if word.startswith("--")}
    below = takewhile(str.isalpha, words[2:3]) if words[1] == "budget" else ()
    assert given <= options(*words[:2], *below)


def test_its_commands_are_found() -> None:
    assert {words[0] for words in commands()} == set(COMMANDS)
    with pytest.raises(KeyError):
        options("label-party", "no-such-command")


@pytest.mark.slow
def test_the_first_ten_minutes_are_as_it_says(tmp_path: Path) -> None:
    keys = pl.DataFrame({"click_id": [f"c{i}" for i in range(500)]})
    keys.write_parquet(tmp_path / "landings.parquet")
    keys[::2].with_columns(amount=pl.lit(7.0)).write_parquet(tmp_path / "sales.parquet")
    block = TEXT.partition("### On a host")[2].partition("Give your partner")[0]
    ours = [line for line in typed(block) if line.split()[0] in COMMANDS]
    assert [line.split()[1] for line in ours] == [
        "certificates", "init", "release", "budget", "serve",
    ]  # fmt: skip
    modules = {"label-party": "label_party.commands.cli", "labelveil": "common.program.cli"}
    for line in ours[:-1]:
        program, *arguments = shlex.split(line)
        start = f"from {modules[program]} import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", start, *arguments], cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stderr)
    assert "ε = 1" in done.stdout


def test_its_links_and_paths_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert links
    for link in links:
        if link.startswith("#"):
            assert link[1:] in anchors, link
        else:
            assert (DEPLOY / link).exists(), link
    for path in re.findall(r"deploy/(?:label|feature)-party/[\w./-]+", TEXT):
        assert (ROOT / path).exists() or list(ROOT.glob(f"{path}*")), path
