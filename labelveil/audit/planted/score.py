"""Score planted canaries: what a release says about labels that only the auditor knows.

Nothing but the messages of a running party is needed. Its code is a black box; its manifest's
claims are what is tested.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

from common.arrays import Floats, Integers
from common.errors import ReleaseError
from common.exact.rational import parse_rational
from common.release.event_keys import hash_keys, read_secret
from common.release.manifest import Manifest, manifest_digest
from common.release.rows import keys_column
from common.release.sections import PriorSection
from labelveil.audit.attacks import laws
from labelveil.audit.attacks.implementation import permutation_check
from labelveil.audit.attacks.one_run import PILOT, Guesser, OneRun, Secrets, learn_guesser
from labelveil.audit.attacks.one_run import score as score_guesses
from labelveil.audit.attacks.rows_apart import influence
from labelveil.audit.certificate import manifest_checks as claims
from labelveil.audit.certificate.run import Evidence, certificate
from labelveil.audit.planted.plant import Planted
from labelveil.audit.verdict import (
    GATE,
    Audit,
    Check,
    Power,
    Progress,
    Verdict,
    silent,
    statistical,
    verdict_of,
)

STEPS = 7  # how many are named on the way


@dataclass(frozen=True)
class Returned:
    """Canaries that came back, in the order of the release's rows."""

    manifest: Manifest
    labels: Floats
    """(k + 1, m) labels of each secret, in the manifest's order; the last is what the release
    counts missing ones as."""
    secrets: Secrets
    codes: Integers  # (m,) of the canaries that came back
    missing: int  # canaries that did not
    others: int  # events that are no canaries


def score(
    planted: Planted,
    evidence: Evidence,
    secret: Path,
    progress: Progress = silent,
    *,
    epsilon: float | None = None,
    public_key: Path | None = None,
) -> Audit:
    """Audit a release of planted canaries, whose keys are hashed with ``secret``.

    The claim for one label is ``epsilon``, the manifest's by default; ``public_key`` is the labels
    party's, for its signature.

    ``ReleaseError`` if none of the canaries is in the release.
    """
    manifest = evidence.manifest
    subject = f"release {manifest.data_set} · {manifest.epoch}"
    audit = Audit("canaries", subject, claims.claimed_epsilon(manifest), progress=progress)
    audit.facts = {
        "canaries": f"{planted.secrets.size:,}",
        "labels of a canary": ", ".join(
            [*(_shown(labels) for labels in planted.planting.labels), "none"]
        ),
        **claims.facts(manifest, manifest_digest(evidence.data)),
    }
    returned = match(planted, evidence, secret)
    if epsilon is None:
        epsilon = manifest.labels_guarantee.epsilon / manifest.privacy.records_per_unit
    audit.run(lambda: returned_check(returned), "match events")
    audit.run(lambda: permutation_check(returned.secrets.astype(np.float64)), "order")
    audit.run(lambda: distinguish_check(returned, epsilon), "distinguish")
    audit.run(lambda: channel_law_check(returned), "stated channel")
    audit.run(lambda: other_rows_check(returned), "other rows")
    audit.run(lambda: histogram_check(returned), "histogram")
    progress("certificate")
    certified = certificate(evidence, public_key=public_key)
    seen = {"the codes were drawn by this channel", "the histogram's noise was drawn as stated"}
    audit.add(*(check for check in certified.checks if check.name not in seen))
    audit.fields, audit.plots = certified.fields, certified.plots
    return audit


def match(planted: Planted, evidence: Evidence, secret: Path) -> Returned:
    """Find the canaries among a release's rows; a submitted population has them in its order."""
    manifest, rows = evidence.manifest, evidence.labels
    hashed = hash_keys(planted.keys, read_secret(secret))
    canaries = pl.DataFrame({"key": keys_column(hashed), "secret": planted.secrets})
    if manifest.content.key_bytes:
        joined = rows.select("key", "code").join(
            canaries, on="key", how="inner", maintain_order="left"
        )
    else:
        whole = hashlib.sha256(hashed).hexdigest() == manifest.population.digest
        joined = canaries.with_columns(rows["code"]) if whole else canaries.clear()
    if not joined.height:
        raise ReleaseError(
            "no canary is in the release; check --secret, and that this data set got the canaries"
        )
    columns = [name for name, *_ in planted.planting.columns]
    named = [label.name for label in manifest.labels]
    if sorted(columns) != sorted(named):
        raise ReleaseError(
            f"labels {', '.join(columns)} were planted, and the release has {', '.join(named)}"
        )
    known = planted.planting.labels[:, [columns.index(name) for name in named]]
    labels = np.vstack([known, [label.missing for label in manifest.labels]])
    return Returned(
        manifest,
        labels,
        joined["secret"].to_numpy(),
        joined["code"].to_numpy().astype(np.int64),
        planted.secrets.size - joined.height,
        rows.height - joined.height,
    )


def returned_check(returned: Returned) -> Check:
    return Check(
        name="every canary comes back",
        question="Does every event come back, with a label or without?",
        verdict=verdict_of(returned.missing == 0),
        claim="Which events are in a release does not depend on who has a label.",
        tried=f"The keys of {returned.secrets.size + returned.missing:,} canaries, some without a"
        " label, were looked for.",
        found=f"{returned.missing:,} are missing; {returned.others:,} other events are there.",
    )


def distinguish_check(returned: Returned, claimed: float) -> Check:
    """Guess secrets from outputs, whatever the channel is, and bound ε by the right guesses."""
    pair, result = distinguish(returned.codes, returned.secrets, len(returned.labels))
    low, high = (_label(returned, secret) for secret in pair)
    return statistical(
        "canaries told apart",
        result,
        question="How well do outputs tell labels apart, whatever made them?",
        claim=f"An output reveals at most ε₂ = {claimed:.4g} about its"
        f" label{'s' * (len(returned.manifest.labels) > 1)}.",
        tried=f"On a tenth of {returned.secrets.size:,} canaries it was learnt which two labels"
        f" outputs tell apart best, and how: {low} and {high}. Of {result.guesses:,} guesses on the"
        f" others {result.correct:,} were right.",
        claimed=claimed,
        details={"correct": result.correct, "guesses": result.guesses, "pair": list(pair)},
        power=(Power("excess of ε at these two labels", result.excess(claimed)),),
        not_looked_at="What the histogram and other rows say, which have checks of their own, and"
        " labels between those planted.",
    )


def distinguish(codes: Integers, secrets: Secrets, values: int) -> tuple[tuple[int, int], OneRun]:
    """Choose two values and a guesser on a pilot share, and score it on the other records."""
    start = max(1, round(PILOT * secrets.size))
    guessers: dict[tuple[int, int], Guesser] = {}
    for pair in combinations(range(values), 2):
        pilot = np.flatnonzero(np.isin(secrets[:start], pair))
        if pilot.size:
            bits = (secrets[pilot] == pair[1]).astype(np.int64)
            guessers[pair] = learn_guesser(codes[pilot], bits, secrets.size - start)
    pair = max(guessers, key=lambda pair: guessers[pair].expected)
    rest = start + np.flatnonzero(np.isin(secrets[start:], pair))
    bits = (secrets[rest] == pair[1]).astype(np.int64)
    return pair, score_guesses(guessers[pair](codes[rest]), bits)


def channel_law_check(returned: Returned) -> Check:
    stated = returned.manifest.codebook.laws(returned.labels)
    values, outputs = stated.shape
    counts = np.bincount(returned.secrets * outputs + returned.codes, minlength=values * outputs)
    counts = counts.reshape(values, outputs)
    p, secret, output = laws.output_probability(counts, stated)
    runs = int(counts.sum(axis=1).min())
    rarest, half = (laws.detectable_probability(runs, counts.size, GATE, at) for at in (0.0, 0.5))
    return Check(
        name="outputs follow the stated channel",
        question="Were the outputs drawn by the channel that is stated?",
        verdict=verdict_of(p >= GATE),
        claim="Labels are randomized by the channel that the manifest states.",
        tried=f"{returned.codes.size:,} outputs of known labels were counted and compared with the"
        f" stated probabilities of {values} labels and {outputs} outputs, exactly.",
        found=f"The farthest is output {output} of {_label(returned, secret)}:"
        f" {counts[secret, output]:,} of {counts[secret].sum():,} where"
        f" {stated[secret, output]:.4g} is stated; so far or farther has probability at most"
        f" {p:.3g} in all.",
        confidence=1 - GATE,
        details={"p": p},
        power=(
            Power("probability of an output that cannot occur as stated", rarest),
            Power("difference of one output's probability near 1/2", half - 0.5),
        ),
        not_looked_at="Labels that were not planted.",
    )


def other_rows_check(returned: Returned) -> Check:
    highest = (returned.secrets == len(returned.labels) - 2).astype(np.int64)
    largest = influence(returned.codes, highest)
    return largest.check(
        "labels of other rows",
        "share of rows that show another row's label",
        question="Does an output say anything about another row's label?",
        claim="A row's output depends on its own label alone.",
        tried=f"{largest.sums:,} comparisons of an output with another canary's label, or with"
        " whether two others agree, at every distance.",
        bound=math.inf if largest.exceeds else 0.0,
        not_looked_at="Dependence of an output on three or more other rows together.",
    )


def histogram_check(returned: Returned) -> Check:
    """What remains of the histograms once the known labels are taken off is noise as stated."""
    priors = returned.manifest.priors
    noisy = [prior for prior in priors if not prior.decoded] or priors
    check = claims.each(returned.manifest, noisy, lambda _, prior: _one_histogram(returned, prior))
    return replace(check, question="Has the histogram the noise that is stated?")


def _one_histogram(returned: Returned, prior: PriorSection) -> Check:
    group = returned.manifest.group(prior.labels)
    name = "noise of the histogram"
    claim = "The released histogram has the noise that pays for it."
    tried = "The canaries' own counts were taken off the released ones."
    columns = returned.labels[:, group.labels].T
    inside = [np.clip(c, g.lower, g.upper) for c, g in zip(columns, group.cells.grids, strict=True)]
    at = [np.searchsorted(g.points, c) for c, g in zip(inside, group.cells.grids, strict=True)]
    indices = np.column_stack(at)
    reason = ""
    if returned.others or returned.missing:
        reason = "Other events are in the release, whose labels are not known."
    elif prior.decoded:
        reason = "The histogram is decoded from the codes: it has no noise of its own."
    elif not returned.manifest.prior_paid:
        reason = "The prior is that of another release."
    elif not np.array_equal(group.cells.values(indices), np.column_stack(inside)):
        reason = "Canaries' labels lie between grid points, where they are rounded at random."
    if reason:
        return Check(name, Verdict.NOT_CHECKABLE, claim, tried, reason)
    size, scale = len(group.cells), float(parse_rational(prior.scale))
    true = np.bincount(group.cells.number(indices)[returned.secrets], minlength=size)
    noise = np.asarray(prior.noisy_counts, dtype=np.int64) - true
    little, much = laws.noise_probability(noise, scale)
    narrow = laws.detectable_narrowness(size, scale, GATE / 2)
    return Check(
        name=name,
        verdict=verdict_of(min(little, much) >= GATE / 2),
        claim=claim,
        tried=tried + f" Σ|noise| of {size} cells was compared with a discrete Laplace law of"
        f" scale {scale:.4g} (Chernoff's bound).",
        found=f"Mean |noise| {float(np.abs(noise).mean()):.4g}; so little has probability at most"
        f" {little:.3g}, so much {much:.3g}.",
        confidence=1 - GATE,
        details={"little": little, "much": much},
        power=(Power("share by which noise is too narrow", narrow),),
        not_looked_at="Whether the noise is independent of the labels, and of other releases.",
    )


def _label(returned: Returned, secret: int) -> str:
    missing = secret == len(returned.labels) - 1
    return "no label" if missing else _shown(returned.labels[secret])


def _shown(labels: Floats) -> str:
    return " with ".join(f"{label:g}" for label in labels)
