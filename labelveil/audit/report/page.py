"""Put the audit's page together.

The template draws a certificate's pictures from where their marks are, in HTML and SVG alone: to
import matplotlib takes a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from labelveil.audit.verdict import GATE, UNSEEN, Audit, Check, Verdict, number
from labelveil.common.errors import not_none
from labelveil.common.files import write_text
from labelveil.common.report.template import page_template


def write_report(path: Path, audit: Audit) -> None:
    """Write one self-contained HTML page; nothing in it is loaded from elsewhere."""
    write_text(path, render_report(audit))


def render_report(audit: Audit) -> str:
    measured = [c for c in audit.checks if c.claimed is not None and c.bound is not None]
    outputs = audit.plots.get("output_ranges")
    inferred: dict[str, Markup] = {}
    if drawn := audit.plots.keys() & {"beliefs", "attack"}:
        from labelveil.audit.report import plots

        inferred = {name: getattr(plots, name)(audit.plots[name]) for name in drawn}
    return page_template("labelveil.audit.report", "audit.html.j2").render(
        audit=audit,
        verdicts=Verdict,
        unseen=UNSEEN,
        gate=GATE,
        times=math.exp(audit.claimed or 0.0),
        measured=measured if len(measured) > 1 else [],
        place_of=place_of,
        beyond=BEYOND,
        ranges=outputs and ranges(outputs),
        inferred=inferred,
        number=number,
        share="{:.1%}".format,
        seconds=lambda value: f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s",
    )


BEYOND = 1.3  # what lies farther above a claim is drawn here
_WIDE = 0.8  # share of the width that the outputs take; ε is drawn in the rest


def place_of(check: Check, value: float | None) -> float:
    """Where a bound lies from 0 to 1, for what lies far beyond the claim."""
    bound, claimed = not_none(check.bound if value is None else value), not_none(check.claimed)
    if claimed <= 0:
        return float(bound > 0)
    return min(bound / claimed / BEYOND, 1.0)


def ranges(data: Mapping[str, Any]) -> dict[str, Any]:
    """For each output its probability under all labels, as a line from the least to the most.

    On a logarithmic axis the length of a line is the logarithm of the ratio, and ε is a length.
    """
    outputs, epsilon = data["outputs"], data["epsilon"]
    least, most = np.asarray(data["least"]), np.asarray(data["most"])
    top, impossible = float(most.max()), least <= 0
    floor = float(np.min(least[least > 0], initial=top)) / (3 if impossible.any() else 1.3)
    span = math.log(1.3 * top / floor)

    def height(probability: float) -> float:
        return math.log(1.3 * top / max(probability, floor)) / span

    steps = (1, 2, 5) if top < 200 * floor else (1,)
    tens = range(math.floor(math.log10(floor)), 1)
    levels = [step * 10.0**ten for ten in tens for step in steps]
    ticks = np.unique(np.linspace(0, len(outputs) - 1, 5).round().astype(int))
    return {
        "outputs": len(outputs),
        "width": _WIDE,
        "largest": float(np.max(np.log(most[~impossible] / least[~impossible]), initial=0.0)),
        "excluding": int(impossible.sum()),
        "paths": {
            name: "".join(
                f"M{at + 0.5} {height(most[at]):.4f}V{height(least[at]):.4f}"
                for at in np.flatnonzero(chosen)
            )
            for name, chosen in (("possible", ~impossible), ("impossible", impossible))
        },
        "levels": [(height(at), at) for at in levels if floor <= at <= 1.3 * top],
        "values": [(_WIDE * (tick + 0.5) / len(outputs), outputs[tick]) for tick in ticks],
        "top": height(top),
        "length": epsilon / span,
        "epsilon": epsilon,
    }
