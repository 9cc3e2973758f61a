"""Score planted canaries: what is wrong with a release of them, and its certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from labelveil.audit.canaries import codes, sums
from labelveil.audit.canaries.planting import Planted
from labelveil.audit.certificate.evidence import Evidence, claimed_epsilon, facts
from labelveil.audit.certificate.run import CODES_DRAWN, HISTOGRAM_DRAWN, SUMS_DRAWN, certificate
from labelveil.audit.verdict import Audit, Check, Progress, silent, verdict_of
from labelveil.common.release.manifest import manifest_digest


def score(
    planted: Planted,
    evidence: Evidence,
    secret: Path,
    progress: Progress = silent,
    *,
    epsilon: float | None = None,
    public_key: Path | None = None,
    before: Sequence[Evidence] = (),
) -> Audit:
    """Audit a release of planted canaries, whose keys are hashed with ``secret``.

    The claim for one label is ``epsilon``, the manifest's by default; ``public_key`` is the labels
    party's, for its signature; ``before`` are other releases of the same canaries, to which its
    noise is compared. ``ReleaseError`` if none of the canaries is in the release.
    """
    manifest = evidence.manifest
    subject = f"release {manifest.data_set} · {manifest.epoch}"
    audit = Audit("canaries", subject, claimed_epsilon(manifest), progress=progress)
    audit.facts = {
        "canaries": f"{planted.secrets.size:,}",
        "labels of a canary": ", ".join(map(planted.in_words, range(len(planted.labels)))),
        **facts(manifest, manifest_digest(evidence.data)),
    }
    releases = evidence, *before
    if manifest.sums is None:
        returned, *others = (codes.match(planted, release, secret) for release in releases)
        epsilon = returned.epsilon if epsilon is None else epsilon
        codes.CODES.audit(audit, replace(returned, epsilon=epsilon, before=tuple(others)))
    else:
        summed, *earlier = (sums.match(planted, release, secret) for release in releases)
        sums.SUMS.audit(audit, replace(summed, before=tuple(earlier)))
    progress("certificate")
    certified = certificate(evidence, public_key=public_key)
    seen = {probe.name for probe in (CODES_DRAWN, HISTOGRAM_DRAWN, SUMS_DRAWN)}
    audit.checks += (check for check in certified.checks if check.name not in seen)
    audit.fields, audit.plots = certified.fields, certified.plots
    return audit


def steps(evidence: Evidence) -> int:
    """How many are named on the way."""
    return 1 + len(codes.CODES if evidence.manifest.sums is None else sums.SUMS)


def bounds_check(found: codes.Returned | sums.Summed) -> Check:
    """Labels beyond the bounds were planted: bounds that were taken from data would be others."""
    stated = {label.name: (label.grid[0], label.grid[-1]) for label in found.manifest.labels}
    planned = {name: (low, high) for name, low, high in found.planted.planting.columns}
    other = [f"{name}: {stated[name]}" for name in planned if stated[name] != planned[name]]
    return Check(
        verdict=verdict_of(not other),
        tried="Canaries have labels beyond the bounds; the manifest's were compared with those of"
        " the planting.",
        found=f"Others are stated: {'; '.join(other)}." if other else "They are the same.",
    )


for checks in (codes.CODES, sums.SUMS):
    checks.add(
        "bounds are those agreed on",
        "Were the bounds taken from the data?",
        "The labels' bounds are those that were agreed on, whatever the data holds.",
    )(bounds_check)
