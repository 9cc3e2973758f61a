"""The audit's pictures, each drawn from plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from common.program.audit.verdict import Audit, Check, Verdict
from common.report.figures import (
    INK,
    MAIN,
    MUTED,
    OTHER,
    RULE,
    THIRD,
    clean,
    responsive_figure,
)

_COLOURS = {Verdict.PASS: THIRD, Verdict.FAIL: OTHER, Verdict.NOT_CHECKABLE: RULE}
_BEYOND = 1.25


def verdicts(audit: Audit) -> Markup:
    """One bar: how many checks ended how."""
    counts = {verdict: audit.count(verdict) for verdict in Verdict}

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        start = 0
        for verdict, count in counts.items():
            if not count:
                continue
            axes.barh([0], [count], left=start, color=_COLOURS[verdict], height=0.55)
            axes.annotate(
                f"{count} {verdict}",
                (start + count / 2, 0.42),
                ha="center",
                va="bottom",
                fontsize=9 if not narrow else 8,
                color=INK,
            )
            start += count
        axes.set_xlim(0, max(start, 1))
        axes.set_ylim(-0.32, 0.95)
        axes.axis("off")

    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return responsive_figure(
        "verdicts", f"Checks by verdict: {words}", draw, wide_height=0.7, narrow_height=0.7
    )


def bound_rows(audit: Audit) -> list[Check]:
    """Checks that measured a number against a claimed one."""
    return [c for c in audit.checks if c.claimed is not None and c.bound is not None]


def bounds(checks: Sequence[Check]) -> Markup:
    """Measured bounds beside the claims."""
    finite = [v for c in checks for v in (c.claimed, c.bound, c.shown) if v and math.isfinite(v)]
    top = max([*finite, 0.1])
    reach = top * _BEYOND

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        for row, check in enumerate(reversed(checks)):
            assert check.bound is not None
            assert check.claimed is not None
            colour = OTHER if check.verdict is Verdict.FAIL else MAIN
            shown = check.shown if check.shown is not None else check.bound
            ends = [min(check.bound, top * 1.15), min(shown, top * 1.15)]
            axes.plot([0, ends[0]], [row, row], color=colour, linewidth=2, alpha=0.35)
            axes.plot([ends[1]], [row], "o", color=colour, alpha=0.4, markersize=7)
            axes.plot([ends[0]], [row], "o", color=colour, markersize=7)
            axes.plot([check.claimed] * 2, [row - 0.32, row + 0.32], color=INK, linewidth=1.6)
            if math.isinf(check.bound):
                axes.annotate("∞", (ends[0], row), (8, -4), textcoords="offset points", color=INK)
        names = [_wrapped(check.name, 20 if narrow else 34) for check in reversed(checks)]
        axes.set_yticks(range(len(checks)), names, color=INK, fontsize=8 if narrow else 9)
        axes.set_ylim(-0.7, len(checks) - 0.3)
        axes.set_xlim(0, reach)
        axes.set_xlabel("ε")
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(4 if narrow else 7))
        clean(axes, grid="x")

    words = "; ".join(
        f"{c.name}: at least {c.bound:.3f} against a claim of {c.claimed:.3f}" for c in checks
    )
    height = 0.8 + 0.4 * len(checks)
    return responsive_figure("bounds", words, draw, wide_height=height, narrow_height=height + 0.3)


def output_ratios(outputs: Sequence[float], ratios: Sequence[float | None]) -> Markup:
    """The exact log-ratio of every output, in the order of the outputs."""
    finite = [ratio for ratio in ratios if ratio is not None]
    top = max([*finite, 0.1])

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        at = np.arange(len(outputs))
        values = [top * 1.15 if ratio is None else ratio for ratio in ratios]
        colours = [OTHER if ratio is None else MAIN for ratio in ratios]
        axes.bar(at, values, width=0.9, color=colours)
        axes.axhline(top, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        ticks = np.unique(np.linspace(0, len(outputs) - 1, 4 if narrow else 8).round().astype(int))
        axes.set_xticks(ticks, [f"{outputs[t]:.3g}" for t in ticks])
        axes.set_xlabel("value sent")
        axes.set_ylabel("largest log-ratio")
        axes.set_ylim(0, top * 1.2)
        clean(axes)

    infinite = len(ratios) - len(finite)
    words = f"Largest log-ratio of {len(ratios)} outputs: at most {top:.4g}, {infinite} infinite"
    return responsive_figure("ratios", words, draw, wide_height=2.6, narrow_height=2.4)


def beliefs(data: Mapping[str, Any]) -> Markup:
    """Prior against posterior probability of a label, with the band that ε allows."""
    prior, posterior = np.asarray(data["prior"]), np.asarray(data["posterior"])
    epsilon = float(data["epsilon"])

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        grid = np.linspace(-9, 9, 200)
        curve = 1 / (1 + np.exp(-grid))
        for sign in (-1, 1):
            axes.plot(curve, 1 / (1 + np.exp(-(grid + sign * epsilon))), color=INK, linewidth=1.2)
        axes.plot([1e-5, 1], [1e-5, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        axes.plot(prior, posterior, ".", color=MAIN, alpha=0.35, markersize=4)
        low = max(min(prior.min(), posterior.min()) / 2, 1e-6)
        for set_scale, set_limit in (
            (axes.set_xscale, axes.set_xlim),
            (axes.set_yscale, axes.set_ylim),
        ):
            set_scale("log")
            set_limit(low, 1.1)
        powers = [10.0**p for p in range(math.ceil(math.log10(low)), 1)]
        names = [f"{power:g}" if power >= 1e-4 else f"{power:.0e}" for power in powers]
        axes.set_xticks(powers, names)
        axes.set_yticks(powers, names)
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
        for name, colour in (("control", MUTED), ("model", MAIN)):
            curve = data.get(name)
            if curve:
                share, right = np.asarray(curve["share"]), np.asarray(curve["right"])
                axes.plot(share, right, color=colour, linewidth=2.2)
                axes.annotate(
                    name,
                    (share[-1], right[-1]),
                    (-4, 8),
                    textcoords="offset points",
                    ha="right",
                    color=colour,
                    fontsize=9,
                )
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


def _wrapped(text: str, width: int) -> str:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + len(word) + 1 > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])
