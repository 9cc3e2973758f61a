"""Put the report's page together from words, pictures and tables.

A model card stands beside it: the page's words in Markdown, for registries of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup, escape

from labelveil.common.files import write_text
from labelveil.common.report.template import page_template
from labelveil.feature_party.evaluation.breakdown import number
from labelveil.feature_party.evaluation.sentences import calibration_lines, segment_lines
from labelveil.feature_party.report import plots, score_plots, words
from labelveil.feature_party.report.inputs import ReportInputs


def write_model_card(path: Path, inputs: ReportInputs) -> None:
    """Write a model card (Mitchell et al., *Model Cards for Model Reporting*, 2019), in place of
    what was there; of one label, and of the releases of one labels party."""
    scores, manifest, facts = inputs.scores, inputs.manifest, inputs.scores.model.facts
    label, events = inputs.released, scores.events
    lower, upper = (number(float(label.grid[end])) for end in (0, -1))
    lines = calibration_lines(scores.slope, (), scores.coverage, scores.bounds)
    text = page_template("labelveil.feature_party.report", "model_card.md.j2").render(
        headline=words.headline(inputs),
        name=inputs.name,
        axis=inputs.axis,
        lower=lower,
        upper=upper,
        missing=number(label.section.missing),
        law=words.model_words(facts.head),
        objective=facts.objective,
        training_rows=f"{facts.training_rows:,}",
        holdout_rows=f"{scores.points.size + scores.kept:,}",
        columns=words.column_words(inputs),
        releases=len(scores.manifests),
        release=events.release_id,
        data_set=manifest.data_set,
        epoch=manifest.epoch,
        seed=facts.seed,
        software=manifest.software,
        matches=words.match_sentence(events.matches),
        lines=[f"{line[:1].upper()}{line[1:]}." for line in lines],
        segments=[
            escape("\n".join(segment_lines(by, rows, scores.bounds)))
            for by, rows in scores.segments.items()
        ],
        warnings=scores.warnings,
        statements=words.privacy_statements(manifest, inputs.label, scores),
    )
    write_text(path, text)


@dataclass(frozen=True)
class Section:
    """One part of the page: heading, explanation, and the picture or table that it explains."""

    identifier: str
    heading: str
    text: str
    picture: Markup | None = None
    rows: Sequence[Sequence[str]] = ()  # the first one heads the columns


def write_report(path: Path, inputs: ReportInputs) -> None:
    """Write one self-contained HTML page, in place of what was there, which loads nothing; and a
    model card beside it, in Markdown."""
    write_text(path, render_report(inputs))
    write_model_card(path.with_suffix(".md"), inputs)


def render_report(inputs: ReportInputs) -> str:
    """Return the page as text."""
    scores, manifest = inputs.scores, inputs.manifest
    sections = _calibration, _columns, _segments, _actual, _prior, _joint, _loss
    return page_template("labelveil.feature_party.report", "report.html.j2").render(
        headline=words.headline(inputs),
        eyebrow=f"{manifest.data_set}, epoch {manifest.epoch}",
        warnings=scores.warnings,
        simulated=scores.truth is not None,
        errors=score_plots.error_scale(words.error_rows(scores), inputs.unit),
        statements=words.privacy_statements(manifest, inputs.label, scores),
        matches=words.match_sentence(scores.events.matches),
        sections=[section for build in sections if (section := build(inputs))],
        tables=_tables(inputs),
        software=manifest.software,
    )


def _prior(inputs: ReportInputs) -> Section:
    manifest, label = inputs.shown, inputs.released
    outputs, bins, grid = label.outputs, len(label.bin_edges), label.grid
    cost = number(manifest.prior_guarantee.epsilon, 3)
    spends = f"The labels party first spends ε = {cost} of its labels on"
    if not manifest.prior_paid and manifest.drift is not None:
        spends = f"Labels of epoch {manifest.drift.in_force.epoch} paid ε = {cost} for"
    ends = f"{number(float(outputs.min()))} to {number(float(outputs.max()))}"
    sends = f"the randomizer {label.stated.name} sends one of {outputs.size} values, from {ends}."
    if manifest.tables:
        names = ", ".join(stratum.name for stratum in manifest.strata)
        sends = (
            f"each of {len(manifest.strata)} strata that both parties know ({names}) has a channel"
            f" designed for its own labels, on whose counts half of that ε is spent. Together they"
            f" send one of {outputs.size} values, from {ends}."
        )
    # it may count other labels, too; none counts a label that was asked about in strata
    name = label.section.name
    histogram = next((prior for prior in manifest.priors if name in prior.labels), None)
    if histogram is None:
        text = (
            "This is what a model of earlier rounds expected of these events, gathered in"
            f" {len(manifest.strata)} strata: nobody paid for it. In each stratum {sends}"
        )
    elif histogram.public:
        text = (
            "This is what the labels party says was publicly known of the labels: nobody paid for"
            f" it. All further choices come from it: {sends}"
        )
    elif histogram.noisy:
        text = (
            f"{spends} this histogram, with noise on each of the {len(histogram.noisy_counts)}"
            f" cells. All further choices come from it: {sends}"
        )
    else:
        text = f"This histogram is decoded from what was sent, and costs nothing: {sends}"
    if bins:
        text += f" Bands show its {bins} bins, ticks below the axis the value sent for each."
    else:
        text += " Ticks below the axis show the values."
    outside = int(np.sum((outputs < grid[0]) | (outputs > grid[-1])))
    if outside:
        text += (
            f" {outside} of them lie outside the labels' range on purpose: so the noise averages"
            " out instead of pulling every mean to the middle."
        )
    return Section("prior", "What the labels party chose", text, plots.prior(label, inputs.axis))


def _joint(inputs: ReportInputs) -> Section:
    label, name, labels = inputs.released, inputs.axis, inputs.true_labels
    if labels is None:
        return Section(
            "channel",
            "What the message says about a label",
            "Each row is a label, each column a value that may be sent for it. Rows that look alike"
            " are what hides a label; that they are not quite alike is what a model learns from.",
            plots.joint(
                label.channel, label.boundaries, label.grid, label.outputs, name, simulated=False
            ),
        )
    edges = plots.label_boundaries(labels, (label.grid[0], label.grid[-1]))
    middles = (edges[1:] + edges[:-1]) / 2
    sent = label.rank[inputs.drawn[1]].astype(np.uint16)
    shares = plots.joint_shares(labels, sent, label.outputs.size, edges)
    return Section(
        "joint",
        "True labels against what was sent",
        "Only a simulation can draw this. Each row is a true label, each column a value sent for"
        " it. One event alone reveals next to nothing; all of them are what a model learns from.",
        plots.joint(shares, edges, middles, label.outputs, name, simulated=True),
    )


def _loss(inputs: ReportInputs) -> Section | None:
    facts = inputs.scores.model.facts
    if len(facts.history) < 2:
        return None
    text = f"{len(facts.history)} epochs of the {facts.objective} objective"
    if facts.head:
        text += f", predicting {words.model_words(facts.head)}"
    text += (
        ". Both curves are measured on privatized labels, so choosing the best epoch costs no"
        " privacy."
    )
    return Section("loss", "How training went", text, plots.loss_curve(facts.history))


def _actual(inputs: ReportInputs) -> Section | None:
    if inputs.true_labels is None:
        return None
    grid, points = inputs.released.grid, inputs.scores.points[inputs.drawn[0]]
    return Section(
        "actual",
        "Predicted against actual",
        "Events that were not trained on, against true labels that only a simulation has. The"
        " dashed line is a perfect prediction; what lies beyond the axes is drawn at their end.",
        plots.predicted_against_actual(
            points, inputs.true_labels, (grid[0], grid[-1]), inputs.axis
        ),
    )


def _calibration(inputs: ReportInputs) -> Section:
    scores, grid = inputs.scores, inputs.released.grid
    text = (
        "Events that were not trained on, in ten groups from the lowest to the highest prediction."
        " A privatized label decodes to a number that is right on average, so a group's mean says"
        " what its labels are like although no label is known."
    )
    for sentence in calibration_lines(scores.slope, (), scores.coverage, scores.bounds):
        text += f" {sentence[:1].upper()}{sentence[1:]}."
    picture = score_plots.calibration(scores.tenths, inputs.axis, (float(grid[0]), float(grid[-1])))
    return Section("calibration", "Are the predictions right on average?", text, picture)


def _columns(inputs: ReportInputs) -> Section:
    text, picture = words.column_words(inputs), None
    if inputs.scores.importance:
        text += (
            " A column's effect is what R² loses when its values are dealt to other events,"
            " estimated from privatized labels."
        )
        picture = score_plots.importance(inputs.scores.importance)
    return Section("columns", "Which columns matter", text, picture, _read_as(inputs))


def _read_as(inputs: ReportInputs) -> list[tuple[str, ...]]:
    """A row for each column: what its cells are, and how the rows predicted differ."""
    encoder = inputs.scores.model.encoder
    known = {share.name: share for share in encoder.shares}
    left_out, now = dict(encoder.left_out), {drift.name: drift for drift in inputs.drift}
    rows: list[tuple[str, ...]] = [("column", "taken for", "missing in training", "")]
    for column in encoder.schema.columns:
        share = remark = ""
        if column.name in known:
            share = f"{known[column.name].missing:.1%}"
            remark = "; ".join(now[column.name].sentences) if column.name in now else ""
        elif column.name in left_out:
            remark = f"left out: {left_out[column.name]}"
        else:
            remark = "ignored"
        rows.append((column.name, str(column), share, remark))
    return rows


def _segments(inputs: ReportInputs) -> Section | None:
    if not inputs.scores.segments:
        return None
    bounds = inputs.scores.bounds
    rows = [("segment", "events", "mean prediction", f"mean {inputs.axis} (95%)", "")]
    for by, column in inputs.scores.segments.items():
        for segment in column:
            label, off = segment.label.within(*bounds), "off" if segment.off else ""
            shown = f"{number(label.value)} ({number(label.low)} to {number(label.high)})"
            figures = f"{segment.events:,}", number(segment.predicted), shown
            rows.append((f"{by}: {segment.name}", *figures, off))
    text = (
        "Mean labels are decoded from privatized ones; intervals hold for all segments of a column"
        " together. Off: predictions are certainly too high or too low on average."
    )
    return Section("segments", "Where the model is right", text, rows=rows)


def _tables(inputs: ReportInputs) -> dict[str, dict[str, str]]:
    scores, manifest, label = inputs.scores, inputs.manifest, inputs.released
    release = {
        "identity (SHA-256 of the manifest)": scores.events.release_id,
        "content digest": manifest.content.digest,
        "population digest": manifest.population.digest,
        "events": f"{manifest.population.rows:,}",
        "label grid": f"{label.grid.size} points,"
        f" {number(float(label.grid[0]))} to {number(float(label.grid[-1]))}",
        "value of a missing label": number(label.section.missing),
        "randomizer": f"{label.stated.name}, {label.outputs.size} outputs,"
        f" {label.section.loss} loss",
        "options of the randomizer": label.stated.shown_options,
        "ε requested": number(manifest.privacy.requested_epsilon, 6),
    }
    errors = {
        name: _cell(value)
        for name, value in scores.to_json().items()
        if isinstance(value, int | float | str)
    }
    settings = asdict(scores.model.facts.settings)
    return {
        "Release": release,
        "Errors": errors,
        "Settings: training": {name: _cell(value) for name, value in settings.items()},
    }


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value, 5)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple):
        return ", ".join(map(_cell, value)) or "–"
    return str(value)
