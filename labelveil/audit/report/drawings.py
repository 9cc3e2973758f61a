"""The pictures of a certificate, in HTML and SVG alone: to import matplotlib takes a second."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from common.errors import present
from labelveil.audit.verdict import Check, Verdict

_BEYOND = 1.3  # what lies farther above a claim is drawn here

_WIDE = 0.8  # share of the width that the outputs take; ε is drawn in the rest


def bounds(checks: Sequence[Check]) -> Markup:
    """Measured bounds as shares of what is claimed: one line for all claims."""
    row = Markup('<span>{}</span><div class="track{}">{}</div><span class="by">{} of {}</span>')
    rows, words = [], []
    for check in checks:
        bound, claimed = _short(check.bound), _short(check.claimed)
        failed = " fail" * (check.verdict is Verdict.FAIL)
        rows.append(row.format(check.name, failed, _marks(check), bound, claimed))
        words.append(f"{check.name}: at least {bound} against a claim of {claimed}")
    names = [
        Markup('<b style="left:{:.1%}">{}</b>').format(at / _BEYOND, name)
        for at, name in ((0, "0"), (0.5, "half"), (1, "claimed"))
    ]
    return Markup(
        '<div class="bounds" role="img" aria-label="{}">{}<i></i><div class="scale">{}</div></div>'
    ).format("; ".join(words), Markup().join(rows), Markup().join(names))


def _marks(check: Check) -> Markup:
    bound, shown = _share(check, check.bound), _share(check, check.shown)
    if check.confidence == 1:
        return Markup('<i class="exact" style="left:{:.1%}"></i>').format(bound)
    return Markup(
        '<i class="between" style="left:{0:.1%};width:{2:.1%}"></i>'
        '<i class="shown" style="left:{1:.1%}"></i><i style="left:{0:.1%}"></i>'
    ).format(bound, shown, shown - bound)


def _share(check: Check, value: float | None) -> float:
    """Where a bound lies from 0 to 1, for what lies far beyond the claim."""
    bound, claimed = present(check.bound if value is None else value), present(check.claimed)
    if claimed <= 0:
        return float(bound > 0)
    return min(bound / claimed / _BEYOND, 1.0)


def ranges(data: Mapping[str, Any]) -> Markup:
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

    paths = [
        Markup('<path class="{}" d="{}"/>').format(
            name,
            "".join(
                f"M{at + 0.5} {height(most[at]):.4f}V{height(least[at]):.4f}"
                for at in np.flatnonzero(chosen)
            ),
        )
        for name, chosen in (("possible", ~impossible), ("impossible", impossible))
    ]
    steps = (1, 2, 5) if top < 200 * floor else (1,)
    tens = range(math.floor(math.log10(floor)), 1)
    levels = [
        Markup('<b class="level" style="top:{:.1%}"><span>{:g}</span></b>').format(height(at), at)
        for at in (step * 10.0**ten for ten in tens for step in steps)
        if floor <= at <= 1.3 * top
    ]
    ticks = np.unique(np.linspace(0, len(outputs) - 1, 5).round().astype(int))
    values = [
        Markup('<b class="value{}" style="left:{:.1%}">{}</b>').format(
            " wide" * (place % 2), _WIDE * (tick + 0.5) / len(outputs), _value(outputs[tick])
        )
        for place, tick in enumerate(ticks)
    ]
    longest = float(np.max(np.log(most[~impossible] / least[~impossible]), initial=0.0))
    words = (
        f"Range of the probability of {len(outputs)} outputs over all labels: the largest ratio is"
        f" e to the {longest:.4g}; {int(impossible.sum())} outputs exclude a label"
    )
    return Markup(
        '<figcaption>probability, over all labels (logarithmic)</figcaption><div class="ranges"'
        ' role="img" aria-label="{}">{}<svg viewBox="0 0 {} 1" preserveAspectRatio="none"'
        ' style="width:{:.1%}">{}</svg>{}<b class="epsilon" style="top:{:.1%};height:{:.1%}">'
        "<span>ε\u00a0= {:.3g}</span></b></div>"
        "<figcaption>value sent, each output once</figcaption>"
    ).format(
        words,
        Markup().join(levels),
        len(outputs),
        _WIDE,
        Markup().join(paths),
        Markup().join(values),
        height(top),
        epsilon / span,
        epsilon,
    )


def _value(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _short(value: float | None) -> str:
    return "∞" if math.isinf(present(value)) else f"{value:.3g}"
