"""What the figures of an evaluation say, in words, for a terminal and a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scipy.special import ndtr

from labelveil.common.console import share_text
from labelveil.common.errors import printable
from labelveil.feature_party.evaluation.breakdown import Segment, number
from labelveil.feature_party.evaluation.clipped_labels import Clipped
from labelveil.feature_party.evaluation.explained import Explained
from labelveil.feature_party.evaluation.intervals import NEGLIGIBLE, Measured
from labelveil.feature_party.learning.calibration import Slope

_LEAST_P = 1e-6
TOLD = {"better": "yes", "not better": "no", "cannot tell": "cannot tell"}


def summary(
    explained: Explained, clipped: Clipped | None, epsilon: float, rows: int, held_out: int
) -> list[str]:
    """A few lines: association, verdict, R² and squared error with the interval that decides.

    ``epsilon`` is that of the release, ``rows`` the number of events that the figures rest on, and
    ``held_out`` how many of them are held out of all training.
    """
    of_clipped = [] if clipped is None else [clipped_sentence(clipped)]
    others = f" ({held_out:,} held out, others by networks that left them out)"
    if explained.sums:
        return [
            association_sentence(explained),
            verdict_sentence(explained, epsilon, explained.sums),
            f"R², the share of the label's variance that is explained: {share_words(explained)};"
            f" {source_words(explained)}",
            f"estimated test MSE {error_words(explained)}, of always predicting the mean"
            f" {number(explained.constant)}",
            f"both by two sums over {explained.sums:,} held-out events that no code was sent of;"
            f" all else from the privatized labels of {rows:,} events not trained on",
        ]
    return [
        association_sentence(explained),
        verdict_sentence(explained, epsilon, rows),
        f"R², the share of the label's variance that is explained: {share_words(explained)};"
        f" {source_words(explained)}",
        f"estimated test MSE {error_words(explained)}, of always predicting the mean"
        f" {number(explained.constant)}",
        *of_clipped,
        f"all from the privatized labels of {rows:,} events not trained on"
        + others * (rows > held_out),
    ]


def association_sentence(explained: Explained) -> str:
    """Whether predictions and codes go together at all, by a test that is right for any model."""
    if explained.sums and explained.share.low > 0:
        return f"the features predict the label: yes ({explained.sums:,} events' sums)"
    p = association_p(explained)
    chance = f"p = {number(p, 2)}" if p >= _LEAST_P else f"p < {_LEAST_P:f}"
    answer = "yes" if explained.associated else "not seen"
    return f"the features predict the label: {answer} ({chance})"


def source_words(explained: Explained, form: str = ".2f") -> str:
    """What the other interval of R² is, beside the one that decides."""
    if explained.codes is not None:
        return f"from codes alone {interval_words(explained.codes, form)}"
    return f"assumption-free {interval_words(explained.assumption_free, form)}"


def association_p(explained: Explained) -> float:
    """How likely so high an association is where features tell nothing of the label."""
    return float(ndtr(-explained.association))


def clipped_sentence(clipped: Clipped, form: str = ".2f") -> str:
    """What can be said where a few large labels hide the rest."""
    explained = clipped.explained
    return (
        f"of labels clipped at {number(clipped.bound)}, which {clipped.above:.1%} exceed:"
        f" R² {share_words(explained, form)}; better than a constant: {TOLD[explained.verdict]}"
    )


def verdict_sentence(explained: Explained, epsilon: float, rows: int) -> str:
    """Whether the model is better than a constant; arguments as above."""
    if explained.verdict == "better":
        return "better than a constant: yes"
    if explained.verdict == "not better":
        share = f"{NEGLIGIBLE:.0%}"
        return f"better than a constant: no, less than {share} of the label's variance explained"
    sentence = f"better than a constant: cannot tell at ε = {epsilon:g} with {rows:,} events"
    if explained.events is None or explained.epsilon is None:
        return sentence
    events = round(explained.events, min(2 - len(str(explained.events)), 0))  # to two digits
    return (
        f"{sentence}; about {events:,} events, or ε = {explained.epsilon * epsilon:.2g}, would tell"
    )


def share_words(explained: Explained, form: str = ".2f") -> str:
    """R² with the interval that decides, as :func:`figure_words`."""
    return figure_words(explained.share, form)


def figure_words(share: Measured, form: str = ".2f") -> str:
    """R² with its interval; of an estimate that is not possible, this alone."""
    ends = [share_text(x, form) for x in (share.value, share.low, share.high)]
    return _with_interval(*ends, possible=share.value < 1)


def interval_words(share: Measured, form: str = ".2f") -> str:
    """The interval of R², cut off at 0: an error above the constant's is no share explained."""
    return " … ".join(share_text(end, form) for end in (share.low, share.high))


def error_words(explained: Explained) -> str:
    """The squared error with its interval; of an estimate that is not possible, this alone."""
    error = explained.error
    ends = [number(x) for x in (error.value, error.low, error.high)]
    return _with_interval(*ends, possible=explained.possible)


def _with_interval(value: str, low: str, high: str, *, possible: bool) -> str:
    """An estimate and its interval. Noise takes some to an end of what is possible, or of what
    else is known, which is no more likely than the rest: the interval alone is shown, and where in
    it the estimate lies."""
    if not possible:
        return f"{low} … {high} (95%)"
    if value in (low, high):
        return (
            f"{low} … {high} (95%; the estimate is its {'lower' if value == low else 'upper'} end)"
        )
    return f"{value} (95%: {low} … {high})"


def importance_line(importance: Mapping[str, Measured], most: int = 5) -> str:
    """Columns that lower the error most, and how many do not more than noise would."""
    certain = {name: effect for name, effect in importance.items() if effect.low > 0}
    ranked = sorted(certain.items(), key=lambda item: -item[1].value)[:most]
    line = "columns that matter, by the R² lost when their values are shuffled: "
    line += ", ".join(f"{name} {r2.value:.2g} ± {r2.value - r2.low:.1g}" for name, r2 in ranked)
    if not ranked:
        line = "no column's effect can be distinguished from noise"
    elif len(certain) < len(importance):
        others = len(importance) - len(certain)
        line += f"; the effect of {others} other{'s' * (others > 1)} cannot be distinguished from"
        line += " noise"
    return line


def calibration_lines(
    slope: Slope | None,
    tenths: Sequence[Segment],
    coverage: Mapping[float, Measured],
    bounds: tuple[float, float],
) -> list[str]:
    """Are predictions right on average, and intervals as often as they say?

    ``bounds`` are those of the labels.
    """
    low, high = (-math.inf, math.inf) if slope is None else slope.interval
    lines = []
    if slope is not None and low < 0 and high > 2:
        lines.append("whether predictions are right on average cannot be told")
    else:
        lines += segment_lines("prediction, in tenths", tenths, bounds) if tenths else []
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


def segment_lines(by: str, segments: Sequence[Segment], bounds: tuple[float, float]) -> list[str]:
    """A line a segment: events, mean prediction, mean label, and whether they disagree.

    The mean label is shown within the ``bounds`` of labels.
    """
    rows = [("", "events", "predicted", "mean label (95% for all together)")]
    for segment in segments:
        label = segment.label.within(*bounds)
        shown = f"{number(label.value)} ({number(label.low)} … {number(label.high)})"
        shown += "  predictions are off" * segment.off
        rows.append(
            (printable(segment.name), f"{segment.events:,}", number(segment.predicted), shown)
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [f"by {printable(by)}:"] + [
        f"  {name:{widths[0]}}  {events:>{widths[1]}}  {predicted:>{widths[2]}}  {label}"
        for name, events, predicted, label in rows
    ]
