"""The page about a model of sums over groups, and the model card beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelveil.common.files import write_text
from labelveil.common.mechanisms.group_sums import Lattice, PrivateSums
from labelveil.common.report.figures import MAIN, MUTED, OTHER, THIRD
from labelveil.common.report.template import page_template
from labelveil.common.version import software
from labelveil.feature_party.evaluation.breakdown import number
from labelveil.feature_party.evaluation.intervals import Measured, compared
from labelveil.feature_party.evaluation.sentences import TOLD, figure_words
from labelveil.feature_party.report.page import Section
from labelveil.feature_party.report.score_plots import ErrorRow, error_scale
from labelveil.feature_party.report.words import Headline, Statement, known_title, told_title


@dataclass(frozen=True, eq=False)
class SumsReport:
    """What the page is about; a simulation's metrics say what true labels do, too."""

    label: str
    data_set: str
    lattice: Lattice
    answers: Sequence[PrivateSums]
    metrics: Mapping[str, Any]

    @property
    def simulated(self) -> bool:
        return "test_mse" in self.metrics


def write_sums_report(path: Path, report: SumsReport) -> None:
    """Write one self-contained HTML page, in place of what was there, which loads nothing."""
    metrics = report.metrics
    text = page_template("labelveil.feature_party.report", "report.html.j2").render(
        headline=_headline(report),
        eyebrow=report.data_set,
        warnings=metrics["warnings"],
        simulated=report.simulated,
        errors=error_scale(_error_rows(metrics)) if "verdict" in metrics else "",
        statements=_statements(report),
        matches="",
        sections=[_rounds(report)],
        tables={"Numbers": {k: _cell(v) for k, v in metrics.items() if not isinstance(v, list)}},
        software=software(),
    )
    write_text(path, text)


def write_sums_card(
    path: Path, report: SumsReport, columns: Sequence[str], release: str, *, trees: bool
) -> None:
    """Write a model card, in place of what was there: of the columns that the model reads, and of
    the manifests' digests; ``trees`` says whether there are any beside the ridges."""
    metrics, lattice = report.metrics, report.lattice
    used = f"The model reads {len(columns)} column{'s' * (len(columns) != 1)}: {', '.join(columns)}"
    data_set, _, epoch = report.data_set.partition(", epoch ")
    text = page_template("labelveil.feature_party.report", "model_card.md.j2").render(
        headline=_headline(report),
        name=report.label,
        axis=report.label,
        lower=number(lattice.lower),
        upper=number(lattice.upper),
        missing="the labels party's `missing` value",
        law="a mean, by ridges on random features" + trees * " and boosted trees",
        objective="the likelihood of sums over groups",
        training_rows=f"{metrics['training_rows']:,}",
        holdout_rows=f"{metrics['holdout_rows']:,}",
        columns=f"{used}.",
        releases=len(report.answers),
        release=release,
        data_set=data_set,
        epoch=epoch,
        seed=metrics["seed"],
        software=software(),
        matches=f"Sums over groups of {metrics['training_rows']:,} of {metrics['rows']:,} events.",
        lines=[],
        segments=[],
        warnings=metrics["warnings"],
        statements=_statements(report),
    )
    write_text(path, text)


def _headline(report: SumsReport) -> Headline:
    metrics, label = report.metrics, report.label
    epsilon, kept = number(metrics["epsilon"], 3), f"{metrics['holdout_rows']:,}"
    title, lines = f"A model of {label} from sums, not scored", list[str]()
    if "verdict" in metrics:
        share = Measured.of_json(metrics, "estimated_r2")
        title = told_title(label, epsilon, share)
        lines.append(
            f"Better than a constant: {TOLD[compared(share)]}. Share of the variation in"
            f" {label} that the features explain: {figure_words(share, '.0%')}, as two sums over"
            " the events kept tell."
        )
    if report.simulated:
        test, constant = metrics["test_mse"], metrics["constant_mse"]
        ideal = metrics.get("nonprivate_mse")
        title = known_title(label, epsilon, test, constant, ideal)
        against = (
            f"Against true labels of {kept} events that were not learned from the error is"
            f" {number(test)}; a constant has {number(constant)}"
        )
        against += "" if ideal is None else f", a model trained on true labels {number(ideal)}"
        lines.append(f"{against}. Only a simulation can tell this.")
    elif "verdict" in metrics:
        error, constant = metrics["estimated_mse"], metrics["estimated_constant_mse"]
        lines.append(
            f"Estimated mean squared error over {kept} events that were not learned from:"
            f" {number(error)} (95%: {number(metrics['estimated_mse_low'])} …"
            f" {number(metrics['estimated_mse_high'])}), of a constant {number(constant)}."
        )
    seen = "show" if metrics["columns_matter"] else "do not show"
    seen = f"The sums that were learned from {seen} that a column matters."
    return Headline(title, (*lines, seen))


def _error_rows(metrics: Mapping[str, Any]) -> list[ErrorRow]:
    constant = metrics["constant_mse" if "constant_mse" in metrics else "estimated_constant_mse"]
    low, high = (constant * (1 - metrics[f"estimated_r2_{end}"]) for end in ("high", "low"))
    told = metrics["estimated_r2"]
    at = constant * (1 - told) if math.isfinite(told) else math.nan

    def row(name: str, error: float, colour: str) -> ErrorRow:
        return ErrorRow(name, error, colour, 1 - error / constant if constant else None)

    rows = [
        ErrorRow("a constant", constant, MUTED),
        ErrorRow("this model,\nestimated", at, MAIN, max(told, 0.0), (low, high)),
    ]
    if (error := metrics.get("test_mse")) is not None:
        rows.append(row("this model,\ntrue labels", error, OTHER))
    if (ideal := metrics.get("nonprivate_mse")) is not None:
        rows.append(row("trained on\ntrue labels", ideal, THIRD))
    return rows


def _rounds(report: SumsReport) -> Section:
    rows = [("round", "events", "groups", "offsets", "noise in a group's mean", "bits an event")]
    for place, (asked, answer) in enumerate(
        zip(report.metrics["rounds"], report.answers, strict=True), 1
    ):
        noise = float(np.median(answer.deviations / np.maximum(answer.question.sizes, 1)))
        counts = f"{asked['events']:,}", f"{asked['groups']:,}", f"{asked['offsets']:,}"
        rows.append(
            (str(place), *counts, f"±\u00a0{number(noise)}", f"{asked['question_bits']:.1f}")
        )
    text = (
        "Labels are summed over groups of events that are alike, and noise is paid for once a"
        " group. From the second round on what is left of labels after a prediction, the offset, is"
        " summed, clipped to a width that fits it. Noise: the standard deviation of a group's mean,"
        " in the middle of all groups."
    )
    return Section("rounds", "What was asked", text, rows=rows)


def _statements(report: SumsReport) -> list[Statement]:
    metrics, label = report.metrics, report.label
    total, exact = metrics["epsilon"], report.answers[0].guarantee
    bits = metrics["question_bits"]
    scales = [float(np.max(answer.deviations)) for answer in report.answers]
    scored = " and for two sums that score" if "verdict" in metrics else ""
    return [
        (
            "Protected",
            f"The label “{label}” of one event. Anyone who reads all sums, knows every other label"
            " and all features, and has any amount of time, can shift the odds of one value"
            f" against another by a factor of at most {number(math.exp(total), 3)}, which is e to"
            " the power ε: a guess that is right with 50% becomes one of at most"
            f" {1 / (1 + math.exp(-total)):.0%}.",
        ),
        (
            "The numbers",
            f"{exact} in each of {len(report.answers)} rounds{scored}, and each event is in one of"
            f" them: ε = {number(total, 5)} in all, and no δ. Discrete Laplace"
            f" noise is in every sum, of a standard deviation up to"
            f" {', '.join(map(number, scales))} in the rounds.",
        ),
        (
            "Not protected",
            "Which events exist, and how many. What is true of many events together. Several events"
            " of one person. A second question about the same labels, by sums or codes, adds its"
            " ε.",
        ),
        (
            "What the labels party learns",
            f"Each event's group and offset, at most {bits:.1f} bits an event of what columns and"
            " earlier rounds say of it. One message of codes tells it nothing.",
        ),
    ]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return number(value, 5)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
