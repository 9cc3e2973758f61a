"""A model's errors on held-out events, and how ``metrics.json`` states them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from common.arrays import Floats
from common.errors import DataError
from common.release.manifest import Manifest
from feature_party.client.questions import Verdict
from feature_party.evaluation.breakdown import (
    INTERVALS,
    Measured,
    Segment,
    groups_by,
    importance,
    interval_coverage,
    number,
    segments,
    tenths,
)
from feature_party.evaluation.decoded_labels import decode_labels
from feature_party.evaluation.error_estimates import Estimate, estimate_absolute_error
from feature_party.evaluation.explained import Explained, ExplainedShare, explained
from feature_party.evaluation.fitting import Fitting, estimate_fitting
from feature_party.evaluation.losses import SQUARED
from feature_party.evaluation.sentences import (
    calibration_lines,
    importance_line,
    segment_lines,
    share_words,
    summary,
)
from feature_party.evaluation.spread import ReleasedCodes, label_spread
from feature_party.evaluation.true_labels import TrueErrors, true_errors
from feature_party.evaluation.unseen import Unseen, unseen
from feature_party.learning.calibration import Slope, slope
from feature_party.learning.several_labels import stated_of, view_of
from feature_party.model.facts import ModelFacts
from feature_party.model.model import Model
from feature_party.training.events import Codes, Events

_OF_ALL = (
    *("rows", "epsilon", "epsilon_prior", "epsilon_labels", "data_set", "epoch", "epochs"),
    *("events_in_release", "events_in_features", "matched", "training_rows", "holdout_rows"),
    "scored_rows",
)
"""What several labels of one release have in common."""


@dataclass(frozen=True)
class Scores:
    """What held-out events say about a model.

    Attributes
    ----------
    manifests
        Of the releases learned from, oldest first.
    events
        All matched events, split.
    facts
        How the model was trained.
    keys, points, codes
        (h,) keys of the held-out events, predictions, and privatized labels.
    unseen
        These and all other events with predictions by networks that have not seen them.
    explained
        How predictions compare with a constant, from those events' privatized labels alone.
    slope
        Of their decoded labels on predictions; None where predictions are alike.
    tenths, segments
        These events by prediction, and by the columns asked for.
    coverage
        How often the model's intervals of some probabilities contain the label.
    importance
        By how much each column lowers the squared error, in units of the label's variance.
    used
        Columns that the model reads.
    absolute
        Mean absolute error of the held-out events, estimated from theirs.
    fitting
        What else fits the label, estimated from all events' privatized labels.
    truth
        Errors against true labels, where they are known.
    answer
        What the labels party said when asked: which loss, and its verdict.
    sources
        Of several labels parties each one's own, in units of its labels. Figures of all together
        are about labels divided by each one's scale.
    label
        Which of the releases' labels this is about, if they have several.
    """

    manifests: Sequence[Manifest]
    events: Events
    facts: ModelFacts
    keys: pl.Series
    points: Floats
    codes: Codes
    unseen: Unseen
    explained: Explained
    slope: Slope | None
    tenths: Sequence[Segment]
    segments: Mapping[str, Sequence[Segment]]
    coverage: Mapping[float, Measured]
    importance: Mapping[str, Measured]
    used: Sequence[str]
    absolute: Estimate
    fitting: Fitting | None = None
    truth: TrueErrors | None = None
    answer: tuple[str, Verdict] | None = None
    sources: Mapping[str, Scores] = field(default_factory=dict)
    label: str = ""

    @property
    def epsilon(self) -> float:
        """What the releases may reveal of a label: the largest of them."""
        return float(release_metrics(self.manifests)["epsilon"])

    @property
    def summary(self) -> list[str]:
        """Whether the model is any good, in a few lines."""
        lines = summary(self.explained, self.epsilon, self.unseen.codes.size)
        if self.sources:
            lines[-1] = "errors of each labels party, in its own units:"
            lines += [scores.sentence(name) for name, scores in self.sources.items()]
            return [*lines, *(f"warning: {warning}" for warning in self.warnings)]
        if self.fitting is not None:
            lines.append(self.fitting.sentence)
        lines += calibration_lines(self.slope, self.tenths, self.coverage)
        if self.importance:
            lines.append(importance_line(self.importance))
        for by, column in self.segments.items():
            lines += segment_lines(by, column)
        return lines

    def sentence(self, name: str) -> str:
        """One labels party's figures in a line."""
        result, epsilon = self.explained, f"{self.epsilon:g}"
        return (
            f"  {name}, ε = {epsilon}: R² {share_words(result.free)} assumption-free,"
            f" {share_words(result.assisted)} model-assisted; MSE {number(result.loss.value)}, the"
            f" constant's {number(result.constant)}; {self.unseen.codes.size:,} events"
        )

    @property
    def warnings(self) -> list[str]:
        """What the user of the model must know first."""
        warnings = list(self.facts.warnings)
        if self.slope is not None and self.slope.misspecified and self.facts.slope is not None:
            # all events that were not trained on know the slope better than the folds of training
            own = self.facts.slope.sentence
            warnings = [*(warning for warning in warnings if warning != own), self.slope.sentence]
        *earlier, (_, _, codes) = self.events.problem.by_release(self.codes)
        if earlier:
            warnings.append(
                f"one model of {1 + len(earlier)} epochs: errors are about all of them, pictures"
                f" about the {codes.size:,} held-out events of epoch {self.manifests[-1].epoch}"
            )
        return warnings

    def to_json(self) -> dict[str, Any]:
        """The content of ``metrics.json``, without timings."""
        matches, slope = self.events.matches, self.facts.slope
        return {
            **release_metrics(self.manifests, self.label),
            "objective": self.facts.objective,
            "head": self.facts.head,
            "events_in_release": matches.release_rows,
            "events_in_features": matches.feature_rows,
            "matched": matches.matched,
            "training_rows": self.events.training_rows,
            "holdout_rows": self.points.size,
            "scored_rows": self.unseen.codes.size,
            "verdict": self.explained.verdict,
            **_share("estimated", self.explained.free),
            **_share("assisted", self.explained.assisted),
            **_estimate("mse", self.explained.loss),
            "estimated_constant_mse": self.explained.constant,
            **_estimate("mae", self.absolute),
            **({} if self.fitting is None else self.fitting.to_json()),
            "calibration_slope": None if self.slope is None else asdict(self.slope),
            "tenths": [asdict(segment) for segment in self.tenths],
            "segments": {
                by: [asdict(segment) for segment in column] for by, column in self.segments.items()
            },
            "interval_coverage": {f"{p:g}": asdict(share) for p, share in self.coverage.items()},
            "importance": {name: asdict(effect) for name, effect in self.importance.items()},
            "decoding_slope": None if slope is None else slope.value,
            **({} if self.answer is None else _answer(*self.answer)),
            **({} if self.truth is None else self.truth.to_json()),
            "training_seconds": self.facts.seconds,
            "warnings": self.warnings,
            **(
                {"sources": {name: scores.to_json() for name, scores in self.sources.items()}}
                if self.sources
                else {}
            ),
        }


def score(
    model: Model,
    events: Events,
    manifests: Sequence[Manifest],
    labels: Mapping[str, Floats] | None = None,
    nonprivate: Path | None = None,
    by: Sequence[str] = (),
    source: str = "",
    label: str = "",
) -> Scores:
    """Score the held-out events: of several labels parties all together, and each one's.

    Parameters
    ----------
    model, events, manifests
        What to score, on what, and what the releases state.
    labels
        (m,) true labels of all matched events of each labels party, in simulations.
    nonprivate
        Metrics file of a model that was trained on true labels, in simulations.
    by
        Columns of the features to compare segments by.
    source
        The labels party that model, events and releases are of, if it is one of several.
    label
        The label that model and events are of, if the releases have several.
    """
    unseen_rows = unseen(model, events)
    held = unseen_rows.scored.held_out
    predicted, codes = unseen_rows.scored.predicted.of(held), unseen_rows.codes[held]
    problem, scored = events.problem, unseen_rows.judged_by(SQUARED)
    sources = _sources(events, unseen_rows.codes, manifests, label)
    spread = label_spread(sources)
    decoded = decode_labels(sources, model.support, scored, spread.centre)
    compared = explained(sources, model.support, scored, spread, decoded)
    points, variance = unseen_rows.scored.predicted.points, compared.constant
    true = None if labels is None else labels.get(source)
    truth = None if true is None else true[unseen_rows.matched]
    figures = decoded, spread.centre, variance, truth
    for name in by:
        if name not in unseen_rows.table.columns:
            columns = ", ".join(unseen_rows.table.columns)
            raise DataError(f"by={name!r} is no column of the features; columns: {columns}")
    chosen, dealt = unseen_rows.dealt(model, list(model.encoder.columns))
    # two labels lie in an interval, or not, by its rounding alone
    with_intervals = model.has_distributions and problem.values.size > 2
    shares = interval_coverage(sources, model.support, unseen_rows.scored, INTERVALS)
    return Scores(
        manifests,
        events,
        model.facts,
        unseen_rows.table[events.key].filter(pl.Series(held)),
        predicted.points,
        codes,
        unseen_rows,
        compared,
        slope(points, decoded.unbiased),
        segments(tenths(points), points, *figures),
        {name: segments(groups_by(unseen_rows.table[name]), points, *figures) for name in by},
        dict(zip(INTERVALS, shares, strict=True)) if with_intervals else {},
        {
            name: importance(points[chosen], changed, decoded.of(chosen), variance)
            for name, changed in dealt.items()
        },
        model.encoder.columns,
        estimate_absolute_error(problem, model.support, predicted, codes),
        estimate_fitting(problem, sources, model.support, unseen_rows, decoded),
        None if true is None else true_errors(predicted.points, true, events, nonprivate, label),
        sources={
            party.name: score(
                model.of(party.name),
                events.of(party.name),
                manifests[start : start + party.releases],
                labels,
                None,
                by,
                party.name,
                label,
            )
            for party, start in problem.each_source()
        },
        label=label,
    )


def _sources(
    events: Events, codes: Codes, manifests: Sequence[Manifest], label: str
) -> list[ReleasedCodes]:
    """Each release with its codes among those scored."""
    problem = events.problem
    scales = [party for party, _ in problem.each_source() for _ in range(party.releases)]
    views = [view_of(manifest, label) for manifest in manifests]
    grids = [view.problem.grid for view in views]
    if scales:
        moves = zip(grids, scales, strict=True)
        grids = [(grid - party.location) / party.scale for grid, party in moves]
    parts = zip(problem.by_release(codes), views, grids, strict=True)
    return [
        ReleasedCodes(part, view.histogram, grid, np.flatnonzero(mine), own)
        for (part, mine, own), view, grid in parts
        if own.size
    ]


def release_metrics(manifests: Sequence[Manifest], label: str = "") -> dict[str, Any]:
    """What releases state about themselves, and about one of their labels.

    Of several epochs the last names the randomizer, and each ε is the largest of any. Of several
    labels it is about all of them.
    """
    last = manifests[-1]
    section, stated = stated_of(last, label)
    facts: dict[str, Any] = {
        "randomizer": stated.name,
        "loss": section.loss,
        "rows": sum(manifest.population.rows for manifest in manifests),
        "outputs": len(stated.channel["outputs"]),
        "epsilon": max(manifest.privacy.requested_epsilon for manifest in manifests),
        "epsilon_prior": max(
            manifest.prior_guarantee.epsilon if manifest.prior_paid else 0.0
            for manifest in manifests
        ),
        "epsilon_labels": max(manifest.labels_guarantee.epsilon for manifest in manifests),
        "data_set": last.data_set,
        "epoch": last.epoch,
    }
    if len(manifests) > 1:
        facts["epochs"] = len(manifests)
        facts["priors_paid"] = sum(manifest.prior_paid for manifest in manifests)
    return facts


def labels_json(by_label: Mapping[str, Scores]) -> dict[str, Any]:
    """The content of ``metrics.json``: of several labels each one's under ``labels``, with what is
    said of the release and of all events before it."""
    if "" in by_label:
        return by_label[""].to_json()
    each = {name: scores.to_json() for name, scores in by_label.items()}
    first, *others = each.values()
    common = {
        key: value
        for key, value in first.items()
        if key in _OF_ALL and all(other[key] == value for other in others)
    }
    return {
        **common,
        "labels": [{"name": name, **metrics} for name, metrics in each.items()],
        "warnings": [f"{name}: {warning}" for name in each for warning in by_label[name].warnings],
    }


def _share(name: str, share: ExplainedShare) -> dict[str, float]:
    values = {"r2": share.value, "r2_low": share.low, "r2_high": share.high}
    return {f"{name}_{key}": value for key, value in values.items()}


def _estimate(name: str, estimate: Estimate) -> dict[str, Any]:
    return {
        f"estimated_{name}": estimate.value,
        f"estimated_{name}_low": estimate.low,
        f"estimated_{name}_high": estimate.high,
        f"estimated_{name}_method": estimate.method,
    }


def _answer(loss: str, verdict: Verdict) -> dict[str, Any]:
    return {
        "asked_loss": loss,
        "asked_gain": verdict.gain,
        "asked_gain_low": verdict.low,
        "asked_gain_high": verdict.high,
        "asked_constant_loss": verdict.terms.constant_loss,
        "asked_standard_error": verdict.terms.error,
        "asked_epsilon": verdict.terms.epsilon,
        "asked_answers_left": verdict.answers_left,
        "asked_largest_loss": verdict.terms.largest,
    }
