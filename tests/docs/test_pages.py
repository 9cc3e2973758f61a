"""Every page: its links lead somewhere, its commands exist, its code runs."""

from __future__ import annotations

import json
import re
import tomllib
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import labelveil.commands.cli
import labelveil.feature_party.commands.cli
import labelveil.label_party.commands.cli
from tests.docs.pages import PAGES, Page, run_page
from tests.imports import ROOT, modules

APPS = {
    "label-party": labelveil.label_party.commands.cli.app,
    "feature-party": labelveil.feature_party.commands.cli.app,
    "labelveil": labelveil.commands.cli.app,
}
SLOW = {
    "README.md",
    "docs/how-to/clear-labels.md",
    "docs/how-to/delayed-labels.md",
    "docs/how-to/own-model.md",
    "docs/how-to/own-session.md",
    "docs/how-to/several-labels.md",
    "docs/how-to/sums.md",
    "docs/ideas/groups.md",
    "docs/papers/private-learning.md",
    "docs/ideas/rounds.md",
    "docs/python.md",
    "docs/tutorial.md",
}
"""Pages whose Python takes more than five seconds, or reads what their commands left."""

PARSERS = {"json": json.loads, "toml": tomllib.loads}

BEFORE = {
    "README.md": ["labelveil certificates --out certificates --label-host labels.example.com"],
    "docs/audits.md": [
        "labelveil demo --rows 1000",
        "labelveil certificates --out certificates --label-host labels.example.com",
    ],
}
"""What a page takes for done."""

INSTEAD = {
    "labelveil audit mechanism randomized-response --epsilon 1 --points 3": (
        "labelveil audit mechanism randomized-response --epsilon 1 --points 3 --effort 0.1"
    ),
    "labelveil audit party": "labelveil audit party --help",  # test_the_real_labels_party runs it
}
"""What takes minutes, and what is typed in its place."""

NOT_TYPED = {
    "CONTRIBUTING.md": "it builds and tests all of this",
    "deploy/RUNBOOK.md": "it needs a cluster; test_runbook.py types its first ten minutes",
    "docs/appendix/central.md": "it takes hours, and tables of third parties",
}


def named(pages: list[Page]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=str)


@named(PAGES)
def test_links_and_pictures_exist(page: Page) -> None:
    for link in page.links:
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.path.parent / name).resolve() if name else page.path
        if target.suffix == ".ipynb":  # written from its page when the site is built
            target = target.with_suffix(".md")
        assert target.exists(), link
        if anchor:
            assert anchor in Page(target).anchors, link


INSIDE = re.compile(
    r"^ *(?:from|import) +(?:labelveil\.)?(?:common|label_party|feature_party)\b", re.MULTILINE
)


@named(PAGES)
def test_no_page_imports_from_inside(page: Page) -> None:
    """What users import is `labelveil` and its subjects."""
    assert not INSIDE.findall(page.text)


def test_an_import_from_inside_is_seen() -> None:
    assert INSIDE.search(
        "```python\nimport numpy\nfrom labelveil.common.mechanisms.pate import *\n```"
    )


@named(PAGES)
def test_files_of_the_repository_exist(page: Page) -> None:
    packages = "common|deploy|docs|feature_party|label_party|labelveil|protos|tests"
    for name in re.findall(rf"`((?:{packages})/[\w./-]*)`", page.prose):
        assert (ROOT / name).exists() or "NAME" in name, name


@named(PAGES)
def test_make_targets_exist(page: Page) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"(?:\$ |`)make ([a-z-]+)", page.text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@named(PAGES)
def test_commands_exist_with_their_options(page: Page) -> None:
    for program, *words in page.commands:
        found = get_command(APPS[program])
        below = takewhile(lambda word: re.fullmatch("[a-z][a-z-]*", word), words)
        for word in below:
            if not isinstance(found, TyperGroup):
                break
            found = found.get_command(None, word)  # type: ignore[arg-type]
            assert found is not None, (program, *words)
        known = {name for option in found.params for name in (*option.opts, *option.secondary_opts)}
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= {*known, "--help", "--version"}, (program, *words)


def test_commands_are_found() -> None:
    assert {program for page in PAGES for program, *_ in page.commands} == set(APPS)


@named(PAGES)
def test_every_block_is_read(page: Page) -> None:
    """One without a language, or in another one, would be run by no test."""
    assert page.languages <= {"console", "python", "toml", "json", "text"}
    for language, block in page.blocks:
        if language in PARSERS:
            PARSERS[language](block)


@pytest.mark.slow
@named([page for page in PAGES if "python" in page.languages and str(page) not in SLOW])
def test_the_python_runs(page: Page, tmp_path: Path) -> None:
    run_page(page, tmp_path, "python")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@named([
    page
    for page in PAGES
    if (page.typed or str(page) in SLOW) and str(page) not in NOT_TYPED
])  # fmt: skip
def test_everything_runs_in_the_order_of_the_page(page: Page, tmp_path: Path) -> None:
    before = BEFORE.get(str(page), ())
    run_page(page, tmp_path, "python", "console", before=before, instead=INSTEAD)


def test_what_is_typed_in_the_place_of_a_line_has_its_place() -> None:
    assert {line for page in PAGES for line in page.typed} >= INSTEAD.keys()


TERMS = re.findall(
    r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE
)[1:]


def test_every_term_of_the_glossary_is_in_use() -> None:
    pages = [page.text for page in PAGES if page.path.name != "glossary.md"]
    used = "\n".join([*pages, *(path.read_text() for path in modules().values())])
    for term, _ in TERMS:
        assert re.search(rf"\b{re.escape(term)}s?\b", used, re.IGNORECASE), term


def test_terms_are_explained_in_two_sentences_at_most() -> None:
    assert len(TERMS) > 20
    for term, meaning in TERMS:
        assert meaning.endswith("."), term
        assert len(re.findall(r"\.(?= |$)", meaning)) <= 2, term


def test_terms_are_in_order() -> None:
    assert all(one.lower() < other.lower() for (one, _), (other, _) in pairwise(TERMS))
