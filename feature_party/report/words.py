"""What the report says in sentences: what was learned, and what is protected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

from common.release.manifest import Manifest
from common.report.figures import MAIN, MUTED, OTHER, THIRD
from feature_party.evaluation.breakdown import number
from feature_party.join.matches import MatchCounts
from feature_party.report.inputs import ReportInputs
from feature_party.report.score_plots import ErrorRow

_HEADS = {
    "softmax": "a probability for each cell of the labels",
    "bernoulli": "a probability",
    "gaussian": "a normal distribution",
    "log-normal": "a log-normal distribution",
    "gamma": "a gamma distribution",
    "prior-tilt": "the released histogram, tilted and narrowed",
    "log-prior-tilt": "the released histogram, tilted on a logarithmic axis",
    "canonical": "the released histogram, bent where the channel tells labels apart",
    "joint": "the released histogram of all labels, bent where the channel tells them apart",
    "poisson": "a Poisson distribution",
    "negative-binomial": "a negative binomial distribution",
}
_LEARNERS = {"trees": " by boosted trees", "linear": " by a linear model"}


@dataclass(frozen=True)
class Headline:
    """The page's first words."""

    title: str  # one line: what came out
    sentences: tuple[str, ...]  # what it means, in order of importance


@dataclass(frozen=True)
class Statement:
    """One paragraph of the privacy statement, under its own small heading."""

    heading: str
    text: str


def metric(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return a metric as a finite float, or None where it is absent."""
    value = metrics.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def error_rows(inputs: ReportInputs) -> list[ErrorRow]:
    """Rows of the scale of errors: a constant, this model, and one that saw the labels."""
    metrics = inputs.metrics
    estimate, constant = _estimated_error(metrics), metric(metrics, "estimated_constant_mse")
    share, measured = metric(metrics, "assisted_r2"), metric(metrics, "constant_mse")
    whole = constant if measured is None else measured
    rows = [] if whole is None else [ErrorRow("a constant", whole, MUTED)]
    if rows and estimate is not None:
        low, high = (metric(metrics, f"assisted_r2_{end}") for end in ("low", "high"))
        assisted = None
        if constant is not None and low is not None and high is not None:
            assisted = constant * (1 - high), constant * (1 - low)
        free = interval(metrics) or (estimate, estimate)
        if constant is not None and share is not None:  # as the page's first line has it
            estimate = constant * (1 - share)
        rows.append(ErrorRow("this model,\nestimated", estimate, MAIN, share, free, assisted))
    for name, row, colour in (
        ("test_mse", "this model,\ntrue labels", OTHER),
        ("nonprivate_mse", "trained on\ntrue labels", THIRD),
    ):
        value = metric(metrics, name)
        if rows and value is not None:
            rows.append(ErrorRow(row, value, colour, 1 - value / rows[0].value))
    return rows


def _estimated_error(metrics: Mapping[str, Any]) -> float | None:
    """The estimated error as R² has it, which is cut to what is possible."""
    share, constant = metric(metrics, "estimated_r2"), metric(metrics, "estimated_constant_mse")
    if share is None or constant is None:
        return metric(metrics, "estimated_mse")
    return constant * (1 - share)


def interval(metrics: Mapping[str, Any]) -> tuple[float, float] | None:
    """Confidence interval of the estimated error, which is at least 0."""
    low, high = metric(metrics, "estimated_mse_low"), metric(metrics, "estimated_mse_high")
    return None if low is None or high is None else (max(low, 0.0), max(high, 0.0))


def total_epsilon(manifest: Manifest) -> float:
    """Return ε of the whole message, for one privacy unit."""
    return reduce(lambda total, part: total.compose(part), manifest.parts).epsilon


def headline(inputs: ReportInputs) -> Headline:
    """Say in words what the model learned, from the best evidence at hand."""
    metrics, unit = inputs.metrics, f" {inputs.unit}²" if inputs.unit else ""
    sentences = [f"{inputs.verdict[:1].upper()}{inputs.verdict[1:]}."] if inputs.verdict else []
    shares = [_share_words(metrics, name) for name in ("estimated", "assisted")]
    if None not in shares:
        sentences.append(
            f"Of the variation in {inputs.name} the features explain {shares[0]}, assuming nothing,"
            f" and {shares[1]} if the model's own distributions are about right. Both are estimated"
            " from privatized labels alone, of events that were not trained on."
        )
    estimate, constant = _estimated_error(metrics), metric(metrics, "estimated_constant_mse")
    if estimate is not None:
        text = f"Assuming nothing, the mean squared error is estimated as {number(estimate)}{unit}"
        if bounds := interval(metrics):
            text += f" (95%: {number(bounds[0])} to {number(bounds[1])})"
        text += "" if constant is None else f", that of a constant as {number(constant)}"
        sentences.append(text + ".")
    if inputs.fitting:
        sentences.append(f"{inputs.fitting[:1].upper()}{inputs.fitting[1:]}.")
    test, known = metric(metrics, "test_mse"), metric(metrics, "constant_mse")
    ideal = metric(metrics, "nonprivate_mse")
    if test is not None:
        text = f"Against true labels it is {number(test)}"
        text += "" if known is None else f"; a constant has {number(known)}"
        text += "" if ideal is None else f", a model trained on true labels {number(ideal)}"
        sentences.append(text + ".")
    return Headline(_title(inputs, test, known, ideal), tuple(sentences))


def _share_words(metrics: Mapping[str, Any], name: str) -> str | None:
    """R² with its interval, cut off at 0."""
    figures = [metric(metrics, f"{name}_r2{end}") for end in ("", "_low", "_high")]
    if figures[0] is None:
        return None
    value, least, most = (max(figure or 0.0, 0.0) for figure in figures)
    return f"{value:.0%} (95%: {least:.0%} to {most:.0%})"


def _title(
    inputs: ReportInputs, test: float | None, constant: float | None, ideal: float | None
) -> str:
    label, epsilon = inputs.name, number(total_epsilon(inputs.manifest), 3)
    nothing = f"At ε = {epsilon} nothing was learned about {label} that beats its average"
    if test is not None and constant is not None:
        if test >= constant:
            return nothing
        if ideal is not None and ideal < constant:
            taught = (constant - test) / (constant - ideal)
            if taught >= 1:
                return f"At ε = {epsilon} nothing was lost on {label} by not seeing a single label"
            return f"{taught:.0%} of what true labels teach about {label}, at ε = {epsilon}"
        return f"{1 - test / constant:.0%} of the variation in {label} explained, at ε = {epsilon}"
    verdict, share = inputs.metrics.get("verdict"), metric(inputs.metrics, "assisted_r2")
    if verdict == "better" and share is not None:
        return f"About {share:.0%} of the variation in {label} explained, at ε = {epsilon}"
    if verdict == "not better":
        return nothing
    if verdict == "cannot tell":
        return f"Too few events to tell what was learned about {label}, at ε = {epsilon}"
    return f"{label}, learned at ε = {epsilon}"


def model_words(head: str) -> str:
    """What a model says of a row, in words: ``gaussian (60%) + trees-gamma (40%)``."""
    phrases = []
    for part in head.split(" + "):
        name, _, share = part.partition(" ")
        learner = next((prefix for prefix in _LEARNERS if name.startswith(f"{prefix}-")), "")
        words = _HEADS.get(name.removeprefix(f"{learner}-"), name)
        phrases.append(f"{words}{_LEARNERS.get(learner, '')} {share}".strip())
    return " and ".join(phrases)


def column_words(columns: Mapping[str, str]) -> str:
    """Which columns the model reads, and what became of the others."""
    used = [name for name, what in columns.items() if what == "used"]
    others = [f"{name} ({what})" for name, what in columns.items() if what != "used"]
    text = f"The model reads {len(used)} column{'s' * (len(used) != 1)}: {', '.join(used)}."
    return text + (f" Not read: {', '.join(others)}." if others else "")


def match_sentence(matches: MatchCounts) -> str:
    """Say how many events both sides know."""
    share = matches.matched / max(min(matches.release_rows, matches.feature_rows), 1)
    verdict = (
        "Every event that could match did."
        if share >= 1
        else f"That is {share:.1%} of what could match."
    )
    return (
        f"{matches.matched:,} events are in both the release ({matches.release_rows:,} events) and"
        f" the features file ({matches.feature_rows:,} events). {verdict}"
    )


def prior_cost(manifest: Manifest) -> str:
    """What these labels paid for the prior, and for testing whether an older one still fits."""
    drift = manifest.drift
    parts = []
    if manifest.test_guarantee is not None:
        parts.append(f"{number(manifest.test_guarantee.epsilon, 3)} for a test for drift")
    noisy = [prior for prior in manifest.priors if not prior.decoded]
    if manifest.prior_paid:
        scales = " and ".join(number(float(Fraction(prior.scale))) for prior in noisy)
        what = "the noisy prior, which is a histogram" if len(noisy) == 1 else "noisy histograms"
        parts.append(
            f"{number(manifest.prior_guarantee.epsilon, 3)} for {what} with discrete Laplace noise"
            f" of scale {scales} on every cell"
        )
    elif manifest.strata:
        parts.append("nothing for a histogram: earlier rounds say what is expected of these events")
    elif not noisy:
        parts.append("nothing for the histogram, which the randomized labels tell themselves")
    elif drift is not None:
        parts.append(f"nothing for the prior, which epoch {drift.in_force.epoch}'s labels paid for")
    costs = ", ".join(parts)
    if drift is not None and drift.test is not None and drift.test.session is not None:
        costs += " (a test for drift is charged to a session over all epochs)"
    return costs


def privacy_statements(manifest: Manifest, name: str = "") -> list[Statement]:
    """The claim in words: what it covers, what it does not, and who can check it."""
    total = total_epsilon(manifest)
    labels = manifest.labels_guarantee.epsilon
    group, several = manifest.privacy.records_per_unit, len(manifest.labels) > 1
    label = name or manifest.labels[0].name
    what = f"The label “{label}”"
    if several:
        names = "”, “".join(section.name for section in manifest.labels)
        label, what = "each label", f"All labels together (“{names}”)"
    who = (
        "one event"
        if group == 1
        else f"one user, who has at most {group:,} events in this release (any more were replaced"
        " by the missing value)"
    )
    return [
        Statement(
            "Protected",
            f"{what} of {who}. Anyone who reads the whole message, knows every other"
            " label and all features, and has any amount of time, can change the odds of one"
            f" value against another by a factor of at most {number(math.exp(total), 3)}, which is"
            f" e to the power ε: a guess that is right with 50% becomes one of at most"
            f" {1 / (1 + math.exp(-total)):.0%}. Everything"
            " computed from the message (this model, its predictions, this page) keeps that"
            " guarantee.",
        ),
        Statement(
            "The numbers",
            f"ε = {number(total, 5)} in all: {prior_cost(manifest)}, and {number(labels, 5)} for"
            " the randomized labels. The guarantee is pure: there is no δ, no small probability of"
            " failure.",
        ),
        Statement(
            "Neighbours",
            f"Two data sets are compared that differ in the label"
            f"{'' if group == 1 and not several else 's'} of {who if group == 1 else 'one user'}."
            " Which events exist is public to both parties and the same in both data sets.",
        ),
        Statement(
            "Not protected",
            f"Which {manifest.population.rows:,} events exist, and how many. What is true of many"
            f" events together: a model may well learn how {label} depends on the features, and"
            " that is its purpose. Several events of one person, unless the privacy unit is the"
            " user. And a second release of the same labels adds its ε to this one.",
        ),
        Statement(
            "Who can check",
            "Anyone who holds manifest.json. It lists the channel as whole numbers that sum to"
            " 2⁶⁴ in each row; the largest ratio in a column is e to the power ε of the labels,"
            " exactly. The"
            " features party has recomputed it, and the digests of every row, before training."
            " That the labels party really drew its noise as it says cannot be seen in one"
            " message; it takes an audit of its software or a test with known labels.",
        ),
    ]
