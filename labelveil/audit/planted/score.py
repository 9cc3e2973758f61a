"""Score planted canaries: what a release says about labels that only the auditor knows.

Nothing but the messages of a running party is needed. Its code is a black box; its manifest's
claims are what is tested.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from labelveil.audit.attacks import laws
from labelveil.audit.attacks.implementation import permutation_check
from labelveil.audit.attacks.one_run import PILOT, Guesser, OneRun, learn_guesser, uniform
from labelveil.audit.attacks.one_run import score as score_guesses
from labelveil.audit.canaries.planting import Planted
from labelveil.audit.certificate import manifest_checks as claims
from labelveil.audit.certificate.run import Evidence, certificate
from labelveil.audit.planted import sums
from labelveil.audit.planted.returned import CODES, Returned, match
from labelveil.audit.power import detectable_epsilon
from labelveil.audit.verdict import GATE, Audit, Check, Power, Progress, Verdict, silent, verdict_of
from labelveil.common.arrays import Floats, Integers
from labelveil.common.exact.rational import parse_rational
from labelveil.common.randomizers.cells import row_products
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
    audit = Audit("canaries", subject, claims.claimed_epsilon(manifest), progress=progress)
    audit.facts = {
        "canaries": f"{planted.secrets.size:,}",
        "labels of a canary": ", ".join(map(planted.in_words, range(len(planted.labels)))),
        **claims.facts(manifest, manifest_digest(evidence.data)),
    }
    releases = evidence, *before
    if manifest.sums is None:
        returned, *others = (match(planted, release, secret) for release in releases)
        epsilon = returned.epsilon if epsilon is None else epsilon
        CODES.audit(audit, replace(returned, epsilon=epsilon, before=tuple(others)))
    else:
        summed, *earlier = (sums.match(planted, release, secret) for release in releases)
        sums.SUMS.audit(audit, replace(summed, before=tuple(earlier)))
    progress("certificate")
    certified = certificate(evidence, public_key=public_key)
    seen = {
        "the codes were drawn by this channel",
        "the histogram's noise was drawn as stated",
        "the sums' noise was drawn as stated",
    }
    audit.checks += (check for check in certified.checks if check.name not in seen)
    audit.fields, audit.plots = certified.fields, certified.plots
    return audit


def steps(evidence: Evidence) -> int:
    """How many are named on the way."""
    return 1 + len(CODES if evidence.manifest.sums is None else sums.SUMS)


@CODES.add(
    "every canary comes back",
    "Does every event come back, with a label or without?",
    "Which events are in a release does not depend on who has a label.",
)
def returned_check(returned: Returned) -> Check:
    return Check(
        verdict=verdict_of(returned.missing == 0),
        tried=f"The keys of {returned.secrets.size + returned.missing:,} canaries, some without a"
        " label, were looked for.",
        found=f"{returned.missing:,} are missing; {returned.others:,} other events are there.",
    )


@CODES.add(
    "rows are not ordered by label",
    "Does the order of rows say anything about labels?",
    "The order of rows says nothing about labels.",
)
def order_check(returned: Returned) -> Check:
    return permutation_check(returned.planted.secrets[returned.places].astype(np.float64))


@CODES.add(
    "canaries told apart",
    "How well do outputs tell labels apart, whatever made them?",
    not_looked_at="What the histogram and other rows say, which have checks of their own, and"
    " labels"
    " between those planted.",
)
def distinguish_check(returned: Returned) -> Check:
    """Guess secrets from outputs, whatever the channel is, and bound ε by the right guesses."""
    claimed, planted = returned.epsilon, len(returned.planted.planting.labels)
    shares = returned.planted.shares
    pairs: list[Worlds] = [((low,), (high,)) for low, high in combinations(range(shares.size), 2)]
    if returned.labels.shape[1] == 1:  # each end together with what lies beyond it
        pairs.append(((0, planted), (planted - 1, planted + 1)))
    tested = distinguish(returned.codes, returned.secrets, pairs, shares)
    pair, result = max(tested.items(), key=lambda each: each[1].bound)
    common, commonest = max(tested.items(), key=lambda each: _rarer(each[0], shares))
    # of the rarest labels as large a part is guessed, at best
    few = round(commonest.guesses * float(shares.min()) / _rarer(common, shares))
    rarest = detectable_epsilon(claimed, few, GATE / TESTED) - claimed
    low, high = (" or ".join(map(returned.planted.in_words, world)) for world in pair)
    return result.check(
        claim=f"An output reveals at most ε₂ = {claimed:.4g} about its"
        f" label{'s' * (len(returned.manifest.labels) > 1)}.",
        tried=f"On a tenth of {returned.secrets.size:,} canaries it was learnt which labels outputs"
        f" tell apart best, and how; {len(tested)} pairs were guessed on the others. Of"
        f" {result.guesses:,} guesses between {low} and {high} {result.correct:,} were right.",
        claimed=claimed,
        details={"correct": result.correct, "guesses": result.guesses, "pair": list(pair)},
        power=(
            Power("excess of ε at the commonest labels", commonest.excess(claimed)),
            Power("the same at the rarest two", rarest),
        ),
    )


Worlds = tuple[tuple[int, ...], tuple[int, ...]]

TESTED = 5  # pairs of worlds: the commonest, and those that the pilot promises most of


def _rarer(pair: Worlds, shares: Floats) -> float:
    """Share of the rarer one of two worlds."""
    return min(float(shares[list(world)].sum()) for world in pair)


def distinguish(
    codes: Integers, secrets: Integers, pairs: Sequence[Worlds], shares: Floats
) -> dict[Worlds, OneRun]:
    """Choose a few pairs of worlds, and guessers, on a pilot share; score them on other records.

    A world is a set of secrets: if each two are ε-close, so are mixtures of them. (k,) ``shares``
    are the secrets' probabilities: of the commoner world so many records are left out, at random,
    that each is a fair coin.
    """
    start, coins = max(1, round(PILOT * secrets.size)), uniform(secrets.size)
    guessers: dict[Worlds, tuple[Guesser, Integers, Integers]] = {}
    for pair in pairs:
        low, high = (
            np.isin(secrets, world) & (coins * shares[list(world)].sum() < _rarer(pair, shares))
            for world in pair
        )
        chosen = np.flatnonzero(low | high)
        pilot = int(np.searchsorted(chosen, start))
        if pilot:
            bits = high[chosen].astype(np.int64)
            counted = round(pilot * (1 - PILOT) / PILOT)
            guesser = learn_guesser(codes[chosen[:pilot]], bits[:pilot], counted)
            guessers[pair] = guesser, chosen[pilot:], bits[pilot:]
    # by what the pilot proves: of many pairs, the few records of a rare one promise most by chance
    best = sorted(guessers, key=lambda pair: -guessers[pair][0].known)[: TESTED - 1]
    tested = {max(guessers, key=lambda pair: _rarer(pair, shares)), *best}
    return {
        pair: score_guesses(guesser(codes[rest]), bits, TESTED)
        for pair, (guesser, rest, bits) in guessers.items()
        if pair in tested
    }


@CODES.add(
    "outputs follow the stated channel",
    "Were the outputs drawn by the channel that is stated?",
    "Labels are randomized by the channel that the manifest states.",
    not_looked_at="Labels that were not planted.",
)
def channel_law_check(returned: Returned) -> Check:
    stated = returned.laws
    values, outputs = stated.shape
    counts = np.bincount(returned.secrets * outputs + returned.codes, minlength=values * outputs)
    counts = counts.reshape(values, outputs)
    p, secret, output = laws.output_probability(counts, stated)
    runs = counts.sum(axis=1)
    most, fewest = (
        laws.detectable_probability(int(each), counts.size, GATE, 0.0)
        for each in (runs.max(), runs.min())
    )
    half = laws.detectable_probability(int(runs.max()), counts.size, GATE, 0.5)
    return Check(
        verdict=verdict_of(p >= GATE),
        tried=f"{returned.codes.size:,} outputs of known labels were counted and compared with the"
        f" stated probabilities of {values} labels and {outputs} outputs, exactly.",
        found=f"The farthest is output {output} of {returned.planted.in_words(secret)}:"
        f" {counts[secret, output]:,} of {counts[secret].sum():,} where"
        f" {stated[secret, output]:.4g} is stated; so far or farther has probability at most"
        f" {p:.3g} in all.",
        confidence=1 - GATE,
        details={"p": p},
        power=(
            Power("probability of an output that the commonest label cannot give", most),
            Power("the same of the rarest", fewest),
            Power("difference of one output's probability near 1/2", half - 0.5),
        ),
    )


def bounds_check(found: Returned | sums.Summed) -> Check:
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


for checks in (CODES, sums.SUMS):
    checks.add(
        "bounds are those agreed on",
        "Were the bounds taken from the data?",
        "The labels' bounds are those that were agreed on, whatever the data holds.",
    )(bounds_check)


@CODES.add(
    "noise of the histogram",
    "Has the histogram the noise that is stated?",
    "The released histogram has the noise that pays for it.",
    not_looked_at="Whether the noise is independent of the labels, and of other releases.",
)
def histogram_check(returned: Returned) -> Check:
    """What remains of the histograms once the known labels are taken off is noise as stated."""
    manifest = returned.manifest
    tried = "The canaries' own counts were taken off the released ones, where they are known."
    priors = [prior for prior in manifest.priors if prior.noisy]
    reason = "Every cell has a canary beside its points."
    if returned.others or returned.missing:
        reason, priors = "Other events are in the release, whose labels are not known.", []
    elif not priors:
        reason = "The histogram is decoded from the codes, or public: it has no noise of its own."
    elif not manifest.prior_paid:
        reason, priors = "The prior is that of another release.", []
    noises: defaultdict[tuple[str, int, float], list[Integers]] = defaultdict(list)
    for prior in priors:
        group = manifest.group(prior.labels)
        # labels between points are rounded at random: the cells that they may fall in are left out
        cells = np.ones((len(returned.labels), 1))
        for label, grid in zip(group.labels, group.cells.grids, strict=True):
            points, shares = grid.neighbours(returned.labels[:, label])
            each = np.zeros((len(returned.labels), len(grid)))
            np.put_along_axis(each, points, shares, axis=1)
            cells = row_products(cells, each)
        certain = ~((cells > 1e-9) & (cells < 1 - 1e-9)).any(axis=0)
        true = np.bincount(returned.secrets, minlength=len(cells)) @ np.rint(cells)
        noise = (np.asarray(prior.noisy_counts) - true.astype(np.int64))[certain]
        if noise.size:
            key = "the histogram", noise.size, float(parse_rational(prior.scale))
            noises[key].append(noise)
    if not noises:
        return Check(Verdict.NOT_CHECKABLE, tried, reason)
    return laws.noise_check(noises, tried=tried)
