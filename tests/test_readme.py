"""The README does what it says: its Python runs, its commands and pictures exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text("utf-8")
MODULES = {
    "label-party": "label_party",
    "feature-party": "feature_party",
    "label-dp": "common.cli",
}
COMMANDS = sorted(
    set(re.findall(r"(?:\$ |bin/|`)(label-party|feature-party|label-dp) ([a-z-]+)", TEXT))
)


def test_the_python_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_pictures_and_links_exist() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert any(target.endswith(".png") for target in targets)
    for target in targets:
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in set(re.findall(r"\$ make ([a-z-]+)", TEXT)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize(("command", "subcommand"), COMMANDS)
def test_commands_exist_with_their_options(command: str, subcommand: str) -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", MODULES[command], subcommand, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    joined = TEXT.replace("\\\n", " ")
    for line in re.findall(rf"{command} {subcommand}([^\n`#]*)", joined):
        for option in re.findall(r"--[a-z-]+", line):
            assert option in help_text, f"{command} {subcommand} {option}"
