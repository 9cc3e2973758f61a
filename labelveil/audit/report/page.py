"""Put the audit's page together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from common.files import write_text
from common.report.template import page_template
from labelveil.audit.report import drawings
from labelveil.audit.verdict import GATE, UNSEEN, Audit, Verdict, number


def write_report(path: Path, audit: Audit) -> None:
    """Write one self-contained HTML page; nothing in it is loaded from elsewhere."""
    write_text(path, render_report(audit))


def render_report(audit: Audit) -> str:
    """Return the page as text."""
    measured = [c for c in audit.checks if c.claimed is not None and c.bound is not None]
    ranges = audit.plots.get("output_ranges")
    return page_template("labelveil.audit.report", "audit.html.j2").render(
        audit=audit,
        verdicts=Verdict,
        unseen=UNSEEN,
        gate=GATE,
        times=math.exp(audit.claimed or 0.0),
        measured=measured if len(measured) > 1 else [],
        place_of=drawings.place_of,
        beyond=drawings.BEYOND,
        ranges=ranges and drawings.ranges(ranges),
        inferred=_inferred(audit.plots),
        number=number,
        share="{:.1%}".format,
        seconds=lambda value: f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s",
    )


def _inferred(data: Mapping[str, Any]) -> dict[str, Markup]:
    """Pictures that matplotlib draws."""
    if not data.keys() & {"beliefs", "attack"}:
        return {}
    from labelveil.audit.report import plots

    drawn = {"beliefs": plots.beliefs, "attack": plots.attack}
    return {name: draw(data[name]) for name, draw in drawn.items() if name in data}
