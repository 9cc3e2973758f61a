"""Rows against rows: whatever one row's output says about another row's noise or label.

Rows of a right build are randomized independently. Three things break that, at any distance:

- *Repeats.* Words that come back. Where labels come in one pattern, equal words give equal outputs,
  and a window of rows that occurs twice, anywhere, is found by sorting. Two windows of w rows agree
  with probability at most q^w, q the commonest output's share: read from left to right, each row
  must hit the one output that an earlier row has fixed. (Windows may overlap.)
- *Agreement.* Words that come back here and there, or noise that is alike or opposite. For every
  lag L at once, the outputs' autocovariance Σ_i <U_i, U_{i+L}>, U_i the indicator of an output less
  its probability given the row's label: a martingale.
- *Influence.* A label that is used in another row. Labels are random; an output, centred given its
  own label, is compared with every other row's label and with whether several others agree. Given
  the labels, the terms of each sum are independent. In one long call every lag is looked at, for
  all rows and for those whose own label is in one of some groups that are drawn; of many small
  calls every pair of rows, where what happens in one row of a hundred is not diluted.

Thresholds are Bernstein's and Freedman's, divided by the number of sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from labelveil.audit.attacks.one_run import Outputs
from labelveil.audit.power import bernstein_threshold, clopper_pearson_upper, least_share
from labelveil.audit.verdict import GATE, Check, Power, Verdict, verdict_of
from labelveil.common.arrays import Booleans, Floats, Integers

CELLS = 8
"""Cells in which outputs are told apart; rarer or neighbouring ones are counted together."""

NEAR = 4  # in small calls, whether two labels at most so far apart agree
GROUPS = 4  # in which own labels are put, anew in each run
_SLACK = 1.02  # variances are those of estimated probabilities, from hundreds of thousands of rows


@dataclass(frozen=True, eq=False)
class Rows:
    """Outputs beside what is known of their labels."""

    cells: Integers  # (n,) outputs, below c
    kinds: Integers  # (n,) which of K labels each row had
    laws: Floats  # (K, c) probabilities of the cells
    stated: bool  # whether these are stated, not counted in the same outputs

    @classmethod
    def from_outputs(cls, outputs: Outputs, kinds: Integers | None = None) -> Self:
        """Count the laws of (n,) outputs whose labels are of (n,) kinds, by default of one."""
        cells = cells_of(outputs)
        kinds = np.zeros(cells.size, dtype=np.int64) if kinds is None else kinds
        size, many = int(cells.max()) + 1, int(kinds.max()) + 1
        counts = np.bincount(size * kinds + cells, minlength=size * many).reshape(many, size)
        return cls(cells, kinds, counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), False)

    @classmethod
    def by_laws(cls, codes: Integers, kinds: Integers, laws: Floats) -> Self:
        """The same where the (K, d) laws of (n,) codes are stated."""
        size = laws.shape[1]
        if size > CELLS:  # neighbouring ones together, about equally likely
            edges = np.cumsum(laws.mean(axis=0)) - 1e-12
            groups = np.minimum((CELLS * edges).astype(np.int64), CELLS - 1)
            laws = np.stack([laws[:, groups == g].sum(axis=1) for g in range(CELLS)], axis=1)
            codes = groups[codes]
        return cls(codes, kinds, laws, True)

    def reordered(self, order: Integers) -> Self:
        return replace(self, cells=self.cells[order], kinds=self.kinds[order])

    def centred(self, weights: Floats) -> Floats:
        """(n,) weights of the cells less what is expected of them given the labels."""
        return np.asarray(weights[self.cells] - (self.laws @ weights)[self.kinds])

    def variance(self, weights: Floats) -> float:
        each = self.laws @ weights**2 - (self.laws @ weights) ** 2
        return float(np.bincount(self.kinds, minlength=len(each)) @ each)

    def scores(self, signs: Floats) -> list[Floats]:
        """One or two sets of cells: what labels of sign +1 give more often, and the high ones."""
        upper = (np.arange(self.laws.shape[1]) >= self.laws.shape[1] // 2).astype(np.float64)
        higher = (signs @ self.laws > 0).astype(np.float64)
        if higher.min() == higher.max():  # no label is told from the others
            return [upper]
        return [higher] if np.array_equal(upper % 2, higher) else [higher, upper]


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

    def check(self, power: str, **more: Any) -> Check:
        """Judge it; ``power`` names the fault whose least share is found."""
        return Check(
            verdict_of(not self.exceeds),
            found=str(self),
            bound=math.inf if self.exceeds else 0.0,
            confidence=1 - GATE,
            power=(Power(power, self.least_share),),
            **more,
        )


def worst(*associations: Association) -> Association:
    """The one that is largest as a multiple of its threshold, with the sums of all."""
    largest = max(associations, key=lambda each: each.ratio)
    return replace(largest, sums=sum(each.sums for each in associations))


def words_check(
    repeats: Sequence[Repeat],
    lags: Sequence[Association],
    *,
    tried: str,
    powers: Sequence[Power] = (),
) -> Check:
    """No randomness comes back, in stretches or here and there.

    Outputs that vary too little for either to be seen decide nothing.
    """
    largest = worst(*lags)
    again = next((repeat for repeat in repeats if repeat.exists), None)
    blind = not any(r.window for r in repeats) and all(math.isinf(a.least_share) for a in lags)
    comes_back = again is not None or largest.exceeds
    windows = [float(repeat.window) for repeat in repeats if repeat.window]
    return Check(
        verdict=Verdict.NOT_CHECKABLE if blind else verdict_of(not comes_back),
        tried=f"{tried}, and compared: every window of some rows with every other one, and outputs"
        f" at {largest.sums:,} lags.",
        found=f"The rows from {again.first:,} on are the same {again.lag:,} rows later."
        if again is not None
        else str(largest),
        bound=math.inf if comes_back else None if blind else 0.0,
        confidence=1 - GATE,
        power=(
            Power("rows of a stretch that is repeated", max(windows, default=math.inf)),
            Power(
                "share of rows that repeat another's word at one lag",
                min(association.least_share for association in lags),
            ),
            *powers,
        ),
        details={"lag": again.lag if again else -1, "where": largest.where},
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


def commonest_share(outputs: Outputs, kinds: Integers | None = None, alpha: float = GATE) -> float:
    """Upper bound of the share of the commonest of (n,) outputs, under any of (n,) kinds."""
    codes = _numbered(outputs)
    kinds = np.zeros_like(codes) if kinds is None else kinds
    size = int(codes.max()) + 1
    cells, counts = np.unique(size * kinds + codes, return_counts=True)
    most = np.zeros(int(kinds.max()) + 1, dtype=np.int64)
    np.maximum.at(most, cells // size, counts)
    runs = np.bincount(kinds)
    bounds = map(clopper_pearson_upper, most.tolist(), runs.tolist(), [alpha] * runs.size)
    return max(bound for bound, many in zip(bounds, runs, strict=True) if many)


def window_rows(share: float, pairs: float, alpha: float = GATE) -> int:
    """How many rows two independent sequences share by chance with probability at most α.

    The least power of two w with pairs · q^w <= α, where q is the ``share`` of the commonest
    output, and ``pairs`` of windows are compared; 0 if outputs hardly vary.
    """
    if share >= 1 or pairs < 1:
        return 0
    needed = math.log(pairs / alpha) / -math.log(share)
    return 1 << max(math.ceil(math.log2(needed)), 0)


def find_repeat(
    outputs: Outputs, alpha: float = GATE, kinds: Integers | None = None, pattern: int = 1
) -> Repeat:
    """Look in (n,) outputs for a window of rows that occurs twice, at any lag.

    Labels, of (n,) kinds, come again after ``pattern`` rows: windows are compared at its multiples.
    """
    names, width = _numbered(outputs), 1
    share = commonest_share(outputs, kinds, alpha)
    window = window_rows(share, outputs.size**2 / 2 / pattern, alpha)
    if not window or window > outputs.size // 16:
        return Repeat(0)
    names = names * pattern + np.arange(names.size) % pattern
    # names of windows of 2m rows are those of pairs of windows of m rows: no hash can collide
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


def find_again(outputs: Outputs, starts: Sequence[int], alpha: float = GATE) -> Repeat:
    """Look in (n,) outputs for one label for the windows that begin at some rows: no sorting."""
    codes = outputs if outputs.dtype == np.uint8 else (_numbered(outputs) % 251).astype(np.uint8)
    share = commonest_share(codes[: 1 << 19], None, alpha)
    window = window_rows(share, float(outputs.size * len(starts)), alpha)
    if not window:
        return Repeat(0)
    data = np.ascontiguousarray(codes).tobytes()
    for start in starts:
        again = data.find(data[start : start + window], start + 1)
        if again >= 0:
            return Repeat(window, start, again - start)
    return Repeat(window)


def agreement(rows: Rows, alpha: float = GATE) -> Association:
    """Compare each output with the one at every lag."""
    n, cells = rows.cells.size, rows.laws.shape[1]
    length = fft.next_fast_len(2 * n, real=True)
    spectrum = np.zeros(length // 2 + 1, dtype=np.float32)
    for weights in np.eye(cells):
        spectrum += np.abs(_transform(rows.centred(weights), length)) ** 2
    sums = np.abs(fft.irfft(spectrum, length)[1:n])  # autocovariances: no circle, being padded
    spreads = np.einsum("ka,ab->kab", rows.laws, np.eye(cells))
    spreads -= np.einsum("ka,kb->kab", rows.laws, rows.laws)
    of_kinds = np.bincount(rows.kinds, minlength=len(rows.laws))
    # Σ_i tr(Σ_i Σ_{i+L}) is at most Σ_i |Σ_i|², whatever the lag
    variance = _SLACK * float(of_kinds @ (spreads**2).sum(axis=(1, 2)))
    level = alpha / (4 * sums.size)
    # Counted laws p̂ add <p̂ - p, U> twice and <p̂ - p, p̂ - p>. A norm of (√n_k (p̂_k - p_k))_k has a
    # mean of at most √K and is convex and 1-Lipschitz in outputs of diameter √2 (Talagrand)
    apart = math.sqrt(np.count_nonzero(of_kinds)) + 2 * math.sqrt(-math.log(level))
    slack = 0.0 if rows.stated else 3 * apart**2
    threshold = float(bernstein_threshold(variance, 2.0, level)) + slack
    at = int(sums.argmax()) if variance else 0
    return Association(
        size=float(sums[at]) if variance else 0.0,
        threshold=threshold,
        where=f"lag {at + 1:,}",
        sums=sums.size,
        least_share=least_share(threshold, variance, n * _coupled(rows.laws, of_kinds / n)),
    )


def _coupled(laws: Floats, shares: Floats) -> float:
    """Mean of <U, U'> for two rows of one word, drawn by inversion, whose labels are random."""
    kinds = np.flatnonzero(shares)[:200]
    upper = laws[kinds].cumsum(axis=1)
    lower = upper - laws[kinds]
    both = np.minimum(upper[:, None], upper[None]) - np.maximum(lower[:, None], lower[None])
    alike = both.clip(0).sum(axis=2) - laws[kinds] @ laws[kinds].T
    weights = shares[kinds] / shares[kinds].sum()
    return float(weights @ alike @ weights)


def influence(
    rows: Rows,
    signs: Floats,
    groups: Integers,
    gaps: Sequence[tuple[int, ...]],
    alpha: float = GATE,
) -> Association:
    """Compare every row's output with the labels of all other rows of one call, in a circle.

    The labels of the n rows were drawn independently; (f, K) ``signs`` ±1 of each kind tell them
    apart. ``gaps`` are distances from a row to others whose first signs are multiplied by its own.
    Rows are looked at all together and by (K,) ``groups``, below g, of their own labels.
    """
    n = rows.cells.size
    features = {"the label": signs[0][rows.kinds]}
    features |= {f"a function of the label ({at})": s[rows.kinds] for at, s in enumerate(signs[1:])}
    single = len(features)
    for others in gaps:
        product = features["the label"].copy()
        for gap in others:
            product *= np.roll(features["the label"], -gap)
        apart = " and ".join(map(str, others))
        features[f"whether labels {apart} apart agree,"] = product
    masks = {"": np.ones(n)}
    own = groups[rows.kinds]
    if groups.max() > 0:
        parts = {f" (own labels of group {g})": own == g for g in range(int(groups.max()) + 1)}
        masks |= {name: part.astype(np.float64) for name, part in parts.items()}
    scores = rows.scores(signs[0])
    tests = len(scores) * (len(features) + (len(masks) - 1) * single)
    level = alpha / (2 * n * tests)
    # the error of counted means, of numbers within 1, beside features within 2 (as in agreement)
    error = math.sqrt(len(rows.laws)) + math.sqrt(-8 * math.log(level))
    slack = 0.0 if rows.stated else error**2 / 2
    # correlations at all lags at once, in a circle: a product of transforms
    turned = {name: np.conj(_transform(feature, n)) for name, feature in features.items()}
    associations, shares = [Association(0.0, 1.0, "", 0, math.inf)], [math.inf]
    for weights in scores:
        centred = rows.centred(weights)
        for mask, chosen in masks.items():
            variance = _SLACK * float(centred**2 @ chosen)
            if variance < 1:  # one output alone, or one for each label
                continue
            score = _transform(centred * chosen, n)
            largest = float(np.abs(centred).max())
            threshold = float(bernstein_threshold(variance, largest, level)) + slack
            if not mask:
                shares.append(least_share(threshold, variance, n / 2))
            for name in list(features)[: single if mask else None]:
                sums = np.abs(fft.irfft(score * turned[name], n))
                at = int(sums.argmax())
                lag = f"{at:,} rows before" if at <= n // 2 else f"{n - at:,} rows behind"
                where = f"{name} {lag}{mask}"
                size = float(sums[at])
                associations.append(Association(size, threshold, where, n, math.inf))
    return replace(worst(*associations), least_share=min(shares))


def influence_in_calls(rows: Rows, calls: int, signs: Floats, alpha: float = GATE) -> Association:
    """The same of many calls of equally many rows, laid end to end: every row with every other.

    The mean of each label in each row of a call is taken off: rows of a call may differ.
    """
    size = rows.cells.size // calls
    table = signs[rows.kinds].reshape(calls, size)
    features: dict[int, Floats] = {0: table}
    # two labels together may decide, where neither does alone
    features |= {gap: table[:, :-gap] * table[:, gap:] for gap in range(1, NEAR + 1)}

    def where(gap: int, row: int, other: int) -> str:
        label = f"whether rows {other} and {other + gap} agree" if gap else f"row {other}'s label"
        return f"the output of row {row} of a call, and {label}"

    def own(gap: int, row: Integers, other: Integers) -> Booleans:
        return np.asarray((other == row) | (other + gap == row))

    kinds = len(rows.laws)
    places = np.tile(np.arange(size), calls) * kinds + rows.kinds
    counts = np.maximum(np.bincount(places, minlength=size * kinds), 1)
    scores = rows.scores(signs)
    sums = []
    for weights in scores:
        score = weights[rows.cells]
        means = np.bincount(places, score, size * kinds) / counts
        centred = (score - means[places]).reshape(calls, size)
        sums.append(largest_sum(centred, features, where, alpha / len(scores), own))
    return replace(worst(*sums), least_share=min(each.least_share for each in sums))


def _transform(values: Floats, length: int) -> NDArray[np.complex64]:
    """In single precision: sums are of thousands, and need no more."""
    return np.asarray(fft.rfft(values.astype(np.float32), length))


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
    # features are of size at most 1, so that no sum varies more than its column by itself
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
    return Association(*worst, sums, least_share(*middle, centred.shape[0] / 2))
