"""The page says what the checks found, for every kind of audit, and loads nothing."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup
from matplotlib.figure import Figure

from labelveil.audit import report
from labelveil.audit.report import place_of, ranges, render_report
from labelveil.audit.verdict import UNSEEN, Audit, Bounds, Check, Field, Power, Verdict
from labelveil.commands.verdicts import VerdictOptions, conduct, show
from labelveil.common.report import figures
from tests.imports import ROOT


def make_audit(*, fails: bool = False) -> Audit:
    audit = Audit("inference", "release <b>sales</b> · 1", 1.0)
    audit.facts = {"events": "1,000"}
    audit.run(
        lambda: Bounds(2.0 if fails else 0.9, 0.95).check(
            name="one run", claim="c", tried="t", claimed=1.0
        )
    )
    audit.checks += [
        Check(Verdict.PASS, "t", "f", "c", 1.0, 1.0, 1.0, name="exact ε"),
        Check(Verdict.PASS, "t", "f", "c", 1.0, math.inf if fails else 0.5, name="replay"),
        Check(Verdict.NOT_CHECKABLE, "t", "pass a key", "c", name="signature"),
    ]
    audit.plots = {
        "output_ranges": {
            "outputs": [0.0, 1.0, 2.0],
            "least": [0.1, 0.2, 0.0],
            "most": [0.2, 0.4, 0.3],
            "epsilon": 1.0,
        },
        "beliefs": {"prior": [0.2, 0.8], "posterior": [0.3, 0.7], "epsilon": 1.0},
        "attack": {
            "ceiling": 0.73,
            "model": {"share": [0.1, 1.0], "right": [0.5, 0.5]},
            "control": {"share": [0.1, 1.0], "right": [0.73, 0.73]},
        },
    }
    return audit


@pytest.mark.parametrize("fails", [False, True])
def test_the_page_leads_with_the_verdict(fails: bool) -> None:
    page = render_report(make_audit(fails=fails))
    title = re.search(r"<h1>(.*?)</h1>", page)
    assert title
    wanted = "1 of 4 claims did not hold" if fails else "All 3 claims that could be checked held"
    assert title[1] == wanted
    assert ("What did not hold" in page) is fails
    assert "What could not be decided" in page
    assert "&lt;b&gt;sales" in page
    assert "<b>sales" not in page
    assert not re.search(r'(src|href)="https?:', page)
    assert len(re.findall(r'<svg class="figure', page)) == 4  # two pictures, wide and narrow
    assert len(re.findall(r'<div class="\w+" role="img"', page)) == 2


def test_the_page_says_what_was_asked_and_what_would_have_been_found() -> None:
    audit = make_audit()
    power = (Power("excess of ε at any label", 0.02), Power("rarer <output>", math.inf))
    audit.checks.append(
        replace(
            audit.checks[0], question="Is it private?", power=power, not_looked_at="Other rows."
        )
    )
    audit.fields = [Field("prior.scale", "16", Verdict.PASS, ("prior noise scale",))]
    page = render_report(audit)
    assert "Is it private?" in page
    assert "excess of ε at any label from 0.02 on; no rarer &lt;output&gt;." in page
    assert "Other rows." in page
    assert re.search(r"prior\.scale<br>.*pass", page)
    assert re.search(r"<b>4</b> pass", page)


def test_a_report_ends_with_what_nobody_sees(capsys: pytest.CaptureFixture[str]) -> None:
    """The page, the terminal, the file for programs and the documentation say the same."""
    audit, documented = make_audit(), " ".join((ROOT / "docs" / "audits.md").read_text().split())
    page = render_report(audit)
    show(audit)
    printed = " ".join(capsys.readouterr().out.split())
    for what, why in UNSEEN.items():
        assert page.rindex("</article>") < page.index(f"{what}: {why}".replace("'", "&#39;"))
        assert printed.index("not checkable signature") < printed.index(what)
        assert audit.to_json()["cannot_be_seen"][what] == why
        assert f"| {what} | {why} |" in documented


@pytest.mark.parametrize("outputs", [1, 2, 64, 512])
def test_pictures_of_any_number_of_outputs(outputs: int) -> None:
    audit = make_audit()
    audit.plots = {
        "output_ranges": {
            "outputs": list(range(outputs)),
            "least": [0.1] * outputs,
            "most": [0.2] * outputs,
            "epsilon": math.log(2),
        }
    }
    page = render_report(audit)
    assert f"{outputs} outputs over all labels" in page
    drawn = re.search(r'<path class="possible" d="(.*?)"', page)
    assert drawn
    assert drawn[1].count("M") == outputs


def test_names_of_curves_are_apart() -> None:
    places = report._apart([0.5, 0.51, 0.73, 0.5])
    assert min(abs(a - b) for a, b in combinations(places, 2)) >= report._APART - 1e-12


def test_failures_are_printed_last(capsys: pytest.CaptureFixture[str]) -> None:
    show(make_audit(fails=True))
    lines = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    verdicts = [line for line in lines if line in set(Verdict)]
    assert verdicts == ["pass", "pass", "not checkable", "fail"]


def test_json_is_strict(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        conduct(
            "audit", 1, VerdictOptions(out=tmp_path, quiet=True), lambda _: make_audit(fails=True)
        )
    data = json.loads((tmp_path / "audit.json").read_text())
    assert data["verdict"] == "fail"
    assert [check["verdict"] for check in data["checks"]].count("not checkable") == 1
    assert data["checks"][2]["measured_bound"] == "infinity"
    assert all({"claim", "seconds", "confidence"} <= check.keys() for check in data["checks"])


def test_outputs_are_lines_whose_length_is_their_ratio() -> None:
    """On a logarithmic axis from a bit above the most to a bit below the least."""
    data = {"outputs": [0.0, 5.0], "least": [0.1, 0.2], "most": [0.4, 0.4], "epsilon": 1.5}
    drawn = ranges(data)
    span = math.log(1.3 * 0.4 / (0.1 / 1.3))
    assert drawn["largest"] == pytest.approx(math.log(4))
    assert (drawn["outputs"], drawn["excluding"], drawn["epsilon"]) == (2, 0, 1.5)
    assert drawn["length"] == pytest.approx(1.5 / span)
    assert drawn["top"] == pytest.approx(math.log(1.3) / span)
    heights = [[math.log(1.3 * 0.4 / p) / span for p in pair] for pair in ((0.4, 0.1), (0.4, 0.2))]
    lines = re.findall(r"M(\S+) (\S+)V(\S+?)(?=M|$)", drawn["paths"]["possible"])
    assert [[float(part) for part in line] for line in lines] == [
        [at + 0.5, *map(pytest.approx, (round(h, 4) for h in pair))]
        for at, pair in enumerate(heights)
    ]
    assert drawn["paths"]["impossible"] == ""
    assert drawn["width"] == 0.8
    assert drawn["values"] == [(pytest.approx(0.2), 0.0), (pytest.approx(0.6), 5.0)]
    assert [level for _, level in drawn["levels"]] == pytest.approx([0.1, 0.2, 0.5])
    assert [height for height, _ in drawn["levels"]] == pytest.approx(
        [math.log(1.3 * 0.4 / level) / span for level in (0.1, 0.2, 0.5)]
    )
    none = ranges(data | {"least": [0.0, 0.2]})
    assert (none["excluding"], none["largest"]) == (1, pytest.approx(math.log(2)))
    assert none["paths"]["impossible"].startswith("M0.5 ")
    # what excludes a label ends a third below the least that does not
    assert none["length"] == pytest.approx(1.5 / math.log(1.3 * 0.4 / (0.2 / 3)))
    wide = ranges(data | {"least": [1e-4, 0.2]})
    assert {round(math.log10(level), 6) % 1 for _, level in wide["levels"]} == {0.0}


def test_a_bound_lies_beside_its_claim() -> None:
    check = Check(Verdict.PASS, "t", "f", claimed=2.0, bound=1.0)
    assert place_of(check, None) == pytest.approx(1 / 2 / 1.3)
    assert place_of(check, 2.0) == pytest.approx(1 / 1.3)
    assert place_of(check, 2.6) == place_of(check, math.inf) == 1.0
    free = replace(check, claimed=0.0)
    assert [place_of(replace(free, bound=value), None) for value in (0.0, 0.1)] == [0.0, 1.0]


def test_names_are_raised_the_lowest_first() -> None:
    apart = report._APART
    assert report._apart([0.5, 0.5, 0.5]) == pytest.approx([0.5, 0.5 + apart, 0.5 + 2 * apart])
    assert report._apart([0.9, 0.5]) == [0.9, 0.5]
    assert report._apart([0.51, 0.5]) == pytest.approx([0.5 + apart, 0.5])


def drawn_axes(monkeypatch: pytest.MonkeyPatch, draw: Any, data: Any, narrow: bool) -> Any:
    """The axes of a picture, before it is laid out."""
    made: list[Any] = []

    def figure(name: str, words: str, draw: Any, **sizes: Any) -> Markup:
        made.append(Figure())
        draw(made[0], narrow)
        return Markup(words)

    monkeypatch.setattr(figures, "responsive_figure", figure)
    words = draw(data)
    (axes,) = made[0].axes
    return axes, str(words)


@pytest.mark.parametrize("narrow", [False, True])
def test_beliefs_lie_between_the_lines_that_epsilon_allows(
    monkeypatch: pytest.MonkeyPatch, narrow: bool
) -> None:
    rare = [0.001, 0.001]
    data = {"prior": [0.2, 0.8, *rare], "posterior": [0.3, 0.7, *rare], "epsilon": 1.0}
    axes, words = drawn_axes(monkeypatch, report.beliefs, data, narrow)
    assert words.endswith("of 4 pairs of label and output")
    lines = [[*map(np.asarray, line.get_data())] for line in axes.get_lines()]
    for line, sign in zip(lines[:2], (-1, 1), strict=True):
        before, after = line
        odds = np.log(after / (1 - after)) - np.log(before / (1 - before))
        assert odds[before < 0.99] == pytest.approx(sign, abs=1e-6)
    assert lines[3][0].tolist() == data["prior"]
    assert lines[3][1].tolist() == data["posterior"]
    named_lines = zip(axes.get_legend().legend_handles, axes.get_legend().texts, strict=True)
    shown = {text.get_text(): (line.get_color(), line.get_marker()) for line, text in named_lines}
    drawn = [(line.get_color(), line.get_marker()) for line in axes.get_lines()]
    assert [*shown] == ["the most that ε allows", "unchanged", "found"]
    assert [*shown.values()] == drawn[1:]
    assert axes.get_xlim() == axes.get_ylim() == (pytest.approx(0.0005), 1.1)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    names = {1.0: "1", 0.1: "0.1", 0.01: "0.01", 1e-3: "10⁻³"}
    names = {tick: name for tick, name in names.items() if not narrow or tick in (1.0, 0.01)}
    assert axes.get_xticks().tolist() == pytest.approx([*names])
    assert [text.get_text() for text in axes.get_xticklabels()] == [*names.values()]
    named = "" if narrow else "probability of a label "
    assert axes.get_xlabel() == f"{named}before the message (logarithmic)"


def test_an_attack_is_drawn_below_its_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = {"share": [0.1, 1.0], "right": [0.6, 0.55]}
    data = {"ceiling": 0.9, "model": curve, "control": None}
    axes, words = drawn_axes(monkeypatch, report.attack, data, False)
    assert "ceiling 0.900" in words
    assert [*map(float, axes.get_lines()[0].get_xdata())] == [0.1, 1.0]
    assert {round(float(line.get_ydata()[0]), 3) for line in axes.get_lines()} == {0.6, 0.9, 0.5}
    assert axes.get_ylim() == (0.4, pytest.approx(0.98))
    assert {text.get_text(): text.xy[1] for text in axes.texts} == {
        "allowed": 0.9, "chance": 0.5, "model": pytest.approx(0.55),
    }  # fmt: skip
    both = data | {"control": {"share": [0.1, 1.0], "right": [0.8, 0.85]}}
    drawn, _ = drawn_axes(monkeypatch, report.attack, both, False)
    named = {text.get_text(): text.get_color() for text in drawn.texts}
    curves = {line.get_ydata()[-1]: line.get_color() for line in drawn.get_lines()}
    assert (curves[0.55], curves[0.85]) == (named["model"], named["control"])
    assert named["model"] == figures.MAIN != named["control"]
    low, _ = drawn_axes(monkeypatch, report.attack, data | {"ceiling": 0.6}, False)
    assert low.get_ylim() == (0.4, 0.8)
