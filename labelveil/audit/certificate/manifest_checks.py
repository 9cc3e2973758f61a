"""Checks of a manifest's own numbers: integers, fractions and sums that anybody can redo.

The reader that both parties use does this arithmetic, too. Here it is written a second time on
purpose: an auditor takes the weights and fractions as they are written, and trusts no other code.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from labelveil.audit.attacks.exact_channel import WORDS, worst_ratio
from labelveil.audit.certificate.evidence import (
    Evidence,
    each,
    epsilon_of,
    of_codes,
    of_labels,
    options_in_words,
    shown,
    weights_of,
    worst_stratum,
)
from labelveil.audit.certificate.rebuild import OtherSplitError, prior_share
from labelveil.audit.verdict import GATE, Check, Power, Probes, Verdict, verdict_of
from labelveil.common.errors import ConfigError, PrivacyError, ReleaseError
from labelveil.common.exact.rational import decimal_value, parse_rational
from labelveil.common.randomizers import decoded_prior
from labelveil.common.release.claims import PureClaim
from labelveil.common.release.facts import MOST_DIGITS, check_digits
from labelveil.common.release.sections import PriorSection, StatedRandomizer
from labelveil.common.version import software

CHECKS = Probes[Evidence](refused=Verdict.FAIL)  # what cannot even be read does not hold

_LONGEST_RATIO = 80


@CHECKS.add(
    "weights",
    "Is the channel a table of whole numbers that add up, a row for every label?",
    fits=of_codes,
    decides=("label.grid", "randomizer.channel.row_of", "randomizer.channel.rows"),
)
@each(lambda evidence: evidence.manifest.randomizers)
def weights_check(evidence: Evidence, randomizer: StatedRandomizer) -> Check:
    rows = weights_of(randomizer)
    wrong = sum(sum(row) != WORDS for row in rows)  # of words, which have no sign
    outputs = len(randomizer.channel.get("outputs", []))
    cells = evidence.manifest.group(randomizer.labels).cells
    inputs = len(randomizer.channel["row_of"])
    return Check(
        verdict=verdict_of(wrong == 0 and inputs == len(cells)),
        claim="The channel is a matrix of integers whose rows sum to 2⁶⁴, one row for each label"
        " of the grid (of several labels: for each cell of their grids), or for the labels that"
        " others are rounded to.",
        tried=f"{len(rows)} distinct rows of {outputs} weights were added up.",
        found=f"{wrong} of them are not such distributions; the channel has {inputs} labels, and"
        f" the grid {len(cells)}.",
    )


@CHECKS.add(
    "exact ε of the labels",
    "What does one output say about its label, at most, exactly?",
    fits=of_codes,
    decides=("randomizer.channel.rows", "randomizer.guarantee", "privacy.records_per_unit"),
)
def channel_check(evidence: Evidence) -> Check:
    """The exact ε of the codes, in rational arithmetic, against the claim for the labels.

    Neighbours differ in all labels of an event, and a code holds one output of each channel, drawn
    independently: the worst ratio of the whole code is the product of the channels' worst ratios.
    Which stratum an event is in depends on no label, so that the worst one's counts.
    """
    manifest = evidence.manifest
    group = manifest.privacy.records_per_unit
    strata = [
        [
            worst_ratio(weights_of(stated), epsilon_of(stated.guarantee) / group)
            for stated in stratum
        ]
        for stratum in manifest.by_stratum
    ]
    claimed = float(sum(epsilon_of(stated.guarantee) for stated in worst_stratum(manifest)))
    channels = max(strata, key=lambda stratum: sum(channel.epsilon for channel in stratum))
    holds = all(channel.holds for stratum in strata for channel in stratum)
    epsilon = sum(channel.epsilon for channel in channels) * group
    where = ", ".join(f"output {channel.output}" for channel in channels)
    ratios = [channel.ratio for channel in channels if channel.ratio is not None]
    if len(ratios) < len(channels):
        found = f"{where} excludes a label: no ε is enough."
    else:
        ratio = math.prod(ratios, start=Fraction(1))
        shown = f"{ratio.numerator}/{ratio.denominator}"
        if len(shown) > _LONGEST_RATIO:
            shown = f"{float(ratio):.15g}"
        found = f"The worst ratio is {shown} ({where}): exactly ε = {epsilon / group:.12g}" + (
            f", {group} times that for one unit." if group > 1 else "."
        )
    several = len(manifest.labels) > 1
    return Check(
        verdict=verdict_of(holds),
        claim=f"{'All labels of one event' if several else 'One label'}'s randomization spends at"
        f" most ε₂ = {claimed:.12g}.",
        tried="The largest ratio of two weights in one column was compared with"
        " Σ_{j<60} ε^j/j! in rational arithmetic"
        + (
            f", over all pairs of cells of each of {len(channels)} channels; events that differ in"
            " all of their labels have the product."
            if several
            else f", in each of {len(strata)} strata."
            if len(strata) > 1
            else "."
        ),
        found=found,
        claimed=claimed,
        bound=epsilon,
        shown=epsilon,
    )


@CHECKS.add(
    "arithmetic of the ε split",
    "Do the parts of ε add up to what was asked for?",
    decides=(
        *("sums.guarantee", "prior.guarantee", "randomizer.guarantee"),
        *("privacy.requested_epsilon", "privacy.total"),
    ),
)
def arithmetic_check(evidence: Evidence) -> Check:
    manifest, drift = evidence.manifest, evidence.manifest.drift
    parts: list[tuple[str, PureClaim]] = []
    if drift is not None and drift.test is not None and drift.test.session is None:
        parts.append(("test for drift", drift.test.guarantee))
    if drift is None or drift.drifted:
        parts += [
            (f"{name}{of_labels(manifest, prior.labels)}", prior.guarantee)
            for name, counted in (("prior", manifest.priors), ("strata", manifest.tables))
            for prior in counted
            if prior.noisy
        ]
    parts += [
        (f"labels{of_labels(manifest, stated.labels)}", stated.guarantee)
        for stated in worst_stratum(manifest)
    ]
    if manifest.sums is not None:
        parts.append(("sums", manifest.sums.guarantee))
    total = epsilon_of(manifest.privacy.total)
    requested = decimal_value(manifest.privacy.requested_epsilon)
    guarantees = [*(part for _, part in parts), manifest.privacy.total]
    sides = {(part.get("adjacency"), part.get("unit")) for part in guarantees}
    added = sum((epsilon_of(part) for _, part in parts), Fraction(0))
    # a channel's ε is rounded up to a float: one unit in its last place may be on top
    within = total <= requested + len(manifest.randomizers) * Fraction(math.ulp(float(requested)))
    terms = " + ".join(f"{float(epsilon_of(part)):.12g} ({name})" for name, part in parts)
    return Check(
        verdict=verdict_of(added == total and within and len(sides) == 1),
        claim=f"The release spends ε = {float(total):.12g}, no more than the"
        f" {float(requested):g} asked for.",
        tried="The parts were added as fractions, and their adjacency and unit compared.",
        found=f"{terms} = {float(added):.12g}; the parts are about"
        f" {'the same' if len(sides) == 1 else 'different'} neighbours.",
        claimed=float(total),
        bound=float(added),
    )


@CHECKS.add(
    "histogram is decoded from the codes",
    "Does the histogram say anything that the codes do not?",
    "The histogram is a function of the codes, so that it spends nothing.",
    fits=lambda evidence: bool(evidence.decoded),
    decides=("prior.noisy_counts", "prior.noise", "prior.scale", "prior.guarantee"),
)
@each(lambda evidence: evidence.decoded)
def decoded_check(evidence: Evidence, stated: PriorSection) -> Check:
    manifest, codes = evidence.manifest, evidence.codes
    found, wrong = "No such codes.", True
    try:
        books, sent = manifest.codebooks, [drawn.labels for drawn in manifest.by_stratum[0]]
        if codes.size and int(codes.max()) < books.outputs:
            column = sent.index(stated.labels)
            channel = manifest.channels[column]
            counted = books.counts_by_channel(np.bincount(codes, minlength=books.outputs))
            counts = np.sum(counted[column :: len(sent)], axis=0)
            decoded = decoded_prior(channel, counts).noisy_counts.tolist()
            wrong = decoded != stated.noisy_counts
            found = f"{'Not all' if wrong else 'All'} {len(decoded)} cells agree."
    except (PrivacyError, ReleaseError, ConfigError, ValueError) as error:
        found = f"{error}."
    return Check(
        verdict=verdict_of(not wrong),
        tried="The codes were counted, and the counts decoded by the channel's integers.",
        found=found,
        claimed=0.0,
        bound=math.inf if wrong else 0.0,
    )


@CHECKS.add(
    "prior noise scale",
    "Is the noise on the histogram wide enough for its part of ε?",
    fits=lambda evidence: bool(evidence.noisy),
    decides=("prior.scale", "prior.guarantee"),
)
@each(lambda evidence: evidence.noisy)
def prior_scale_check(evidence: Evidence, stated: PriorSection) -> Check:
    """The stated noise scale pays for ε₁: scale times ε₁ is the sensitivity 2 (per unit)."""
    group = evidence.manifest.privacy.records_per_unit
    scale, prior = parse_rational(stated.scale), epsilon_of(stated.guarantee)
    spent = 2 * group / scale if scale else None
    return Check(
        verdict=verdict_of(spent is not None and spent <= prior),
        claim=f"The histogram spends ε₁ = {float(prior):.12g}.",
        tried="One unit's labels move the counts by at most"
        f" {2 * group} in L1; that was divided by the stated scale of the discrete Laplace noise.",
        found="No noise at all."
        if spent is None
        else f"{2 * group} / {float(scale):.6g} = {float(spent):.12g}.",
        claimed=float(prior),
        bound=math.inf if spent is None else float(spent),
    )


@CHECKS.add(
    "split of ε",
    "Could the size of the parts say anything about labels?",
    "What the histogram gets of ε depends on ε, grid, rows and one setting alone.",
    fits=lambda evidence: evidence.manifest.prior_paid,
    decides=("prior.scale", "prior.guarantee"),
)
def split_check(evidence: Evidence) -> Check:
    """ε₁ is what the rule gives for ε, grid and rows: its digits have no room for anything else.

    The rule caps ε₁ at a share of ε: by itself, or at any share of few digits, as a setting says.
    """
    manifest, verdict = evidence.manifest, Verdict.PASS
    spent = shown([prior.guarantee for prior in evidence.noisy])
    try:
        share = prior_share(manifest)
        found = f"The rule gives {spent}" + (f" for a share of at most {share}." if share else ".")
    except OtherSplitError:
        found = f"It does not give {spent}, nor for any share of {MOST_DIGITS} digits."
        verdict = Verdict.FAIL
        if manifest.software != software():
            verdict = Verdict.NOT_CHECKABLE
            found += f" {manifest.software!r:.80} made the release: audit it with that version."
    return Check(
        verdict=verdict,
        tried="ε₁ was computed again: √(points/rows), at most a share of ε that points, rows and"
        " ε say, or a setting.",
        found=found,
    )


@CHECKS.add(
    "prior noise on empty cells",
    "Did cells without a label get noise, too?",
    "Every cell of the histogram got noise, also where no label lies.",
    fits=lambda evidence: bool(evidence.noisy),
)
@each(lambda evidence: evidence.noisy)
def prior_support_check(evidence: Evidence, stated: PriorSection) -> Check:
    """Too many cells of exactly zero: noise on the occupied cells alone.

    Whatever a cell's true count is, a discrete Laplace variable of scale s makes it exactly 0 with
    probability at most (1 - q)/(1 + q), q = e^(-1/s); so the number of zero cells is dominated by
    a binomial one.
    """
    scale, counts = float(parse_rational(stated.scale)), stated.noisy_counts
    zeros = sum(count == 0 for count in counts)
    steep = 1 / max(scale, 1e-3)
    q = math.exp(-steep)
    # P(at least this many), from ln z!: scipy.special, which has it too, takes long to import
    factorials = np.append(0.0, np.cumsum(np.log(np.arange(1.0, len(counts) + 1))))
    zero, other = math.log1p(-q), math.log(2) - steep
    logarithms = factorials[-1] - factorials - factorials[::-1] - len(counts) * math.log1p(q)
    number = np.arange(len(counts) + 1)
    masses = np.exp(logarithms + number * zero + number[::-1] * other)
    tails = np.minimum(np.cumsum(masses[::-1])[::-1], 1.0)
    p, least = float(tails[zeros]), np.flatnonzero(tails < GATE)
    return Check(
        verdict=verdict_of(p >= GATE),
        tried=f"Of {len(counts)} noisy counts those that are exactly 0 were counted.",
        found=f"{zeros} are, {sum(count < 0 for count in counts)} are negative; under the stated"
        f" noise that many zeros have probability at most {p:.3g}.",
        confidence=1 - GATE,
        power=(Power("empty cells without noise", float(least[0]) if least.size else math.inf),),
    )


@CHECKS.add(
    "options",
    "What was the randomizer told, and is there room to hide labels in it?",
    "ε and the randomizer's options are settings, with no room for anything else.",
    decides=("randomizer.details.options", "privacy.requested_epsilon"),
)
def options_check(evidence: Evidence) -> Check:
    """What somebody chose cannot be rebuilt: it is short, and shown."""
    manifest = evidence.manifest
    found, holds = f"Shown: {options_in_words(manifest) or 'none'}.", True
    try:
        check_digits({"ε": manifest.privacy.requested_epsilon})
        check_digits({f"weight of {label.name}": label.weight for label in manifest.labels})
        for stated in manifest.randomizers:
            check_digits(stated.options)
    except ConfigError as error:
        found, holds = f"{error}.", False
    return Check(
        verdict=verdict_of(holds),
        tried=f"Numbers of more than {MOST_DIGITS} significant digits were looked for. Whether they"
        " were chosen without looking at labels, no number can show.",
        found=found,
    )
