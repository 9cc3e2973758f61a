"""Score planted canaries: what a release says about labels that only the auditor knows.

Nothing but the messages of a running party is needed. Its code is a black box; its manifest's
claims are what is tested.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
from scipy.stats import norm

from common.arrays import Floats, Integers
from common.errors import ReleaseError
from common.exact.rational import parse_rational
from common.randomizers.cells import row_products
from common.release.event_keys import hash_keys, read_secret
from common.release.manifest import Manifest, manifest_digest
from common.release.rows import keys_column
from common.release.sections import PriorSection
from labelveil.audit.attacks import laws
from labelveil.audit.attacks.implementation import permutation_check
from labelveil.audit.attacks.one_run import (
    PILOT,
    Guesser,
    OneRun,
    Secrets,
    draw_secrets,
    learn_guesser,
)
from labelveil.audit.attacks.one_run import score as score_guesses
from labelveil.audit.attacks.rows_apart import (
    GROUPS,
    Association,
    Rows,
    agreement,
    influence,
    worst,
)
from labelveil.audit.certificate import manifest_checks as claims
from labelveil.audit.certificate.run import Evidence, certificate
from labelveil.audit.planted.plant import Planted
from labelveil.audit.power import FOUND, bernstein_threshold
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

STEPS = 11  # how many are named on the way

BLOCKS = 16  # of the events in the order of either side, looked at by themselves


@dataclass(frozen=True)
class Returned:
    """Canaries that came back, in the order of the release's rows."""

    planted: Planted
    manifest: Manifest
    labels: Floats
    """(k, m) labels of each secret as the rules make them, in the manifest's order: several rows by
    the planned rule, what the release counts missing ones as, and, where there are users, the same
    for events above their limit."""
    secrets: Secrets
    codes: Integers  # (m,) of the canaries that came back
    places: Integers  # (m,) of each among those that were planted
    missing: int  # canaries that did not
    others: int  # events that are no canaries

    @cached_property
    def rows(self) -> Rows:
        """Their codes beside the stated laws."""
        return Rows.by_laws(self.codes, self.secrets, self.laws)

    @cached_property
    def laws(self) -> Floats:
        """(k, d) stated probabilities of each secret's codes."""
        return self.manifest.codebook.laws(self.labels)

    @cached_property
    def orders(self) -> dict[str, Integers]:
        """The rows in every order that a party may know."""
        keys = self.planted.keys.to_numpy()[self.places].astype(str)
        ends = np.array([key[::-1] for key in keys])
        return {
            "of the release": np.arange(self.codes.size),
            "of the population": np.argsort(self.places, kind="stable"),
            "of the keys": np.argsort(keys, kind="stable"),
            "of the keys' ends": np.argsort(ends, kind="stable"),
        }

    @cached_property
    def groups(self) -> dict[str, Integers]:
        """(m,) which part of the events each row is in, by all that is known of them."""
        parts: dict[str, Integers] = {}
        for name, order in self.orders.items():
            parts[f"block in the order {name}"] = np.empty_like(order)
            parts[f"block in the order {name}"][order] = (
                BLOCKS * np.arange(order.size) // order.size
            )
        return parts

    @cached_property
    def words(self) -> tuple[Floats, Floats]:
        """(m,) the middle of the words that each code stands for, less 1/2, and its variance."""
        middles = self.laws.cumsum(axis=1) - self.laws / 2 - 0.5
        spread = (self.laws * middles**2).sum(axis=1)
        return middles[self.secrets, self.codes], spread[self.secrets]


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

    ``before`` are other releases of the same canaries, to which its noise is compared.

    The claim for one label is ``epsilon``, the manifest's by default; ``public_key`` is the labels
    party's, for its signature.

    ``ReleaseError`` if none of the canaries is in the release.
    """
    manifest = evidence.manifest
    subject = f"release {manifest.data_set} · {manifest.epoch}"
    audit = Audit("canaries", subject, claims.claimed_epsilon(manifest), progress=progress)
    audit.facts = {
        "canaries": f"{planted.secrets.size:,}",
        "labels of a canary": ", ".join(map(planted.in_words, range(len(planted.labels)))),
        **claims.facts(manifest, manifest_digest(evidence.data)),
    }
    returned = match(planted, evidence, secret)
    if epsilon is None:
        epsilon = manifest.labels_guarantee.epsilon / manifest.privacy.records_per_unit
    audit.run(lambda: returned_check(returned), "match events")
    audit.run(
        lambda: permutation_check(planted.secrets[returned.places].astype(np.float64)), "order"
    )
    audit.run(lambda: distinguish_check(returned, epsilon), "distinguish")
    audit.run(lambda: channel_law_check(returned), "stated channel")
    audit.run(lambda: bounds_check(returned), "bounds")
    audit.run(lambda: groups_check(returned), "groups of keys")
    audit.run(lambda: other_rows_check(returned), "other rows")
    audit.run(lambda: noise_check(returned), "noise of other rows")
    earlier = [match(planted, release, secret) for release in before]
    audit.run(lambda: epochs_check(returned, earlier), "noise of two epochs")
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
    canaries = canaries.with_row_index("place")
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
    labels = planted.labels[:, [columns.index(name) for name in named]]
    missing = np.array([label.missing for label in manifest.labels])
    if planted.planting.duplicates == "missing":
        labels[-2] = missing
    labels[-1] = missing
    places, secrets = (joined[name].to_numpy().astype(np.int64) for name in ("place", "secret"))
    if limit := planted.planting.users:  # the first of each user, in the order of the rows
        order = np.argsort(users := planted.users[places], kind="stable")
        first = np.searchsorted(users[order], users[order])
        secrets[order[np.arange(order.size) - first >= limit]] = len(labels)
        labels = np.vstack([labels, missing])
    return Returned(
        planted,
        manifest,
        labels,
        secrets,
        joined["code"].to_numpy().astype(np.int64),
        places,
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
    planted = len(returned.planted.planting.labels)
    every = combinations(range(len(returned.planted.labels)), 2)
    tried: list[list[Worlds]] = [[((low,), (high,)) for low, high in every]]
    if returned.labels.shape[1] == 1:  # each end together with what lies beyond it
        tried.append([((0, planted), (planted - 1, planted + 1))])
    results = [distinguish(returned.codes, returned.secrets, p, len(tried)) for p in tried]
    pair, result = max(results, key=lambda each: each[1].bound)
    finest = min(each[1].excess(claimed) for each in results)
    low, high = (" or ".join(map(returned.planted.in_words, world)) for world in pair)
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
        power=(
            Power("excess of ε at two of the labels", results[0][1].excess(claimed)),
            Power("the same at both ends of the domain and beyond", finest),
        ),
        not_looked_at="What the histogram and other rows say, which have checks of their own, and"
        " labels between those planted.",
    )


Worlds = tuple[tuple[int, ...], tuple[int, ...]]


def distinguish(
    codes: Integers, secrets: Secrets, pairs: Sequence[Worlds], tests: int = 1
) -> tuple[Worlds, OneRun]:
    """Choose two worlds and a guesser on a pilot share, and score it on the other records.

    A world is a set of secrets, which are as many in both: if each two are ε-close, so are these.
    It is one of several tests, which share the level.
    """
    start = max(1, round(PILOT * secrets.size))
    guessers: dict[Worlds, Guesser] = {}
    for low, high in pairs:
        pilot = np.flatnonzero(np.isin(secrets[:start], low + high))
        if pilot.size:
            bits = np.isin(secrets[pilot], high).astype(np.int64)
            counted = round(pilot.size * (1 - PILOT) / PILOT)
            guessers[low, high] = learn_guesser(codes[pilot], bits, counted)
    pair = max(guessers, key=lambda pair: guessers[pair].expected)
    rest = start + np.flatnonzero(np.isin(secrets[start:], pair[0] + pair[1]))
    bits = np.isin(secrets[rest], pair[1]).astype(np.int64)
    return pair, score_guesses(guessers[pair](codes[rest]), bits, tests)


def channel_law_check(returned: Returned) -> Check:
    stated = returned.laws
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
        found=f"The farthest is output {output} of {returned.planted.in_words(secret)}:"
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


def bounds_check(returned: Returned) -> Check:
    """Labels beyond the bounds were planted: bounds that were taken from data would be others."""
    stated = {label.name: (label.grid[0], label.grid[-1]) for label in returned.manifest.labels}
    planned = {name: (low, high) for name, low, high in returned.planted.planting.columns}
    other = [f"{name}: {stated[name]}" for name in planned if stated[name] != planned[name]]
    return Check(
        name="bounds are those agreed on",
        question="Were the bounds taken from the data?",
        verdict=verdict_of(not other),
        claim="The labels' bounds are those that were agreed on, whatever the data holds.",
        tried="Canaries have labels beyond the bounds; the manifest's were compared with those of"
        " the planting.",
        found=f"Others are stated: {'; '.join(other)}." if other else "They are the same.",
    )


def groups_check(returned: Returned) -> Check:
    """Codes in each part of the events, beside what is stated for their labels."""
    rows, worst_of = returned.rows, []
    likeliest = rows.laws.argmax(axis=1)[rows.kinds] == rows.cells
    surprise = likeliest - rows.laws.max(axis=1)[rows.kinds]
    scores = [rows.centred(weights) for weights in np.eye(rows.laws.shape[1])] + [surprise]
    most = rows.laws.max(axis=1)
    variances = [rows.laws[:, c] * (1 - rows.laws[:, c]) for c in range(rows.laws.shape[1])]
    tests = len(returned.groups) * BLOCKS * len(scores)
    for name, part in returned.groups.items():
        for score, variance in zip(scores, [*variances, most * (1 - most)], strict=True):
            sums = np.abs(np.bincount(part, score, BLOCKS))
            each = np.asarray(np.bincount(part, variance[rows.kinds], BLOCKS), dtype=np.float64)
            thresholds = bernstein_threshold(each, 1.0, GATE / (2 * tests))
            at = int((sums / thresholds).argmax())
            needed = thresholds[at] + float(norm.isf(1 - FOUND)) * math.sqrt(each[at])
            whole = float((1 - most[rows.kinds[part == at]]).sum())
            share = needed / whole if needed <= whole else math.inf
            worst_of.append(
                Association(
                    float(sums[at]), float(thresholds[at]), f"{name}, part {at}", BLOCKS, share
                )
            )
    largest = worst(*worst_of)
    return replace(largest, least_share=worst_of[-1].least_share).check(
        "groups of keys",
        f"share of one of {BLOCKS} parts of the events that sends its labels' likeliest codes",
        question="Are some events' labels randomized less, by their keys or places?",
        claim="Every event's label is randomized by the stated channel.",
        tried=f"In {len(returned.groups)} orders (of release, population, keys and their ends) each"
        f" of {BLOCKS} blocks of rows was compared with what is stated for its labels.",
        bound=math.inf if largest.exceeds else 0.0,
        not_looked_at="Other groups of keys, of which there are as many as one likes.",
    )


def other_rows_check(returned: Returned) -> Check:
    kinds, orders = len(returned.labels), ("of the release", "of the population")
    high = np.where(returned.labels[:, 0] >= np.median(returned.labels[:, 0]), 1.0, -1.0)
    signs = np.stack([high, np.where(draw_secrets(kinds) == 1, 1.0, -1.0)])
    groups, gaps = draw_secrets(kinds, GROUPS), [*((gap,) for gap in range(1, 9)), (1, 2)]
    found = []
    for name in orders:
        rows = returned.rows.reordered(returned.orders[name])
        one = influence(rows, signs, groups, gaps, GATE / len(orders))
        found.append(replace(one, where=f"{one.where}, in the order {name}"))
    largest = worst(*found)
    return largest.check(
        "labels of other rows",
        "share of rows that show another row's label",
        question="Does an output say anything about another row's label?",
        claim="A row's output depends on its own label alone.",
        tried=f"{largest.sums:,} comparisons of an output with another canary's label, or with"
        " whether others agree, at every distance, in the orders of release and population.",
        bound=math.inf if largest.exceeds else 0.0,
        not_looked_at="Dependence of an output on several other rows together.",
    )


def noise_check(returned: Returned) -> Check:
    """Codes of all pairs of rows, given their labels, by how far they are apart."""
    found = []
    for name, order in returned.orders.items():
        one = agreement(returned.rows.reordered(order), GATE / len(returned.orders))
        found.append(replace(one, where=f"{one.where} in the order {name}"))
    largest = worst(*found)
    return replace(largest, least_share=found[0].least_share).check(
        "noise of other rows",
        "share of rows that repeat another's word at one lag",
        question="Does any row repeat the noise of another?",
        claim="Every row has noise of its own.",
        tried=f"Codes were compared given their labels at {largest.sums:,} lags, in the orders of"
        " release, population, keys and their ends.",
        bound=math.inf if largest.exceeds else 0.0,
    )


def epochs_check(returned: Returned, before: Sequence[Returned]) -> Check:
    """The same events' noise in other releases: the words that codes stand for, as far as is known.

    A code z of a label y comes of a word between P(Z < z) and P(Z <= z), if words are turned into
    codes in their order: the middle of that, less 1/2, has a mean of exactly 0.
    """
    name, claim = "noise of two epochs", "Every release has noise of its own."
    question = "Does an event have the same noise in two releases?"
    if not before:
        return Check(
            name,
            Verdict.NOT_CHECKABLE,
            claim,
            "One release was given.",
            "Have the partner release the canaries once more, as another epoch, and add --before.",
            question=question,
        )
    found = []
    level = GATE / (2 * len(before))
    for other in before:
        both = np.intersect1d(
            returned.places, other.places, assume_unique=True, return_indices=True
        )[1:]
        (words, spread), (others, _) = (
            [column[rows] for column in release.words]
            for release, rows in zip((returned, other), both, strict=True)
        )
        variance = float(spread @ others**2)
        threshold = float(bernstein_threshold(variance, 0.25, level))
        needed = threshold + float(norm.isf(1 - FOUND)) * math.sqrt(variance)
        whole = words.size * math.sqrt(float((words**2).mean() * (others**2).mean()))
        share = needed / whole if needed <= whole else math.inf
        size = abs(float(words @ others))
        where = f"epoch {other.manifest.epoch}, {words.size:,} events"
        found.append(Association(size, threshold, where, 1, share))
    largest = worst(*found)
    return largest.check(
        name,
        "share of events that have the same noise again",
        question=question,
        claim=claim,
        tried=f"{len(before)} other releases of the same canaries were compared with this one.",
        bound=math.inf if largest.exceeds else 0.0,
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
    reason = ""
    if returned.others or returned.missing:
        reason = "Other events are in the release, whose labels are not known."
    elif prior.decoded:
        reason = "The histogram is decoded from the codes: it has no noise of its own."
    elif not returned.manifest.prior_paid:
        reason = "The prior is that of another release."
    if reason:
        return Check(name, Verdict.NOT_CHECKABLE, claim, tried, reason)
    # labels between points are rounded at random: the cells that they may fall in are left out
    cells = np.ones((len(returned.labels), 1))
    for label, grid in zip(group.labels, group.cells.grids, strict=True):
        points, shares = grid.neighbours(returned.labels[:, label])
        each = np.zeros((len(returned.labels), len(grid)))
        np.put_along_axis(each, points, shares, axis=1)
        cells = row_products(cells, each)
    certain = ~((cells > 1e-9) & (cells < 1 - 1e-9)).any(axis=0)
    true = np.bincount(returned.secrets, minlength=len(cells)) @ np.rint(cells)
    size, scale = int(certain.sum()), float(parse_rational(prior.scale))
    if not size:
        return Check(
            name, Verdict.NOT_CHECKABLE, claim, tried, "Every cell has a canary beside its points."
        )
    noise = (np.asarray(prior.noisy_counts, dtype=np.int64) - true.astype(np.int64))[certain]
    tails = laws.noise_tails(noise[None], scale)
    narrow = laws.detectable_narrowness(size, scale, GATE / len(tails))
    return Check(
        name=name,
        verdict=verdict_of(min(tails.values()) >= GATE / len(tails)),
        claim=claim,
        tried=tried
        + f" {size} cells, all whose count is known, were compared with a table of the discrete"
        f" Laplace law of scale {scale:.4g}: sum, shape and parity.",
        found=f"Mean |noise| {float(np.abs(noise).mean()):.4g}; at most so probable:"
        f" {', '.join(f'{name} {tail:.3g}' for name, tail in tails.items())}.",
        confidence=1 - GATE,
        details=tails,
        power=(Power("share by which noise is too narrow", narrow),),
        not_looked_at="Whether the noise is independent of the labels, and of other releases.",
    )
