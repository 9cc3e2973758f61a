"""The figures of the pages under ideas/, drawn from the library itself when the site is built."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

import labelveil as lv
from labelveil.common.arrays import Floats
from labelveil.common.report.figures import (
    COLOUR_MAP,
    INK,
    MAIN,
    MUTED,
    OTHER,
    clean,
    responsive_figure,
)

GRID = np.linspace(0.0, 10.0, 41)
PRIOR = np.exp(-0.5 * ((GRID - 3.0) / 2.0) ** 2)
PRIOR /= PRIOR.sum()
"""Labels from 0 to 10, most of them near 3."""


@cache
def randomizer(name: str, epsilon: float = 1.0) -> lv.Randomizer:
    return lv.build_randomizer(
        name, labels=GRID, prior=PRIOR, epsilon=epsilon, loss="squared", rows=20_000
    )


def panels(figure: Figure, narrow: bool) -> Iterator[Axes]:
    """Yield two pictures, side by side or one above the other."""
    axes = figure.subplots(2, 1) if narrow else figure.subplots(1, 2)
    yield from axes.flat


def odds() -> Markup:
    """Return the probabilities of what is sent, under two labels, and their ratio."""
    channel = lv.build_randomizer(
        "randomized-thresholds",
        labels=np.arange(6.0),
        prior=np.full(6, 1 / 6),
        epsilon=1.0,
        loss="squared",
    ).channel
    one, other = channel.probabilities[[1, 4]]
    places = np.arange(channel.outputs.size)

    def draw(figure: Figure, narrow: bool) -> None:
        bars, ratios = panels(figure, narrow)
        bars.bar(places - 0.2, one, 0.4, color=MAIN, label="if the label is 1")
        bars.bar(places + 0.2, other, 0.4, color=OTHER, label="if the label is 4")
        bars.set(title="probability of each output", xlabel="output", xticks=[])
        bars.set_ylim(0, 1.35 * max(one.max(), other.max()))
        bars.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        bars.legend(loc="upper center")
        clean(bars)
        ratios.bar(places, np.log(one / other), 0.6, color=MAIN)
        ratios.set(title="how much likelier under 1 than under 4", xlabel="output", xticks=[])
        ratios.set_yticks([-1, 0, 1], ["e^−ε", "1", "e^ε"])
        ratios.set_ylim(-1.3, 1.3)
        clean(ratios)

    return responsive_figure(
        "odds",
        "Two labels lead to every output with probabilities whose ratio stays within e to the ε",
        draw,
        wide_height=2.7,
        narrow_height=4.8,
    )


def averages() -> Markup:
    """Return how the error of an average falls with the number of events."""
    events = np.logspace(0, 6, 50)

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        for epsilon, colour in ((0.5, OTHER), (1.0, MAIN), (4.0, INK)):
            channel = randomizer("unbiased", epsilon).channel
            second = PRIOR @ channel.probabilities @ channel.outputs**2
            spread = np.sqrt(second - (PRIOR @ GRID) ** 2)
            axes.plot(events, spread / np.sqrt(events), color=colour)
            axes.annotate(f"ε = {epsilon:g}", (0.8, spread), color=colour, ha="right")
        truth = np.sqrt(PRIOR @ GRID**2 - (PRIOR @ GRID) ** 2)
        axes.plot(events, truth / np.sqrt(events), color=MUTED, linestyle="--")
        axes.annotate("true labels", (0.8, truth), color=MUTED, ha="right", va="top")
        axes.set_xlim(0.003 if narrow else 0.06)
        axes.set(xscale="log", yscale="log", xlabel="events averaged", ylabel="typical error")
        ticks = 10 ** np.arange(0, 7, 3 if narrow else 1)
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.set_yticks([0.01, 1, 100], ["0.01", "1", "100"])
        axes.minorticks_off()
        clean(axes, grid="both")

    return responsive_figure(
        "averages",
        "The error of an average of randomized labels falls with the root of their number",
        draw,
        wide_height=2.9,
        narrow_height=2.9,
    )


def _map(axes: Axes, name: str, title: str) -> None:
    channel = randomizer(name).channel
    rows: Floats = channel.probabilities / channel.probabilities.max(axis=0)
    axes.imshow(rows, aspect="auto", origin="lower", cmap=COLOUR_MAP, extent=(0, 1, 0, 10))
    outputs = f"{channel.outputs.size} outputs, in order"
    axes.set(title=title, xlabel=outputs, xticks=[], ylabel="label")
    clean(axes, grid="")


def channels() -> Markup:
    """Return the published channel and the designed one, each output scaled to its largest."""

    def draw(figure: Figure, narrow: bool) -> None:
        left, right = panels(figure, narrow)
        _map(left, "rr-on-bins", "RR-on-bins")
        _map(right, "optimal-design", "designed for the model")

    return responsive_figure(
        "channels",
        "RR-on-bins has two outputs, the designed channel many, each an interval of labels",
        draw,
        wide_height=2.8,
        narrow_height=4.8,
    )


def bias() -> Markup:
    """Return what is sent on average, and how noisy it is, for each label."""

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        axes.plot(GRID, GRID, color=MUTED, linestyle="--")
        axes.annotate("the label itself", (8.6, 9.2), color=MUTED, ha="right")
        for name, colour, words, place in (
            ("rr-on-bins", OTHER, "RR-on-bins", (9.8, 2.4)),
            ("optimal-design", MAIN, "designed for the model", (5.8, 7.0)),
        ):
            channel = randomizer(name).channel
            axes.plot(GRID, channel.probabilities @ channel.outputs, color=colour, linewidth=2)
            axes.annotate(words, place, color=colour, ha="right")
        axes.set(xlabel="label", ylabel="sent on average", xlim=(0, 10), ylim=(-1, 11))
        clean(axes)

    return responsive_figure(
        "bias",
        "What RR-on-bins sends hardly follows the label on average; the designed channel does",
        draw,
        wide_height=2.9,
        narrow_height=2.9,
    )


def rounds() -> Markup:
    """Return what is expected of labels, and where codes tell them apart: at once, in strata."""
    laws = [np.exp(-0.5 * ((GRID - centre) / 0.8) ** 2) for centre in (1.5, 4.5, 7.5)]
    colours = (MAIN, OTHER, INK)

    def told(law: Floats) -> Floats:
        """How much faster than at all the probabilities of outputs change with the label."""
        weights = law + 0.05 * PRIOR * law.sum()
        channel = lv.build_randomizer(
            "optimal-design",
            labels=GRID,
            prior=weights / weights.sum(),
            epsilon=1.0,
            loss="squared",
            rows=20_000,
            explained=0.15,
        ).channel
        rows = channel.probabilities
        slopes = np.gradient(rows, GRID, axis=0)
        return np.asarray((slopes**2 / rows).sum(axis=1))

    def draw(figure: Figure, narrow: bool) -> None:
        one, several = panels(figure, narrow)
        top = 1.1 * max(told(law).max() for law in (PRIOR, *laws))
        for axes, each, title in (
            (one, [PRIOR], "one question for all events"),
            (several, laws, "one for each stratum"),
        ):
            for law, colour in zip(each, colours, strict=False):
                axes.fill_between(GRID, 0.4 * top * law / law.max(), color=colour, alpha=0.25)
                axes.plot(GRID, told(law), color=colour, linewidth=2)
            axes.set(title=title, xlabel="label", xlim=(0, 10), ylim=(0, top), yticks=[])
            clean(axes)
        one.set(ylabel="what a code tells of it")

    return responsive_figure(
        "rounds",
        "One channel asks where all labels lie most; each stratum's asks near its own",
        draw,
        wide_height=2.8,
        narrow_height=4.8,
    )


def groups() -> Markup:
    """Return how far the mean of a group is off, by codes of its events and by one noisy sum."""
    sizes = np.logspace(0, 3, 60)

    def draw(figure: Figure, narrow: bool) -> None:
        for axes, epsilon in zip(panels(figure, narrow), (0.1, 1.0), strict=True):
            # two values far enough apart to be right on average: Badanidiyuru et al., NeurIPS 2023
            reach = 0.5 * (np.exp(epsilon) + 1) / np.expm1(epsilon)
            codes = np.sqrt((reach**2 - 1 / 12) / sizes)
            noise = np.sqrt(2) / epsilon / sizes
            axes.plot(sizes, codes, color=OTHER, linewidth=2)
            axes.plot(sizes, noise, color=MAIN, linewidth=2)
            axes.annotate("a code an event", (sizes[30], 1.3 * codes[30]), color=OTHER)
            axes.annotate("one noisy sum", (sizes[27], noise[30] / 1.5), color=MAIN, ha="right")
            axes.set(xscale="log", yscale="log", title=f"ε = {epsilon:g}", xlabel="events in it")
            axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
            axes.set_yticks([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"])
            axes.minorticks_off()
            clean(axes, grid="both")
        figure.axes[0].set(ylabel="typical error of the mean")

    return responsive_figure(
        "groups",
        "The error of a group's mean falls faster by one noisy sum than by a code for each event",
        draw,
        wide_height=2.9,
        narrow_height=5.0,
    )
