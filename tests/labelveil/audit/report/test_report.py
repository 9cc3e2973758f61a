"""The page says what the checks found, for every kind of audit, and loads nothing."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from labelveil.audit.report import plots, render_report
from labelveil.audit.verdict import UNSEEN, Audit, Bounds, Check, Field, Power, Verdict
from labelveil.commands.verdicts import VerdictOptions, conduct, show
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
    places = plots._apart([0.5, 0.51, 0.73, 0.5])
    assert min(abs(a - b) for a, b in combinations(places, 2)) >= plots._APART - 1e-12


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
