"""Rebuild a release's randomizer from its noisy prior, and compare integer by integer.

If the channel and what is said about it are what the named builder makes of the noisy histogram,
then no raw label reached them: everything in them is post-processing of the histogram.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from common.arrays import Floats, Indices
from common.errors import LabelveilError
from common.exact.channel import FiniteChannel
from common.exact.rational import parse_rational
from common.randomizers import NoisyPrior, Randomizer, build_randomizer, split_budget
from common.randomizers.budget import PRIOR_SHARE, round_down
from common.randomizers.cells import Group
from common.randomizers.grid import Grid
from common.randomizers.message import MessagePlan
from common.randomizers.plan import plan_message
from common.randomizers.terms import LabelTerms
from common.release.facts import MOST_DIGITS
from common.release.manifest import Manifest
from common.version import software
from labelveil.audit.verdict import Check, Verdict

CLOSE = 1e-6
"""Largest difference of a probability that another solver or processor may explain."""

_DIGITS = 7
"""Of a probability, by which outputs of equal value are put in order."""


def rebuild(manifest: Manifest, name: str) -> Randomizer:
    """Build the only label's randomizer, as a builder makes it of the noisy prior and public facts.

    ε₂ is what was asked for less what else these labels paid for (ε₁, a test), divided among the
    labels of one unit and rounded down, as the two-step procedure does it.
    """
    paid = sum((part.exact_epsilon for part in manifest.parts[:-1]), Fraction(0))
    share = (Fraction(_asked(manifest)) - paid) / manifest.privacy.records_per_unit
    return build_randomizer(
        name,
        labels=np.asarray(manifest.label.grid),
        prior=manifest.noisy_prior,
        epsilon=round_down(share),
        loss=manifest.label.loss,
        rows=manifest.population.rows,
        **manifest.randomizer.options,
    )


class OtherSplitError(LabelveilError):
    """The rule would have paid otherwise for the histograms."""


def plan_of(manifest: Manifest, share: float) -> MessagePlan:
    """What the rule makes of a release's public facts.

    Parameters
    ----------
    share
        The largest share of ε that histograms may take.

    Raises
    ------
    OtherSplitError
        If other groups of labels would have been counted, on other grids, or for another ε.
    """
    terms = [
        LabelTerms(
            label.name,
            label.grid[0],
            label.grid[-1],
            Grid.from_edges(label.grid) if label.asked else None,
            label.loss,
            label.weight,
            values=any(prior.decoded and prior.labels == [label.name] for prior in manifest.priors),
        )
        for label in manifest.labels
    ]
    plan = plan_message(
        terms,
        manifest.population.rows,
        _asked(manifest),
        division=manifest.privacy.division,
        records=manifest.privacy.records_per_unit,
        prior_share=share,
    )
    paid = {group: prior.exact_epsilon for group, prior in _noisy(manifest).items()}
    if {each.group: each.epsilon for each in plan.histograms} != paid:
        raise OtherSplitError("the histograms are not those that the rule pays for")
    return plan


def _noisy(manifest: Manifest) -> dict[Group, NoisyPrior]:
    """The histograms that labels paid for."""
    return {
        manifest.group(prior.labels): histogram
        for prior, histogram in zip(manifest.priors, manifest.histograms, strict=True)
        if not prior.decoded
    }


def prior_share(manifest: Manifest) -> float | None:
    """Find the share, of few digits, by which the rule spends on histograms what was spent."""
    epsilon, rows = manifest.privacy.requested_epsilon, manifest.prior_rows
    noisy = [prior for prior in manifest.priors if not prior.decoded]
    ratios = [parse_rational(prior.guarantee["epsilon"]) / Fraction(epsilon) for prior in noisy]
    ends = [float(min(ratio, Fraction(1))) for ratio in {sum(ratios), *ratios}]
    digits = range(1, MOST_DIGITS + 1)
    shares = [float(PRIOR_SHARE), *(float(f"{end:.{n}g}") for end in ends for n in digits)]
    for share in dict.fromkeys(shares):
        if not 0 < share < 1:
            continue
        if len(manifest.labels) == 1:
            points, spent = len(manifest.label.grid), manifest.prior_guarantee.exact_epsilon
            if split_budget(epsilon, points, rows, largest_share=share).prior == spent:
                return share
            continue
        with suppress(OtherSplitError):
            plan_of(manifest, share)
            return share
    return None


def _candidates(manifest: Manifest) -> Iterator[Callable[[], Sequence[Randomizer]]]:
    """Yield ways to build the randomizers again, in the manifest's order."""
    if len(manifest.labels) == 1:
        for name in dict.fromkeys((manifest.randomizer.name, "auto")):
            yield partial(_only, manifest, name)
        return

    def several() -> list[Randomizer]:
        share = prior_share(manifest)
        if share is None:
            raise OtherSplitError("the histograms are not those that the rule pays for")
        made = dict(plan_of(manifest, share).build(_noisy(manifest)).channels)
        groups = [manifest.group(one.labels) for one in manifest.randomizers]
        if set(groups) != set(made):
            raise OtherSplitError("labels are grouped otherwise")
        return [made[group] for group in groups]

    yield several


def _only(manifest: Manifest, name: str) -> list[Randomizer]:
    return [rebuild(manifest, name)]


def rebuilt_check(manifest: Manifest) -> Check:
    """Outputs and weights are what the builder makes of the noisy histogram."""
    name = "channel is a function of the noisy histogram"
    stated_names = ", ".join(repr(one.name) for one in manifest.randomizers)
    claim = (
        f"Outputs, weights and details were computed by {stated_names} from the"
        " noisy histogram, ε, loss, options and row count alone."
    )
    tried = "They were built again from these and compared, integer by integer."
    best: float | None = None
    try:
        stated = manifest.channels
    except LabelveilError as error:
        return Check(name, Verdict.FAIL, claim, tried, f"No channel is stated: {error}.")
    problem = "no builder of that name"
    for build in _candidates(manifest):
        try:
            built = build()
        except (LabelveilError, TypeError) as error:
            problem = str(error)
            continue
        distance = max(
            max(_distance(one, made.channel), _details_distance(said.details, made.details))
            for one, said, made in zip(stated, manifest.randomizers, built, strict=True)
        )
        best = distance if best is None else min(best, distance)
        if distance == 0:
            break
    if best is None:
        found = f"It could not be built again: {problem}."
        return Check(name, Verdict.NOT_CHECKABLE, claim, tried, found)
    if best == 0:
        outputs = " + ".join(str(channel.outputs.size) for channel in stated)
        found = f"All {outputs} outputs, integer weights and details agree."
        return Check(name, Verdict.PASS, claim, tried, found)
    if best <= CLOSE:
        found = (
            f"The largest difference is {best:.3g}: another processor or"
            " solver version can explain it, and so could something hidden in the last digits,"
            " or in the order of outputs that agree to these. Run the audit where the release was"
            " made."
        )
        return Check(name, Verdict.NOT_CHECKABLE, claim, tried, found)
    found = (
        "The shape of the channel or of its details differs."
        if math.isinf(best)
        else f"The largest difference is {best:.3g}: something else went in."
    )
    if manifest.software != software():
        found += (
            f" The release says that {manifest.software!r:.80} made it and this is"
            f" {software()!r}: run the audit with that version to decide."
        )
        return Check(name, Verdict.NOT_CHECKABLE, claim, tried, found)
    return Check(name, Verdict.FAIL, claim, tried, found)


def _asked(manifest: Manifest) -> float:
    """ε as it was written, rounded down."""
    return round_down(Fraction(repr(manifest.privacy.requested_epsilon)))


def _distance(one: FiniteChannel, two: FiniteChannel) -> float:
    """Largest difference of outputs (relative to their range) or probabilities; 0 if identical."""
    if one.outputs.shape != two.outputs.shape or not np.array_equal(one.stated_of, two.stated_of):
        return math.inf
    if np.array_equal(one.stated, two.stated) and np.array_equal(one.outputs, two.outputs):
        return 0.0
    span = max(float(np.ptp(one.outputs)), math.ulp(1.0))
    outputs = float(np.abs(one.outputs - two.outputs).max()) / span
    weights = [
        channel.probabilities[:, _order_of_outputs(channel.outputs / span, channel.probabilities)]
        for channel in (one, two)
    ]
    return max(outputs, float(np.abs(weights[0] - weights[1]).max()), math.ulp(0.0))


def _order_of_outputs(outputs: Floats, probabilities: Floats) -> Indices:
    """Order outputs that are close by their probabilities.

    Several outputs often have one value but for its last digit, so that it alone says nothing of
    their order.
    """
    groups = np.append(0, np.cumsum(np.diff(outputs) > CLOSE))
    return np.lexsort([*np.round(probabilities[::-1], _DIGITS), groups])


def _details_distance(stated: Mapping[str, Any], built: Mapping[str, Any]) -> float:
    """Largest difference of a number; infinite where anything else differs; 0 if identical."""
    stated = {name: value for name, value in stated.items() if name != "options"}
    if stated == built:
        return 0.0
    if stated.keys() != built.keys():
        return math.inf
    return max(_apart(stated[name], built[name]) for name in built)


def _apart(one: Any, two: Any) -> float:
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        return max(map(_apart, one, two), default=0.0)
    if isinstance(one, float) and isinstance(two, float):
        return abs(one - two) / max(abs(two), 1.0)
    return 0.0 if one == two else math.inf
