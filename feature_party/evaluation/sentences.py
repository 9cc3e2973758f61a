"""What the figures of an evaluation say, in words, for a terminal and a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from feature_party.evaluation.breakdown import Segment, number
from feature_party.evaluation.explained import NEGLIGIBLE, Explained
from feature_party.evaluation.intervals import Measured
from feature_party.learning.calibration import Slope


def summary(explained: Explained, epsilon: float, rows: int) -> list[str]:
    """A few lines: the verdict, R² with both intervals, and the squared error.

    ``epsilon`` is that of the release, ``rows`` the number of events that the figures rest on.
    """
    error = explained.error
    return [
        verdict_sentence(explained, epsilon, rows),
        "R², the share of the label's variance that is explained:",
        f"  {share_words(explained.free)} assumption-free",
        f"  {share_words(explained.assisted)} model-assisted: if the model's own distributions are"
        " about right",
        f"estimated test MSE {number(error.value)} (95%: {number(error.low)} …"
        f" {number(error.high)}), of always predicting the mean {number(explained.constant)}",
        f"all from the privatized labels of {rows:,} events not trained on",
    ]


def verdict_sentence(explained: Explained, epsilon: float, rows: int) -> str:
    """Whether the model is better than no features at all; arguments as above."""
    if explained.verdict == "better":
        return "better than no features: yes"
    if explained.verdict == "not better":
        share = f"{NEGLIGIBLE:.0%}"
        return f"better than no features: no, less than {share} of the label's variance explained"
    sentence = f"better than no features: cannot tell at ε = {epsilon:g} with {rows:,} events"
    if explained.events is None or explained.epsilon is None:
        return sentence
    events = round(explained.events, min(2 - len(str(explained.events)), 0))  # to two digits
    return (
        f"{sentence}; about {events:,} events, or ε = {explained.epsilon * epsilon:.2g}, would tell"
    )


def share_words(share: Measured) -> str:
    """R² with its interval, cut off at 0: an error above the constant's is no share explained."""
    low, high = max(share.low, 0.0), max(share.high, 0.0)
    return f"{max(share.value, 0.0):.2f} (95%: {low:.2f} … {high:.2f})"


def importance_line(importance: Mapping[str, Measured], most: int = 5) -> str:
    """Columns that lower the error most, and how many do not more than noise would."""
    certain = {name: effect for name, effect in importance.items() if effect.low > 0}
    ranked = sorted(certain.items(), key=lambda item: -item[1].value)[:most]
    line = "columns that matter, by the R² lost when their values are shuffled: "
    line += ", ".join(f"{name} {r2.value:.2g} ± {r2.value - r2.low:.1g}" for name, r2 in ranked)
    if not ranked:
        line = "no column's effect can be told from noise"
    elif len(certain) < len(importance):
        others = len(importance) - len(certain)
        line += f"; the effect of {others} other{'s' * (others > 1)} cannot be told from noise"
    return line


def calibration_lines(
    slope: Slope | None, tenths: Sequence[Segment], coverage: Mapping[float, Measured]
) -> list[str]:
    """Are predictions right on average, and intervals as often as they say?"""
    low, high = (-math.inf, math.inf) if slope is None else slope.interval
    lines = []
    if slope is not None and low < 0 and high > 2:
        lines.append("whether predictions are right on average cannot be told")
    else:
        lines += segment_lines("prediction, in tenths", tenths) if tenths else []
    if slope is not None:
        lines.append(
            f"labels rise by {slope.value:.2f} per unit predicted (95%: {low:.2f} … {high:.2f};"
            " 1 is right)"
        )
    if coverage:
        phrases = []
        for share, hit in coverage.items():
            value, least, most = (min(max(x, 0.0), 1.0) for x in (hit.value, hit.low, hit.high))
            phrases.append(f"of {share:.0%} hold {value:.0%} ({least:.0%} … {most:.0%})")
        lines.append(f"the model's own intervals {', '.join(phrases)} of the labels")
    return lines


def segment_lines(by: str, segments: Sequence[Segment]) -> list[str]:
    """A line a segment: events, mean prediction, mean label, and whether they disagree."""
    rows = [("", "events", "predicted", "mean label (95% for all together)")]
    for segment in segments:
        label = segment.label
        told = f"{number(label.value)} ({number(label.low)} … {number(label.high)})"
        told += "  predictions are off" * segment.off
        rows.append((segment.name, f"{segment.events:,}", number(segment.predicted), told))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [f"by {by}:"] + [
        f"  {name:{widths[0]}}  {events:>{widths[1]}}  {predicted:>{widths[2]}}  {label}"
        for name, events, predicted, label in rows
    ]
