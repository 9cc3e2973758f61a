"""What the report says in sentences: what was learned, and what is protected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

from common.release.manifest import Manifest
from feature_party.join.matches import MatchCounts
from feature_party.report.inputs import ReportInputs

_CAUTION = {
    "unbiased-under-prior": " It is right on average as far as the noisy prior is right.",
    "model-within-groups": " The values sent do not tell all labels apart, so that this is in part"
    " the model's own word.",
    "model": " The values sent do not tell labels apart well enough to measure it, so that this is"
    " the model's own word.",
}
"""What to say about an estimate that is not unbiased whatever the labels are."""


@dataclass(frozen=True)
class Headline:
    """The page's first words.

    Attributes
    ----------
    title
        One line: what came out.
    sentences
        What it means, in order of importance.
    """

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Statement:
    """One paragraph of the privacy statement, under its own small heading."""

    heading: str
    text: str


def number(value: float, digits: int = 4) -> str:
    """Format a number for reading: thousands separated, a few significant digits."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    if abs(value) < 1e-4:
        return f"{value:.{digits - 1}g}"
    return f"{value:.{digits}g}"


def metric(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return a metric as a finite float, or None where it is absent."""
    value = metrics.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def constant_error(inputs: ReportInputs) -> tuple[float, str] | None:
    """Error of the best constant prediction, and what to call it.

    The noisy prior has a variance too, but clipping its noise at 0 fills the empty cells of a long
    tail and makes that variance many times too large: better no number than this one.
    """
    measured = metric(inputs.metrics, "constant_mse")
    if measured is not None:
        return measured, "best constant"
    estimated = metric(inputs.metrics, "estimated_constant_mse")
    if estimated is not None:
        return estimated, "best constant (estimated)"
    return None


def error_rows(inputs: ReportInputs) -> list[tuple[str, float]]:
    """Rows of the error scale, from knowing nothing to knowing the labels."""
    rows: list[tuple[str, float]] = []
    constant = constant_error(inputs)
    if constant:
        rows.append((constant[1], constant[0]))
    for name, row in (
        ("estimated_mse", "estimated from\nprivatized labels"),
        ("test_mse", "this model"),
        ("nonprivate_mse", "trained on\ntrue labels"),
    ):
        value = metric(inputs.metrics, name)
        if value is not None:
            rows.append((row, value))
    return rows


def interval(metrics: Mapping[str, Any]) -> tuple[float, float] | None:
    """Confidence interval of the estimated error."""
    low, high = metric(metrics, "estimated_mse_low"), metric(metrics, "estimated_mse_high")
    return None if low is None or high is None else (low, high)


def total_epsilon(manifest: Manifest) -> float:
    """Return ε of the whole message, for one privacy unit."""
    return reduce(lambda total, part: total.compose(part), manifest.parts).epsilon


def headline(inputs: ReportInputs) -> Headline:
    """Say in words what the model learned, from the best evidence at hand."""
    label = inputs.manifest.label.name
    epsilon = number(total_epsilon(inputs.manifest), 3)
    test = metric(inputs.metrics, "test_mse")
    ideal = metric(inputs.metrics, "nonprivate_mse")
    estimate = metric(inputs.metrics, "estimated_mse")
    constant = constant_error(inputs)
    error = test if test is not None else estimate
    if error is None:
        return Headline(f"{label}, learned at ε = {epsilon}", ())
    base = None if constant is None else constant[0]
    scored = "" if inputs.predictions is None else f" {inputs.predictions.size:,}"
    sentences = []
    if test is not None:
        text = (
            f"On{scored} events kept out of training the model's mean squared error is"
            f" {number(test)}."
        )
        if base is not None:
            text += f" Always predicting the average would give {number(base)}"
            text += (
                "."
                if ideal is None
                else f", the same network trained on true labels {number(ideal)}."
            )
        sentences.append(text)
    if estimate is not None:
        bounds = interval(inputs.metrics)
        lead = (
            "Without any true label, from the privatized labels of those events alone, the error"
            " is estimated as"
            if test is not None
            else f"From the privatized labels of{scored} events kept out of training, the model's"
            " mean squared error is estimated as"
        )
        within = f" (95% interval {number(bounds[0])} to {number(bounds[1])})" if bounds else ""
        against = (
            f"; always predicting the average gives about {number(base)}"
            if test is None and base is not None
            else ""
        )
        caution = _CAUTION.get(str(inputs.metrics.get("estimated_mse_method", "")), "")
        if bounds and base is not None and bounds[1] - bounds[0] > base:
            caution += (
                " That is too wide to say much; more events kept for scoring or a larger ε would"
                " narrow it."
            )
        sentences.append(f"{lead} {number(estimate)}{within}{against}.{caution}")
    sure = interval(inputs.metrics) if test is None else None
    return Headline(_title(label, epsilon, error, base, ideal, sure), tuple(sentences))


def _title(
    label: str,
    epsilon: str,
    error: float,
    base: float | None,
    ideal: float | None,
    estimated_within: tuple[float, float] | None,
) -> str:
    if base is None:
        return f"{label}, learned at ε = {epsilon}"
    if estimated_within and estimated_within[0] <= base <= estimated_within[1]:
        return f"Too few events to tell what was learned about {label}, at ε = {epsilon}"
    if error >= base:
        return f"At ε = {epsilon} nothing was learned about {label} that beats its average"
    if ideal is not None and ideal < base:
        share = (base - error) / (base - ideal)
        if share >= 1:
            return f"At ε = {epsilon} nothing was lost on {label} by not seeing a single label"
        return f"{share:.0%} of what true labels teach about {label}, at ε = {epsilon}"
    share = 1 - max(error, 0) / base
    about = "An estimated " if estimated_within else ""
    return f"{about}{share:.0%} of the variation in {label} explained, at ε = {epsilon}"


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
    if manifest.prior_paid:
        parts.append(
            f"{number(manifest.prior_guarantee.epsilon, 3)} for the noisy prior, which is a"
            f" histogram with discrete Laplace noise of scale"
            f" {number(float(Fraction(manifest.prior.scale)))} on every cell"
        )
    elif manifest.prior.decoded:
        parts.append("nothing for the histogram, which the randomized labels tell themselves")
    elif drift is not None:
        parts.append(f"nothing for the prior, which epoch {drift.in_force.epoch}'s labels paid for")
    costs = ", ".join(parts)
    if drift is not None and drift.test is not None and drift.test.session is not None:
        costs += " (a test for drift is charged to a session over all epochs)"
    return costs


def privacy_statements(manifest: Manifest) -> list[Statement]:
    """The claim in words: what it covers, what it does not, and who can check it."""
    total = total_epsilon(manifest)
    labels = manifest.labels_guarantee.epsilon
    label, group = manifest.label.name, manifest.privacy.records_per_unit
    who = (
        "one event"
        if group == 1
        else f"one user, who has at most {group:,} events in this release (any more were replaced"
        " by the missing value)"
    )
    return [
        Statement(
            "Protected",
            f"The value of {label} of {who}. Anyone who reads the whole message, knows every other"
            " label and all features, and has any amount of time, can change the odds of one"
            f" value against another by a factor of at most {number(math.exp(total), 3)}, which is"
            " e to the power ε. Everything"
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
            f"{'' if group == 1 else 's'} of {who if group == 1 else 'one user'}. Which events"
            " exist is public to both parties and the same in both data sets.",
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
