"""README and glossary: the Python runs, commands and pictures exist, terms are in use."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import common.program.cli
import feature_party.commands.cli
import label_party.commands.cli
from tests.imports import ROOT, modules

TEXT = (ROOT / "README.md").read_text("utf-8")
APPS = {
    "label-party": label_party.commands.cli.app,
    "feature-party": feature_party.commands.cli.app,
    "labelveil": common.program.cli.app,
}
COMMANDS = sorted(
    set(re.findall(r"(?:\$ |bin/|`)(label-party|feature-party|labelveil) ([a-z-]+)", TEXT))
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
    joined = TEXT.replace("\\\n", " ")
    for line in re.findall(rf"{command} {subcommand}([^\n`#]*)", joined):
        words = line.split()
        found = get_command(APPS[command]).get_command(None, subcommand)
        while isinstance(found, TyperGroup) and words:
            found = found.get_command(None, words.pop(0))
        assert found is not None, f"{command} {subcommand}{line}"
        known = {name for option in found.params for name in (*option.opts, *option.secondary_opts)}
        for option in re.findall(r"--[a-z-]+", line):
            assert option in {*known, "--help"}, f"{command} {subcommand} {option}"


TERMS = re.findall(
    r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE
)[1:]


def test_every_term_of_the_glossary_is_in_use() -> None:
    used = "\n".join([
        TEXT,
        *(path.read_text() for path in modules().values()),
    ])  # fmt: skip
    for term, _ in TERMS:
        assert re.search(rf"\b{re.escape(term)}s?\b", used, re.IGNORECASE), term


def test_terms_are_explained_in_two_sentences_at_most() -> None:
    assert len(TERMS) > 20
    for term, meaning in TERMS:
        assert meaning.endswith("."), term
        assert len(re.findall(r"\.(?= |$)", meaning)) <= 2, term


def test_terms_are_in_order() -> None:
    assert all(one.lower() < other.lower() for (one, _), (other, _) in pairwise(TERMS))
