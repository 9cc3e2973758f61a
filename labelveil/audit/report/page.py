"""Put the audit's page together."""

from __future__ import annotations

import math
from pathlib import Path

from markupsafe import Markup

from common.files import write_text
from common.report.template import page_template
from labelveil.audit.report import drawings
from labelveil.audit.verdict import GATE, Audit, Verdict, number


def write_report(path: Path, audit: Audit) -> None:
    """Write one self-contained HTML page; nothing in it is loaded from elsewhere."""
    write_text(path, render_report(audit))


def render_report(audit: Audit) -> str:
    """Return the page as text."""
    return page_template("labelveil.audit.report", "audit.html.j2").render(
        audit=audit,
        verdicts=Verdict,
        gate=GATE,
        times=math.exp(audit.claimed or 0.0),
        pictures=_pictures(audit),
        number=number,
        seconds=lambda value: f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s",
    )


def _pictures(audit: Audit) -> dict[str, Markup | None]:
    """Pictures of whatever data the audit left."""
    measured = [c for c in audit.checks if c.claimed is not None and c.bound is not None]
    ranges = audit.plots.get("output_ranges")
    pictures: dict[str, Markup | None] = {
        "bounds": drawings.bounds(measured) if len(measured) > 1 else None,
        "output_ranges": drawings.ranges(ranges) if ranges else None,
        **dict.fromkeys(("beliefs", "attack")),
    }
    if audit.plots.keys() & {"beliefs", "attack"}:
        from labelveil.audit.report import plots

        for name, draw in (("beliefs", plots.beliefs), ("attack", plots.attack)):
            if name in audit.plots:
                pictures[name] = draw(audit.plots[name])
    return pictures
