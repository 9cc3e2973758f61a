"""From a matplotlib figure to inline SVG that follows the page's colours, light or dark.

Figures are drawn with stand-in colours. In the SVG each stand-in becomes a CSS variable, so that
the page's style sheet, not the figure, decides how it looks.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK = "#010101"
MUTED = "#020202"
RULE = "#030303"
PAPER = "#040404"
MAIN = "#050505"
OTHER = "#060606"
THIRD = "#070707"
SHADE = "#080808"

_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    RULE: "--rule",
    PAPER: "--paper",
    MAIN: "--main",
    OTHER: "--other",
    THIRD: "--third",
    SHADE: "--shade",
}

COLOUR_MAP = "cividis"
"""Even in lightness, and made for people with any colour vision."""

_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.0,
    "axes.titlesize": 10.0,
    "axes.labelsize": 10.0,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}

_WIDE = 6.6
_NARROW = 3.7

Draw = Callable[[Figure, bool], None]
"""Draws on an empty figure; the argument says whether it is the narrow version."""


def responsive_figure(
    name: str, description: str, draw: Draw, *, wide_height: float, narrow_height: float
) -> Markup:
    """Draw a figure twice, for wide and for narrow screens, and return both as inline SVG.

    Parameters
    ----------
    name
        Unique on the page.
    description
        What the picture shows, for a reader who cannot see it.
    draw
        Called once for each version.
    wide_height, narrow_height
        Heights in inches; the widths are fixed.
    """
    versions = []
    for narrow, width, height in ((False, _WIDE, wide_height), (True, _NARROW, narrow_height)):
        with _style():
            figure = Figure(figsize=(width, height), layout="constrained")
            draw(figure, narrow)
            kind = "narrow" if narrow else "wide"
            versions.append(_inline_svg(figure, f"{name}-{kind}", kind, description))
    return Markup("\n").join(versions)


def clean(axes: Axes, *, grid: str = "y") -> None:
    """Leave one direction of grid lines and no tick marks."""
    axes.grid(False)
    if grid:
        axes.grid(True, axis=grid)  # type: ignore[arg-type]
    axes.tick_params(length=0)


@contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
        yield


def _inline_svg(figure: Figure, name: str, kind: str, description: str) -> Markup:
    buffer = io.StringIO()
    # A salt of its own makes the ids in one picture unique on the page, and the page repeatable.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})  # type: ignore[no-untyped-call]
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'<style type="text/css">.*?</style>', "", text, flags=re.DOTALL)
    # Every id, and every reference to one, is made this picture's own.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    box = re.search(r'viewBox="[^"]*"', text)
    body = text[text.index(">") + 1 :]
    label = escape(description)
    return Markup(
        f'<svg class="figure {kind}" role="img" aria-label="{label}" {box[0] if box else ""}>'
    ) + Markup(body.strip())
