"""A model's errors on held-out events, and how ``metrics.json`` states them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from labelveil.common.arrays import Booleans, Floats
from labelveil.common.errors import DataError
from labelveil.common.release.manifest import Manifest
from labelveil.feature_party.client.questions import Verdict
from labelveil.feature_party.evaluation.breakdown import (
    INTERVALS,
    Segment,
    groups_by,
    importance,
    interval_coverage,
    number,
    segments,
    tenths,
)
from labelveil.feature_party.evaluation.clipped_labels import Clipped, explained_below
from labelveil.feature_party.evaluation.decoded_labels import decode_labels
from labelveil.feature_party.evaluation.error_estimates import estimate_absolute_error
from labelveil.feature_party.evaluation.explained import Explained, explained
from labelveil.feature_party.evaluation.fitting import Fitting, estimate_fitting
from labelveil.feature_party.evaluation.intervals import Estimate, Measured
from labelveil.feature_party.evaluation.losses import SQUARED
from labelveil.feature_party.evaluation.sentences import (
    association_p,
    calibration_lines,
    error_words,
    importance_line,
    segment_lines,
    share_words,
    summary,
    verdict_sentence,
)
from labelveil.feature_party.evaluation.spread import ReleasedCodes, label_spread
from labelveil.feature_party.evaluation.true_labels import TrueErrors, true_errors
from labelveil.feature_party.evaluation.unseen import Unseen, unseen
from labelveil.feature_party.learning.calibration import Slope, slope
from labelveil.feature_party.learning.problem import Codes
from labelveil.feature_party.learning.several_labels import stated_of, view_of
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.training.events import Events

_OF_ALL = (
    *("rows", "epsilon", "epsilon_prior", "epsilon_labels", "spent", "data_set", "epoch", "epochs"),
    *("events_in_release", "events_in_features", "matched", "training_rows", "holdout_rows"),
    "scored_rows",
)
"""What several labels of one release have in common."""


@dataclass(frozen=True, eq=False)
class Scores:
    """What held-out events say about a model.

    From ``explained`` on all is estimated from privatized labels of ``unseen`` events, unless it
    says otherwise. Of several labels parties figures are about labels divided by each one's scale;
    ``sources`` has each one's own, in units of its labels.
    """

    manifests: Sequence[Manifest]  # of the releases learned from, oldest first
    events: Events  # all matched events, split
    model: Model
    keys: pl.Series  # (h,) of the held-out events
    points: Floats  # (h,) their predictions
    codes: Codes  # (h,) their privatized labels
    unseen: Unseen  # these and all other events that some networks have not seen
    explained: Explained  # how predictions compare with a constant
    clipped: Clipped | None  # the same of labels without the tail that hides it, if one does
    slope: Slope | None  # of decoded labels on predictions; None where predictions are alike
    tenths: Sequence[Segment]  # the events by prediction
    segments: Mapping[str, Sequence[Segment]]  # and by the columns asked for
    coverage: Mapping[float, Measured]  # how often intervals of some probabilities have the label
    importance: Mapping[str, Measured]  # the error that each column saves, in label variances
    absolute: Estimate  # mean absolute error, from the held-out events
    fitting: Fitting | None  # what else fits the label
    truth: TrueErrors | None  # errors against true labels, where they are known
    sources: Mapping[str, Scores]
    label: str  # which of the releases' labels this is about, if they have several
    kept: int = 0  # events held out that no release of codes is about
    kept_epsilon: float = 0.0  # what sums may reveal of their labels, where they were answered
    answer: Verdict | None = None  # what the labels party answered, if it was asked

    @property
    def epsilon(self) -> float:
        """What the releases may reveal of a label: the largest of them."""
        stated = float(release_metrics(self.manifests, self.label)["epsilon"])
        return max(stated, self.kept_epsilon)

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which labels, and so their means, lie."""
        return float(self.events.problem.grid.min()), float(self.events.problem.grid.max())

    @property
    def verdict(self) -> str:
        """Whether the model is better than a constant, in a sentence."""
        return verdict_sentence(self.explained, self.epsilon, self.unseen.codes.size)

    @property
    def summary(self) -> list[str]:
        """Whether the model is any good, in a few lines."""
        rows, held_out = self.unseen.codes.size, self.points.size
        lines = summary(self.explained, self.clipped, self.epsilon, rows, held_out + self.kept)
        if self.sources:
            lines[-1] = "errors of each labels party, in its own units:"
            lines += [scores.sentence(name) for name, scores in self.sources.items()]
            return [*lines, *(f"warning: {warning}" for warning in self.warnings)]
        if self.fitting is not None:
            lines.append(self.fitting.sentence)
        lines += calibration_lines(self.slope, self.tenths, self.coverage, self.bounds)
        if self.importance:
            lines.append(importance_line(self.importance))
        for by, column in self.segments.items():
            lines += segment_lines(by, column, self.bounds)
        lines += [self.answer.sentence] if self.answer else []
        return lines + (self.truth.lines if self.truth else [])

    def sentence(self, name: str) -> str:
        """One labels party's figures in a line."""
        result, epsilon = self.explained, f"{self.epsilon:g}"
        return (
            f"  {name}, ε = {epsilon}: R² {share_words(result)}; MSE {error_words(result)}, the"
            f" constant's {number(result.constant)}; {self.unseen.codes.size:,} events"
        )

    @property
    def warnings(self) -> list[str]:
        """What the user of the model must know first."""
        facts = self.model.facts
        warnings = list(facts.warnings)
        if self.slope and self.slope.misspecified and facts.slope:
            # all events that were not trained on know the slope better than the folds of training
            own = facts.slope.sentence
            warnings = [*(warning for warning in warnings if warning != own), self.slope.sentence]
        *earlier, (_, _, codes) = self.events.problem.by_release(self.codes)
        if earlier:
            asked = [manifest.epoch for manifest in self.manifests if manifest.questioned]
            if asked and len(asked) <= len(earlier):
                if self.explained.sums:  # errors are known better; the rest is a detail
                    return warnings
                count, others = self.unseen.codes.size, ", ".join(asked)
                warnings.append(
                    f"errors are estimated from the {count:,} events that were sent without a"
                    f" question; those of {others} say little about them"
                )
                return warnings
            warnings.append(
                f"one model of {1 + len(earlier)} epochs: errors are about all of them, pictures"
                f" about the {codes.size:,} held-out events of epoch {self.manifests[-1].epoch}"
            )
        return warnings

    def to_json(self) -> dict[str, Any]:
        """The content of ``metrics.json``, without timings."""
        matches, facts = self.events.matches, self.model.facts
        return {
            **(of_all := release_metrics(self.manifests, self.label)),
            "rows": of_all["rows"] + self.kept,
            "epsilon": self.epsilon,
            "objective": facts.objective,
            "head": facts.head,
            "events_in_release": matches.release_rows,
            "events_in_features": matches.feature_rows,
            "matched": matches.matched,
            "training_rows": self.events.training_rows,
            "holdout_rows": self.points.size + self.kept,
            "scored_rows": self.unseen.codes.size,
            **self.explained.to_json(),
            "associated": self.explained.associated,
            "association_p_value": association_p(self.explained),
            "clipped": self.clipped and self.clipped.to_json(),
            **self.absolute.to_json("estimated_mae"),
            **(self.fitting.to_json() if self.fitting else {}),
            "calibration_slope": asdict(self.slope) if self.slope else None,
            "tenths": [asdict(segment) for segment in self.tenths],
            "segments": {
                by: [asdict(segment) for segment in column] for by, column in self.segments.items()
            },
            "interval_coverage": {f"{p:g}": asdict(share) for p, share in self.coverage.items()},
            "importance": {name: asdict(effect) for name, effect in self.importance.items()},
            "decoding_slope": facts.slope.value if facts.slope else None,
            **(self.answer.to_json() if self.answer else {}),
            **(self.truth.to_json() if self.truth else {}),
            "training_seconds": facts.seconds,
            "warnings": self.warnings,
            **({"sources": _metrics_of(self.sources)} if self.sources else {}),
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

    A simulation has (m,) true ``labels`` of all matched events of each labels party, and the
    metrics file of a ``nonprivate`` model. Segments are compared ``by`` columns of the features.
    Model and events are of one ``source`` or ``label`` among several.
    """
    whole = unseen(model, events)
    rows = whole.select(_not_asked_about(events, whole.codes, manifests))
    table, points, held_out = rows.table, rows.scored.predicted.points, rows.scored.held_out
    kept = whole.scored.held_out
    tested = whole.scored.predicted.select(kept).points
    for name in by:
        if name not in table.columns:
            columns = ", ".join(table.columns)
            raise DataError(f"by={name!r} is no column of the features; columns: {columns}")
    predicted, codes = rows.scored.predicted.select(held_out), rows.codes[held_out]
    problem, support, scored = events.problem, model.support, rows.judged_by(SQUARED)
    releases = _released_codes(events, rows.codes, manifests, label)
    spread = label_spread(releases)
    decoded = decode_labels(releases, support, scored, spread.centre)
    # a question about the model compares it with its mean, which all rounds tell: the first one's
    # histogram alone may be far off
    about = label_spread(releases, centre=float(points.mean()))
    compared = replace(explained(releases, support, scored, spread, decoded), spread=about)
    variance = compared.constant
    true = None if labels is None else labels.get(source)
    figures = decoded, spread.centre, variance, None if true is None else true[rows.matched]
    chosen, dealt = rows.dealt(model)
    coverage: dict[float, Measured] = {}
    # two labels lie in an interval, or not, by its rounding alone
    if model.has_distributions and problem.values.size > 2:
        shares = interval_coverage(releases, support, rows.scored, INTERVALS)
        coverage = dict(zip(INTERVALS, shares, strict=True))
    schema = model.encoder.schema
    return Scores(
        manifests=manifests,
        events=events,
        model=model,
        keys=whole.table[events.key].filter(pl.Series(kept)),
        points=tested,
        codes=whole.codes[kept],
        unseen=rows,
        explained=compared,
        clipped=explained_below(problem, releases, support, rows),
        slope=slope(points, decoded.unbiased),
        tenths=segments(tenths(points), points, *figures),
        segments={
            name: segments(groups_by(table[name], schema.meaning(name)), points, *figures)
            for name in by
        },
        coverage=coverage,
        importance={
            name: importance(chosen, points[chosen], changed, decoded, spread)
            for name, changed in dealt.items()
        },
        absolute=estimate_absolute_error(problem, support, predicted, codes),
        fitting=estimate_fitting(problem, releases, support, rows, decoded),
        truth=None if true is None else true_errors(tested, true, events, nonprivate, label),
        sources={
            party.name: score(
                model.for_source(party.name),
                events.for_source(party.name),
                manifests[start : start + party.releases],
                labels,
                by=by,
                source=party.name,
                label=label,
            )
            for party, start in problem.each_source()
        },
        label=label,
    )


def _not_asked_about(events: Events, codes: Codes, manifests: Sequence[Manifest]) -> Booleans:
    """Which of (n,) codes to judge by: of releases that answer no question, if there is one.

    A code that was asked about what else is unknown of its label says little of the label itself.
    Events are dealt to rounds at random, so those of the others stand for all.
    """
    if all(manifest.questioned for manifest in manifests):
        return np.ones(codes.size, dtype=np.bool_)
    parts = zip(events.problem.by_release(codes), manifests, strict=True)
    own = [mine for (_, mine, _), manifest in parts if not manifest.questioned]
    return np.asarray(np.any(own, axis=0))


def _released_codes(
    events: Events, codes: Codes, manifests: Sequence[Manifest], label: str
) -> list[ReleasedCodes]:
    """Each release with its codes among those scored."""
    problem = events.problem
    views = [view_of(manifest.message, label) for manifest in manifests]
    grids = [view.problem.grid for view in views]
    if problem.sources:  # labels are divided by each labels party's scale
        parties = [party for party, _ in problem.each_source() for _ in range(party.releases)]
        moves = zip(grids, parties, strict=True)
        grids = [(grid - party.location) / party.scale for grid, party in moves]
    parts = zip(problem.by_release(codes), views, grids, strict=True)
    return [
        ReleasedCodes(part, view.histogram, grid, np.flatnonzero(mine), own)
        for (part, mine, own), view, grid in parts
        if own.size
    ]


def release_metrics(manifests: Sequence[Manifest], label: str) -> dict[str, Any]:
    """What releases state about themselves, and about one of their labels.

    Of several epochs the last names the randomizer, and ``epsilon`` is the largest of any. What
    went to prior and labels is that of the epoch which paid most for a prior; each one's stands
    under ``spent`` where others have divided their ε otherwise. Of several labels it is about all
    of them.
    """
    last = manifests[-1]
    section, stated = stated_of(last, label)
    spent = [
        {
            "epsilon_prior": manifest.prior_guarantee.epsilon if manifest.prior_paid else 0.0,
            "epsilon_labels": manifest.labels_guarantee.epsilon,
        }
        for manifest in manifests
    ]
    most = max(spent, key=lambda of: of["epsilon_prior"])
    facts: dict[str, Any] = {
        "randomizer": stated.name,
        "loss": section.loss,
        "rows": sum(manifest.population.rows for manifest in manifests),
        "outputs": len(stated.channel["outputs"]),
        "epsilon": max(manifest.privacy.requested_epsilon for manifest in manifests),
        **most,
        "data_set": last.data_set,
        "epoch": last.epoch,
    }
    if bits := max(manifest.question_bits for manifest in manifests):
        facts["question_bits"] = bits
    if len(manifests) > 1:
        facts["epochs"] = len(manifests)
        if any(of != most for of in spent):
            each = zip(manifests, spent, strict=True)
            facts["spent"] = [{"epoch": manifest.epoch, **of} for manifest, of in each]
        facts["priors_paid"] = sum(manifest.prior_paid for manifest in manifests)
    return facts


def labels_json(by_label: Mapping[str, Scores]) -> dict[str, Any]:
    """The content of ``metrics.json``: of several labels each one's under ``labels``, with what is
    said of the release and of all events before it."""
    each = _metrics_of(by_label)
    first, *others = each.values()
    if not others:
        return first
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


def _metrics_of(scores: Mapping[str, Scores]) -> dict[str, dict[str, Any]]:
    return {name: each.to_json() for name, each in scores.items()}
