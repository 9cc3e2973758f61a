"""The report's pictures of how good a model is: errors, columns, and predictions in tenths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from labelveil.common.errors import printable
from labelveil.common.report.figures import INK, MAIN, MUTED, OTHER, RULE, clean, responsive_figure
from labelveil.feature_party.evaluation.breakdown import Segment
from labelveil.feature_party.evaluation.intervals import Measured
from labelveil.feature_party.report.plots import compact, compact_ticks, legend_above

_MOST_COLUMNS = 12


@dataclass(frozen=True)
class ErrorRow:
    """A row of the scale of errors; an estimate has 95% intervals."""

    name: str  # on one or two lines
    value: float  # mean squared error; NaN where only intervals are known
    colour: str = MAIN  # one of the page's
    share: float | None = None  # r²
    interval: tuple[float, float] | None = None  # the one that decides
    assumption_free: tuple[float, float] | None = None


def error_scale(rows: Sequence[ErrorRow], unit: str = "") -> Markup:
    """Mean squared errors on one axis, from the top row down: the first is a constant's.

    The axis goes from 0 to a little beyond the constant: an estimate that says nothing is cut off
    there, with an arrow, and squeezes no other row.
    """
    end = error_end(rows)

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        axes.axvline(rows[0].value, color=RULE, linewidth=1.2)
        for y, row in zip(range(len(rows) - 1, -1, -1), rows, strict=True):
            for interval, width, alpha in ((row.interval, 2.2, 0.9), (row.assumption_free, 8, 0.3)):
                if interval is None:
                    continue
                ends = np.clip(interval, 0, end)
                axes.plot(ends, [y, y], color=row.colour, linewidth=width, alpha=alpha)
                if interval[1] > end:
                    axes.plot([end], [y], ">", color=row.colour, markersize=7, clip_on=False)
            if math.isnan(row.value):
                continue
            at = min(max(row.value, 0.0), end)
            axes.plot([at], [y], "o", color=row.colour, markersize=9, clip_on=False)
            share = "" if row.share is None else f" · R² {row.share:z.2f}".replace("-", "−")
            axes.annotate(
                f"{compact(row.value, 4)}{share}",
                (at, y),
                xytext=(0, 9),
                textcoords="offset points",
                ha="left" if at < 0.15 * end else "right" if at > 0.8 * end else "center",
                fontsize=9,
                color=INK,
            )
        axes.set_yticks(range(len(rows)), [row.name for row in reversed(rows)], color=INK)
        name = f"mean squared error ({unit}²)" if unit else "mean squared error"
        axes.set(xlim=(0, end), ylim=(-0.6, len(rows) - 0.3), xlabel=name)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(4 if narrow else 7))
        axes.xaxis.set_major_formatter(compact_ticks)
        handles = [Line2D([], [], color=MAIN, linewidth=2.2, label="95%")]
        if any(row.assumption_free for row in rows):
            named = "95%, assumption-free"
            handles.append(Line2D([], [], color=MAIN, linewidth=8, alpha=0.3, label=named))
        legend_above(axes, columns=1 if narrow else 2, handles=handles)
        clean(axes, grid="x")
        axes.tick_params(axis="y", pad=9)  # a point at 0 must not touch a name

    figures = (f"{row.name} {row.value:.4g}" for row in rows if row.value == row.value)
    words = ", ".join(figures).replace("\n", " ")
    what, height = f"Mean squared errors: {words}", 0.95 + 0.52 * len(rows)
    return responsive_figure("errors", what, draw, wide_height=height, narrow_height=height + 0.2)


def error_end(rows: Sequence[ErrorRow]) -> float:
    """Where the axis of errors ends: beyond all that is known, whatever an estimate says."""
    return 1.3 * max(*(row.value for row in rows if row.interval is None), 1e-300)


def importance(columns: Mapping[str, Measured]) -> Markup:
    """What R² loses without a column, with 95% intervals; at most twelve columns."""
    by_effect = sorted(columns.items(), key=lambda item: -item[1].value)[:_MOST_COLUMNS]
    ranked = [(printable(name), effect) for name, effect in by_effect]

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        most = 14 if narrow else 26
        axes.axvline(0, color=RULE, linewidth=1.2)
        for y, (_, effect) in zip(range(len(ranked) - 1, -1, -1), ranked, strict=True):
            colour = MAIN if effect.low > 0 else MUTED
            axes.plot([effect.low, effect.high], [y, y], color=colour, linewidth=2.2)
            axes.plot([effect.value], [y], "o", color=colour, markersize=6)
        names = [name if len(name) <= most else f"{name[: most - 1]}…" for name, _ in ranked]
        axes.set_yticks(range(len(ranked)), names[::-1], color=INK)
        axes.set(ylim=(-0.6, len(ranked) - 0.4), xlabel="R² lost without the column")
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(4 if narrow else 7))
        certain = Line2D([], [], color=MAIN, marker="o", label="distinguishable from noise, 95%")
        noise = Line2D([], [], color=MUTED, marker="o", label="not distinguishable from noise")
        legend_above(axes, columns=1 if narrow else 2, handles=[certain, noise])
        clean(axes, grid="x")

    words = ", ".join(f"{name} {effect.value:.2g}" for name, effect in ranked)
    what, wide = f"R² lost without each column: {words}", 0.9 + 0.27 * len(ranked)
    return responsive_figure("importance", what, draw, wide_height=wide, narrow_height=wide + 0.2)


def calibration(tenths: Sequence[Segment], label_name: str, bounds: tuple[float, float]) -> Markup:
    """Mean label by tenth of the predictions: decoded, and true where known.

    The axis ends a little beyond what labels are possible: intervals are cut off there.
    """
    beyond = 0.25 * (bounds[1] - bounds[0])
    least, most = bounds[0] - beyond, bounds[1] + beyond
    predicted = [tenth.predicted for tenth in tenths]
    decoded = np.clip([tenth.label.value for tenth in tenths], least, most)
    ends = [[tenth.label.low for tenth in tenths], [tenth.label.high for tenth in tenths]]
    reach = np.abs(np.clip(ends, least, most) - decoded)

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        line = [min(predicted), max(predicted)]
        axes.plot(line, line, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="as predicted")
        what = "decoded, 95% for all ten"
        axes.errorbar(
            predicted, decoded, reach, fmt="o", color=MAIN, markersize=5, elinewidth=1.6, label=what
        )
        known = [(tenth.predicted, tenth.actual) for tenth in tenths if tenth.actual is not None]
        if known:
            axes.plot(
                *zip(*known, strict=True),
                "D",
                markerfacecolor="none",
                markeredgecolor=OTHER,
                markeredgewidth=1.8,
                markersize=7,
                label="true",
            )
        name = "mean prediction" if narrow else "mean prediction in each tenth of events"
        axes.set(xlabel=name, ylabel=f"mean {label_name}")
        axes.margins(0.06)
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, least), min(high, most))
        legend_above(axes, columns=1 if narrow else 3)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5 if narrow else 7))
            axis.set_major_formatter(compact_ticks)
        clean(axes, grid="both")

    what = f"Mean {label_name} against mean prediction, by tenth of the predictions"
    return responsive_figure("calibration", what, draw, wide_height=3.4, narrow_height=3.3)
