"""The model card beside a report: the page's words in Markdown, for registries of models."""

from __future__ import annotations

from pathlib import Path

from markupsafe import escape

from labelveil.common.files import write_text
from labelveil.common.report.template import page_template
from labelveil.feature_party.evaluation.breakdown import number
from labelveil.feature_party.evaluation.sentences import calibration_lines, segment_lines
from labelveil.feature_party.report import words
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
