"""The page says what the checks found, for every kind of audit, and loads nothing."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from common.program.audit.report import render_report
from common.program.audit.verdict import Audit, Check, Verdict, statistical


def make_audit(*, fails: bool = False) -> Audit:
    audit = Audit("inference", "release <b>sales</b> · 1", 1.0)
    audit.facts = {"events": "1,000"}
    audit.run(
        lambda: statistical(
            "one run", claim="c", tried="t", claimed=1.0, bound=2.0 if fails else 0.9, shown=0.95
        )
    )
    audit.add(
        Check("exact ε", Verdict.PASS, "c", "t", "f", 1.0, 1.0, 1.0, 1.0),
        Check("replay", Verdict.PASS, "c", "t", "f", 1.0, math.inf if fails else 0.5),
        Check("signature", Verdict.NOT_CHECKABLE, "c", "t", "pass a key"),
    )
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
    assert len(re.findall(r'<svg class="figure', page)) == 8  # four pictures, wide and narrow


def test_json_is_strict(tmp_path: Path) -> None:
    audit = make_audit(fails=True)
    audit.write_json(tmp_path / "a" / "audit.json")
    data = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert data["verdict"] == "fail"
    assert [check["verdict"] for check in data["checks"]].count("not checkable") == 1
    assert data["checks"][2]["measured_bound"] == "infinity"
    assert all({"claim", "seconds", "confidence"} <= check.keys() for check in data["checks"])
