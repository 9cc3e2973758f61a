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
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy
from numpy.typing import NDArray

from common.arrays import Floats
from common.entropy import Entropy, seeded_entropy
from labelveil.audit.power import FOUND
from labelveil.audit.verdict import GATE, Check, Power, Verdict, verdict_of

Labels = Floats

SEEDS = 400


@dataclass(frozen=True)
class Published:
    """What one release publishes, without the randomized labels.

    Attributes
    ----------
    noisy
        Noisy counts.
    scale
        Stated scale of the noise on each cell.
    prior_epsilon
        ε₁ that the noise is said to spend.
    published
        What else the manifest states about the channel: outputs, weights, bins.
    """

    noisy: tuple[int, ...]
    scale: Fraction
    prior_epsilon: Fraction
    published: Hashable


Releaser = Callable[[Labels, Entropy], Published]
"""One release of the given labels, with all its noise from the given entropy."""

Randomize = Callable[[Labels, Entropy], NDArray[np.generic]]
"""(n,) labels to (n,) outputs, with all noise from the given entropy."""


@dataclass(frozen=True)
class Replay:
    """Both worlds' messages for the same seeds."""

    one: tuple[Published, ...]
    other: tuple[Published, ...]
    truth: tuple[int, ...]

    @property
    def moved(self) -> int:
        """The largest L1 distance of the noisy counts under the same noise."""
        return max(
            sum(abs(x - y) for x, y in zip(a.noisy, b.noisy, strict=True))
            for a, b in zip(self.one, self.other, strict=True)
        )

    @property
    def scale(self) -> Fraction:
        """The smallest scale that was stated."""
        return min(message.scale for message in (*self.one, *self.other))

    @property
    def prior_epsilon(self) -> Fraction:
        """ε₁ as claimed."""
        return min(message.prior_epsilon for message in (*self.one, *self.other))


def replay(
    release: Releaser,
    labels: Labels,
    row: int,
    value: float,
    truth: Sequence[int],
    seeds: int = SEEDS,
) -> Replay:
    """Release two data sets that differ in one label, with the same noise, seed after seed.

    Parameters
    ----------
    release
        Must draw all its noise from the entropy that it is given.
    labels
        (n,) labels of the first data set; a few are enough, so that histograms coincide.
    row, value
        Which label is replaced, and by what.
    truth
        True counts of the first data set, to measure the noise.
    seeds
        Number of releases of each.
    """
    swapped = labels.copy()
    swapped[row] = value
    return Replay(
        tuple(release(labels, seeded_entropy(seed)) for seed in range(seeds)),
        tuple(release(swapped, seeded_entropy(seed)) for seed in range(seeds)),
        tuple(truth),
    )


def sensitivity_check(found: Replay) -> Check:
    """Counts move by at most 2, and the stated noise scale pays for that."""
    prior_epsilon = found.prior_epsilon
    spent = float(found.moved / found.scale) if found.scale else math.inf
    holds = found.moved <= 2 and found.moved <= prior_epsilon * found.scale
    return Check(
        name="replay: histogram sensitivity",
        verdict=verdict_of(holds),
        claim=f"The noisy histogram spends ε₁ = {float(prior_epsilon):.6g} on one label.",
        tried="Two data sets that differ in one label were released with the same noise.",
        found=f"The counts move by {found.moved} in L1 under noise of stated scale"
        f" {float(found.scale):.6g}: that spends {spent:.6g}.",
        claimed=float(prior_epsilon),
        bound=spent,
        confidence=1.0,
    )


def noise_scale_check(found: Replay, alpha: float = GATE) -> Check:
    """The noise that was drawn is as wide as the stated scale says.

    ``Σ|Z|`` is sufficient for the scale of the discrete Laplace law; with q = e^(-1/s),
    ``E|Z| = 2q / (1 - q²)`` and ``E Z² = 2q / (1 - q)²``. Compared by its normal approximation,
    to the side that matters: too little noise.
    """
    noise = np.array([message.noisy for message in found.one]) - np.array(found.truth)
    q = math.exp(-1 / float(found.scale))
    mean, square = 2 * q / (1 - q * q), 2 * q / (1 - q) ** 2
    deviation = math.sqrt((square - mean * mean) / noise.size)
    measured = float(np.abs(noise).mean())
    # the smallest mean that a right sampler shows with probability 1 - alpha
    least = mean + float(scipy.special.ndtri(alpha)) * deviation
    # noise that is narrower by this share has a mean below it with probability FOUND
    narrow = 1 - least / (mean + float(scipy.special.ndtri(FOUND)) * deviation)
    return Check(
        name="replay: noise scale",
        verdict=verdict_of(measured >= least),
        claim=f"Every cell gets discrete Laplace noise of scale {float(found.scale):.6g}.",
        tried=f"The noise on {noise.size:,} cells of known counts was measured.",
        found=f"Its mean size is {measured:.4g}, where {mean:.4g} is expected and less than"
        f" {least:.4g} has probability {alpha:g}.",
        confidence=1 - alpha,
        power=(Power("share by which noise is too narrow", narrow),),
    )


def function_check(found: Replay) -> Check:
    """Wherever the noisy histograms coincide, so does everything that is built from them."""
    built: dict[tuple[int, ...], Hashable] = {}
    for message in found.one:
        built.setdefault(message.noisy, message.published)
    same = [m for m in found.other if m.noisy in built]
    differing = sum(built[m.noisy] != m.published for m in same)
    inner = {m.noisy: m.published for m in found.one}
    unstable = sum(inner[m.noisy] != m.published for m in found.one)
    claim = "Outputs and channel are a function of the noisy histogram alone."
    tried = (
        f"Two data sets that differ in one label were released {len(found.one)} times each; where"
        " both show the same noisy histogram, their channels were compared."
    )
    name = "replay: only the noisy histogram reaches the channel"
    if not same:
        return Check(
            name, Verdict.NOT_CHECKABLE, claim, tried, "No two noisy histograms coincided."
        )
    return Check(
        name=name,
        verdict=verdict_of(differing == 0 and unstable == 0),
        claim=claim,
        tried=tried,
        found=f"{len(same)} histograms coincided; {differing} of them came with another channel.",
        bound=math.inf if differing else 0.0,
        confidence=1.0,
    )


def support_check(found: Replay) -> Check:
    """No cell's noisy count stands still, empty cells included."""
    table = np.array([message.noisy for message in found.one])
    still = [int(z) for z in np.flatnonzero(np.all(table == table[0], axis=0))]
    return Check(
        name="support: noise on every cell",
        verdict=verdict_of(not still),
        claim="Every cell of the histogram gets noise, also where no label lies.",
        tried=f"{len(found.one)} releases of one data set with different noise were compared.",
        found=f"{len(still)} of {table.shape[1]} cells never move"
        + (f" (cells {still[:8]}), so they tell whether a label lies there." if still else "."),
        bound=math.inf if still else 0.0,
        confidence=1.0,
        details={"still": still},
    )


def range_check(
    randomize: Randomize, lower: float, upper: float, seeds: int = 32, rows: int = 64
) -> Check:
    """A label far outside the domain gives the same bytes as the nearest bound."""
    span = upper - lower
    differing = 0
    for seed in range(seeds):
        for bound, far in ((lower, lower - 10 * span), (upper, upper + 10 * span)):
            inside = randomize(np.full(rows, bound), seeded_entropy(seed))
            outside = randomize(np.full(rows, far), seeded_entropy(seed))
            differing += not np.array_equal(inside, outside)
    return Check(
        name="replay: labels outside the domain",
        verdict=verdict_of(differing == 0),
        claim="Labels are clipped to the domain before any noise.",
        tried=f"Labels ten ranges outside {lower:g} … {upper:g} and labels on the bounds were"
        f" randomized with the same noise, {2 * seeds} times.",
        found=f"{differing} of {2 * seeds} outputs differ.",
        bound=math.inf if differing else 0.0,
        confidence=1.0,
    )
