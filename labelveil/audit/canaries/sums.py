"""Canaries in groups: what noisy sums say about labels that only the auditor knows.

The auditor asks a question about its canaries, some groups of which are of one kind of label, so
that a label that is clipped, filled in or counted wrongly moves a sum by as much as it can. What is
left of a sum, once the known labels are taken off, has to be the stated noise.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelveil.audit.attacks import laws
from labelveil.audit.attacks.one_run import draw_secrets
from labelveil.audit.attacks.rows_apart import Rows, agreement
from labelveil.audit.canaries.planting import ANOTHER_RELEASE, Planted
from labelveil.audit.certificate.evidence import Evidence
from labelveil.audit.certificate.sums import NONE, parsed_question
from labelveil.audit.verdict import GATE, Check, Power, Probes, Verdict, verdict_of
from labelveil.common.arrays import Floats, Integers
from labelveil.common.errors import ConfigError, ReleaseError, not_none
from labelveil.common.mechanisms.group_sums import NO_GROUP, GroupQuestion, Lattice
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.manifest import Manifest

SIZES = (1, 2, 5, 20)
EMPTY, SQUARES = 10, 8  # one of ten groups has no event, and one of eight asks for squares
MOST_WEIGHT = 2
MOST_SQUARED = 32  # half-width of squares, whose noise is as wide as its square
_NEAR = 1e-6  # share of a step by which a label may miss a point


def ask(planted: Planted, points: int) -> GroupQuestion:
    """Make a question about canaries, in the order in which they were planted.

    Half of the groups are of one kind of label each. Labels between two points, which go to either
    at random, are asked about by nobody. ``ConfigError`` if a canary has several labels.
    """
    if len(planted.planting.columns) > 1:
        raise ConfigError("sums are of one label: ask about canaries planted without --also")
    lattice = Lattice(planted.planting.lower, planted.planting.upper, points - 1)
    between = len(planted.planting.labels) + 2  # behind those planned, below and above
    events = np.flatnonzero(planted.secrets != between)
    events = events[np.argsort(draw_secrets(events.size, 1 << 62))]
    alike, mixed = np.array_split(events, 2)
    alike = alike[np.argsort(planted.secrets[alike], kind="stable")]
    groups, count = np.full(planted.secrets.size, NO_GROUP), 0
    for part in (alike, mixed):
        ends = np.cumsum(np.resize(SIZES, part.size))
        groups[part] = count + np.searchsorted(ends, np.arange(part.size), side="right")
        count = int(groups[part[-1]]) + 1
    count += count // EMPTY
    squares = count // SQUARES
    order = np.argsort(draw_secrets(count, 1 << 62))  # those without an event are anywhere
    grouped = groups != NO_GROUP
    groups[grouped] = order[groups[grouped]]
    # of groups of one kind no weight is negative: what is wrong with each event adds up
    weights = np.array([-MOST_WEIGHT, -1, 1, MOST_WEIGHT])[draw_secrets(groups.size, 4)]
    weights[alike] = np.abs(weights[alike])
    widths = np.array([lattice.steps, max(lattice.steps // 4, 1), 1])[draw_secrets(count, 3)]
    widths[count - squares :] = np.minimum(widths[count - squares :], MOST_SQUARED)
    offsets = np.unique([0, lattice.steps // 2])
    return GroupQuestion(
        lattice,
        groups,
        widths,
        offsets,
        draw_secrets(groups.size, offsets.size) if offsets.size > 1 else None,
        weights,
        squares,
    )


@dataclass(frozen=True, eq=False)
class Summed:
    """Sums of canaries, with what is known of each group."""

    planted: Planted
    evidence: Evidence
    noise: Integers  # (m,) what is left of the sums that are known
    scales: Floats  # (m,) stated, in steps or steps²
    groups: Integers  # (m,) which these groups are
    sizes: Integers  # (m,)
    kinds: Integers  # (m,) the label of all of their events; -1 of several, -2 without an event
    before: tuple[Summed, ...] = ()  # the same canaries in other releases

    @property
    def manifest(self) -> Manifest:
        return self.evidence.manifest


def match(planted: Planted, evidence: Evidence, secret: Path) -> Summed:
    """Take the canaries' labels off the sums.

    ``ReleaseError`` if the sums are not of these canaries, or the question is not at hand.
    """
    manifest, stated = evidence.manifest, not_none(evidence.manifest.sums)
    keys = hash_keys(planted.keys, read_secret(secret))
    if hashlib.sha256(keys).hexdigest() != manifest.population.digest:
        raise ReleaseError(
            "the sums are not of these canaries in the order of their population; check --secret,"
            " and that this population was submitted"
        )
    if evidence.question is None:
        raise ReleaseError(
            f"the question that {evidence.directory} answers is not beside it; put it there as"
            " question.bin"
        )
    question = parsed_question(evidence.question, manifest.population.rows)
    labels = planted.counted([manifest.labels[0].missing])[:, 0]
    lower, upper = question.bounds
    found = (np.clip(labels, lower, upper) - lower) / (upper - lower) * question.steps
    known = np.abs(found - np.rint(found)) < _NEAR
    places, counted = np.rint(found).astype(np.int64), question.groups != NONE
    group, secrets = question.groups[counted], planted.secrets[counted]
    count = question.widths.size
    sizes = np.bincount(group, minlength=count)
    some = np.bincount(group, known[secrets], count) == sizes  # without a label that is uncertain
    kinds = np.full(count, -2)
    kinds[group] = secrets
    kinds[group[kinds[group] != secrets]] = -1
    scales = question.scales(stated)
    if evidence.answer.size != count or not scales.min() > 0:
        raise ReleaseError("the sums are of other groups than the question's, or without noise")
    noise = evidence.answer - question.sums(places[planted.secrets])
    return Summed(
        planted,
        evidence,
        noise[some],
        scales[some],
        np.flatnonzero(some),
        sizes[some],
        kinds[some],
    )


SUMS = Probes[Summed]()
"""What sums of canaries say, in the order in which it is looked at."""


@SUMS.add(
    "noise of the sums",
    "Has every sum the noise that is stated, whatever its group and its labels?",
    "What is left of a sum without its labels is discrete Laplace noise of the stated scale.",
    not_looked_at="Groups with a label between two points; a single group without noise.",
)
def sums_check(summed: Summed) -> Check:
    """Noise of the stated size, shape and parity: of all groups, by their sizes and labels."""
    kinds, sizes = summed.kinds, summed.sizes
    parts = {"all groups": np.ones(kinds.size, dtype=np.bool_)}
    parts |= {f"groups of {size} events": sizes == size for size in np.unique(sizes).tolist()}
    parts |= {
        f"groups of canaries {summed.planted.in_words(kind)}": kinds == kind
        for kind in np.unique(kinds[kinds >= 0]).tolist()
    }
    noises = [
        (what, scale, summed.noise[part & (summed.scales == scale)])
        for what, part in parts.items()
        for scale in np.unique(summed.scales[part]).tolist()
    ]
    return laws.noise_check(
        noises,
        tried=f"The canaries' labels, those beyond the bounds and missing ones included, were taken"
        f" off {summed.noise.size:,} sums, of groups of {int(sizes.min())} to {int(sizes.max())}.",
        groups=len(noises),
    )


@SUMS.add(
    "labels of every kind",
    "Is any kind of label clipped, filled in or counted otherwise?",
    "Labels beyond the bounds, of several rows, and missing ones count as agreed.",
    not_looked_at="Labels between two points.",
)
def kinds_check(summed: Summed) -> Check:
    """What is wrong with every label of a kind moves all sums of it to one side."""
    # of large groups alone, too: what is wrong with each event moves their sums farthest
    tails = {
        (kind, int(size)): laws.shift_probability(summed.noise[part], summed.scales[part])
        for kind in np.unique(summed.kinds[summed.kinds >= 0]).tolist()
        for size in SIZES
        if (part := (summed.kinds == kind) & (summed.sizes >= size)).any()
    }
    (kind, size), smallest = min(tails.items(), key=lambda each: each[1])
    p = min(1.0, smallest * len(tails))
    counts = np.unique(summed.kinds[summed.kinds >= 0], return_counts=True)[1]
    most, fewest = (
        laws.detectable_shift(int(count), len(tails)) for count in (counts.max(), counts.min())
    )
    return Check(
        verdict_of(p >= GATE),
        f"Of groups that have one kind of label each, of {len({kind for kind, _ in tails})} kinds,"
        " what is left of the sums was added up, over its scales.",
        f"It is farthest to one side in groups of at least {size} canaries of"
        f" {summed.planted.in_words(kind)}: so far or farther has probability at most {p:.3g} in"
        f" all.",
        bound=0.0 if p >= GATE else math.inf,
        confidence=1 - GATE,
        power=(
            Power("scales by which sums of the commonest kind are moved", most),
            Power("the same of the rarest", fewest),
        ),
    )


@SUMS.add(
    "noise of other groups",
    "Has any group the noise of another?",
    "Every group has noise of its own.",
    not_looked_at="Noise that two groups share which are at no distance where others do.",
)
def other_groups_check(summed: Summed) -> Check:
    """Signs of the noise at every distance, against the stated laws."""
    scales, kinds = np.unique(summed.scales, return_inverse=True)
    none = np.tanh(0.5 / scales)  # (1 - q) / (1 + q) with q = e^(-1/scale)
    rows = Rows(
        np.sign(summed.noise) + 1,
        kinds.reshape(-1),
        np.stack([(1 - none) / 2, none, (1 - none) / 2], axis=1),
        True,
    )
    return agreement(rows).check(
        "share of groups that repeat another's noise at one distance",
        tried=f"The signs of the noise on {summed.noise.size:,} sums were compared at every"
        " distance of two groups.",
    )


@SUMS.add(
    "noise of two epochs",
    "Does a group have the same noise in two releases?",
    "Every release has noise of its own.",
)
def epochs_check(summed: Summed) -> Check:
    """Signs of the noise of one group in this release and in each one before, at least one."""
    if not (before := summed.before):
        return Check(Verdict.NOT_CHECKABLE, "One release was given.", ANOTHER_RELEASE)
    tails, compared, fewest = [], 0, math.inf
    for other in before:
        _, here, there = np.intersect1d(summed.groups, other.groups, return_indices=True)
        signs = np.sign(summed.noise[here]) * np.sign(other.noise[there])
        runs = int(np.count_nonzero(signs))
        tails.append(laws.two_sided(int(np.count_nonzero(signs > 0)), runs, 0.5))
        compared += runs
        fewest = min(fewest, laws.detectable_probability(runs, 1, GATE / len(before), 0.5) - 0.5)
    return Check(
        verdict_of(min(tails) >= GATE / len(before)),
        f"The signs of the noise of {compared:,} groups were compared with those of {len(before)}"
        " other releases.",
        f"As many agree, or as few, with probability {min(tails):.3g} by chance.",
        bound=0.0 if min(tails) >= GATE / len(before) else math.inf,
        confidence=1 - GATE,
        power=(Power("share of groups that have the same noise again", 2 * fewest),),
    )
