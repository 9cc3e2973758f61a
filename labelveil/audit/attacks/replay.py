"""Replay a release under injected entropy: what depends on raw labels although it should not.

Two data sets that differ in one label are released with the same noise. Then

- the noisy counts move by at most 2 in L1 (one unit leaves a cell, one enters another), and a noise
  of scale s therefore spends 2/s, which must not exceed the claimed ε₁;
- wherever the noisy histograms of the two coincide, everything else that is built and published
  (outputs, bins, weights) coincides, because it is a function of the noisy histogram alone;
- every cell's count moves with the noise, also where no label lies;
- a label outside the domain is treated as the nearest bound, before any noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from labelveil.audit.attacks.laws import noise_check
from labelveil.audit.attacks.one_run import Outputs
from labelveil.audit.verdict import Check, Probes, Verdict, verdict_of
from labelveil.common.arrays import Floats
from labelveil.common.entropy import Entropy, seeded_entropy


@dataclass(frozen=True)
class Published:
    """What one release publishes, without the randomized labels."""

    noisy: tuple[int, ...]  # noisy counts
    scale: Fraction  # stated scale of the noise on each cell
    prior_epsilon: Fraction  # ε₁ that the noise is said to spend
    channel: Hashable  # what else the manifest states about the channel: outputs, weights, bins


Releaser = Callable[[Floats, Entropy], Published]
"""One release of the given labels, with all its noise from the given entropy."""


@dataclass(frozen=True)
class Replay:
    """Releases of a data set of known counts and of its neighbour, seed by seed."""

    releases: tuple[Published, ...]
    neighbours: tuple[Published, ...]
    truth: tuple[int, ...]

    @property
    def scale(self) -> Fraction:
        """The smallest scale that was stated."""
        return min(message.scale for message in (*self.releases, *self.neighbours))


def replay(release: Releaser, labels: Floats, row: int, value: float, seeds: int) -> Replay:
    """Release (n,) labels and those with one replaced, with the same noise, seed after seed.

    Labels are numbers of histogram cells; a few are enough, so that histograms coincide. The
    releaser must draw all its noise from the entropy that it is given.
    """
    swapped = labels.copy()
    swapped[row] = value
    releases, neighbours = (
        tuple(release(data, seeded_entropy(seed)) for seed in range(seeds))
        for data in (labels, swapped)
    )
    truth = np.bincount(labels.astype(np.int64), minlength=len(releases[0].noisy))
    return Replay(releases, neighbours, tuple(truth.tolist()))


REPLAY = Probes[Replay]()


@REPLAY.add(
    "replay: histogram sensitivity",
    "Does one label move the histogram by no more than its noise pays for?",
)
def sensitivity_check(replayed: Replay) -> Check:
    scale = replayed.scale
    claimed = min(m.prior_epsilon for m in (*replayed.releases, *replayed.neighbours))
    pairs = zip(replayed.releases, replayed.neighbours, strict=True)
    moved = int(max(np.abs(np.subtract(a.noisy, b.noisy)).sum() for a, b in pairs))
    spent = float(moved / scale) if scale else math.inf
    return Check(
        verdict=verdict_of(moved <= 2 and moved <= claimed * scale),
        claim=f"The noisy histogram spends ε₁ = {float(claimed):.6g} on one label.",
        tried="Two data sets that differ in one label were released with the same noise.",
        found=f"The counts move by {moved} in L1 under noise of stated scale {float(scale):.6g}:"
        f" that spends {spent:.6g}.",
        claimed=float(claimed),
        bound=spent,
    )


@REPLAY.add(
    "replay: noise scale",
    "Is the histogram's noise as wide as it is said to be?",
    "Every cell gets discrete Laplace noise of the stated scale.",
)
def noise_scale_check(replayed: Replay) -> Check:
    noise = np.array([message.noisy for message in replayed.releases]) - np.array(replayed.truth)
    scale = float(replayed.scale)
    return noise_check(
        [("histograms", scale, counts) for counts in noise],
        tried=f"The histogram of known counts was released {len(noise)} times.",
    )


@REPLAY.add(
    "replay: only the noisy histogram reaches the channel",
    "Is the channel built from the noisy histogram alone?",
    "Outputs and channel are a function of the noisy histogram alone.",
)
def function_check(replayed: Replay) -> Check:
    built: dict[tuple[int, ...], Hashable] = {}
    for message in replayed.releases:
        built.setdefault(message.noisy, message.channel)
    same = [message for message in replayed.neighbours if message.noisy in built]
    differing = sum(built[message.noisy] != message.channel for message in same)
    unstable = any(built[message.noisy] != message.channel for message in replayed.releases)
    verdict = verdict_of(not (differing or unstable)) if same else Verdict.NOT_CHECKABLE
    return Check(
        verdict=verdict,
        tried="Two data sets that differ in one label were released"
        f" {len(replayed.releases)} times each; where both show the same noisy histogram, their"
        " channels were compared.",
        found=f"{len(same)} histograms coincided; {differing} of them came with another channel.",
        bound=math.inf if differing else 0.0 if same else None,
    )


@REPLAY.add(
    "support: noise on every cell",
    "Do empty cells of the histogram get noise, too?",
    "Every cell of the histogram gets noise, also where no label lies.",
)
def support_check(replayed: Replay) -> Check:
    table = np.array([message.noisy for message in replayed.releases])
    still = np.flatnonzero(np.all(table == table[0], axis=0)).tolist()
    return Check(
        verdict=verdict_of(not still),
        tried=f"{len(table)} releases of one data set with different noise were compared.",
        found=f"{len(still)} of {table.shape[1]} cells never move"
        + (f" (cells {still[:8]}), so they tell whether a label lies there." if still else "."),
        bound=math.inf if still else 0.0,
        details={"still": still},
    )


def range_check(
    randomize: Callable[[Floats, Entropy], Outputs], lower: float, upper: float
) -> Check:
    span, seeds, rows = upper - lower, 32, 64
    differing = 0
    for seed in range(seeds):
        for bound, far in ((lower, lower - 10 * span), (upper, upper + 10 * span)):
            inside, outside = (
                randomize(np.full(rows, label), seeded_entropy(seed)) for label in (bound, far)
            )
            differing += not np.array_equal(inside, outside)
    return Check(
        verdict=verdict_of(differing == 0),
        tried=f"Labels ten ranges outside {lower:g} … {upper:g} and labels on the bounds were"
        f" randomized with the same noise, {2 * seeds} times.",
        found=f"{differing} of {2 * seeds} outputs differ.",
        bound=math.inf if differing else 0.0,
    )
