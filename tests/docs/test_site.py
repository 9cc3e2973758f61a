"""The site: it builds without a warning, its links hold, and it asks no other host for anything."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import ROOT

DOCS = ROOT / "docs"
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "srcset"}
"""Tags that a browser fetches without being asked, and the attribute that says what."""


class Document(HTMLParser):
    """What a built page refers to, and what can be referred to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.headings = 0
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self.headings += tag == "h1"
        if tag in LOADED and LOADED[tag] in given:
            self.loaded.append(given[LOADED[tag]])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"^ +- (?:\w+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert pages <= listed, "name it under `nav` in mkdocs.yml"


def test_the_overviews_have_not_drifted() -> None:
    for name, picture in runpy.run_path(str(DOCS / "write_overview.py"))["PICTURES"].items():
        assert (DOCS / "images" / name).read_text() == picture(), "run: make docs-reference"


def test_every_colour_of_a_picture_has_a_dark_one() -> None:
    between = {'fill="#7d4fb0"', 'stroke="#7d4fb0"', 'fill="#b58900"', 'stroke="#b58900"'}
    for path in (DOCS / "images").glob("*.svg"):
        dark, _, drawn = path.read_text().partition("</style>")
        used = set(re.findall(r'(?:fill|stroke)="#\w+"', drawn)) - between
        assert used
        assert used <= set(re.findall(r"\[(.*?)\]", dark))


def test_the_page_of_commands_has_them_all() -> None:
    pytest.importorskip("mkdocs")
    page = runpy.run_path(str(DOCS / "site_hooks.py"))["commands_page"]()
    for name in ("labelveil audit party", "label-party budget raise", "feature-party predict"):
        assert f"### `{name}`\n\n```text\nUsage: {name} [OPTIONS]" in page


@pytest.mark.slow
def test_the_site_is_whole_and_stands_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    pages = {path: Document(path) for path in tmp_path.rglob("*.html")}
    assert len(pages) > 25
    assert (tmp_path / "search" / "search_index.js").read_text().startswith("var __index = {")
    for path, page in pages.items():
        assert page.headings == 1, path
        scripts = [loaded for loaded in page.loaded if loaded.endswith(".js")]
        assert scripts[0].endswith("javascripts/iframe-worker.js"), path  # or no search from disk
        assert "<!-- figure" not in path.read_text("utf-8"), path
        for loaded in page.loaded:
            assert not urlsplit(loaded).netloc, (path, loaded)
            if path.name != "404.html":
                assert (path.parent / urlsplit(loaded).path).exists(), (path, loaded)
        for link in page.links:
            there = urlsplit(link)
            if there.scheme or path.name == "404.html":
                continue
            target = (path.parent / unquote(there.path)).resolve() if there.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), (path, link)
            if there.fragment and target in pages:
                assert unquote(there.fragment) in pages[target].ids, (path, link)
