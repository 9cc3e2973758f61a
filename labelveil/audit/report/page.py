"""Put the audit's page together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from common.files import write_text
from common.report.template import page_template
from labelveil.audit.report import drawings
from labelveil.audit.verdict import GATE, Audit, Check, Verdict

_TITLES = {
    "certificate": "What the release proves by itself",
    "mechanism": "What the randomizer gives away",
    "party": "What the labels party gives away",
    "inference": "What labels can be inferred",
}


@dataclass(frozen=True)
class Figure:
    """A picture and the sentence that says how to read it."""

    heading: str
    text: str
    picture: Markup


@dataclass(frozen=True)
class Group:
    """Checks of one verdict."""

    heading: str
    text: str
    checks: Sequence[Check]


def write_report(path: Path, audit: Audit) -> None:
    """Write one self-contained HTML page; nothing in it is loaded from elsewhere."""
    write_text(path, render_report(audit))


def render_report(audit: Audit) -> str:
    """Return the page as text."""
    return page_template("labelveil.audit.report", "audit.html.j2").render(
        audit=audit,
        title=headline(audit),
        section=_TITLES.get(audit.kind, "What was audited"),
        lead=lead(audit),
        tally=[(verdict, audit.count(verdict)) for verdict in Verdict if audit.count(verdict)],
        figures=figures(audit),
        groups=groups(audit),
        number=number,
        seconds=duration,
    )


def headline(audit: Audit) -> str:
    """One line: what came out."""
    failed, open_ = audit.count(Verdict.FAIL), audit.count(Verdict.NOT_CHECKABLE)
    if failed:
        return f"{failed} of {len(audit.checks)} claims did not hold"
    decided = len(audit.checks) - open_
    return f"All {decided} claims that could be checked held" if decided else "Nothing was decided"


def lead(audit: Audit) -> list[str]:
    """What the verdicts mean, in order of importance."""
    sentences = []
    if audit.claimed is not None:
        factor = math.exp(audit.claimed)
        sentences.append(
            f"The claim: whatever is sent is at most {number(factor)} times likelier for the"
            f" labels that an event has than for any others (ε = {number(audit.claimed)})."
        )
    open_ = audit.count(Verdict.NOT_CHECKABLE)
    if open_:
        sentences.append(
            f"{open_} further claim{'s' * (open_ > 1)} cannot be decided from what was at hand;"
            " they are listed with what would decide them."
        )
    sentences.append(
        "Exact checks are proofs about the bytes. Statistical checks can only refute: they fail a"
        f" right build with probability {GATE:g} each, and a bound below the claim proves nothing."
    )
    return sentences


def groups(audit: Audit) -> list[Group]:
    """Failures first."""
    texts = {
        Verdict.FAIL: ("What did not hold", "Each of these refutes a claim."),
        Verdict.PASS: ("What held", ""),
        Verdict.NOT_CHECKABLE: (
            "What could not be decided",
            "Not from here: these need something else to look at.",
        ),
    }
    found = []
    for verdict, (heading, text) in texts.items():
        checks = [check for check in audit.checks if check.verdict is verdict]
        if checks:
            found.append(Group(heading, text, checks))
    return found


def figures(audit: Audit) -> list[Figure]:
    """Pictures of whatever data the audit left."""
    found = []
    bounds = drawings.bound_rows(audit)
    if len(bounds) > 1:
        found.append(
            Figure(
                "Measured against claimed",
                "Each row is an attempt, drawn as a share of the ε that it was claimed to keep. A"
                " diamond is an exact value. Dots are lower bounds of the true ε that were"
                " measured: hollow at 95% confidence, solid at the gate of one in a million."
                " Anything solid to the right of the line refutes the claim.",
                drawings.bounds(bounds),
            )
        )
    data = audit.plots
    if "output_ranges" in data:
        found.append(
            Figure(
                "Every output under every label",
                "For each value that may be sent: the range of its probability, from the label that"
                " makes it least likely to the one that makes it most likely, from the integer"
                " weights. The scale is logarithmic, so that ε is a length, drawn on the right: no"
                " line may be longer.",
                drawings.output_ranges(data["output_ranges"], data["output_ranges"]["epsilon"]),
            )
        )
    if not {"beliefs", "attack"} & data.keys():
        return found
    from labelveil.audit.report import plots

    if "beliefs" in data:
        found.append(
            Figure(
                "What one message changes",
                "Each dot is a label and an output: how probable the label was before, and after"
                " seeing the output. Between the curves lies what ε allows; dots on the diagonal"
                " learn nothing. The rarest twentieth may lie beyond the axes.",
                plots.beliefs(data["beliefs"]),
            )
        )
    if "attack" in data:
        found.append(
            Figure(
                "What a model gives away",
                "Share of right guesses of a canary's secret bit, against the share of canaries"
                " guessed, the surest first. The dashed line is the most that ε allows, one half is"
                " chance."
                " The control is built to memorise: it shows whether the attack has power.",
                plots.attack(data["attack"]),
            )
        )
    return found


def number(value: float | None) -> str:
    """A number for reading."""
    if value is None:
        return "–"
    if math.isinf(value):
        return "∞"
    return f"{value:.4g}"


def duration(value: float) -> str:
    """Seconds for reading."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
