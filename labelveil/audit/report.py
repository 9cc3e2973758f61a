"""`audit.html`: what was claimed, what was tried and what was found, for a regulator to read.

The template draws a certificate's pictures from where their marks are, in HTML and SVG alone. What
was inferred is drawn by matplotlib, whose import takes a second: only where it is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from labelveil.audit.verdict import GATE, UNSEEN, Audit, Check, Verdict, number
from labelveil.common.errors import not_none
from labelveil.common.files import write_text
from labelveil.common.report.template import page_template

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_report(path: Path, audit: Audit) -> None:
    """Write one self-contained HTML page; nothing in it is loaded from elsewhere."""
    write_text(path, render_report(audit))


def render_report(audit: Audit) -> str:
    measured = [c for c in audit.checks if c.claimed is not None and c.bound is not None]
    outputs = audit.plots.get("output_ranges")
    inferred = {
        name: draw(audit.plots[name])
        for name, draw in (("beliefs", beliefs), ("attack", attack))
        if name in audit.plots
    }
    return page_template("labelveil.audit", "audit.html.j2").render(
        audit=audit,
        verdicts=Verdict,
        unseen=UNSEEN,
        gate=GATE,
        times=math.exp(audit.claimed or 0.0),
        measured=measured if len(measured) > 1 else [],
        place_of=place_of,
        beyond=BEYOND,
        ranges=outputs and ranges(outputs),
        inferred=inferred,
        number=number,
        share="{:.1%}".format,
        seconds=lambda value: f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s",
    )


BEYOND = 1.3  # what lies farther above a claim is drawn here
_WIDE = 0.8  # share of the width that the outputs take; ε is drawn in the rest


def place_of(check: Check, value: float | None) -> float:
    """Where a bound lies from 0 to 1, for what lies far beyond the claim."""
    bound, claimed = not_none(check.bound if value is None else value), not_none(check.claimed)
    if claimed <= 0:
        return float(bound > 0)
    return min(bound / claimed / BEYOND, 1.0)


def ranges(data: Mapping[str, Any]) -> dict[str, Any]:
    """For each output its probability under all labels, as a line from the least to the most.

    On a logarithmic axis the length of a line is the logarithm of the ratio, and ε is a length.
    """
    outputs, epsilon = data["outputs"], data["epsilon"]
    least, most = np.asarray(data["least"]), np.asarray(data["most"])
    top, impossible = float(most.max()), least <= 0
    floor = float(np.min(least[least > 0], initial=top)) / (3 if impossible.any() else 1.3)
    span = math.log(1.3 * top / floor)

    def height(probability: float) -> float:
        return math.log(1.3 * top / max(probability, floor)) / span

    steps = (1, 2, 5) if top < 200 * floor else (1,)
    tens = range(math.floor(math.log10(floor)), 1)
    levels = [step * 10.0**ten for ten in tens for step in steps]
    ticks = np.unique(np.linspace(0, len(outputs) - 1, 5).round().astype(int))
    return {
        "outputs": len(outputs),
        "width": _WIDE,
        "largest": float(np.max(np.log(most[~impossible] / least[~impossible]), initial=0.0)),
        "excluding": int(impossible.sum()),
        "paths": {
            name: "".join(
                f"M{at + 0.5} {height(most[at]):.4f}V{height(least[at]):.4f}"
                for at in np.flatnonzero(chosen)
            )
            for name, chosen in (("possible", ~impossible), ("impossible", impossible))
        },
        "levels": [(height(at), at) for at in levels if floor <= at <= 1.3 * top],
        "values": [(_WIDE * (tick + 0.5) / len(outputs), outputs[tick]) for tick in ticks],
        "top": height(top),
        "length": epsilon / span,
        "epsilon": epsilon,
    }


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_APART = 0.035  # names of curves are written no closer together


def beliefs(data: Mapping[str, Any]) -> Markup:
    """Prior against posterior probability of a label, with the band that ε allows."""
    from labelveil.common.report.figures import INK, MAIN, MUTED, clean, responsive_figure

    prior, posterior = np.asarray(data["prior"]), np.asarray(data["posterior"])
    epsilon = float(data["epsilon"])

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        grid = np.linspace(-16, 9, 300)
        curve = 1 / (1 + np.exp(-grid))
        for sign in (-1, 1):
            (most,) = axes.plot(curve, 1 / (1 + np.exp(-(grid + sign * epsilon))), color=INK)
        (same,) = axes.plot([1e-7, 1], [1e-7, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        (pairs,) = axes.plot(prior, posterior, ".", color=MAIN, alpha=0.35, markersize=4)
        # a label that next to never occurs must not squeeze all others into a corner
        low = max(float(np.quantile(np.minimum(prior, posterior), 0.05)) / 2, 1e-6)
        tens = list(range(0, math.ceil(math.log10(low)) - 1, -2 if narrow else -1))
        names = [
            f"{10.0**ten:g}" if ten >= -2 else f"10{str(ten).translate(_RAISED)}" for ten in tens
        ]
        ticks = [10.0**ten for ten in tens]
        axes.set(xscale="log", yscale="log", xlim=(low, 1.1), ylim=(low, 1.1))
        axes.set_xticks(ticks, names)
        axes.set_yticks(ticks, names)
        of_a_label = "" if narrow else "probability of a label "
        axes.set_xlabel(f"{of_a_label}before the message (logarithmic)")
        axes.set_ylabel(f"{of_a_label}after it")
        axes.legend([most, same, pairs], ["the most that ε allows", "unchanged", "found"])
        axes.minorticks_off()
        clean(axes, grid="both")

    words = f"Prior against posterior probability of {prior.size} pairs of label and output"
    return responsive_figure("beliefs", words, draw, wide_height=4.2, narrow_height=3.4)


def attack(data: Mapping[str, Any]) -> Markup:
    """Share of right guesses against the share of canaries guessed, model and control."""
    from labelveil.common.report.figures import (
        INK,
        MAIN,
        MUTED,
        RULE,
        beside,
        clean,
        responsive_figure,
    )

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
        axes.set(xlim=(0, 1.02), ylim=(0.4, max(ceiling + 0.08, 0.8)), facecolor="none")
        axes.set(xlabel="share of canaries guessed", ylabel="share right")
        clean(axes)

    words = f"Share of right guesses, ceiling {ceiling:.3f}, for the model and a memorising control"
    return responsive_figure("attack", words, draw, wide_height=3.0, narrow_height=2.8)


def _apart(heights: Sequence[float]) -> list[float]:
    """Move heights upwards, the lowest first, until they are apart."""
    places, last = [0.0] * len(heights), -math.inf
    for at in sorted(range(len(heights)), key=heights.__getitem__):
        places[at] = last = max(heights[at], last + _APART)
    return places
