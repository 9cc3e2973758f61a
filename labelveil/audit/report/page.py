"""Put the audit's page together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from common.files import write_text
from common.report.template import page_template
from labelveil.audit.report import drawings
from labelveil.audit.verdict import GATE, Audit, Check, Verdict, number

_TITLES = {
    "certificate": "What the release proves by itself",
    "mechanism": "What the randomizer gives away",
    "party": "What the labels party gives away",
    "inference": "What labels can be inferred",
}

_GROUPS = {  # failures first
    Verdict.FAIL: ("What did not hold", "Each of these refutes a claim."),
    Verdict.PASS: ("What held", ""),
    Verdict.NOT_CHECKABLE: (
        "What could not be decided",
        "Not from here: these need something else to look at.",
    ),
}


class Group(NamedTuple):
    """Checks of one verdict."""

    heading: str
    text: str
    checks: list[Check]


class Figure(NamedTuple):
    """A picture and the sentence that says how to read it."""

    heading: str
    text: str
    picture: Markup


def write_report(path: Path, audit: Audit) -> None:
    """Write one self-contained HTML page; nothing in it is loaded from elsewhere."""
    write_text(path, render_report(audit))


def render_report(audit: Audit) -> str:
    """Return the page as text."""
    checks = {v: [check for check in audit.checks if check.verdict is v] for v in Verdict}
    return page_template("labelveil.audit.report", "audit.html.j2").render(
        audit=audit,
        title=_headline(audit),
        section=_TITLES.get(audit.kind, "What was audited"),
        lead=_lead(audit),
        tally=[(verdict, len(of_it)) for verdict, of_it in checks.items() if of_it],
        figures=_figures(audit),
        groups=[Group(*texts, checks[v]) for v, texts in _GROUPS.items() if checks[v]],
        number=number,
        seconds=_duration,
    )


def _headline(audit: Audit) -> str:
    """One line: what came out."""
    failed, undecided = audit.count(Verdict.FAIL), audit.count(Verdict.NOT_CHECKABLE)
    if failed:
        return f"{failed} of {len(audit.checks)} claims did not hold"
    decided = len(audit.checks) - undecided
    return f"All {decided} claims that could be checked held" if decided else "Nothing was decided"


def _lead(audit: Audit) -> list[str]:
    """What the verdicts mean, in order of importance."""
    sentences = []
    if audit.claimed is not None:
        sentences.append(
            f"The claim: whatever is sent is at most {number(math.exp(audit.claimed))} times"
            " likelier for the labels that an event has than for any others"
            f" (ε = {number(audit.claimed)})."
        )
    undecided = audit.count(Verdict.NOT_CHECKABLE)
    if undecided:
        sentences.append(
            f"{undecided} further claim{'s' * (undecided > 1)} cannot be decided from what was at"
            " hand; they are listed with what would decide them."
        )
    sentences.append(
        "Exact checks are proofs about the bytes. Statistical checks can only refute: they fail a"
        f" right build with probability {GATE:g} each, and a bound below the claim proves nothing."
    )
    return sentences


def _figures(audit: Audit) -> list[Figure]:
    """Pictures of whatever data the audit left."""
    figures = []
    bounds = drawings.bound_rows(audit)
    if len(bounds) > 1:
        text = (
            "Each row is an attempt, drawn as a share of the ε that it was claimed to keep. A"
            " diamond is an exact value. Dots are lower bounds of the true ε that were"
            " measured: hollow at 95% confidence, solid at the gate of one in a million."
            " Anything solid to the right of the line refutes the claim."
        )
        figures.append(Figure("Measured against claimed", text, drawings.bounds(bounds)))
    if ranges := audit.plots.get("output_ranges"):
        text = (
            "For each value that may be sent: the range of its probability, from the label that"
            " makes it least likely to the one that makes it most likely, from the integer"
            " weights. The scale is logarithmic, so that ε is a length, drawn on the right: no"
            " line may be longer."
        )
        figures.append(Figure("Every output under every label", text, drawings.ranges(ranges)))
    if not {"beliefs", "attack"} & audit.plots.keys():
        return figures
    from labelveil.audit.report import plots

    if beliefs := audit.plots.get("beliefs"):
        text = (
            "Each dot is a label and an output: how probable the label was before, and after"
            " seeing the output. Between the curves lies what ε allows; dots on the diagonal"
            " learn nothing. The rarest twentieth may lie beyond the axes."
        )
        figures.append(Figure("What one message changes", text, plots.beliefs(beliefs)))
    if attack := audit.plots.get("attack"):
        text = (
            "Share of right guesses of a canary's secret bit, against the share of canaries"
            " guessed, the surest first. The dashed line is the most that ε allows, one half is"
            " chance. The control is built to memorise: it shows whether the attack has power."
        )
        figures.append(Figure("What a model gives away", text, plots.attack(attack)))
    return figures


def _duration(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
