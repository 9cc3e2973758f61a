"""The table at the end: what it shows, and what it leaves out."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from labelveil.simulation.run import Outcome, number, summary_table

METRICS: dict[str, Any] = {
    "epsilon": 1.0, "epsilon_prior": 0.0625, "epsilon_labels": 0.9375,
    "rows": 20190, "holdout_rows": 4038, "outputs": 12,
    "randomizer": "auto", "objective": "likelihood", "head": "softmax",
    "points": 78, "grid": "78 points, 1 apart; 0 of 20,190 labels lie between",
    "label_mse": 1234567.0, "test_mse": 17.61, "constant_mse": 18.83,
}  # fmt: skip


def _text(**changes: Any) -> str:
    out = StringIO()
    Console(file=out, width=100).print(summary_table(METRICS | changes))
    return out.getvalue()


def test_every_number_has_its_row() -> None:
    text = _text(nonprivate_mse=16.98)
    for part in (
        "20,190",
        "78 points",
        "1 apart; 0 of 20,190",
        "4,038 kept",
        "1,234,567",
        "17.61",
        "explains 6%",
        "18.83",
        "16.98",
    ):
        assert part in text
    assert "explains 10%" in text
    assert "explains 0%" in _text(rr_on_bins_mse=18.84)  # a hair worse than a constant is no -0%


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("cannot tell", "whether it beats a constant: 0% to 55%"),
        ("better", "than a constant: 0% to 55%"),
    ],
)
def test_the_verdict_comes_with_its_interval(verdict: str, said: str) -> None:
    told = {"estimated_r2_low": -0.2, "estimated_r2_high": 0.55}
    told |= {"associated": True, "association_p_value": 0.001}
    text = _text(verdict=verdict, **told)
    assert verdict in text
    assert said in text
    assert "all told from privatized labels alone" in text
    assert "all told from sums alone" in _text(verdict=verdict, **told, rounds=[{"groups": 3}])
    two = _text(verdict=verdict, **told, told_by="sums")
    assert "told from two sums over events that no code was sent of" in two
    assert "alone" not in two
    nothing = {"estimated_r2_low": -0.5, "estimated_r2_high": None}
    assert "of the variance (95%)" not in _text(verdict=verdict, **told | nothing)
    assert ("that features predict the label is seen (p = 0.001)" in text) is (
        verdict == "cannot tell"
    )
    assert "features predict" not in _text(verdict=verdict, **told | {"associated": False})
    assert f"{said.partition(':')[0]}: 0.3% to 55%" in _text(
        verdict=verdict, **told | {"estimated_r2_low": 0.003}
    )  # what is above 0 is not shown as 0
    endless = {"estimated_r2_low": None, "estimated_r2_high": 0.55}  # as JSON has it
    assert f"{said.partition(':')[0]}: 0% to 55%" in _text(verdict=verdict, **told | endless)
    clipped = {"bound": 53.0, "verdict": "better", "estimated_r2_low": 0.04}
    text = _text(verdict=verdict, **told, clipped=clipped | {"estimated_r2_high": 0.2})
    assert "of labels clipped at 53, better: 4% to 20% of the variance" in text


def test_what_releases_divide_otherwise_is_not_added_up() -> None:
    first = {"epoch": "1-1", "epsilon_prior": 0.0759, "epsilon_labels": 0.9241}
    asked = [{"epoch": f"1-{n}", "epsilon_prior": 0.0, "epsilon_labels": 1.0} for n in (2, 3)]
    text = _text(**first, spent=[first, *asked])
    assert "0.0759 for the prior, 0.924 for labels in 1 of 3 releases" in text
    assert "all for labels in 2 of 3 releases" in text
    alike = _text(**first, spent=[first, {**first, "epoch": "1-2"}])
    assert "releases" not in alike
    assert "all for labels" in _text(epsilon_prior=0.0, epsilon_labels=1.0)


def test_each_of_several_labels_stands_under_its_name() -> None:
    text = _text(labels=[METRICS | {"name": "amount"}, METRICS | {"name": "returned"}])
    first, _, second = text.partition("returned")
    assert first.count("17.61") == second.count("17.61") == 1
    lines = text.splitlines()
    for name in ("amount", "returned"):
        (at,) = (place for place, line in enumerate(lines) if name in line)
        assert lines[at - 1].startswith("├")


def test_sums_have_a_row_instead_of_a_randomizer() -> None:
    text = _text(rounds=[{"groups": 1200}, {"groups": 34}])
    assert "1,234" in text
    assert "of 1,200, 34 groups in 2 rounds" in text
    assert "12 values" not in text
    assert "likelihood" not in text
    (row,) = [line for line in _text(rounds=[{"groups": 1200}]).splitlines() if "sums" in line]
    assert row.replace("│", "").split() == ["sums", "1,200", "groups"]


def test_what_is_unknown_is_left_out() -> None:
    assert "true labels" not in _text()
    assert "explains" not in _text(constant_mse=None)
    assert "None" not in _text(head=None)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (17.614, "17.61"),
        (999.96, "1000"),
        (1000.0, "1,000"),
        (-1234.5, "-1,234"),
        (0.000123, "0.000123"),
    ],
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert number(value) == shown


def test_an_outcome_shows_its_table_and_its_report(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text('<p class="a">all</p>')
    outcome = Outcome(METRICS, report, None)
    assert "explains 6%" in repr(outcome)
    assert repr(outcome).endswith(f"\nreport: {report}")
    shown = outcome._repr_html_()
    assert 'srcdoc="&lt;p class=&quot;a&quot;&gt;all&lt;/p&gt;"' in shown
    assert "explains 6%" in shown


def test_what_questions_told_is_said() -> None:
    assert "2.0 bits" in _text(question_bits=2.0)
    assert "bits" not in _text()
