"""The model card: the page's words, in Markdown that a name cannot break."""

from __future__ import annotations

from html import unescape
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from labelveil.feature_party.report import write_report
from labelveil.feature_party.report.page import write_model_card
from labelveil.feature_party.report.words import headline
from tests.effort import one_in
from tests.feature_party.report.conftest import MakeInputs

SECTIONS = "The model", "What it is for, and what not", "Data", "How good it is"
HOSTILE = "<script>x</script>\n\n# A heading of its own"


@pytest.mark.parametrize("label", one_in(2, ["visits", HOSTILE]))
def test_the_card_says_what_the_page_says(
    make_inputs: MakeInputs, tmp_path: Path, label: str
) -> None:
    inputs = make_inputs(simulated=False, name=label, facts={"warnings": ["Few events"]})
    write_model_card(tmp_path / "report.md", inputs)
    text = (tmp_path / "report.md").read_text("utf-8")
    tokens = MarkdownIt().parse(text)
    headings = [(a.tag, b.content) for a, b in pairwise(tokens) if a.type == "heading_open"]
    assert [tag for tag, _ in headings] == ["h1"] + ["h2"] * 5
    titles = [title for _, title in headings]
    assert titles[1:] == [*SECTIONS, "What is private, and what is not"]
    (table,) = (token.content for token in tokens if token.type == "html_block")
    assert "shop 2" in table
    assert table.startswith("<pre>")
    assert "<script" not in text
    for sentence in headline(make_inputs(simulated=False)).sentences[:2]:
        assert f"- {sentence}\n" in unescape(text)
    assert "- **Take care:** Few events.\n" in text
    assert inputs.scores.events.release_id in text
    assert "ε = 1 in all" in text


@pytest.mark.slow
def test_the_card_of_a_page_lies_beside_it(make_inputs: MakeInputs, tmp_path: Path) -> None:
    write_report(tmp_path / "page.html", make_inputs(simulated=False))
    assert (tmp_path / "page.md").read_text("utf-8").startswith("# Model card: visits\n")
