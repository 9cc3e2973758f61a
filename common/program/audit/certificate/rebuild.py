"""Rebuild a release's randomizer from its noisy prior, and compare integer by integer.

If the channel and what is said about it are what the named builder makes of the noisy histogram,
then no raw label reached them: everything in them is post-processing of the histogram.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from common.errors import LabelveilError
from common.exact.channel import FiniteChannel
from common.program.audit.verdict import Check, Verdict
from common.randomizers import Randomizer, build_randomizer
from common.release.manifest import Manifest
from common.version import software

CLOSE = 1e-6
"""Largest difference of a probability that another solver or processor may explain."""


def rebuild(manifest: Manifest, name: str) -> Randomizer:
    """Build the randomizer that a builder makes of the manifest's noisy prior and public numbers.

    ε₂ is what was asked for less what else these labels paid for (ε₁, a test), divided among the
    labels of one unit and rounded down, as the two-step procedure does it.
    """
    asked = Fraction(_at_most(Fraction(repr(manifest.privacy.requested_epsilon))))
    paid = sum((part.exact_epsilon for part in manifest.parts[:-1]), Fraction(0))
    share = (asked - paid) / manifest.privacy.records_per_unit
    return build_randomizer(
        name,
        labels=np.asarray(manifest.label.grid),
        prior=manifest.noisy_prior,
        epsilon=_at_most(share),
        loss=manifest.label.loss,
        rows=manifest.population.rows,
        **manifest.randomizer.options,
    )


def rebuilt_check(manifest: Manifest) -> Check:
    """Outputs and weights are what the builder makes of the noisy histogram."""
    name = "channel is a function of the noisy histogram"
    claim = (
        f"Outputs, weights and details were computed by {manifest.randomizer.name!r} from the"
        " noisy histogram, ε, loss, options and row count alone."
    )
    tried = "They were built again from these and compared, integer by integer."
    best: tuple[float, str] | None = None
    try:
        stated = manifest.channel
    except LabelveilError as error:
        return Check(name, Verdict.FAIL, claim, tried, f"No channel is stated: {error}.")
    problem = "no builder of that name"
    for builder in dict.fromkeys((manifest.randomizer.name, "auto")):
        try:
            built = rebuild(manifest, builder)
        except (LabelveilError, TypeError) as error:
            problem = str(error)
            continue
        distance = max(
            _distance(stated, built.channel),
            _details_distance(manifest.randomizer.details, built.details),
        )
        if best is None or distance < best[0]:
            best = (distance, builder)
        if distance == 0:
            break
    if best is None:
        found = f"It could not be built again: {problem}."
        return Check(name, Verdict.NOT_CHECKABLE, claim, tried, found)
    distance, builder = best
    if distance == 0:
        found = f"All {stated.outputs.size} outputs, integer weights and details agree."
        return Check(name, Verdict.PASS, claim, tried, found)
    if distance <= CLOSE:
        found = (
            f"The largest difference is {distance:.3g}: another processor or"
            " solver version can explain it, and so could something hidden in the last digits."
            " Run the audit where the release was made."
        )
        return Check(name, Verdict.NOT_CHECKABLE, claim, tried, found)
    found = (
        "The shape of the channel or of its details differs."
        if math.isinf(distance)
        else f"The largest difference is {distance:.3g}: something else went in."
    )
    if manifest.software != software():
        found += (
            f" The release says that {manifest.software!r:.80} made it and this is"
            f" {software()!r}: run the audit with that version to decide."
        )
        return Check(name, Verdict.NOT_CHECKABLE, claim, tried, found)
    return Check(name, Verdict.FAIL, claim, tried, found, details={"builder": builder})


def _distance(one: FiniteChannel, two: FiniteChannel) -> float:
    """Largest difference of outputs (relative to their range) or probabilities; 0 if identical."""
    if one.outputs.shape != two.outputs.shape or not np.array_equal(one.row_of, two.row_of):
        return math.inf
    if one.rows == two.rows and np.array_equal(one.outputs, two.outputs):
        return 0.0
    span = max(float(np.ptp(one.outputs)), math.ulp(1.0))
    outputs = float(np.abs(one.outputs - two.outputs).max()) / span
    weights = float(np.abs(one.probabilities - two.probabilities).max())
    return max(outputs, weights, math.ulp(0.0))


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


def _at_most(value: Fraction) -> float:
    """Return the largest float that does not exceed a rational number."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)
