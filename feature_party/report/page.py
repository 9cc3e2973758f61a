"""Write the report's page."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from feature_party.report.model import ReportInputs


def write_report(path: Path, inputs: ReportInputs) -> None:
    """Write one self-contained HTML page; nothing in it is loaded from elsewhere.

    Parameters
    ----------
    path
        Where to; an existing page is replaced.
    inputs
        What to show.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_report(inputs), encoding="utf-8")


def render_report(inputs: ReportInputs) -> str:
    """Return the page as text."""
    environment = Environment(
        loader=PackageLoader("feature_party.report", "."),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(inputs=inputs)
