"""The page about several labels parties, or labels: a line for each, and a link to its own page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from labelveil.common.files import write_text
from labelveil.common.report.template import page_template
from labelveil.feature_party.evaluation.breakdown import number
from labelveil.feature_party.evaluation.scores import Scores
from labelveil.feature_party.evaluation.sentences import error_words, interval_words, share_words
from labelveil.feature_party.report.page import Section
from labelveil.feature_party.report.words import (
    Headline,
    Statement,
    match_sentence,
    privacy_statements,
)


def write_overview(path: Path, scores: Scores, pages: Mapping[str, Path]) -> None:
    """Write one self-contained HTML page about a model of several labels parties.

    ``pages`` are each one's own, beside this one.
    """
    together, matches = scores.explained, scores.events.matches
    headline = Headline(
        f"One model of {len(scores.sources)} labels parties",
        (
            f"{scores.verdict}.".capitalize(),
            f"Share of the variation in all labels, each divided by its labels party's scale, that"
            f" the features explain: {share_words(together)}. {_ESTIMATED}",
        ),
    )
    text = (
        "Errors are in the units of each labels party's own labels. Its page says more, and nothing"
        " of the others' labels."
    )
    matched = (
        f"{matches.matched:,} of {matches.release_rows:,} released labels are of events in the"
        f" features file, which has {matches.feature_rows:,}. An event that several labels"
        " parties label counts for each."
    )
    section = _table("parties", "labels party", text, scores.sources, pages)
    _write(path, scores, headline, scores.warnings, _statements(scores), matched, section)


def write_labels_overview(
    path: Path, by_label: Mapping[str, Scores], pages: Mapping[str, Path]
) -> None:
    """Write the same about several labels of each event, from each one's scores."""
    first = next(iter(by_label.values()))
    verdicts = (f"{name}: {scores.verdict}." for name, scores in by_label.items())
    headline = Headline(f"{len(by_label)} labels of one event", (" ".join(verdicts), _ESTIMATED))
    warnings = [f"{name}: {warning}" for name in by_label for warning in by_label[name].warnings]
    text = "Errors are in the units of each label. Its page says more."
    section = _table("labels", "label", text, by_label, pages)
    statements = privacy_statements(first.manifests[-1])
    matched = match_sentence(first.events.matches)
    _write(path, first, headline, warnings, statements, matched, section)


_NAMED = 4
_ESTIMATED = "All figures are estimated from privatized labels of events that were not trained on."


def _write(
    path: Path,
    scores: Scores,
    headline: Headline,
    warnings: Sequence[str],
    statements: Sequence[Statement],
    matched: str,
    section: Section,
) -> None:
    facts, last, names = scores.model.facts, scores.manifests[-1], list(scores.sources)
    parties = ", ".join(names[:_NAMED]) + f" and {len(names) - _NAMED} more" * (len(names) > _NAMED)
    training = {
        "objective": facts.objective,
        "head": facts.head,
        "events trained on": f"{facts.training_rows:,}",
        "releases (SHA-256 of the manifests' digests)": scores.events.release_id,
    }
    text = page_template("labelveil.feature_party.report", "report.html.j2").render(
        headline=headline,
        eyebrow=parties or f"{last.data_set}, epoch {last.epoch}",
        warnings=warnings,
        simulated=False,
        errors=None,
        statements=statements,
        matches=matched,
        sections=[section],
        tables={"Training": training},
        software=last.software,
    )
    write_text(path, text)


def _table(
    identifier: str, kind: str, text: str, each: Mapping[str, Scores], pages: Mapping[str, Path]
) -> Section:
    rows: list[tuple[str, ...]] = [
        (kind, "ε", "events", "R² (95%)", "assumption-free", "MSE (95%)", "a constant's")
    ]
    for name, scores in each.items():
        result = scores.explained
        link = Markup('<a href="{}">{}</a>').format(pages[name].name, name)
        texts = share_words(result), interval_words(result.assumption_free), error_words(result)
        figures = (figure.replace("95%: ", "").replace(" … ", "\u00a0…\u00a0") for figure in texts)
        counts = f"{scores.epsilon:g}", f"{scores.unseen.codes.size:,}"
        rows.append((link, *counts, *figures, number(result.constant)))
    return Section(identifier, f"How good it is for each {kind}", text, rows=rows)


def _statements(scores: Scores) -> list[Statement]:
    """What each labels party's releases guarantee."""
    statements = []
    for name, party in scores.sources.items():
        each = (
            f"Data set {manifest.data_set}, epoch {manifest.epoch}: {manifest.total_guarantee}."
            for manifest in party.manifests
        )
        statements.append((name, " ".join(each)))
    text = (
        "Each ε is about the label that one labels party gives an event. Where several give one to"
        " the same event and these depend on each other, their ε add up."
    )
    return [*statements, ("Together", text)]
