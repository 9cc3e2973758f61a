"""One style for all pictures: those of pages, and those that programs write to files.

Colours are the light ones of ``page.css``. In a page's inline SVG each becomes the CSS variable
that it was read from, so that the style sheet decides how a figure looks, light or dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Literal

import matplotlib
from cycler import cycler
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from labelveil.common.errors import ConfigError
from labelveil.common.files import file_errors
from labelveil.common.signals import interrupts_held

_CSS = files("labelveil.common.report").joinpath("page.css").read_text("utf-8")
_LIGHT = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", _CSS.partition("}")[0]))
INK, MUTED, RULE, PAPER = (_LIGHT[name] for name in ("ink", "muted", "rule", "paper"))
MAIN, OTHER, THIRD, SHADE = (_LIGHT[name] for name in ("main", "other", "third", "shade"))

SERIES = (
    *(MAIN, OTHER, THIRD, "#7d4fb0", "#b58900", "#b3316b"),
    *("#3fa3b8", "#7a8a1f", "#8c5a3c", "#e58ab8", INK, MUTED),
)
"""Colours of many lines in one picture, in the order in which they are used."""
MARKERS = "osD^vP*Xhd<"
"""One fewer, so that a colour comes back with another marker."""

COLOUR_MAP = "cividis"
"""Even in lightness, and made for people with any colour vision."""

STYLE = {
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
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "axes.prop_cycle": cycler(color=SERIES),
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.dpi": 150,
}

style = partial(matplotlib.rc_context, STYLE)  # type: ignore[arg-type]
"""Within it, all is drawn as in all pictures; text in SVG stays text."""

_WIDE = 6.6
_NARROW = 3.7

Draw = Callable[[Figure, bool], None]
"""Draws on an empty figure; the argument says whether it is the narrow version."""


def responsive_figure(
    name: str, description: str, draw: Draw, *, wide_height: float, narrow_height: float
) -> Markup:
    """Draw a figure twice, for wide and for narrow screens, and return both as inline SVG.

    ``name`` is unique on the page, ``description`` for a reader who cannot see the picture; heights
    are in inches.
    """
    versions = []
    for narrow, width, height in ((False, _WIDE, wide_height), (True, _NARROW, narrow_height)):
        with interrupts_held(), style():
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


def logarithmic(axes: Axes, way: Literal["x", "y"], name: str) -> None:
    """Make an axis logarithmic, with plain numbers as ticks and a name that says so.

    What it is about must have been drawn.
    """
    axis = axes.xaxis if way == "x" else axes.yaxis
    axes.set(**{f"{way}scale": "log", f"{way}label": f"{name} (logarithmic)"})
    low, high = axis.get_data_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
    axis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.set_minor_locator(NullLocator())


def epsilon_axis(axes: Axes, epsilons: Collection[float]) -> None:
    """Let x be ε, on a logarithmic scale, with a tick at each that was tried."""
    logarithmic(axes, "x", "ε")
    axes.set_xticks(sorted(set(epsilons)))


def level(axes: Axes, height: float, name: str) -> None:
    """Draw what others are compared with: a line across, named beside its right end."""
    axes.axhline(height, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
    beside(axes, name, height)


def beside(axes: Axes, name: str, height: float, colour: str = MUTED) -> None:
    """Write a name to the right of the axes, where no curve runs."""
    axes.annotate(
        name,
        (1, height),
        (5, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        color=colour,
        fontsize=9,
        annotation_clip=False,
    )


@contextmanager
def picture(path: Path, width: float, height: float) -> Iterator[Figure]:
    """Draw a file, width × height inches, whose ending is the format; an older one is replaced."""
    with interrupts_held(), style():
        figure = Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)
        FigureCanvasAgg(figure)
        yield figure
        with file_errors(ConfigError, f"{path} cannot be written"):
            figure.savefig(path, facecolor=PAPER)


def _inline_svg(figure: Figure, name: str, kind: str, description: str) -> Markup:
    buffer = io.StringIO()
    # A salt of its own makes the ids in one picture unique on the page, and the page repeatable.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})  # type: ignore[no-untyped-call]
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<style type="text/css">.*?</style>', "", text, flags=re.DOTALL)

    def own(tag: re.Match[str]) -> str:
        """A tag whose ids, and references to them, are this picture's own, and its colours CSS's.

        What stands between tags is text, and may be a column's name."""
        made = re.sub(r' xmlns(:\w+)?="[^"]*"', "", tag[0])
        made = re.sub(r'\bid="', f'id="{name}-', made)
        made = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", made)
        for variable, colour in _LIGHT.items():
            made = made.replace(colour, f"var(--{variable})")
        return made

    text = re.sub(r"<[^<>]+>", own, text)
    box = re.search(r'viewBox="[^"]*"', text)
    body = text[text.index(">") + 1 :]
    label = escape(description)
    return Markup(
        f'<svg class="figure {kind}" role="img" aria-label="{label}" {box[0] if box else ""}>'
    ) + Markup(body.strip())
