"""The audit's pictures, each drawn from plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from common.program.audit.verdict import Audit, Check, Verdict
from common.report.figures import (
    INK,
    MAIN,
    MUTED,
    OTHER,
    RULE,
    beside,
    clean,
    logarithmic,
    responsive_figure,
)

_BEYOND = 1.3
"""What lies farther above a claim is drawn here."""

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_APART = 0.035
"""Names of curves are written no closer together."""


def bound_rows(audit: Audit) -> list[Check]:
    """Checks that measured a number against a claimed one."""
    return [c for c in audit.checks if c.claimed is not None and c.bound is not None]


def bounds(checks: Sequence[Check]) -> Markup:
    """Measured bounds as shares of what is claimed: one line for all claims."""
    rows = list(reversed(checks))
    widths = {False: 38, True: 22}

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        names = [_wrapped(check.name, widths[narrow]) for check in rows]
        heights = np.array([_lines(name) + 0.6 for name in names])
        at = np.cumsum(heights) - heights / 2
        axes.axvline(1, color=INK, linewidth=1.4)
        for y, check in zip(at, rows, strict=True):
            colour = OTHER if check.verdict is Verdict.FAIL else MAIN
            bound, shown = _share(check, check.bound), _share(check, check.shown)
            if check.confidence == 1:
                axes.plot([bound], [y], "D", color=colour, markersize=6)
            else:
                axes.plot([bound, shown], [y, y], color=colour, linewidth=2, alpha=0.35)
                axes.plot([shown], [y], "o", color=colour, markersize=6, fillstyle="none")
                axes.plot([bound], [y], "o", color=colour, markersize=6)
            said = f"{_short(check.bound)} of {_short(check.claimed)}"
            axes.annotate(
                said,
                (1, y),
                (6, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=MUTED,
                annotation_clip=False,
            )
        axes.set_yticks(at, names, color=INK, fontsize=8 if narrow else 9)
        axes.set_ylim(0, heights.sum())
        axes.set_xlim(-0.03, _BEYOND + 0.04)
        axes.set_xticks([0, 0.5, 1], ["0", "half", "claimed"])
        axes.spines["left"].set_visible(False)
        clean(axes, grid="x")

    words = "; ".join(
        f"{c.name}: at least {_short(c.bound)} against a claim of {_short(c.claimed)}"
        for c in checks
    )
    heights = [
        0.6 + 0.19 * sum(_lines(_wrapped(check.name, widths[narrow])) + 0.6 for check in checks)
        for narrow in (False, True)
    ]
    return responsive_figure(
        "bounds", words, draw, wide_height=heights[0], narrow_height=heights[1]
    )


def _share(check: Check, value: float | None) -> float:
    """A bound as a share of the claim; what lies far beyond is drawn at the edge."""
    bound = check.bound if value is None else value
    assert bound is not None
    assert check.claimed is not None
    return min(bound / check.claimed, _BEYOND) if check.claimed > 0 else _BEYOND * (bound > 0)


def _value(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _short(value: float | None) -> str:
    assert value is not None
    return "∞" if math.isinf(value) else f"{value:.3g}"


def output_ranges(data: Mapping[str, Any], epsilon: float) -> Markup:
    """For each output its probability under all labels, as a line from the least to the most.

    On a logarithmic axis the length of a line is the logarithm of the ratio, and ε is a length.
    """
    outputs = data["outputs"]
    least, most = np.asarray(data["least"]), np.asarray(data["most"])
    floor = float(np.min(least[least > 0], initial=float(most.max()))) / 3
    impossible = least <= 0

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        at = np.arange(len(outputs))
        width = max(min((150 if narrow else 290) / len(outputs), 7), 1)
        colours = [OTHER if never else MAIN for never in impossible]
        axes.vlines(at, np.where(impossible, floor, least), most, colors=colours, linewidth=width)
        top = float(most.max())
        end = len(outputs) - 0.5 + 0.06 * len(outputs)
        axes.plot([end, end], [top * math.exp(-epsilon), top], color=INK, linewidth=2.2)
        axes.annotate(
            f"ε = {epsilon:.3g}",
            (end, top * math.exp(-epsilon / 2)),
            (5, 0),
            textcoords="offset points",
            va="center",
            color=INK,
            fontsize=9,
            annotation_clip=False,
        )
        ticks = np.unique(np.linspace(0, len(outputs) - 1, 3 if narrow else 6).round().astype(int))
        logarithmic(axes, "y", "probability, over all labels")
        axes.set_ylim(floor if impossible.any() else floor * 2, top * 1.6)
        axes.set_xlim(-1, end + 0.4)
        axes.set_xticks(ticks, [_value(outputs[t]) for t in ticks])
        axes.set_xlabel("value sent, each output once")
        clean(axes)

    longest = float(np.max(np.log(most[~impossible] / least[~impossible]), initial=0.0))
    words = (
        f"Range of the probability of {len(outputs)} outputs over all labels: the largest ratio is"
        f" e to the {longest:.4g}; {int(impossible.sum())} outputs exclude a label"
    )
    return responsive_figure("outputs", words, draw, wide_height=3.2, narrow_height=3.0)


def beliefs(data: Mapping[str, Any]) -> Markup:
    """Prior against posterior probability of a label, with the band that ε allows."""
    prior, posterior = np.asarray(data["prior"]), np.asarray(data["posterior"])
    epsilon = float(data["epsilon"])

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        grid = np.linspace(-16, 9, 300)
        curve = 1 / (1 + np.exp(-grid))
        for sign in (-1, 1):
            axes.plot(curve, 1 / (1 + np.exp(-(grid + sign * epsilon))), color=INK, linewidth=1.2)
        axes.plot([1e-7, 1], [1e-7, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        axes.plot(prior, posterior, ".", color=MAIN, alpha=0.35, markersize=4)
        # a label that next to never occurs must not squeeze all others into a corner
        low = max(float(np.quantile(np.minimum(prior, posterior), 0.05)) / 2, 1e-6)
        for set_scale, set_limit in (
            (axes.set_xscale, axes.set_xlim),
            (axes.set_yscale, axes.set_ylim),
        ):
            set_scale("log")
            set_limit(low, 1.1)
        tens = list(range(0, math.ceil(math.log10(low)) - 1, -2 if narrow else -1))
        names = [
            f"{10.0**ten:g}" if ten >= -2 else f"10{str(ten).translate(_RAISED)}" for ten in tens
        ]
        axes.set_xticks([10.0**ten for ten in tens], names)
        axes.set_yticks([10.0**ten for ten in tens], names)
        axes.set_xlabel("probability of the label before")
        axes.set_ylabel("after the message")
        axes.minorticks_off()
        clean(axes, grid="both")

    words = f"Prior against posterior probability of {prior.size} pairs of label and output"
    return responsive_figure("beliefs", words, draw, wide_height=4.2, narrow_height=3.4)


def attack(data: Mapping[str, Any]) -> Markup:
    """Share of right guesses against the share of canaries guessed, model and control."""
    ceiling = float(data["ceiling"])

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        named = [("allowed", ceiling, INK), ("chance", 0.5, MUTED)]
        for name, colour in (("control", MUTED), ("model", MAIN)):
            curve = data.get(name)
            if curve:
                axes.plot(curve["share"], curve["right"], color=colour, linewidth=2.2)
                named.append((name, curve["right"][-1], colour))
        places = _apart([height for _, height, _ in named])
        for (name, _, colour), place in zip(named, places, strict=True):
            beside(axes, name, place, colour)
        axes.axhline(ceiling, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.axhline(0.5, color=RULE, linewidth=1)
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0.4, max(ceiling + 0.08, 0.8))
        axes.set_xlabel("share of canaries guessed")
        axes.set_ylabel("share right")
        axes.set_facecolor("none")
        clean(axes)

    words = f"Share of right guesses, ceiling {ceiling:.3f}, for the model and a memorising control"
    return responsive_figure("attack", words, draw, wide_height=3.0, narrow_height=2.8)


def _apart(heights: Sequence[float]) -> list[float]:
    """Move heights upwards, the lowest first, until they are apart."""
    places, last = [0.0] * len(heights), -math.inf
    for at in sorted(range(len(heights)), key=heights.__getitem__):
        places[at] = last = max(heights[at], last + _APART)
    return places


def _lines(text: str) -> int:
    return text.count("\n") + 1


def _wrapped(text: str, width: int) -> str:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + len(word) + 1 > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])
