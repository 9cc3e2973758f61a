"""The archives of a version: what they hold, and that their page's links hold anywhere."""

from __future__ import annotations

import email
import re
import runpy
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.imports import ROOT

DIST = runpy.run_path(str(ROOT / "docs" / "write_dist.py"))
REPOSITORY = "https://forge.example.com/labelveil"
LINK = re.compile(r'\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"')


def test_links_of_the_project_page_are_addresses() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    page = DIST["project_page"](readme, REPOSITORY, "v1")
    here, there = (LINK.findall(text) for text in (readme, page))
    assert len(here) == len(there) > 30
    for found, now in zip(here, there, strict=True):
        link, address = "".join(found), "".join(now)
        kind = "raw" if link.endswith(".svg") else "blob"
        assert address == (link if "://" in link else f"{REPOSITORY}/{kind}/v1/{link}")


def test_without_an_address_they_are_text() -> None:
    page = DIST["project_page"](
        '<picture>\n<img src="b.svg">\n</picture>[a guide](docs/a.md), [x](https://x.org)', "", ""
    )
    assert page == "a guide, [x](https://x.org)"


@pytest.mark.slow
@pytest.mark.parametrize("repository", ["", REPOSITORY])
def test_archives_hold_what_they_should(tmp_path: Path, repository: str) -> None:
    pytest.importorskip("setuptools", minversion="77", reason="the build needs the pinned one")
    DIST["build"](tmp_path, repository)
    (source,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md", "constraints.txt"} <= names
    assert not [name for name in names if name.startswith(("tests", "docs", ".ci"))]
    with zipfile.ZipFile(wheel) as package:
        (name,) = (name for name in package.namelist() if name.endswith(".dist-info/METADATA"))
        facts = email.message_from_bytes(package.read(name))
    assert facts["Author"] == "The labelveil team"
    urls = dict(url.split(", ") for url in facts.get_all("Project-URL") or ())
    assert (urls.get("Source", ""), len(urls)) == (repository, 4 if repository else 0)
    links = LINK.findall(facts.get_payload())
    assert all("".join(link).startswith(("https://", "#")) for link in links)
