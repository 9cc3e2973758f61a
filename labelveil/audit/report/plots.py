"""Pictures of what was inferred, each drawn from plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from labelveil.common.report.figures import INK, MAIN, MUTED, RULE, beside, clean, responsive_figure

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_APART = 0.035  # names of curves are written no closer together


def beliefs(data: Mapping[str, Any]) -> Markup:
    """Prior against posterior probability of a label, with the band that ε allows."""
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
