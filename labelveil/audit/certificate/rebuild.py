"""Rebuild a release's randomizer from its noisy prior, and compare integer by integer.

If the channel and what is said about it are what the named builder makes of the noisy histogram,
then no raw label reached them: everything in them is post-processing of the histogram.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from typing import Any

import numpy as np

from labelveil.audit.certificate.evidence import Evidence, noisy_histograms, of_codes
from labelveil.audit.verdict import Check, Probes, Verdict
from labelveil.common.errors import LabelveilError, not_none
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.exact.rational import decimal_value, parse_rational
from labelveil.common.exact.rounding import float_below
from labelveil.common.randomizers import Randomizer, build_randomizer, split_budget
from labelveil.common.randomizers.budget import PRIOR_SHARE
from labelveil.common.randomizers.message.message import Released
from labelveil.common.randomizers.message.plan import MessagePlan, plan_message
from labelveil.common.randomizers.message.questions import plan_question
from labelveil.common.release.facts import MOST_DIGITS
from labelveil.common.release.manifest import Manifest
from labelveil.common.version import software

CLOSE = 1e-6  # largest difference of a probability that another solver or processor may explain
_DIGITS = 7  # of a probability, by which outputs of equal value are put in order


def rebuild(manifest: Manifest, name: str) -> Randomizer:
    """Build the only label's randomizer, as a builder makes it of the noisy prior and public facts.

    ε₂ is what was asked for less what else these labels paid for (ε₁, a test), divided among the
    labels of one unit and rounded down, as the two-step procedure does it.
    """
    paid = sum((part.exact_epsilon for part in manifest.guarantees[:-1]), Fraction(0))
    share = (Fraction(_requested(manifest)) - paid) / manifest.privacy.records_per_unit
    return build_randomizer(
        name,
        labels=np.asarray(manifest.label.grid),
        prior=manifest.message.histograms[0][1].probabilities,
        epsilon=float_below(share),
        loss=manifest.label.loss,
        rows=manifest.population.rows,
        **manifest.randomizer.options,
    )


class OtherSplitError(LabelveilError):
    """The rule would have paid otherwise for the histograms."""


_OTHER_SPLIT = "the histograms are not those that the rule pays for"


def plan_of(manifest: Manifest, share: float | None) -> MessagePlan:
    """What the rule makes of public facts, where histograms take ``share`` of ε at most, or what
    the rule says by itself.

    Other groups than were counted, or another ε for them, are an :class:`OtherSplitError`.
    """
    terms = [
        replace(
            label.terms,
            grid=label.terms.grid if label.asked else None,
            values=any(prior.decoded and prior.labels == [label.name] for prior in manifest.priors),
            whole=all(point % 1 == 0 for point in label.grid),
        )
        for label in manifest.labels
    ]
    plan = plan_message(
        terms,
        manifest.population.rows,
        _requested(manifest),
        division=manifest.privacy.division,
        records=manifest.privacy.records_per_unit,
        prior_share=share,
    )
    if (strata := manifest.message.strata) is not None:
        plan = plan.in_strata(strata)
    public = {
        manifest.group(prior.labels): np.asarray(prior.noisy_counts, dtype=np.float64)
        for prior in manifest.priors
        if prior.public
    }
    if public and {*public} == {*plan.groups}:
        plan = plan.knowing(public)
    paid = [
        (manifest.group(prior.labels), prior.spent.exact_epsilon)
        for prior in noisy_histograms(manifest)
    ]
    planned = [(share.group, plan.of_histogram(share)) for share in plan.histograms]
    # with strata a group's labels are counted twice, over all events and by stratum
    if Counter(paid) != Counter(planned * (2 if manifest.strata else 1)):
        raise OtherSplitError(_OTHER_SPLIT)
    return plan


def _noisy(manifest: Manifest) -> Released:
    """What labels paid for, or what was public beforehand."""
    released = manifest.message.released
    known = {
        group: prior for group, prior in released.priors.items() if prior.noisy or prior.public
    }
    return replace(released, priors=known)


def prior_share(manifest: Manifest) -> float | None:
    """Find the share, of few digits, by which the rule spends on histograms what was spent.

    None if it does so by itself; an :class:`OtherSplitError` if no share makes it do so.
    """
    epsilon, rows = _requested(manifest), manifest.prior_rows
    noisy = [prior for prior in manifest.priors if prior.noisy]
    ratios = [parse_rational(prior.guarantee["epsilon"]) / Fraction(epsilon) for prior in noisy]
    ends = [float(min(ratio, Fraction(1))) for ratio in {sum(ratios), *ratios}]
    digits = range(1, MOST_DIGITS + 1)
    # an operator types few digits; the rule may then have taken less of ε, or all of them
    rounded = [float(f"{end:.{n}g}") for end in ends for n in digits]
    shares = [share for share in (float(PRIOR_SHARE), *rounded) if 0 < share < 1]
    for share in dict.fromkeys([None, *shares]):
        if len(manifest.labels) == 1 and not manifest.strata:
            points, spent = len(manifest.label.grid), manifest.prior_guarantee.exact_epsilon
            group = manifest.privacy.records_per_unit
            split = split_budget(epsilon, points, rows, records=group, largest_share=share)
            if split.prior == spent:
                return share
            continue
        with suppress(OtherSplitError):
            plan_of(manifest, share)
            return share
    raise OtherSplitError(_OTHER_SPLIT)


def _build(manifest: Manifest, name: str) -> list[tuple[FiniteChannel, Mapping[str, Any]]]:
    """The channels again, in the manifest's order, and what their builders say: a single one by
    name, several by the rule."""
    if len(manifest.labels) == 1 and not manifest.strata:
        made = rebuild(manifest, name)
        return [(made.channel, made.details)]
    if manifest.questioned:
        (terms,), strata = manifest.message.terms, not_none(manifest.message.strata)
        plan = plan_question(terms, not_none(terms.grid), strata, _requested(manifest))
        message = plan.build(manifest.message.released)
    else:
        message = plan_of(manifest, prior_share(manifest)).build(_noisy(manifest))
    sent, built = iter(message.sent), []
    for book, stratum in zip(message.codebooks.books, manifest.by_stratum, strict=True):
        parts = islice(sent, len(book.groups))
        own = {group: (channel, details) for group, channel, _, details in parts}
        groups = [manifest.group(stated.labels) for stated in stratum]
        if set(groups) != set(own):
            raise OtherSplitError("labels are grouped otherwise")
        built += [own[group] for group in groups]
    return built


CHECKS = Probes[Evidence](refused=Verdict.FAIL)


@CHECKS.add(
    "channel is a function of the noisy histogram",
    "Did anything but the noisy histogram shape the channel?",
    fits=of_codes,
    decides=(
        *("label.loss", "label.weight", "label.asked", "privacy.division"),
        *("prior.noisy_counts", "prior.start", "priors", "tables", "strata", "strata.law"),
        *("randomizer.name", "randomizer.details", "randomizer.channel.outputs"),
        *("randomizer.channel.row_of", "randomizer.channel.rows"),
    ),
)
def rebuilt_check(evidence: Evidence) -> Check:
    manifest = evidence.manifest
    names = ", ".join(repr(stated.name) for stated in manifest.randomizers)

    def judged(verdict: Verdict, found: str) -> Check:
        return Check(
            verdict,
            "They were built again from these and compared, integer by integer.",
            found,
            claim=f"Outputs, weights and details were computed by {names} from the noisy"
            " histogram, ε, loss, options and row count alone.",
        )

    try:
        channels = manifest.channels
    except LabelveilError as error:
        return judged(Verdict.FAIL, f"No channel is stated: {error}.")
    best, problem = None, "no builder of that name"
    by_rule = len(manifest.labels) > 1 or bool(manifest.strata)
    for name in dict.fromkeys(("auto",) if by_rule else (manifest.randomizer.name, "auto")):
        try:
            built = _build(manifest, name)
        except (LabelveilError, TypeError) as error:
            problem = str(error)
            continue
        distances = (
            max(_distance(channel, made), _details_distance(stated.facts, details))
            for channel, stated, (made, details) in zip(
                channels, manifest.randomizers, built, strict=True
            )
        )
        distance = max(distances)
        best = distance if best is None else min(best, distance)
        if best == 0:
            break
    if best is None:
        return judged(Verdict.NOT_CHECKABLE, f"It could not be built again: {problem}.")
    if best == 0:
        outputs = " + ".join(str(channel.outputs.size) for channel in channels)
        return judged(Verdict.PASS, f"All {outputs} outputs, integer weights and details agree.")
    # a builder may solve a linear program, whose last digits depend on the machine: equality alone
    # passes, and what this very software cannot explain fails
    if best <= CLOSE:
        return judged(
            Verdict.NOT_CHECKABLE,
            f"The largest difference is {best:.3g}: another processor or solver version can explain"
            " it, and so could something hidden in the last digits, or in the order of outputs that"
            " agree to these. Run the audit where the release was made.",
        )
    found = (
        "The shape of the channel or of its details differs."
        if math.isinf(best)
        else f"The largest difference is {best:.3g}: something else went in."
    )
    if manifest.software == software():
        return judged(Verdict.FAIL, found)
    return judged(
        Verdict.NOT_CHECKABLE,
        f"{found} The release says that {manifest.software!r:.80} made it and this is"
        f" {software()!r}: run the audit with that version to decide.",
    )


def _requested(manifest: Manifest) -> float:
    """ε as it was written, rounded down."""
    return float_below(decimal_value(manifest.privacy.requested_epsilon))


def _distance(channel: FiniteChannel, other: FiniteChannel) -> float:
    """Largest difference of outputs (relative to their range) or probabilities; 0 if identical."""
    if channel.outputs.shape != other.outputs.shape or not np.array_equal(
        channel.stated_of, other.stated_of
    ):
        return math.inf
    if np.array_equal(channel.stated, other.stated) and np.array_equal(
        channel.outputs, other.outputs
    ):
        return 0.0
    span = max(float(np.ptp(channel.outputs)), math.ulp(1.0))
    outputs = float(np.abs(channel.outputs - other.outputs).max()) / span
    # several outputs often have one value but for its last digit, so that it alone says nothing of
    # their order: those that are close are ordered by their probabilities
    weights = []
    for each in (channel, other):
        close = np.append(0, np.cumsum(np.diff(each.outputs / span) > CLOSE))
        order = np.lexsort([*np.round(each.probabilities[::-1], _DIGITS), close])
        weights.append(each.probabilities[:, order])
    return max(outputs, float(np.abs(weights[0] - weights[1]).max()), math.ulp(0.0))


def _details_distance(stated: Mapping[str, Any], built: Mapping[str, Any]) -> float:
    """Largest difference of a number; infinite where anything else differs; 0 if identical."""
    if stated.keys() != built.keys():
        return math.inf
    return max((_apart(stated[name], built[name]) for name in built), default=0.0)


def _apart(value: Any, other: Any) -> float:
    if isinstance(value, list) and isinstance(other, list) and len(value) == len(other):
        return max(map(_apart, value, other), default=0.0)
    if isinstance(value, float) and isinstance(other, float):
        return abs(value - other) / max(abs(other), 1.0)
    return 0.0 if value == other else math.inf
