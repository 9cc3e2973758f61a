"""The reference page is what the declarations say."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_not_drifted() -> None:
    page = runpy.run_path(str(DOCS / "write_configuration.py"))["page"]
    written = (DOCS / "configuration.md").read_text("utf-8")
    assert written == page(), "run: make docs-reference"
