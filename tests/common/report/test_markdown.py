"""Text in Markdown, and what a reader of Markdown makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from labelveil.common.errors import printable
from labelveil.common.report.markdown import markdown
from labelveil.comparison.tables import Cell, write_markdown
from tests.hostile import names

NAMES = [*names(Path("canary")), "1. one", "2) two", "+ plus", "---", "===", "_a_", "a_b", "~~~"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_is_text_wherever_it_stands(name: str) -> None:
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    shown = markdown(name)
    for page, blocks in (
        (f"{shown}x", 1),
        (f"- {shown}x", 1),
        (f"| a |\n|---|\n| {shown}x |\n", 2),
    ):
        tokens = reader.parse(page)
        inline = [token for token in tokens if token.type == "inline"]
        assert len(inline) == blocks, page
        children = inline[-1].children or []
        assert {child.type for child in children} <= {"text", "text_special"}
        assert inline[-1].map is not None
        text = "".join(child.content for child in children)
        assert text.strip() == f"{printable(name)}x".strip()


def test_a_table_of_a_comparison_keeps_its_columns(tmp_path: Path) -> None:
    figures = {"label_mse": 1.0, "test_mse": 2.0, "test_mae": 1.0, "test_loss": 2.0}
    cells = [
        Cell(name, epsilon, 1, figures, dict.fromkeys(figures, 0.0), 3.0, f"# {name}")
        for name in NAMES
        for epsilon in (1.0, 2.0)
    ]
    write_markdown(cells, tmp_path / "table.md", NAMES)
    tokens = MarkdownIt("commonmark").enable("table").parse((tmp_path / "table.md").read_text())
    kinds = [token.type for token in tokens]
    rows = kinds.count("tr_open")
    assert rows == 2 * 2 * len(NAMES)  # a head and a row, of two figures of each label
    assert kinds.count("th_open") + kinds.count("td_open") == 3 * rows
    assert not {"html_block", "link_open", "hr", "fence"} & {*kinds}
    assert [token.tag for token in tokens if token.type == "heading_open"].count("h1") == 1
