"""The report's pictures, each drawn from plain arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from common.arrays import Floats
from common.release.manifest import Manifest
from common.report.figures import (
    COLOUR_MAP,
    INK,
    MAIN,
    MUTED,
    OTHER,
    PAPER,
    SHADE,
    THIRD,
    clean,
    responsive_figure,
)
from feature_party.model.facts import EpochLosses
from feature_party.report.scoring import Decile, label_boundaries


def error_scale(
    errors: Sequence[tuple[str, float]], interval: tuple[float, float] | None
) -> Markup:
    """Mean squared errors on one axis: where the model stands between knowing nothing and all.

    Parameters
    ----------
    errors
        (name, error) from the top row down; the second row's error is the interval's.
    interval
        Confidence interval of the row whose name starts with "estimated", if there is one.
    """

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        colours = {"best constant": MUTED, "true labels": THIRD}
        low, high = error_limits(errors, interval)
        axes.set_xlim(low, high)
        for row, (name, error) in enumerate(errors):
            y = len(errors) - 1 - row
            if interval and name.startswith("estimated"):
                axes.plot(interval, [y, y], color=MAIN, linewidth=7, alpha=0.3)
            if not low <= error <= high:
                axes.annotate(
                    f"{compact(error, 4)}, off the scale",
                    (0.02 if error < low else 0.98, y),
                    xycoords=("axes fraction", "data"),
                    xytext=(0, 9),
                    textcoords="offset points",
                    ha="left" if error < low else "right",
                    fontsize=9,
                    color=INK,
                )
                continue
            colour = next((c for key, c in colours.items() if key in name), MAIN)
            axes.plot([error], [y], "o", color=colour, markersize=9)
            axes.annotate(
                compact(error, 4),
                (error, y),
                xytext=(0, 9),
                textcoords="offset points",
                ha="center",
                fontsize=9,
                color=INK,
            )
        axes.set_yticks(range(len(errors)), [name for name, _ in reversed(errors)], color=INK)
        axes.set_ylim(-0.6, len(errors) - 0.3)
        axes.set_xlabel("mean squared error")
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(4 if narrow else 7))
        axes.xaxis.set_major_formatter(_compact_ticks)
        clean(axes, grid="both")

    words = ", ".join(f"{name} {error:.4g}" for name, error in errors)
    height = 0.75 + 0.48 * len(errors)
    return responsive_figure(
        "errors", f"Mean squared errors: {words}", draw, wide_height=height, narrow_height=height
    )


def error_limits(
    errors: Sequence[tuple[str, float]], interval: tuple[float, float] | None
) -> tuple[float, float]:
    """Where the axis of errors ends: an estimate that says nothing must not squeeze the others."""
    firm = [error for name, error in errors if not name.startswith("estimated")]
    loose = [error for name, error in errors if name.startswith("estimated")]
    loose += interval or ()
    low, high = min(firm or loose), max(firm or loose)
    room = max(high - low, 0.1 * abs(high)) or 1.0
    low = max(min([low, *loose]), low - 3 * room)
    high = min(max([high, *loose]), high + 3 * room)
    room = (high - low) or 1.0
    return low - 0.12 * room, high + 0.12 * room


def prior(manifest: Manifest) -> Markup:
    """The noisy prior over the grid, with bins shaded and outputs marked underneath."""
    grid = np.asarray(manifest.label.grid)
    mass = manifest.noisy_prior
    outputs = manifest.channel.outputs
    lower, upper = float(grid[0]), float(grid[-1])
    span = upper - lower
    inside = outputs[(outputs >= lower - 0.25 * span) & (outputs <= upper + 0.25 * span)]
    edges = bin_edges(manifest)

    def draw(figure: Figure, narrow: bool) -> None:
        top, rug = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [1, 0.12], "hspace": 0.02}
        )
        for left, right in zip(edges[::2], [*edges, upper][1::2], strict=False):
            top.axvspan(left, right, color=SHADE, linewidth=0)
        boundaries = np.concatenate([[lower], (grid[1:] + grid[:-1]) / 2, [upper]])
        top.stairs(mass, boundaries, color=MAIN, fill=True, alpha=0.85, linewidth=0)
        top.stairs(mass, boundaries, color=MAIN, linewidth=0.8)
        if mass.max() > 0.2 and np.median(mass) < 0.02:
            top.set_yscale("symlog", linthresh=0.01)
            ticks = [t for t in (0, 0.01, 0.03, 0.1, 0.3, 1) if t <= 1.2 * mass.max()]
            top.set_yticks(ticks, [f"{t:g}" for t in ticks])
            top.minorticks_off()
        top.set_ylabel("share of events")
        top.set_ylim(bottom=0)
        rug.plot(inside, np.zeros_like(inside), "|", color=OTHER, markersize=13, markeredgewidth=2)
        rug.set_yticks([])
        rug.set_ylim(-1, 1)
        rug.set_xlabel(manifest.label.name)
        rug.spines["left"].set_visible(False)
        rug.xaxis.set_major_locator(MaxNLocator(5 if narrow else 9))
        rug.xaxis.set_major_formatter(_compact_ticks)
        clean(top)
        clean(rug, grid="")

    return responsive_figure(
        "prior",
        f"Histogram of the noisy prior of {manifest.label.name}, from {lower:g} to {upper:g}",
        draw,
        wide_height=3.0,
        narrow_height=2.9,
    )


def bin_edges(manifest: Manifest) -> list[float]:
    """Label at which each bin starts; empty for a randomizer without bins."""
    edges = manifest.randomizer.details.get("bin_edges", [])
    return [float(edge) for edge in edges] if isinstance(edges, list) else []


def joint(
    shares: Floats, label_edges: Floats, outputs: Floats, label_name: str, *, simulated: bool
) -> Markup:
    """Heat map of labels against randomized labels.

    Parameters
    ----------
    shares
        (rows, d): share of events (simulation) or probability given the label (otherwise).
    label_edges
        (rows + 1,) boundaries of the label intervals.
    outputs
        (d,) values of the outputs; each takes a column of the same width.
    """
    d = outputs.size
    what = "share of events" if simulated else "probability given the label"

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        columns = np.arange(d + 1) - 0.5
        mesh = axes.pcolormesh(
            columns,
            label_edges,
            np.power(shares, 0.4),
            vmin=0,
            cmap=COLOUR_MAP,
            rasterized=True,
            linewidth=0,
        )
        if d <= 24:
            for boundary in columns[1:-1]:
                axes.axvline(boundary, color=PAPER, linewidth=2)
        at = np.unique(np.linspace(0, d - 1, min(d, 5 if narrow else 8)).round().astype(int))
        axes.set_xticks(at, [compact(outputs[i]) for i in at])
        axes.yaxis.set_major_formatter(_compact_ticks)
        axes.set_xlabel("randomized label sent")
        axes.set_ylabel(f"true {label_name}" if simulated else label_name)
        bar = figure.colorbar(mesh, ax=axes, pad=0.02, aspect=28)
        top = float(shares.max()) or 1.0
        ticks = [0.0, *(top * np.array([0.05, 0.25, 1.0]))]
        bar.set_ticks([t**0.4 for t in ticks], labels=[f"{t:.2g}" for t in ticks])
        bar.set_label(what)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)
        clean(axes, grid="")
        for spine in axes.spines.values():
            spine.set_visible(False)

    return responsive_figure(
        "joint",
        f"Heat map of {label_name} against the randomized label: {what}",
        draw,
        wide_height=3.9,
        narrow_height=3.5,
    )


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
        axes.plot(*best, "o", color=MAIN, markersize=8)
        axes.annotate(
            f"epoch {best[0]}",
            best,
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
        # The first epochs can be so high that nothing else is visible.
        shown = np.array([*train, *held])
        late = np.array([*train[1:], *held[1:]])
        if late.size > 2 and np.isfinite(late).all():
            spread = late.max() - late.min()
            if shown.max() > late.max() + 3 * spread and spread > 0:
                axes.set_ylim(late.min() - 0.2 * spread, late.max() + 0.6 * spread)
        axes.margins(y=0.18)
        axes.set_xlabel("epoch")
        axes.set_ylabel("loss on privatized labels")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        _legend_above(axes, columns=2)
        clean(axes)

    return responsive_figure(
        "loss", "Training and validation loss by epoch", draw, wide_height=2.7, narrow_height=2.6
    )


def predicted_against_actual(
    predictions: Floats, labels: Floats, bounds: tuple[float, float], label_name: str
) -> Markup:
    """Two-dimensional histogram of predictions and true labels."""
    up = label_boundaries(labels, bounds)
    lower, upper = float(up[0]), float(up[-1])
    clipped = np.clip(predictions, lower, upper), np.clip(labels, lower, upper)

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        cells = 34 if narrow else 48
        across = np.linspace(lower, upper, cells + 1)
        counts, xs, ys = np.histogram2d(*clipped, bins=[across, up])
        shown = np.ma.masked_equal(counts.T, 0)
        mesh = axes.pcolormesh(
            xs, ys, np.ma.log10(shown), cmap=COLOUR_MAP, rasterized=True, linewidth=0
        )
        axes.plot([lower, upper], [lower, upper], color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_aspect("equal")
        axes.set_xlabel(f"predicted {label_name}")
        axes.set_ylabel(f"true {label_name}")
        bar = figure.colorbar(mesh, ax=axes, pad=0.02, aspect=28)
        most = int(np.log10(max(counts.max(), 1)))
        bar.set_ticks(list(range(most + 1)), labels=[f"{10**p:,}" for p in range(most + 1)])
        bar.set_label("events")
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5 if narrow else 6))
            axis.set_major_formatter(_compact_ticks)
        clean(axes, grid="")

    return responsive_figure(
        "actual",
        f"Predicted {label_name} against true {label_name}, events scored",
        draw,
        wide_height=4.6,
        narrow_height=3.3,
    )


def compact(value: float, digits: int = 3) -> str:
    """Format a number for a tick: a few digits, with k, M or G for thousands, millions, …"""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= factor:
            unit = 1e3 if suffix == "k" else factor
            return f"{value / unit:.{digits}g}{suffix}".replace("-", "−")
    return f"{value:.{max(digits, 4)}g}".replace("-", "−")


def _compact_ticks(value: float, position: float) -> str:
    return compact(value)


def _legend_above(axes: Axes, *, columns: int) -> None:
    """Inside the axes a legend would cover whatever happens to be there."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)


def calibration(deciles: Sequence[Decile], label_name: str) -> Markup:
    """Mean label by tenth of the predictions: decoded, and true where known."""
    predicted = [decile.predicted for decile in deciles]
    decoded = [decile.decoded for decile in deciles]
    errors = [1.96 * decile.decoded_error for decile in deciles]
    actual = [decile.actual for decile in deciles]

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        ends = [min(predicted), max(predicted)]
        axes.plot(ends, ends, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        axes.errorbar(
            predicted,
            decoded,
            yerr=errors,
            fmt="o",
            color=MAIN,
            markersize=5,
            elinewidth=1.6,
            label="decoded from privatized labels, 95%",
        )
        known = [(p, a) for p, a in zip(predicted, actual, strict=True) if a is not None]
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
        axes.set_xlabel("mean prediction" if narrow else "mean prediction in each tenth of events")
        axes.set_ylabel(f"mean {label_name}")
        axes.margins(0.06)
        _legend_above(axes, columns=1 if narrow else 2)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5 if narrow else 7))
            axis.set_major_formatter(_compact_ticks)
        clean(axes, grid="both")

    return responsive_figure(
        "calibration",
        f"Mean {label_name} against mean prediction, by tenth of the predictions",
        draw,
        wide_height=3.4,
        narrow_height=3.1,
    )
