"""Tests of what came back against the laws that are stated: outputs, and noise on a histogram.

Who knows every label knows each output's frequency from the stated channel, and takes the true
counts off the histogram: what remains is the stated noise.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.stats import binom, norm

from labelveil.audit.attacks.one_run import Outputs
from labelveil.audit.power import FOUND, least, rarest_seen
from labelveil.audit.verdict import GATE, Check, Power, Verdict, verdict_of
from labelveil.common.arrays import Floats, Integers
from labelveil.common.exact.rational import parse_rational
from labelveil.common.randomizers.message.codebooks import Codebook
from labelveil.common.release.manifest import Manifest


def output_probability(counts: Integers, laws: Floats) -> tuple[float, int, int]:
    """How improbable (k, d) counts of labels and outputs are under the stated laws, at most.

    Every count is binomial. Returned is the least two-sided exact tail over all laws and outputs,
    times their number (Bonferroni), with the label and the output of the least.
    """
    runs = np.broadcast_to(counts.sum(axis=1, keepdims=True), counts.shape)
    tails = np.minimum(binom.cdf(counts, runs, laws), binom.sf(counts - 1, runs, laws))
    worst = int(np.argmin(tails))
    label, output = divmod(worst, counts.shape[1])
    return min(1.0, 2 * counts.size * float(tails.flat[worst])), label, output


def detectable_probability(runs: int, tests: int, alpha: float, law: float) -> float:
    """Smallest probability above ``law`` that :func:`output_probability` finds with 95 %."""
    critical = int(binom.isf(alpha / (2 * tests), runs, law)) + 1
    return min(rarest_seen(runs, critical), 1.0)


def noise_probability(noise: Integers | Floats, scale: float) -> tuple[float, float]:
    """How improbable so little, and so much, noise is under a discrete Laplace law, at most.

    Chernoff's bound of Σ|xᵢ|, i = 1 … k, where P(x) = (1-q)/(1+q) q^|x| and q = e^(-1/scale):
    P(Σ <= t) <= min over λ >= 0 of e^(λt) M(-λ)^k, and with the signs turned for the other side.
    M(-λ) = (1-q)/(1+q) (1+qe^-λ)/(1-qe^-λ).
    """
    total, cells, steep = float(np.abs(noise).sum()), noise.size, 1 / scale

    def exponent(rate: float) -> float:
        moved = steep + rate
        moment = math.log(-math.expm1(-steep)) - math.log1p(math.exp(-steep))
        moment += math.log1p(math.exp(-moved)) - math.log(-math.expm1(-moved))
        return rate * total + cells * moment

    # rates are looked for on a scale of their own, as wide noise has a small one
    ends = math.log(1e-3 * steep), math.log(50.0)
    little = minimize_scalar(lambda log: exponent(math.exp(log)), bounds=ends, method="bounded")
    much = minimize_scalar(
        lambda share: exponent(share * steep), bounds=(-(1 - 1e-9), 0.0), method="bounded"
    )
    return math.exp(min(little.fun, 0.0)), math.exp(min(much.fun, 0.0))


def shift_probability(noise: Integers | Floats, scales: Floats) -> float:
    """How improbable it is that (n,) noises of these scales are so far to one side, at most.

    Chernoff's bound of |Σ xᵢ/sᵢ|: P(Σ >= t) <= e^(-θt) Π M(θ/sᵢ), 0 < θ < 1, for the moment
    generating function M(λ) = (1-q)² / ((1-qe^λ)(1-qe^-λ)), q = e^(-1/s); twice that for two sides.
    """
    total = abs(float((noise / scales).sum()))
    rates = np.linspace(0.01, 0.99, 99)[:, None]
    moments = 2 * np.log(-np.expm1(-1 / scales))
    moments = moments - np.log(-np.expm1((rates - 1) / scales))
    moments = moments - np.log(-np.expm1((-rates - 1) / scales))
    return min(
        1.0, 2 * math.exp(min(0.0, float((moments.sum(axis=1) - rates[:, 0] * total).min())))
    )


def noise_tails(noise: Integers, scale: float) -> dict[str, float]:
    """How improbable (runs, cells) noise is under a discrete Laplace law, by aspect, at most.

    The law is a table that is summed here, P(x) ∝ e^(-|x| / scale): what draws the noise, and its
    formulas, have no part in it. Counts are binomial; each tail is two-sided where there are two
    sides, and multiplied by the number of counts of its aspect.
    """
    even, zero, edges, ranges = _law(scale)
    runs, cells = noise.shape
    little, much = noise_probability(noise, scale)
    zeros = np.count_nonzero(noise == 0, axis=0)
    at = np.searchsorted(edges, noise.ravel(), side="right")
    seen = np.bincount(at, minlength=8)
    other = int(np.count_nonzero(noise))
    return {
        "so little": little,
        "so much": much,
        "how many even": two_sided(int((noise % 2 == 0).sum()), noise.size, even),
        "how many positive": two_sided(int((noise > 0).sum()), other, 0.5),
        "how often no noise in one cell": min(
            1.0, cells * float(binom.sf(zeros.max() - 1, runs, zero))
        ),
        "such a shape": min(
            1.0,
            *(
                8 * two_sided(int(count), noise.size, float(chance))
                for count, chance in zip(seen, ranges, strict=True)
            ),
        ),
    }


def law_table(scale: float) -> tuple[Integers, Floats]:
    """Values of discrete Laplace noise as far out as they matter, and their probabilities."""
    reach = int(60 * scale) + 60
    values = np.arange(-reach, reach + 1)
    table = np.exp(-np.abs(values) / scale)
    return values, np.asarray(table / table.sum())


def equal_chance(scale: float | Floats) -> Floats:
    """Probability that two such noises are equal: (1-q)² (1+q²) / ((1+q)² (1-q²)), q = e^(-1/s)."""
    q = np.exp(-1 / np.asarray(scale))
    return np.asarray((1 - q) ** 2 * (1 + q * q) / ((1 + q) ** 2 * (1 - q * q)))


@lru_cache(maxsize=256)
def _law(scale: float) -> tuple[float, float, Integers, Floats]:
    """Of a law: how likely even values are, and 0; where the last seven of eight ranges that are
    about equally likely begin, and what is likely in each."""
    values, table = law_table(scale)
    at = np.minimum((8 * np.cumsum(table)).astype(np.int64), 7)
    even = float(table[values % 2 == 0].sum())
    edges = values[np.searchsorted(at, np.arange(1, 8))]
    return even, float(table.max()), edges, np.bincount(at, table, 8).astype(np.float64)


def two_sided(count: int, runs: int, chance: float) -> float:
    """How improbable a count this high is among runs, or this low; at most 1."""
    tails = binom.cdf(count, runs, chance), binom.sf(count - 1, runs, chance)
    return min(1.0, 2 * float(min(tails)))


def same_histograms(
    manifest: Manifest, others: Sequence[Manifest], alpha: float
) -> tuple[bool, tuple[Power, ...]]:
    """Whether a release's histograms have the noise of another release's at level α; the power."""
    tails = [tail for other in others for tail in _same_noise_tails(manifest, other)]
    same = any(tail < alpha / len(tails) for tail, _ in tails)
    needed = max((cells for _, cells in tails), default=None)
    fault = "cells of a histogram that are the same"
    return same, () if needed is None else (Power(fault, needed),)


def _same_noise_tails(manifest: Manifest, other: Manifest) -> list[tuple[float, float]]:
    """How improbable the number of equal counts of two histograms is, at most; and the power.

    Of the same labels, or of others: the difference of two noises is most often 0. Beside it, the
    least number of equal cells that passes a millionth. Priors that are decoded, or another
    release's, have no noise of theirs.
    """
    tails = []
    others = {tuple(prior.labels): prior for prior in other.priors}
    for prior in manifest.priors if manifest.prior_paid and other.prior_paid else ():
        before = others.get(tuple(prior.labels), prior)
        counts, again = prior.noisy_counts, before.noisy_counts
        both = prior.noisy and before.noisy
        if before is prior or not both or len(counts) != len(again):
            continue
        scale = min(parse_rational(prior.scale), parse_rational(before.scale))
        chance = float(equal_chance(float(scale)))
        same = sum(map(operator.eq, counts, again))
        needed = int(binom.isf(GATE, len(counts), chance)) + 1
        tail = float(binom.sf(same - 1, len(counts), chance))
        tails.append((tail, float(needed) if needed <= len(counts) else math.inf))
    return tails


def same_noise_check(codes: Outputs, other: Outputs, codebook: Codebook) -> Check:
    """Two messages of (n,) codes about the same labels, in one order, share no stretch of rows.

    The codes agree in a row with probability at most q, the channels' largest, so that n rows
    hold a stretch of w equal ones with probability at most n · q^w.
    """
    share = math.prod(float(channel.row_probabilities.max()) for channel in codebook.channels)
    chance = math.ceil(math.log(codes.size / GATE) / -math.log(share))
    edges = np.flatnonzero(np.diff(np.concatenate([[0], codes == other, [0]])))
    longest = int((edges[1::2] - edges[::2]).max()) if edges.size else 0
    enough = chance <= codes.size
    return Check(
        verdict=verdict_of(longest < chance) if enough else Verdict.NOT_CHECKABLE,
        tried=f"{codes.size:,} rows were compared; {chance:,} equal ones in a row have a"
        f" probability below {GATE:g}.",
        found=f"The longest stretch of equal outputs is {longest:,} rows.",
        confidence=1 - GATE,
        power=(Power("rows of a stretch that is repeated in place", float(chance)),),
    )


def detectable_shift(groups: int, tests: int) -> float:
    """By how many scales of their noise n sums are moved where that is found with 95 %."""
    one = np.ones(groups)
    spread = float(norm.isf(1 - FOUND)) * math.sqrt(2 / groups)  # of a mean of noises of scale 1
    return least(
        lambda by: shift_probability(max(by - spread, 0.0) * one, one) * tests < GATE,
        1e-3,
        1e3,
    )


def detectable_narrowness(cells: int, scale: float, alpha: float) -> float:
    """Share by which noise is narrower than stated that is found with 95 %; infinite if none is.

    The sum's deviation is that of a normal law.
    """

    def refuted(share: float) -> bool:
        q = math.exp(-1 / (scale * (1 - share)))
        mean, square = 2 * q / (1 - q * q), 2 * q / (1 - q) ** 2
        most = mean + float(norm.isf(1 - FOUND)) * math.sqrt((square - mean * mean) / cells)
        return noise_probability(np.full(cells, most), scale)[0] < alpha

    return least(refuted, 1e-3, 1 - 1e-3)


Noise = tuple[str, float, Integers]
"""A table's name, the scale of its noise, and what is left of its (k,) cells; tables of one name,
scale and size are alike."""


def noise_check(
    noises: Iterable[Noise],
    *,
    tried: str,
    spent: float = 0.0,
    claimed: float | None = None,
    groups: int = 0,
) -> Check:
    """Compare size, shape, sign and parity with the law, and look for cells without any noise.

    What the stated scales ``spent`` must not be above the ``claimed`` ε. There may be n
    ``groups`` of equal tables, which share the level.
    """
    equal: dict[tuple[str, int, float], list[Integers]] = {}
    for what, scale, noise in noises:
        equal.setdefault((what, noise.size, scale), []).append(noise)
    tables = {key: np.stack(each) for key, each in equal.items()}
    tails = {
        (key, aspect): tail
        for key, table in tables.items()
        for aspect, tail in noise_tails(table, key[2]).items()
    }
    ((what, size, scale), aspect), smallest = min(tails.items(), key=lambda each: each[1])
    # each aspect of each table has its part: of as many tables as there may be, where it depends on
    # noise which of them are there
    level = GATE * len(tables) / (len(tails) * max(groups, len(tables)))
    enough = claimed is None or spent <= claimed * (1 + 1e-9)
    (_, cells, largest), most = max(tables.items(), key=lambda each: each[1].size)
    # the same noise, but that one cell never has any: would that have been refuted?
    exact = noise_tails(np.where(np.arange(cells) == 0, 0, most), largest)
    powers = [
        Power(
            "share by which noise is too narrow", detectable_narrowness(most.size, largest, level)
        )
    ]
    if exact["how often no noise in one cell"] < level:
        powers.append(Power("cells that never have noise", 1.0))
    paid = "" if claimed is None else f" Stated scales spend {spent:.4g} of ε = {claimed:.4g}."
    return Check(
        verdict=verdict_of(smallest >= level and enough),
        tried=f"{tried} What remained was compared with a table of the law: sum, shape, sign,"
        " parity, and cells without any noise.",
        found=f"The least probable is {aspect}, in {what} of {size} cells of scale {scale:.4g}: at"
        f" most {smallest:.3g}; {level:.2g} would be refuted.{paid}",
        confidence=1 - GATE,
        power=tuple(powers),
    )
