"""Rows against rows: whatever one row's output says about another row's noise or label.

Rows of a right build are randomized independently. Three things break that, at any distance:

- *Repeats.* Words that come back. Every label is the same, so that equal words give equal outputs,
  and a window of rows that occurs twice, anywhere, is found by sorting. Two windows of w rows agree
  with probability at most q^w, q the commonest output's share: read from left to right, each row
  must hit the one output that an earlier row has fixed. (Windows may overlap.)
- *Agreement.* Words that come back here and there, or noise that is alike or opposite. For every
  lag L at once, the outputs' circular autocovariance Σ_i <U_i, U_{i+L}>, U_i the centred indicator
  of an output. The number of rows is a prime, so that i, i + L, i + 2L, … is one cycle and the sum
  a martingale plus one closing term.
- *Influence.* A label that is used in another row. Labels are random bits; an output, centred given
  its own label, is compared with every other row's label and with whether two others agree. Given
  the labels, the terms of each sum are independent. In one long call every lag is looked at; of
  many small calls every pair of rows, where what happens in one row of a hundred is not diluted.

Thresholds are Bernstein's and Freedman's, divided by the number of sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.stats import norm

from common.arrays import Booleans, Floats, Integers
from labelveil.audit.bounds import clopper_pearson_upper
from labelveil.audit.power import FOUND, bernstein_threshold
from labelveil.audit.verdict import GATE, Check, Power, Verdict, verdict_of

Outputs = NDArray[np.generic]

ROWS = (1 << 19) - 1
"""Rows of the attacks on repeats and agreement: a prime, eight blocks of 65,536 rows."""

CELLS = 8
"""Outputs are told apart in so many cells; rarer or neighbouring ones are counted together."""

PAIRED = 16  # influence is also looked for of whether two labels at most so far apart agree

NEAR = 4  # the same in small calls

_SLACK = 1.02  # variances are those of estimated probabilities, from hundreds of thousands of rows


@dataclass(frozen=True)
class Repeat:
    """The first window of rows that occurs twice, if any."""

    window: int  # rows of the windows that were compared; 0 if none is long enough to mean anything
    first: int = -1  # where the window begins; -1 if none occurs twice
    lag: int = -1  # how far behind it occurs again

    @property
    def exists(self) -> bool:
        return self.lag > 0


@dataclass(frozen=True)
class Association:
    """The largest of many sums that should be near 0."""

    size: float
    threshold: float  # what it passes with probability at most the level, all sums together
    where: str  # which sum it is, in words
    sums: int  # how many were looked at
    least_share: float  # share of rows that would have to be concerned to be found with 95%

    @property
    def ratio(self) -> float:
        """Its size as a multiple of the threshold."""
        return self.size / self.threshold

    @property
    def exceeds(self) -> bool:
        return self.ratio > 1

    def __str__(self) -> str:
        return (
            f"The largest is {self.ratio:.2f} of what a right build passes once in a million audits"
            f" ({self.where})."
        )

    def check(self, name: str, power: str, **more: Any) -> Check:
        """Judge it; ``power`` names the fault whose least share is found."""
        return Check(
            name,
            verdict_of(not self.exceeds),
            found=str(self),
            confidence=1 - GATE,
            power=(Power(power, self.least_share),),
            **more,
        )


def words_check(name: str, outputs: Outputs, *, claim: str, tried: str) -> Check:
    """No randomness comes back in (n,) outputs of one label, in stretches or here and there.

    Outputs that vary too little for either to be seen decide nothing.
    """
    repeat, lags = find_repeat(outputs, GATE / 2), agreement(outputs, GATE / 2)
    blind = not repeat.window and math.isinf(lags.least_share)
    again = repeat.exists or lags.exceeds
    windows = f"every window of {repeat.window:,} rows with every other one, and "
    return Check(
        name=name,
        verdict=Verdict.NOT_CHECKABLE if blind else verdict_of(not again),
        claim=claim,
        tried=f"{tried}, and compared: {windows if repeat.window else ''}outputs at"
        f" {lags.sums:,} lags.",
        found=f"The rows from {repeat.first:,} on are the same {repeat.lag:,} rows later."
        if repeat.exists
        else str(lags),
        bound=math.inf if again else None if blind else 0.0,
        confidence=1 - GATE,
        power=(
            Power("rows of a stretch that is repeated", float(repeat.window or math.inf)),
            Power("share of rows that repeat another's word at one lag", lags.least_share),
        ),
        details={"lag": repeat.lag, "first": repeat.first, "where": lags.where},
    )


def cells_of(outputs: Outputs) -> Integers:
    """(n,) cells below ``CELLS``: single outputs where they are few, ranges of them otherwise."""
    codes = _numbered(outputs)
    if codes.max() < CELLS:
        return codes
    edges = np.unique(np.quantile(codes, np.linspace(0, 1, CELLS + 1)[1:-1]))
    return np.searchsorted(edges, codes, side="right").astype(np.int64)


def _numbered(values: Outputs) -> Integers:
    """(n,) each value's place among the distinct ones."""
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


def window_rows(outputs: Outputs, pairs: float, alpha: float = GATE) -> int:
    """How many rows two independent sequences share by chance with probability at most α.

    The least power of two w with pairs · q^w <= α, where q is an upper bound of the share of the
    commonest of the (n,) outputs for one label, and so many pairs of windows are compared; 0 if
    that is more than a sixteenth of the rows.
    """
    most = int(np.unique(outputs, return_counts=True)[1].max())
    share = clopper_pearson_upper(most, outputs.size, alpha)
    if share >= 1 or pairs < 1:
        return 0
    needed = math.log(pairs / alpha) / -math.log(share)
    window = 1 << max(math.ceil(math.log2(needed)), 0)
    return window if window <= outputs.size // 16 else 0


def find_repeat(outputs: Outputs, alpha: float = GATE) -> Repeat:
    """Look in (n,) outputs for one label for a window of rows that occurs twice, at any lag."""
    window = window_rows(outputs, outputs.size**2 / 2, alpha)
    if not window:
        return Repeat(0)
    # names of windows of 2m rows are those of pairs of windows of m rows: no hash can collide
    names, width = _numbered(outputs), 1
    while width < window:
        names = _numbered(names[:-width] * (int(names.max()) + 1) + names[width:])
        width *= 2
    order = np.argsort(names, kind="stable")
    again = np.flatnonzero(names[order[1:]] == names[order[:-1]])
    if not again.size:
        return Repeat(window)
    firsts = order[again]
    at = int(firsts.argmin())
    return Repeat(window, int(firsts[at]), int(order[again[at] + 1] - firsts[at]))


def agreement(outputs: Outputs, alpha: float = GATE) -> Association:
    """Compare each of (n,) outputs for one label with the one at every lag."""
    n = outputs.size
    while any(n % divisor == 0 for divisor in range(2, math.isqrt(n) + 1)):
        n -= 1  # to the next prime
    cells = cells_of(outputs[:n])
    size = int(cells.max()) + 1
    shares = np.bincount(cells, minlength=size) / n
    turned = [fft.rfft((cells == cell) - shares[cell]) for cell in range(size)]
    spectrum = np.sum(np.abs(turned) ** 2, axis=0)
    sums = fft.irfft(spectrum, n)[1 : n // 2 + 1]
    spread = np.diag(shares) - np.outer(shares, shares)
    variance = _SLACK * n * float(np.sum(spread * spread))
    # both sides of every lag; the closing term is at most 2, and the estimated shares add
    # n |p̂ - p|², which passes (1 + √(2 ln 2/α))² with probability at most α/2 (McDiarmid)
    slack = 2 + (1 + math.sqrt(2 * math.log(2 / alpha))) ** 2
    threshold = float(bernstein_threshold(variance, 2.0, alpha / (4 * sums.size))) + slack
    at = int(np.abs(sums).argmax())
    certain = float(np.trace(spread)) * n  # what one lag's sum is if all rows come back
    return Association(
        size=float(abs(sums[at])),
        threshold=threshold,
        where=f"lag {at + 1:,}",
        sums=sums.size,
        least_share=_least_share(threshold, variance, certain),
    )


def influence(outputs: Outputs, bits: Integers, alpha: float = GATE) -> Association:
    """Compare every row's output with the labels of all other rows of its call.

    There are (n,) outputs of one call, or (calls, m) of many; ``bits`` say which of two values each
    row's label was, uniformly and independently.
    """
    compare = _at_every_lag if bits.ndim == 1 else _in_every_pair
    scores = scores_of(outputs.reshape(-1), bits.reshape(-1))
    largest = [compare(score.reshape(bits.shape), bits, alpha / len(scores)) for score in scores]
    return replace(
        max(largest, key=lambda association: association.ratio),
        sums=sum(association.sums for association in largest),
        least_share=min(association.least_share for association in largest),
    )


def scores_of(outputs: Outputs, bits: Integers) -> list[Floats]:
    """One or two indicators of an output: is it what the higher label gives, is it a high one?"""
    cells = cells_of(outputs)
    size = int(cells.max()) + 1
    higher = np.bincount(cells, bits, size) > np.bincount(cells, 1 - bits, size)
    likely = higher[cells].astype(np.float64)
    upper = (cells >= size // 2).astype(np.float64)
    if higher.min() == higher.max():  # neither label is told from the other
        return [upper]
    if size == 2 or np.array_equal(upper, likely) or np.array_equal(upper, 1 - likely):
        return [likely]
    return [likely, upper]


def _at_every_lag(score: Floats, bits: Integers, alpha: float) -> Association:
    """Of one call, with the output's mean for either label taken off."""
    n = bits.size
    counts = np.maximum(np.bincount(bits, minlength=2), 1)
    means = np.bincount(bits, score, 2) / counts
    centred = score - means[bits]
    variance = float(np.sum(counts * means * (1 - means)))
    if not variance:  # one output alone, or one for each label
        return Association(0.0, 1.0, "", sums=0, least_share=math.inf)
    length = fft.next_fast_len(2 * n, real=True)
    spectrum = fft.rfft(centred, length)
    level = alpha / (4 * n * (PAIRED + 1))
    threshold = float(bernstein_threshold(_SLACK * variance, np.abs(centred).max(), level))
    size, where = 0.0, ""
    signs = 2.0 * bits - 1
    for gap in range(PAIRED + 1):
        feature = signs[: n - gap] * signs[gap:] if gap else signs
        sums = fft.irfft(spectrum * np.conj(fft.rfft(feature, length)), length)
        sums[[0, gap]] = 0.0  # the row's own label
        sums[n:-n] = 0.0
        at = int(np.abs(sums).argmax())
        if abs(sums[at]) > size:
            size, lag = float(abs(sums[at])), at if at < n else at - length
            feature_name = f"whether two labels {gap} apart agree," if gap else "the label"
            where = f"{feature_name} {abs(lag):,} rows {'before' if lag > 0 else 'behind'}"
    share = _least_share(threshold, variance, n / 2)
    return Association(size, threshold, where, (PAIRED + 1) * (2 * n - 2), share)


def _in_every_pair(score: Floats, bits: Integers, alpha: float) -> Association:
    """Of many calls, with the mean of each of their rows taken off: rows of a call may differ."""
    signs = (2 * bits - 1).astype(np.float64)
    features: dict[int, Floats] = {0: signs}
    features |= {gap: signs[:, :-gap] * signs[:, gap:] for gap in range(1, NEAR + 1)}

    def where(gap: int, row: int, other: int) -> str:
        label = f"whether rows {other} and {other + gap} agree" if gap else f"row {other}'s label"
        return f"the output of row {row} of a call, and {label}"

    def own(gap: int, row: Integers, other: Integers) -> Booleans:
        return np.asarray((other == row) | (other + gap == row))

    ones = bits.sum(axis=0)
    high = (score * bits).sum(axis=0) / np.maximum(ones, 1)
    low = (score * (1 - bits)).sum(axis=0) / np.maximum(bits.shape[0] - ones, 1)
    return largest_sum(score - np.where(bits == 1, high, low), features, where, alpha, own)


Feature = TypeVar("Feature")


def largest_sum(
    centred: Floats,
    features: Mapping[Feature, Floats],
    where: Callable[[Feature, int, int], str],
    alpha: float = GATE,
    skipped: Callable[[Feature, Integers, Integers], Booleans] | None = None,
) -> Association:
    """Compare every column of a table with every column of others, over independent rows.

    (n, m) centred numbers with (n, k) features, independent of them if all is right, all of size at
    most 1. ``where`` puts a feature, a column of the table and one of the feature in words;
    ``skipped`` are pairs of columns that may well go together.
    """
    variance = _SLACK * (centred**2).sum(axis=0)
    sums = sum(feature.shape[1] for feature in features.values()) * centred.shape[1]
    thresholds = bernstein_threshold(variance, 1.0, alpha / (2 * sums))
    worst = 0.0, 1.0, ""
    for name, feature in features.items():
        sizes = np.abs(centred.T @ feature)
        if skipped is not None:
            rows, others = np.ogrid[: sizes.shape[0], : sizes.shape[1]]
            sizes[skipped(name, rows, others)] = 0.0
        row, column = divmod(int((sizes / thresholds[:, None]).argmax()), sizes.shape[1])
        size, threshold = float(sizes[row, column]), float(thresholds[row])
        if size / threshold > worst[0] / worst[1]:
            worst = size, threshold, where(name, row, column)
    middle = float(np.median(thresholds)), float(np.median(variance))
    return Association(*worst, sums, _least_share(*middle, centred.shape[0] / 2))


def _least_share(threshold: float, variance: float, certain: float) -> float:
    """Share s at which a mean of s · ``certain`` passes the threshold with 95%."""
    needed = threshold + float(norm.isf(1 - FOUND)) * math.sqrt(variance)
    return needed / certain if needed <= certain else math.inf
