"""Codes of canaries that came back: what they say about labels that only the auditor knows.

Nothing but the messages of a running party is needed. Its code is a black box; the manifest's
claims are what is tested: whether labels are told apart, whatever the channel is, whether outputs
and histogram follow the stated laws, rows beside rows, and one release beside another.
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

from labelveil.audit.attacks import laws
from labelveil.audit.attacks.implementation import permutation_check
from labelveil.audit.attacks.one_run import (
    PILOT,
    Guesser,
    OneRun,
    bound_guesses,
    draw_secrets,
    learn_guesser,
    uniform,
)
from labelveil.audit.attacks.rows_apart import (
    GROUPS,
    Association,
    Rows,
    agreement,
    influence,
    worst,
)
from labelveil.audit.canaries.planting import ANOTHER_RELEASE, Planted
from labelveil.audit.certificate.evidence import Evidence, label_epsilon
from labelveil.audit.power import bernstein_threshold, detectable_epsilon, least_share
from labelveil.audit.verdict import GATE, Check, Power, Probes, Verdict, verdict_of
from labelveil.common.arrays import Floats, Integers
from labelveil.common.errors import ReleaseError
from labelveil.common.exact.rational import parse_rational
from labelveil.common.randomizers.cells import row_products
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.rows import keys_column

BLOCKS = 16  # of the events in the order of either side, looked at by themselves


@dataclass(frozen=True, eq=False)
class Returned:
    """Canaries that came back, in the order of the release's rows."""

    planted: Planted
    manifest: Manifest
    labels: Floats
    """(k, m) labels of each secret as the rules make them, in the manifest's order: several rows by
    the planned rule, what the release counts missing ones as, and, where there are users, the same
    for events above their limit."""
    secrets: Integers
    codes: Integers  # (m,) of the canaries that came back
    places: Integers  # (m,) of each among those that were planted
    missing: int  # canaries that did not
    others: int  # events that are no canaries
    epsilon: float  # the claim for one label
    before: tuple[Returned, ...] = ()  # the same canaries in other releases

    @cached_property
    def rows(self) -> Rows:
        """Their codes beside the stated laws."""
        return Rows.by_laws(self.codes, self.secrets, self.laws)

    @cached_property
    def laws(self) -> Floats:
        """(k, d) stated probabilities of each secret's codes."""
        return self.manifest.codebooks.only.laws(self.labels)

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
        return {
            f"block in the order {name}": BLOCKS * np.argsort(order) // order.size
            for name, order in self.orders.items()
        }

    @cached_property
    def words(self) -> tuple[Floats, Floats]:
        """(m,) the middle of the words that each code stands for, less 1/2, and its variance."""
        middles = self.laws.cumsum(axis=1) - self.laws / 2 - 0.5
        spread = (self.laws * middles**2).sum(axis=1)
        return middles[self.secrets, self.codes], spread[self.secrets]


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
    missing = {label.name: label.missing for label in manifest.labels}
    if missing.keys() != {*planted.names}:
        raise ReleaseError(
            f"labels {', '.join(planted.names)} were planted, and the release has"
            f" {', '.join(missing)}"
        )
    labels = planted.counted([missing[name] for name in planted.names])
    labels = labels[:, [planted.names.index(name) for name in missing]]
    places, secrets = (joined[name].to_numpy().astype(np.int64) for name in ("place", "secret"))
    if limit := planted.planting.users:  # the first of each user, in the order of the rows
        order = np.argsort(users := planted.users[places], kind="stable")
        first = np.searchsorted(users[order], users[order])
        secrets[order[np.arange(order.size) - first >= limit]] = len(labels)
        labels = np.vstack([labels, [*missing.values()]])
    return Returned(
        planted=planted,
        manifest=manifest,
        labels=labels,
        secrets=secrets,
        codes=joined["code"].to_numpy().astype(np.int64),
        places=places,
        missing=planted.secrets.size - joined.height,
        others=rows.height - joined.height,
        epsilon=label_epsilon(manifest),
    )


CODES = Probes[Returned]()
"""What codes of canaries say, in the order in which it is looked at."""


@CODES.add(
    "groups of keys",
    "Are some events' labels randomized less, by their keys or places?",
    "Every event's label is randomized by the stated channel.",
    not_looked_at="Other groups of keys, of which there are as many as one likes.",
)
def groups_check(returned: Returned) -> Check:
    rows, most, associations = returned.rows, returned.rows.laws.max(axis=1), []
    surprise = (rows.laws.argmax(axis=1)[rows.kinds] == rows.cells) - most[rows.kinds]
    scores = [*map(rows.centred, np.eye(rows.laws.shape[1])), surprise]
    variances = [law * (1 - law) for law in (*rows.laws.T, most)]
    level = GATE / (2 * len(returned.groups) * BLOCKS * len(scores))
    for name, part in returned.groups.items():
        for centred, variance in zip(scores, variances, strict=True):
            sums = np.abs(np.bincount(part, centred, BLOCKS))
            each = np.bincount(part, variance[rows.kinds], BLOCKS).astype(np.float64)
            thresholds = bernstein_threshold(each, 1.0, level)
            at = int((sums / thresholds).argmax())
            where = f"{name}, part {at}"
            size, threshold = float(sums[at]), float(thresholds[at])
            associations.append(Association(size, threshold, where, BLOCKS, 1.0))
    certain = float((1 - most[rows.kinds]).mean()) * rows.cells.size / BLOCKS
    share = least_share(float(thresholds.mean()), float(each.mean()), certain)
    return replace(worst(*associations), least_share=share).check(
        f"share of one of {BLOCKS} parts of the events that sends its labels' likeliest codes",
        tried=f"In {len(returned.groups)} orders (of release, population, keys and their ends) each"
        f" of {BLOCKS} blocks of rows was compared with what is stated for its labels.",
    )


@CODES.add(
    "labels of other rows",
    "Does an output say anything about another row's label?",
    "A row's output depends on its own label alone.",
    not_looked_at="Dependence of an output on several other rows together.",
)
def other_rows_check(returned: Returned) -> Check:
    kinds, orders = len(returned.labels), ("of the release", "of the population")
    high = np.where(returned.labels[:, 0] >= np.median(returned.labels[:, 0]), 1.0, -1.0)
    signs = np.stack([high, np.where(draw_secrets(kinds) == 1, 1.0, -1.0)])
    groups, gaps = draw_secrets(kinds, GROUPS), [*((gap,) for gap in range(1, 9)), (1, 2)]
    sums = []
    for name in orders:
        rows = returned.rows.reordered(returned.orders[name])
        largest = influence(rows, signs, groups, gaps, GATE / len(orders))
        sums.append(replace(largest, where=f"{largest.where}, in the order {name}"))
    largest = worst(*sums)
    return largest.check(
        "share of rows that show another row's label",
        tried=f"{largest.sums:,} comparisons of an output with another canary's label, or with"
        " whether others agree, at every distance, in the orders of release and population.",
    )


@CODES.add(
    "noise of other rows",
    "Does any row repeat the noise of another?",
    "Every row has noise of its own.",
)
def noise_check(returned: Returned) -> Check:
    sums = []
    for name, order in returned.orders.items():
        largest = agreement(returned.rows.reordered(order), GATE / len(returned.orders))
        sums.append(replace(largest, where=f"{largest.where} in the order {name}"))
    largest = worst(*sums)
    return replace(largest, least_share=sums[0].least_share).check(
        "share of rows that repeat another's word at one lag",
        tried=f"Codes were compared given their labels at {largest.sums:,} lags, in the orders of"
        " release, population, keys and their ends.",
    )


@CODES.add(
    "noise of two epochs",
    "Does an event have the same noise in two releases?",
    "Every release has noise of its own.",
)
def epochs_check(returned: Returned) -> Check:
    """The same events' noise in other releases: the words that codes stand for, as far as is known.

    A code z of a label y comes of a word between P(Z < z) and P(Z <= z), if words are turned into
    codes in their order: the middle of that, less 1/2, has a mean of exactly 0.
    """
    if not (before := returned.before):
        return Check(Verdict.NOT_CHECKABLE, "One release was given.", ANOTHER_RELEASE)
    associations = []
    level = GATE / (4 * len(before))
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
        # what the sum comes to if every event has the same noise again
        whole = words.size * math.sqrt(float((words**2).mean() * (others**2).mean()))
        share = least_share(threshold, variance, whole)
        size = abs(float(words @ others))
        where = f"epoch {other.manifest.epoch}, {words.size:,} events"
        associations.append(Association(size, threshold, where, 1, share))
    check = worst(*associations).check(
        "share of events that have the same noise again",
        tried=f"{len(before)} other releases of the same canaries were compared with this one:"
        " rows, and how many counts of histograms are the same.",
    )
    manifests = [other.manifest for other in before]
    same, powers = laws.same_histograms(returned.manifest, manifests, GATE / 2)
    if same:
        twice = f"{check.found} A histogram has the same noise in two releases."
        check = replace(check, verdict=Verdict.FAIL, found=twice, bound=math.inf)
    return replace(check, power=(*check.power, *powers))


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
    pairs: list[Pair] = [((low,), (high,)) for low, high in combinations(range(shares.size), 2)]
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


Pair = tuple[tuple[int, ...], tuple[int, ...]]

TESTED = 5  # pairs of worlds: the commonest, and those that the pilot promises most of


def _rarer(pair: Pair, shares: Floats) -> float:
    """Share of the rarer one of two worlds."""
    return min(float(shares[list(world)].sum()) for world in pair)


def distinguish(
    codes: Integers, secrets: Integers, pairs: Sequence[Pair], shares: Floats
) -> dict[Pair, OneRun]:
    """Choose a few pairs of worlds, and guessers, on a pilot share; judge them by others.

    A world is a set of secrets: if each two are ε-close, so are mixtures of them. (k,) ``shares``
    are the secrets' probabilities: of the commoner world as many records are left out, at random,
    that each is a fair coin.
    """
    start, coins = max(1, round(PILOT * secrets.size)), uniform(secrets.size)
    guessers: dict[Pair, tuple[Guesser, Integers, Integers]] = {}
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
        pair: bound_guesses(guesser(codes[rest]), bits, TESTED)
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
    noises: list[laws.Noise] = []
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
            noises.append(("the histogram", float(parse_rational(prior.scale)), noise))
    if not noises:
        return Check(Verdict.NOT_CHECKABLE, tried, reason)
    return laws.noise_check(noises, tried=tried)
