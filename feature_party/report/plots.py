"""The report's pictures of a release and a training run, each drawn from plain arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from labelveil.common.arrays import Floats
from labelveil.common.exact.channel import Codes
from labelveil.common.report.figures import (
    COLOUR_MAP,
    INK,
    MAIN,
    MUTED,
    OTHER,
    PAPER,
    SHADE,
    clean,
    responsive_figure,
)
from labelveil.feature_party.model.facts import EpochLosses
from labelveil.feature_party.report.inputs import ReleasedLabel

_MOST_ROWS = 24
"""Labels that are drawn one by one, and not as an axis."""
_MOST_NAMES = 12
"""How many of these are named."""
_FEW_VALUES = 8
"""Labels that have a tick each."""
_MOST_WHOLE = 60
"""Whole numbers that have an interval each."""


def prior(label: ReleasedLabel, axis: str) -> Markup:
    """The noisy prior over the grid, with bins shaded and outputs marked underneath."""
    grid, mass, outputs = label.grid, label.mass, label.outputs
    lower, upper = float(grid[0]), float(grid[-1])
    span = upper - lower
    inside = outputs[(outputs >= lower - 0.25 * span) & (outputs <= upper + 0.25 * span)]
    edges = label.bin_edges

    def draw(figure: Figure, narrow: bool) -> None:
        top, rug = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [1, 0.12], "hspace": 0.02}
        )
        legend: list[Artist] = [Patch(color=MAIN, alpha=0.85, label="share of events")]
        for left, right in zip(edges[::2], [*edges, upper][1::2], strict=False):
            band = top.axvspan(left, right, color=SHADE, linewidth=0)
        if edges:
            band.set_label("every other bin")
            legend.append(band)
        if grid.size <= _MOST_ROWS:
            top.vlines(grid, 0, mass, color=MAIN, linewidth=8)
        else:
            top.stairs(mass, label.boundaries, color=MAIN, fill=True, alpha=0.85, linewidth=0)
            top.stairs(mass, label.boundaries, color=MAIN, linewidth=0.8)
        scale = ""
        if mass.max() > 0.2 and np.median(mass) < 0.02:
            scale = "\n(logarithmic above 0.01)"
            top.set_yscale("symlog", linthresh=0.01)
            ticks = [t for t in (0, 0.01, 0.03, 0.1, 0.3, 1) if t <= 1.2 * mass.max()]
            top.set_yticks(ticks, [f"{t:g}" for t in ticks])
            top.minorticks_off()
        top.set(ylabel=f"share of events{scale}", ylim=(0, None))
        heights = np.zeros_like(inside)
        (sent,) = rug.plot(
            inside, heights, "|", color=OTHER, markersize=13, markeredgewidth=2, label="values sent"
        )
        handles = [*legend, sent] if inside.size else legend
        legend_above(top, columns=2 if narrow else len(handles), handles=handles)
        rug.set(yticks=[], ylim=(-1, 1), xlabel=axis)
        rug.spines["left"].set_visible(False)
        if grid.size <= (5 if narrow else _MOST_NAMES):
            rug.set_xticks(grid, [compact(value) for value in grid])
        else:
            rug.xaxis.set_major_locator(MaxNLocator(5 if narrow else 9))
            rug.xaxis.set_major_formatter(compact_ticks)
        clean(top)
        clean(rug, grid="")

    what = f"Histogram of the noisy prior of {axis}, from {lower:g} to {upper:g}"
    return responsive_figure("prior", what, draw, wide_height=3.2, narrow_height=3.1)


def joint(
    shares: Floats,
    label_edges: Floats,
    labels: Floats,
    outputs: Floats,
    label_name: str,
    *,
    simulated: bool,
) -> Markup:
    """Heat map of labels against randomized labels.

    (rows, d) ``shares`` are of events (simulation) or probabilities given the label (otherwise);
    ``labels`` stand for the intervals between (rows + 1,) ``label_edges``. Each of the (d,) outputs
    takes a column of the same width.
    """
    d = outputs.size
    what = "share of events" if simulated else "probability"

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        columns, rows = np.arange(d + 1) - 0.5, label_edges
        few = shares.shape[0] <= _MOST_ROWS
        if few:  # a row of the same height each, with its label in its middle
            rows = np.arange(shares.shape[0] + 1) - 0.5
        shown = np.power(shares, 0.4)
        mesh = axes.pcolormesh(
            columns, rows, shown, vmin=0, cmap=COLOUR_MAP, rasterized=True, linewidth=0
        )
        if d <= 24:
            for boundary in columns[1:-1]:
                axes.axvline(boundary, color=PAPER, linewidth=2)
        at = np.unique(np.linspace(0, d - 1, min(d, 4 if narrow else 7)).round().astype(int))
        sent = [compact(float(f"{outputs[i]:.3g}")) for i in at]
        axes.set_xticks(at, [name * (name not in sent[:i]) for i, name in enumerate(sent)])
        if few:
            named = range(0, shares.shape[0], -(-shares.shape[0] // _MOST_NAMES))
            axes.set_yticks(named, [compact(labels[i]) for i in named])
        else:
            axes.yaxis.set_major_formatter(compact_ticks)
        name = f"true {label_name}" if simulated else label_name
        axes.set(xlabel="value sent (each a column, not to scale)", ylabel=name)
        bar = figure.colorbar(mesh, ax=axes, pad=0.02, aspect=28)
        top = float(shares.max()) or 1.0
        ticks = [0.0, *(top * np.array([0.05, 0.25, 1.0]))]
        bar.set_ticks([t**0.4 for t in ticks], labels=[f"{t:.2g}" for t in ticks])
        bar.set_label(f"{what} (not linear)")
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)
        clean(axes, grid="")
        axes.spines[:].set_visible(False)

    description = f"Heat map of {label_name} against the randomized label: {what}"
    return responsive_figure("joint", description, draw, wide_height=3.9, narrow_height=3.5)


def loss_curve(history: Sequence[EpochLosses]) -> Markup:
    """Training and validation loss by epoch, the best epoch marked."""
    epochs = [record.epoch for record in history]
    train = [record.train_loss for record in history]
    held = [record.validation_loss for record in history]

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        axes.plot(epochs, train, color=MUTED, linewidth=1.8, label="training")
        axes.plot(epochs, held, color=MAIN, linewidth=2.2, label="validation")
        best = min(zip(epochs, held, strict=True), key=lambda point: point[1])
        axes.plot(*best, "o", color=MAIN, markersize=8, label=f"best, epoch {best[0]}")
        # The first epochs can be so high that nothing else is visible.
        shown = np.array([*train, *held])
        late = np.array([*train[1:], *held[1:]])
        if late.size > 2 and np.isfinite(late).all():
            spread = late.max() - late.min()
            if shown.max() > late.max() + 3 * spread and spread > 0:
                axes.set_ylim(late.min() - 0.2 * spread, late.max() + 0.6 * spread)
        axes.margins(y=0.18)
        axes.set(xlabel="epoch", ylabel="loss on privatized labels")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        legend_above(axes, columns=2 if narrow else 3)
        clean(axes)

    what = "Training and validation loss by epoch"
    return responsive_figure("loss", what, draw, wide_height=2.7, narrow_height=2.6)


def predicted_against_actual(
    predictions: Floats, labels: Floats, bounds: tuple[float, float], label_name: str
) -> Markup:
    """Two-dimensional histogram of predictions and true labels."""
    up = label_boundaries(labels, bounds)
    lower, upper = float(up[0]), float(up[-1])
    values = np.unique(np.clip(labels, lower, upper))
    few = 2 <= values.size <= _FEW_VALUES
    ends = (float(values[0]), float(values[-1])) if few else (lower, upper)
    clipped = np.clip(predictions, *ends), np.clip(labels, lower, upper)

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        cells = 34 if narrow else 48
        across = np.linspace(*ends, cells + 1)
        counts, xs, ys = np.histogram2d(*clipped, bins=[across, up])
        shown = np.ma.masked_equal(counts.T, 0)
        mesh = axes.pcolormesh(
            xs, ys, np.ma.log10(shown), cmap=COLOUR_MAP, rasterized=True, linewidth=0
        )
        axes.plot(
            ends, ends, color=INK, linewidth=1, linestyle=(0, (4, 3)), label="a perfect prediction"
        )
        legend_above(axes, columns=1)
        axes.set_aspect("auto" if few else "equal")
        axes.set(xlabel=f"predicted {label_name}", ylabel=f"true {label_name}")
        bar = figure.colorbar(mesh, ax=axes, pad=0.02, aspect=28)
        most = max(int(counts.max()), 1)
        ticks = [10**power for power in range(len(str(most)))]
        ticks += [most] * (most >= 2 * ticks[-1])  # its name would lie over that of the one below
        bar.set_ticks(np.log10(ticks).tolist(), labels=[f"{count:,}" for count in ticks])
        bar.set_label("events (logarithmic)")
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5 if narrow else 6))
            axis.set_major_formatter(compact_ticks)
        if few:
            axes.yaxis.set_ticks(values)
        clean(axes, grid="")

    what = f"Predicted {label_name} against true {label_name}, events scored"
    return responsive_figure("actual", what, draw, wide_height=4.6, narrow_height=3.3)


def label_boundaries(labels: Floats, bounds: tuple[float, float], rows: int = 48) -> Floats:
    """Return ascending boundaries of intervals for a picture's label axis.

    Whole numbers get an interval each while that is legible. The axis ends early where a long tail
    would squeeze nearly all events into a corner.
    """
    lower, upper = bounds
    most = float(np.quantile(labels, 0.995))
    if most > lower:
        upper = min(upper, lower + 1.1 * (most - lower))
    if upper - lower <= _MOST_WHOLE and np.all(labels == np.floor(labels)):
        return np.arange(math.floor(lower), math.ceil(upper) + 2, dtype=np.float64) - 0.5
    return np.linspace(lower, upper, rows + 1, dtype=np.float64)


def joint_shares(labels: Floats, codes: Codes, outputs: int, edges: Floats) -> Floats:
    """(intervals, outputs) shares of events, summing to 1; the last interval takes the tail."""
    rows = edges.size - 1
    at = np.clip(np.searchsorted(edges, labels, side="right") - 1, 0, rows - 1)
    counts = np.bincount(at * outputs + codes, minlength=rows * outputs)
    return np.asarray(counts.reshape(rows, outputs) / labels.size)


def compact(value: float, digits: int = 3) -> str:
    """Format a number for a tick: a few digits, with k, M or G for thousands, millions, …"""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= factor:
            unit = 1e3 if suffix == "k" else factor
            return f"{value / unit:.{digits}g}{suffix}".replace("-", "−")
    return f"{value:.{max(digits, 4)}g}".replace("-", "−")


def compact_ticks(value: float, position: float) -> str:
    """The same for an axis."""
    return compact(value)


def legend_above(axes: Axes, *, columns: int, handles: Sequence[Artist] | None = None) -> None:
    """Inside the axes a legend would cover whatever happens to be there."""
    shown = {} if handles is None else {"handles": list(handles)}
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        columnspacing=1.2,
        borderaxespad=0.2,
        **shown,
    )
