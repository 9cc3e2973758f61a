"""What the report says in sentences: what was learned, and what is protected."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace
from fractions import Fraction
from functools import reduce

from labelveil.common.console import share_text
from labelveil.common.errors import not_none
from labelveil.common.release.manifest import Manifest
from labelveil.common.report.figures import MAIN, MUTED, OTHER, THIRD
from labelveil.feature_party.evaluation.breakdown import number
from labelveil.feature_party.evaluation.intervals import Measured, compared
from labelveil.feature_party.evaluation.scores import Scores
from labelveil.feature_party.evaluation.sentences import (
    association_sentence,
    clipped_sentence,
    error_words,
    interval_words,
    share_words,
)
from labelveil.feature_party.join.matches import MatchCounts
from labelveil.feature_party.report.inputs import ReportInputs
from labelveil.feature_party.report.score_plots import ErrorRow

_HEADS = {
    "softmax": "a probability for each cell of the labels",
    "bernoulli": "a probability",
    "gaussian": "a normal distribution",
    "log-normal": "a log-normal distribution",
    "gamma": "a gamma distribution",
    "prior-tilt": "the released histogram, tilted and narrowed",
    "canonical": "the released histogram, bent where the channel tells labels apart",
    "joint": "the released histogram of all labels, bent where the channel tells them apart",
    "poisson": "a Poisson distribution",
    "negative-binomial": "a negative binomial distribution",
    "mean": "a mean, with the released histogram around it",
}
_LEARNERS = {
    "trees": " by boosted trees",
    "kernel": " by a ridge on random features",
    "linear": " by a linear model",
}


@dataclass(frozen=True)
class Headline:
    """The page's first words."""

    title: str  # one line: what came out
    sentences: tuple[str, ...]  # what it means, in order of importance


Statement = tuple[str, str]
"""One paragraph of the privacy statement: a small heading of its own, and the text."""


def error_rows(scores: Scores) -> list[ErrorRow]:
    """Rows of the scale of errors: a constant, this model, and one that saw the labels."""
    result, truth = scores.explained, scores.truth
    constant, share, error = result.constant, result.share, result.error
    known = constant if truth is None else truth.constant_mse
    interval = error.low, error.high
    loss = result.assumption_free_loss
    assumption_free = None if result.sums else (loss.low, loss.high)
    at, r2 = (error.value, max(share.value, 0.0)) if result.possible else (math.nan, None)
    rows = [
        ErrorRow("a constant", known, MUTED),
        ErrorRow("this model,\nestimated", at, MAIN, r2, interval, assumption_free),
    ]
    if truth is not None:
        rows.append(ErrorRow("this model,\ntrue labels", truth.mse, OTHER, truth.r2))
        if (ideal := truth.nonprivate_mse) is not None:
            taught = replace(truth, mse=ideal).r2
            rows.append(ErrorRow("trained on\ntrue labels", ideal, THIRD, taught))
    return rows


def total_epsilon(manifest: Manifest) -> float:
    """Return ε of the whole message, for one privacy unit."""
    return reduce(lambda total, part: total.compose(part), manifest.guarantees).epsilon


def headline(inputs: ReportInputs) -> Headline:
    """Say in words what the model learned, from the best evidence at hand."""
    scores, unit = inputs.scores, f" {inputs.unit}²" if inputs.unit else ""
    result, truth = scores.explained, scores.truth
    how = (
        f"Two sums over {result.sums:,} held-out events that no code was sent of tell it; codes"
        f" alone: {interval_words(result.codes, '.0%')}."
        if result.codes is not None
        else "The interval takes the model's own distributions to be about right; without that it"
        f" is {interval_words(result.assumption_free, '.0%')}. All is estimated from privatized"
        " labels of events not trained on."
    )
    sentences = [
        *(_sentence(text) for text in (association_sentence(result), scores.verdict)),
        f"Share of the variation in {inputs.name} that the features explain:"
        f" {share_words(result, '.0%')}. {how}",
        f"Estimated mean squared error{unit}: {error_words(result)}, of a constant"
        f" {number(result.constant)}.",
    ]
    if scores.clipped is not None:
        sentences.append(_sentence(clipped_sentence(scores.clipped, ".0%")))
    if scores.fitting is not None:
        sentences.append(_sentence(scores.fitting.sentence))
    if truth is not None:
        text = f"Against true labels the error is {number(truth.mse)}; a constant has"
        text += f" {number(truth.constant_mse)}"
        if truth.nonprivate_mse is not None:
            text += f", a model trained on true labels {number(truth.nonprivate_mse)}"
        sentences.append(text + ".")
    return Headline(_title(inputs), tuple(sentences))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _title(inputs: ReportInputs) -> str:
    label, epsilon = inputs.name, number(total_epsilon(inputs.manifest), 3)
    result, truth = inputs.scores.explained, inputs.scores.truth
    if truth is not None:
        return known_title(label, epsilon, truth.mse, truth.constant_mse, truth.nonprivate_mse)
    clipped = inputs.scores.clipped
    if result.verdict != "better" and clipped and clipped.explained.verdict == "better":
        label, result = f"{label}, clipped at {number(clipped.bound)},", clipped.explained
    if result.verdict == "cannot tell" and result.associated:
        return f"The features predict {label}; how much, is open at ε = {epsilon}"
    return told_title(label, epsilon, result.share)


def told_title(label: str, epsilon: str, share: Measured) -> str:
    """Say what was learned where an estimate of R² alone tells, and no more than its interval."""
    verdict = compared(share)
    if verdict == "better":
        value, least, most = (share_text(x, ".0%") for x in astuple(share))
        about = f"At least {least}" if value in (least, most) else f"About {value}"
        return f"{about} of the variation in {label} explained, at ε = {epsilon}"
    if verdict == "not better":
        return _nothing(label, epsilon)
    return f"Too few events to tell what was learned about {label}, at ε = {epsilon}"


def known_title(label: str, epsilon: str, test: float, constant: float, ideal: float | None) -> str:
    """Say what was learned where true labels tell: by mean squared errors of the model, of a
    constant, and of a model that was trained on true labels.
    """
    if test >= constant:
        return _nothing(label, epsilon)
    if ideal is not None and ideal < constant:
        taught = (constant - test) / (constant - ideal)
        if taught >= 1:
            return f"At ε = {epsilon} nothing was lost on {label} by not seeing a single label"
        return f"{taught:.0%} of what true labels teach about {label}, at ε = {epsilon}"
    return f"{1 - test / constant:.0%} of the variation in {label} explained, at ε = {epsilon}"


def _nothing(label: str, epsilon: str) -> str:
    return f"At ε = {epsilon} nothing was learned about {label} that beats its average"


def model_words(head: str) -> str:
    """What a model says of a row, in words: ``gaussian (60%) + trees-gamma (40%)``."""
    phrases = []
    for part in head.split(" + "):
        name, _, share = part.partition(" ")
        learner = next((prefix for prefix in _LEARNERS if name.startswith(f"{prefix}-")), "")
        words = _HEADS.get(name.removeprefix(f"{learner}-"), name)
        phrases.append(f"{words}{_LEARNERS.get(learner, '')} {share}".strip())
    return " and ".join(phrases)


def column_words(inputs: ReportInputs) -> str:
    """Which columns the model reads, and what became of the others."""
    scores = inputs.scores
    used, others = scores.model.encoder.columns, []
    for name in scores.unseen.table.columns:
        why = (
            "left out by the configuration" if name in inputs.ignored else "left out: all the same"
        )
        if name not in used:
            others.append(f"{name} ({'the key' if name == scores.events.key else why})")
    text = f"The model reads {len(used)} column{'s' * (len(used) != 1)}: {', '.join(used)}."
    return text + (f" Not read: {', '.join(others)}." if others else "")


def match_sentence(matches: MatchCounts) -> str:
    """Say how many events both sides know."""
    share = matches.matched / max(min(matches.release_rows, matches.feature_rows), 1)
    verdict = f"That is {share:.1%} of what could match."
    if share >= 1:
        verdict = "Every event that could match did."
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
    match manifest.prior_source:
        case "question":
            parts.append(
                "nothing for a histogram: earlier rounds say what is expected of these events"
            )
        case "public":
            parts.append("nothing for a prior, which was public beforehand")
        case "codes":
            parts.append("nothing for the histogram, which the randomized labels tell themselves")
        case "labels":
            parts.append(_histogram_cost(manifest))
        case "earlier":
            origin = not_none(drift).in_force.epoch
            parts.append(f"nothing for the prior, which epoch {origin}'s labels paid for")
    costs = ", ".join(parts)
    if drift is not None and drift.test is not None and drift.test.session is not None:
        costs += " (a test for drift is charged to a session over all epochs)"
    return costs


def _histogram_cost(manifest: Manifest) -> str:
    noisy = [prior for prior in manifest.priors if prior.noisy]
    scales = " and ".join(number(float(Fraction(prior.scale))) for prior in noisy)
    what = "the noisy prior, which is a histogram" if len(noisy) == 1 else "noisy histograms"
    if any(prior.start for prior in noisy):
        what += ", which corrects a public one,"
    return (
        f"{number(manifest.prior_guarantee.epsilon, 3)} for {what} with discrete Laplace noise"
        f" of scale {scales} on every cell"
    )


def privacy_statements(
    manifest: Manifest, name: str = "", scores: Scores | None = None
) -> list[Statement]:
    """The claim in words: what it covers, what it does not, and who can check it.

    ``scores`` say what was spent of labels that the releases are not about.
    """
    total = total_epsilon(manifest)
    labels = manifest.labels_guarantee.epsilon
    group, several = manifest.privacy.records_per_unit, len(manifest.labels) > 1
    label = name or manifest.labels[0].name
    what = f"The label “{label}”"
    if several:
        names = "”, “".join(section.name for section in manifest.labels)
        label, what = "each label", f"All labels together (“{names}”)"
    who = "one event"
    if group > 1:
        who = (
            f"one user, who has at most {group:,} events in this release (any more were replaced by"
            " the missing value)"
        )
    paragraphs = {
        "Protected": f"{what} of {who}. Anyone who reads the whole message, knows every other label"
        " and all features, and has any amount of time, can shift the odds of one value against"
        f" another by a factor of at most {number(math.exp(total), 3)}, which is e to the power ε:"
        " a guess that is right with 50% becomes one of at most"
        f" {1 / (1 + math.exp(-total)):.0%}. Everything computed from the message (this model, its"
        " predictions, this page) keeps that guarantee.",
        "The numbers": f"ε = {number(total, 5)} in all: {prior_cost(manifest)}, and"
        f" {number(labels, 5)} for the randomized labels. The guarantee is pure: there is no δ, no"
        " small probability of failure.",
        "Neighbours": "Two data sets are compared that differ in the label"
        f"{'' if group == 1 and not several else 's'} of {who if group == 1 else 'one user'}."
        " Which events exist is public to both parties and the same in both data sets.",
        "Not protected": f"Which {manifest.population.rows:,} events exist, and how many"
        f"{', and in which stratum each is' if manifest.strata else ''}. What is true of many"
        f" events together: a model may well learn how {label} depends on the features, and that"
        " is its purpose. Several events of one person, unless the privacy unit is the user. And a"
        " second release of the same labels adds its ε to this one.",
        "Who can check": "Anyone who holds manifest.json. It lists the channel as whole numbers"
        " that sum to 2⁶⁴ in each row; the largest ratio in a column is e to the power ε of the"
        " labels, exactly. The features party has recomputed it, and the digests of every row,"
        " before training. That the labels party really drew its noise as it says cannot be seen in"
        " one message; it takes an audit of its software or a test with known labels.",
    }
    if scores is not None and scores.kept_epsilon:
        paragraphs["The numbers"] += (
            f" Of {scores.kept:,} more events nothing was sent but what they add to two sums with"
            f" discrete Laplace noise, which tell how good the model is: ε ="
            f" {number(scores.kept_epsilon, 5)} for the label of each."
        )
    return list(paragraphs.items())
