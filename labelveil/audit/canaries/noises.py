"""Noise of everything that leaves, against tables of its law that are summed in the audit.

The auditor knows what noise was added to: histograms, leaders and tables of counts are released, by
the commands that a user types, from labels and categories of the audit's own. Of decisions, which
show one bit of their noise each, thousands are made in this process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from labelveil.audit.attacks import laws
from labelveil.audit.canaries.worlds import CATEGORIES, LIST, QUERIED, World
from labelveil.audit.verdict import GATE, Check, Power, Probes, Verdict, verdict_of
from labelveil.common.entropy import system_entropy
from labelveil.common.exact.rational import parse_rational
from labelveil.common.mechanisms.interactive import DriftTest
from labelveil.common.mechanisms.selection.leaders import Leaders
from labelveil.common.randomizers import NoisyPrior

DECISIONS = 4000  # of each kind
BINS = 8  # of the labels in a synthetic table


NOISES = Probes[Sequence[World], int](refused=Verdict.FAIL)
"""Of labels parties with releases of few events, whose labels and categories are known, and of how
many times as much is asked: ``QUERIED`` times as many parties answer further queries, too."""


@NOISES.add(
    "noise of histograms",
    "Has every histogram's noise the stated size and shape?",
    "Every cell of a histogram has discrete Laplace noise of the stated scale.",
    not_looked_at="Noise of messages that have no histogram of their own.",
)
def histograms_check(worlds: Sequence[World], _: int) -> Check:
    noises: list[laws.Noise] = []
    for world in worlds:
        manifest = world.manifest
        for prior in (each for each in manifest.priors if each.noisy):
            counts = np.zeros(len(manifest.group(prior.labels).cells), dtype=np.int64)
            counts[[0, -1]] = np.bincount(world.secrets, minlength=2)  # all are at one end
            noise = np.asarray(prior.noisy_counts, dtype=np.int64) - counts
            noises.append(("histograms", float(parse_rational(prior.scale)), noise))
    tried = f"{len(worlds)} data sets of {worlds[0].secrets.size:,} known labels were released."
    if not noises:
        reason = "Histograms are decoded from the codes: they have no noise of their own."
        return Check(Verdict.NOT_CHECKABLE, tried, reason)
    return laws.noise_check(noises, tried=tried)


@NOISES.add(
    "noise of leaders",
    "Have the counts of top-k the noise that is paid for?",
    "Every named category's count has discrete Laplace noise of the stated scale.",
    not_looked_at="Lists whose length the counts decide; stable sets.",
)
def leaders_check(worlds: Sequence[World], effort: int) -> Check:
    worlds = worlds[: QUERIED * effort]
    noises: list[laws.Noise] = []
    spent = claimed = 0.0
    for world in worlds:
        document = world.answer(
            "top-k", "--by=category", f"--categories={LIST}", f"--k={len(CATEGORIES)}"
        )
        scale = float(parse_rational(document["noise"]["scale"]))
        named = [CATEGORIES.index(each["category"]) for each in document["leaders"]]
        noise = np.array([each["users"] for each in document["leaders"]], dtype=np.int64)
        noise -= np.bincount(world.categories)[named]
        noises.append(("counts as they are named", scale, noise))
        noises.append(("counts by category", scale, noise[np.argsort(named)]))
        spent = max(spent, 2 / scale)  # a replaced vote leaves one count and enters another
        claimed = float(parse_rational(document["guarantee"]["epsilon"]))
    return laws.noise_check(
        noises,
        tried=f"{len(worlds)} times `top-k` named all {len(CATEGORIES)} categories of events that"
        " the auditor knows.",
        spent=spent,
        claimed=claimed,
    )


@NOISES.add(
    "noise of tables",
    "Have the tables that a synthetic one is made of the noise that is paid for?",
    "Every measured count has discrete Laplace noise of the stated variance.",
    not_looked_at="Which tables are measured, and tables between the first two and the last.",
)
def tables_check(worlds: Sequence[World], effort: int) -> Check:
    """Noise of the tables of counts that `synthesize` measures: those of one column, and the last.

    Which table is measured next depends on the noise before it, never on its own: so does how many
    there are of one kind, where one table of each place in the order is taken.
    """
    noises: list[laws.Noise] = []
    spent = claimed = 0.0
    worlds, columns = worlds[: QUERIED * effort], ("category", "label")
    for world in worlds:
        document = world.answer(
            "synthesize", f"--column=category={LIST}", f"--bins={BINS}", "--label=label"
        )
        true = np.zeros((len(CATEGORIES) + 1, BINS), dtype=np.int64)  # one is of no category
        np.add.at(true, (world.categories, (BINS - 1) * world.secrets), 1)
        measured = document["measurements"]
        scales = [0.5 / math.asinh(1 / math.sqrt(2 * each["variance"])) for each in measured]
        for at in (0, 1, -1):
            left_out = tuple(i for i, c in enumerate(columns) if c not in measured[at]["columns"])
            noise = np.array(measured[at]["noisy_counts"]) - true.sum(axis=left_out).ravel()
            what = " and ".join(measured[at]["columns"]) + " last" * (at < 0)
            noises.append((what, scales[at], noise.astype(np.int64)))
        spent = max(spent, sum(2 / scale for scale in scales))
        claimed = float(parse_rational(document["guarantee"]["epsilon"]))
    return laws.noise_check(
        noises,
        tried=f"{len(worlds)} synthetic tables of categories and labels that the auditor knows were"
        " released.",
        spent=spent,
        claimed=claimed,
        groups=2 + len(worlds),
    )


@NOISES.add(
    "noise of decisions",
    "Are tests for drift, and names of leaders, as uncertain as is paid for?",
    "A decision between two that differ by little is a coin of the stated odds.",
    not_looked_at="How the labels party calls them; sets that are shown without counts.",
)
def decisions_check(_: Sequence[World], effort: int) -> Check:
    """How often a test for drift says so, and which of two is named, where it depends on noise.

    One event below its threshold, a test says "drifted" where noise of scale 1 is 1 or more: with
    probability q / (1 + q), q = 1/e. Of two counts d apart the larger one is named with probability
    1 / (1 + e^(-r d)), r the rate, ε/4 for one name.
    """
    decisions = DECISIONS * effort
    entropy, rows, q, votes = system_entropy(), 1000, math.exp(-1.0), np.array([6, 0])
    test = DriftTest(NoisyPrior(np.array([500, 500]), Fraction(2), rows), rows, Fraction(1))
    half = rows // 2 + test.threshold - 1
    drift, leader = entropy.source("audit drift"), Leaders(Fraction(1), 1)
    seen = {
        "tests said that labels had drifted": (
            sum(test.draw([half, rows - half], drift).value for _ in range(decisions)),
            q / (1 + q),
        ),
        "times the larger of two categories was named": (
            sum(int(leader.draw(votes, system_entropy()).chosen[0]) == 0 for _ in range(decisions)),
            1 / (1 + math.exp(-6 / 4)),
        ),
    }
    tails = [laws.two_sided(count, decisions, chance) for count, chance in seen.values()]
    found = (
        f"{count:,} of {decisions:,} {what}, where {decisions * chance:,.0f} are expected"
        for what, (count, chance) in seen.items()
    )
    least = laws.detectable_probability(decisions, len(tails), GATE, 0.5) - 0.5
    return Check(
        verdict=verdict_of(min(tails) >= GATE / 2),
        tried=f"{decisions:,} tests for drift were made one event below the threshold, and as many"
        " leaders named, in this process.",
        found="; ".join(found) + f"; probabilities {', '.join(f'{tail:.2g}' for tail in tails)}.",
        confidence=1 - GATE,
        power=(Power("difference of a decision's probability", least),),
    )
