"""Checks of a manifest's own numbers: integers, fractions and sums that anybody can redo.

The reader that both parties use does this arithmetic, too. Here it is written a second time on
purpose: an auditor takes the weights and fractions as they are written, and trusts no other code.
"""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from labelveil.audit.attacks.exact_channel import WORDS, certify
from labelveil.audit.certificate import sums
from labelveil.audit.certificate.rebuild import prior_share
from labelveil.audit.verdict import GATE, Check, Power, Verdict, verdict_of, worst
from labelveil.common.arrays import Integers
from labelveil.common.errors import ConfigError, PrivacyError, ReleaseError
from labelveil.common.exact.channel import BETWEEN
from labelveil.common.exact.rational import parse_rational
from labelveil.common.guarantees import PureDP
from labelveil.common.randomizers import decoded_prior
from labelveil.common.release.claims import PureClaim
from labelveil.common.release.facts import MOST_DIGITS, check_digits
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.sections import PriorSection, StatedRandomizer
from labelveil.common.version import software

SectionT = TypeVar("SectionT", PriorSection, StatedRandomizer)

_LONGEST_RATIO = 80
DECODED = "histogram is decoded from the codes"


def claimed_epsilon(manifest: Manifest) -> float | None:
    """ε of the whole release as claimed, if that is a number."""
    try:
        total = manifest.total_guarantee
    except PrivacyError:
        return None
    return total.epsilon if isinstance(total, PureDP) else None


def facts(manifest: Manifest, digest: str) -> dict[str, str]:
    """What the manifest says about itself, for the report's table."""
    return {
        "data set": manifest.data_set,
        "epoch": manifest.epoch,
        "identity (SHA-256 of the manifest)": digest,
        "software": manifest.software,
        "events": f"{manifest.population.rows:,}",
        "label": "; ".join(
            f"{label.name}, {len(label.grid)} grid points from {label.grid[0]:g} to"
            f" {label.grid[-1]:g}"
            for label in manifest.labels
        ),
        **(_sent_facts(manifest) if manifest.sums is None else sums.facts(manifest, manifest.sums)),
        "a missing label counts as": "; ".join(f"{label.missing!r}" for label in manifest.labels),
        "ε requested": f"{manifest.privacy.requested_epsilon:g}",
        "protects": f"one {manifest.privacy.total['unit']}, at most"
        f" {manifest.privacy.records_per_unit} labels",
    }


def _sent_facts(manifest: Manifest) -> dict[str, str]:
    return {
        "randomizer": "; ".join(
            f"{stated.name}, {len(stated.channel.get('outputs', []))} outputs"
            + _of(manifest, stated.labels)
            for stated in manifest.randomizers
        ),
        "options": _options(manifest),
        **_prior_facts(manifest),
        "ε for the labels": _shown([stated.guarantee for stated in _worst_stratum(manifest)]),
    }


def _prior_facts(manifest: Manifest) -> dict[str, str]:
    drift = manifest.drift
    if any(prior.public for prior in manifest.priors):
        return {"ε for the histogram": "0: a public prior takes its place"}
    if manifest.strata:
        counted = [prior.guarantee for prior in (*manifest.priors, *manifest.tables)]
        expected = "0: what was asked says what is expected of each stratum"
        return {
            "strata": f"{len(manifest.strata)}, each with channels of its own: "
            + ", ".join(stratum.name for stratum in manifest.strata),
            "ε for the histogram": expected if manifest.asked else _shown(counted),
        }
    if all(prior.decoded for prior in manifest.priors):
        return {"ε for the histogram": "0: decoded from the codes"}
    if drift is None:
        return {"ε for the histogram": _shown([prior.guarantee for prior in manifest.priors])}
    origin = f"{drift.in_force.epoch}, {drift.in_force.manifest}"
    paid = _shown([manifest.prior.guarantee]) if drift.drifted else f"0: that of epoch {origin}"
    if drift.test is None:
        return {"ε for the histogram": paid, "test for drift": "none: the session's hits are spent"}
    charged = "" if drift.test.session is None else ", charged to a session over all epochs"
    return {
        "ε for the histogram": paid,
        "ε of the test for drift": _shown([drift.test.guarantee]) + charged,
        "tested against": origin,
    }


def weights_of(randomizer: StatedRandomizer) -> list[list[int]]:
    """The distinct rows of integer weights that some label uses, as the manifest writes them:
    base64 of little-endian words, of which a single one stands for 2**64.

    Those of labels between two such are not looked at: their weights lie between these two's.
    """
    rows = []
    try:
        channel = randomizer.channel
        for used in sorted(set(channel["row_of"]) - {BETWEEN}):
            data = b64decode(channel["rows"][used], validate=True)
            words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
            rows.append(words if len(words) > 1 else [word or WORDS for word in words])
    except (IndexError, ValueError) as error:
        raise ReleaseError(f"the manifest's channel cannot be read: {error!r}") from error
    if {len(row) for row in rows} != {len(channel["outputs"])}:
        raise ReleaseError("the manifest's channel has rows of another length than its outputs")
    return rows


def sums_check(manifest: Manifest, randomizer: StatedRandomizer) -> Check:
    rows = weights_of(randomizer)
    wrong = sum(sum(row) != WORDS or min(row) < 0 for row in rows)
    outputs = len(randomizer.channel.get("outputs", []))
    cells = manifest.group(randomizer.labels).cells
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


def channel_check(manifest: Manifest) -> Check:
    """The exact ε of the codes, in rational arithmetic, against the claim for the labels.

    Neighbours differ in all labels of an event, and a code holds one output of each channel, drawn
    independently: the worst ratio of the whole code is the product of the channels' worst ratios.
    Which stratum an event is in depends on no label, so that the worst one's counts.
    """
    group = manifest.privacy.records_per_unit
    strata = [
        [certify(weights_of(stated), _exact(stated.guarantee) / group) for stated in stratum]
        for stratum in manifest.by_stratum
    ]
    claimed = float(sum(_exact(stated.guarantee) for stated in _worst_stratum(manifest)))
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


def arithmetic_check(manifest: Manifest) -> Check:
    drift = manifest.drift
    parts: list[tuple[str, PureClaim]] = []
    if drift is not None and drift.test is not None and drift.test.session is None:
        parts.append(("test for drift", drift.test.guarantee))
    if drift is None or drift.drifted:
        parts += [
            (f"{name}{_of(manifest, prior.labels)}", prior.guarantee)
            for name, counted in (("prior", manifest.priors), ("strata", manifest.tables))
            for prior in counted
            if prior.noisy
        ]
    parts += [
        (f"labels{_of(manifest, stated.labels)}", stated.guarantee)
        for stated in _worst_stratum(manifest)
    ]
    if manifest.sums is not None:
        parts.append(("sums", manifest.sums.guarantee))
    total = _exact(manifest.privacy.total)
    requested = Fraction(repr(manifest.privacy.requested_epsilon))
    guarantees = [*(part for _, part in parts), manifest.privacy.total]
    sides = {(part.get("adjacency"), part.get("unit")) for part in guarantees}
    added = sum((_exact(part) for _, part in parts), Fraction(0))
    # a channel's ε is rounded up to a float: one unit in its last place may be on top
    within = total <= requested + len(manifest.randomizers) * Fraction(math.ulp(float(requested)))
    terms = " + ".join(f"{float(_exact(part)):.12g} ({name})" for name, part in parts)
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


def prior_scale_check(manifest: Manifest, stated: PriorSection) -> Check:
    """The stated noise scale pays for ε₁: scale times ε₁ is the sensitivity 2 (per unit)."""
    group = manifest.privacy.records_per_unit
    scale, prior = parse_rational(stated.scale), _exact(stated.guarantee)
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


def split_check(manifest: Manifest) -> Check:
    """ε₁ is what the rule gives for ε, grid and rows: its digits have no room for anything else.

    The rule caps ε₁ at a share of ε that is a setting; any share of few digits will do.
    """
    share = prior_share(manifest)
    verdict = verdict_of(share is not None)
    counted = (*manifest.priors, *manifest.tables)
    spent = _shown([prior.guarantee for prior in counted if prior.noisy])
    found = f"The rule gives {spent} for a share of at most {share}."
    if share is None:
        found = f"It does not give {spent} for any share of {MOST_DIGITS} digits."
        if manifest.software != software():
            verdict = Verdict.NOT_CHECKABLE
            found += f" {manifest.software!r:.80} made the release: audit it with that version."
    return Check(
        verdict=verdict,
        claim="What the histogram gets of ε depends on ε, grid, rows and one setting alone.",
        tried="ε₁ was computed again: √(points/rows), at most a share of ε.",
        found=found,
    )


def prior_support_check(manifest: Manifest, stated: PriorSection) -> Check:
    """Too many cells of exactly zero: noise on the occupied cells alone.

    Whatever a cell's true count is, a discrete Laplace variable of scale s makes it exactly 0 with
    probability at most (1 - q)/(1 + q), q = e^(-1/s); so the number of zero cells is dominated by
    a binomial one.
    """
    scale, counts = float(parse_rational(stated.scale)), stated.noisy_counts
    zeros = sum(count == 0 for count in counts)
    steep = 1 / max(scale, 1e-3)
    q = math.exp(-steep)
    # P(at least so many), from ln z!: scipy.special, which has it too, takes long to import
    factorials = np.append(0.0, np.cumsum(np.log(np.arange(1.0, len(counts) + 1))))
    zero, other = math.log1p(-q), math.log(2) - steep
    logarithms = factorials[-1] - factorials - factorials[::-1] - len(counts) * math.log1p(q)
    number = np.arange(len(counts) + 1)
    masses = np.exp(logarithms + number * zero + number[::-1] * other)
    tails = np.minimum(np.cumsum(masses[::-1])[::-1], 1.0)
    p, least = float(tails[zeros]), np.flatnonzero(tails < GATE)
    return Check(
        verdict=verdict_of(p >= GATE),
        claim="Every cell of the histogram got noise, also where no label lies.",
        tried=f"Of {len(counts)} noisy counts those that are exactly 0 were counted.",
        found=f"{zeros} are, {sum(count < 0 for count in counts)} are negative; under the stated"
        f" noise so many zeros have probability at most {p:.3g}.",
        confidence=1 - GATE,
        power=(Power("empty cells without noise", float(least[0]) if least.size else math.inf),),
    )


def decoded_check(manifest: Manifest, stated: PriorSection, codes: Integers) -> Check:
    found, wrong = "No such codes.", True
    try:
        books, sent = manifest.codebooks, [drawn.labels for drawn in manifest.by_stratum[0]]
        if codes.size and int(codes.max()) < books.outputs:
            column, channel = (
                sent.index(stated.labels),
                manifest.channels[sent.index(stated.labels)],
            )
            counted = books.of_channels(np.bincount(codes, minlength=books.outputs))
            counts = np.sum(counted[column :: len(sent)], axis=0)
            decoded = decoded_prior(channel, counts).noisy_counts.tolist()
            wrong = decoded != stated.noisy_counts
            found = f"{'Not all' if wrong else 'All'} {len(decoded)} cells agree."
    except (PrivacyError, ReleaseError, ConfigError, ValueError) as error:
        found = f"{error}."
    return Check(
        verdict=verdict_of(not wrong),
        claim="The histogram is a function of the codes, so that it spends nothing.",
        tried="The codes were counted, and the counts decoded by the channel's integers.",
        found=found,
        claimed=0.0,
        bound=math.inf if wrong else 0.0,
    )


def options_check(manifest: Manifest) -> Check:
    """What somebody chose cannot be rebuilt: it is short, and shown."""
    found, holds = f"Shown: {_options(manifest) or 'none'}.", True
    try:
        check_digits({"ε": manifest.privacy.requested_epsilon})
        check_digits({f"weight of {label.name}": label.weight for label in manifest.labels})
        for stated in manifest.randomizers:
            check_digits(stated.options)
    except ConfigError as error:
        found, holds = f"{error}.", False
    return Check(
        verdict=verdict_of(holds),
        claim="ε and the randomizer's options are settings, with no room for anything else.",
        tried=f"Numbers of more than {MOST_DIGITS} significant digits were looked for. Whether they"
        " were chosen without looking at labels, no number can show.",
        found=found,
    )


def plots(manifest: Manifest) -> dict[str, Any]:
    """Data for the report: the range of every output's probability over all labels."""
    if len(manifest.randomizers) != 1:
        return {}
    (randomizer,) = manifest.randomizers
    try:
        rows = weights_of(randomizer)
    except ReleaseError:
        return {}
    columns = list(zip(*rows, strict=True))
    return {
        "output_ranges": {
            "outputs": randomizer.channel["outputs"],
            "least": [min(column) / WORDS for column in columns],
            "most": [max(column) / WORDS for column in columns],
            "epsilon": float(_exact(randomizer.guarantee)) / manifest.privacy.records_per_unit,
        }
    }


def strata_check(manifest: Manifest, codes: Integers) -> Check:
    counts = manifest.codebooks.rows_of(codes)
    stated = [stratum.rows for stratum in manifest.strata]
    wrong = sum(count != rows for count, rows in zip(counts, stated, strict=True))
    return Check(
        verdict=verdict_of(not wrong),
        claim="Every event was sent by the channel of its stratum.",
        tried=f"The codes of the channels of all {len(stated)} strata were counted. Whether these"
        " are the strata that were meant, who knows the events can see: compare them with the"
        " question, or the column.",
        found=f"{wrong} of {len(stated)} counts are not what the manifest states.",
    )


def _options(manifest: Manifest) -> str:
    """What the randomizers were asked for, once where several were asked for the same."""
    return "; ".join(dict.fromkeys(stated.shown_options for stated in manifest.randomizers))


def _worst_stratum(manifest: Manifest) -> list[StatedRandomizer]:
    """The randomizers of the stratum that they claim to spend most in."""
    return max(
        manifest.by_stratum, key=lambda stratum: sum(_exact(each.guarantee) for each in stratum)
    )


def _exact(guarantee: PureClaim) -> Fraction:
    return parse_rational(guarantee["epsilon"])


def _shown(guarantees: Sequence[PureClaim]) -> str:
    return " + ".join(f"{float(_exact(guarantee)):.6g}" for guarantee in guarantees)


def _of(manifest: Manifest, names: Sequence[str]) -> str:
    """Say whose something is, where there are several labels."""
    return f" of {', '.join(names)}" if len(manifest.labels) > 1 else ""


def each(
    manifest: Manifest, sections: Sequence[SectionT], check: Callable[[Manifest, SectionT], Check]
) -> Check:
    """Run a check on some sections of a manifest; return the worst, with what all found."""
    made = [check(manifest, section) for section in sections]
    if len(made) == 1:
        return made[0]
    verdict = worst(result.verdict for result in made)
    found = (
        f"{', '.join(section.labels)}: {result.found}"
        for section, result in zip(sections, made, strict=True)
    )
    return replace(
        next(result for result in made if result.verdict is verdict),
        found=" ".join(dict.fromkeys(found)),
    )
