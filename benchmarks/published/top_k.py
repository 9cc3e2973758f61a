"""Selection: recall on check-ins, forty days of states, one cliff, and many uses of one budget.

Published: Zhu and Wang, AISTATS 2022, Table 1, Figure 1, and the appendix on composition. Their
check-ins are those of Carvalho and others (UAI 2020), and so are ε, δ and k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from benchmarks.harness import markdown
from benchmarks.published import sources
from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import Entropy, seeded_entropy
from labelveil.common.exact.exponential_choice import exponential_peeling
from labelveil.common.guarantees import (
    DEFAULT_ORDERS,
    Guarantee,
    PureDP,
    RenyiDP,
    epsilon_at,
    largest_rho,
    to_approximate,
    total,
)
from labelveil.common.mechanisms.selection import (
    FixedStableTopK,
    Law,
    LimitedDomain,
    NoisyMax,
    Peeling,
    Ranking,
    Selection,
    Selector,
    StableTopK,
    TopStable,
    pull_towards,
)
from labelveil.common.report.figures import logarithmic, picture

DELTA = Fraction(1, 10**6)
KS = (3, 10, 50)
EPSILONS = (0.4, 0.8, 1.0)
SHARES = {"1/10": Fraction(1, 10), "1/2": Fraction(1, 2)}
"""Of the budget for the stable set (choice and test, half each): ours, and Algorithm 3's."""
UNLISTED = (
    *(f"StableTopK ({share})" for share in SHARES),
    "StableTopK, unfilled",
    "Top-Stable",
    "Limited Domain",
)
"""Told how many leaders they may look at, not which candidates there are."""
LISTED = (
    *(f"StableTopK, listed ({share})" for share in SHARES),
    "Top-Stable, listed",
    "EM-CDP",
)
"""Told a public list of all candidates; the first three fill up from it."""
NAMES = (*UNLISTED, *LISTED)

PRINTED = {
    "BrightKite": {
        "Top-Stable": (1.00, 0.77, 0.14, 1.00, 0.80, 0.16, 1.00, 0.80, 0.18),
        "Limited Domain": (1.00, 0.47, 0.10, 1.00, 0.79, 0.25, 1.00, 0.88, 0.28),
        "StableTopK, listed": (1.00, 0.91, 0.61, 1.00, 1.00, 0.67, 1.00, 1.00, 0.67),
    },
    "Foursquare": {
        "Top-Stable": (1.00, 0.64, 0.11, 1.00, 0.90, 0.18, 1.00, 0.90, 0.18),
        "Limited Domain": (0.68, 0.62, 0.13, 0.75, 0.85, 0.24, 0.91, 0.94, 0.28),
        "StableTopK, listed": (1.00, 0.72, 0.48, 1.00, 1.00, 0.67, 1.00, 1.00, 0.67),
    },
}
"""Table 1 of Zhu and Wang: recall at ε = 0.4, 0.8 and 1, at k = 3, 10 and 50 of each.

The first two rows are not their own measurements but those of Carvalho and others. StableTopK is
Algorithm 3, which fills up by the exponential mechanism and so from a list, by halves.
"""


def largest(good: Callable[[Fraction], bool], high: Fraction) -> Fraction:
    """The largest multiple of 1/4096 below ``high`` that is good; goodness ends once."""
    low, top = 0, int(high * 4096)
    while top - low > 1:
        middle = (low + top) // 2
        low, top = (middle, top) if good(Fraction(middle, 4096)) else (low, middle)
    return Fraction(low, 4096)


@dataclass(frozen=True)
class Filled:
    """Top-Stable, filled up to k from a public list by peeling with the other half of a budget.

    As Zhu and Wang describe it: what the sparse vector leaves open, the exponential mechanism adds.
    """

    first: TopStable
    rest: Peeling
    """Of k draws."""

    @property
    def guarantees(self) -> list[Guarantee]:
        """Of both halves."""
        return [self.first.guarantee, self.rest.guarantee]

    def draw(self, counts: Ranking, entropy: Entropy) -> Selection:
        """Select exactly k."""
        chosen = self.first.draw(counts, entropy).chosen
        front = np.zeros(0, dtype=np.int64) if chosen is None else chosen
        left = np.setdiff1d(np.arange(counts.counts.size), front, assume_unique=True)
        missing = self.rest.k - front.size
        more = np.zeros(0, dtype=np.int64)
        if missing:
            source = entropy.source("filling")
            drawn = exponential_peeling(counts.counts[left], self.rest.epsilon, missing, source)
            more = left[drawn]
        return Selection(np.sort(np.append(front, more)), self.rest.guarantee)


def guarantees(selector: Selector) -> list[Guarantee]:
    """What one use of a selector costs, in parts."""
    if isinstance(selector, Filled):
        return selector.guarantees
    return [selector.guarantee]  # type: ignore[attr-defined]


def selectors(
    k: int, epsilon: float, delta: Fraction = DELTA, uses: int = 1
) -> dict[str, Selector]:
    """Every mechanism at the same (ε, δ) for that many uses together; half of δ is for failures.

    Without a list, what is not stable is filled up from a limited domain of the same k̄ = 2k as that
    of Limited Domain itself; Top-Stable looks at k + 1 leaders only, whatever it may.
    """
    half, domain = delta / 2, max(2 * k, k + 10)
    rho = largest_rho(epsilon, delta, half)

    def fits(selector: Selector) -> bool:
        return total(guarantees(selector) * uses, delta).epsilon <= epsilon

    def limited(rate: Fraction) -> LimitedDomain:
        return LimitedDomain(k, domain, rate, half / uses)

    def unlisted(part: Fraction, share: Fraction) -> FixedStableTopK:
        return FixedStableTopK(k, part, half / uses / 2, domain, share)

    high = Fraction(epsilon)
    made: dict[str, Selector] = {
        "StableTopK, unfilled": StableTopK(
            rho / uses, half / uses, k, pull_towards(k, Fraction(1, 4))
        ),
        "Top-Stable": _stable(k, epsilon, delta, uses),
        "Limited Domain": limited(largest(lambda rate: fits(limited(rate)), high)),
        "Top-Stable, listed": Filled(
            _stable(k, epsilon / 2, half, uses), _peeling(k, epsilon / 2, half, uses)
        ),
        "EM-CDP": _peeling(k, epsilon, delta, uses),
    }
    for name, share in SHARES.items():
        part = largest(lambda part, share=share: fits(unlisted(part, share)), rho / uses)  # type: ignore[misc]
        made[f"StableTopK ({name})"] = unlisted(part, share)
        made[f"StableTopK, listed ({name})"] = FixedStableTopK(
            k, rho / uses, half / uses, share=share
        )
    return {name: made[name] for name in NAMES}


def _stable(k: int, epsilon: float, delta: Fraction, uses: int) -> TopStable:
    if uses == 1:
        return TopStable(k, Fraction(epsilon), delta)

    def made(rate: Fraction) -> TopStable:
        return TopStable(k, rate, delta / 2 / uses)

    fits = lambda rate: total([made(rate).guarantee] * uses, delta).epsilon <= epsilon  # noqa: E731
    return made(largest(fits, Fraction(epsilon)))


def _peeling(k: int, epsilon: float, delta: Fraction, uses: int) -> Peeling:
    fits = lambda rate: total([Peeling(k, rate).guarantee] * uses, delta).epsilon <= epsilon  # noqa: E731
    return Peeling(k, largest(fits, Fraction(epsilon)))


def by_theorem(
    theorem: str, k: int, epsilon: float, delta: Fraction = DELTA, uses: int = 10
) -> dict[str, Selector]:
    """Top-Stable and Limited Domain, their uses added up by ``advanced`` or ``basic`` composition.

    Zhu and Wang take the advanced theorem, ``√(2m ln(1/δ)) ε + m ε (e^ε − 1)``, for what had no
    curve then. Half of δ is the theorem's, and the other half that of the uses, each (ε', δ')-DP
    alone: Limited Domain by its curve or k draws added up, whichever is less.
    """
    half, domain = delta / 2, max(2 * k, k + 10)
    one, high = half / uses, Fraction(epsilon)
    root = 0.0 if theorem == "basic" else math.sqrt(2 * uses * -math.log(half))

    def together(each: Fraction) -> float:
        e = float(each)
        return uses * e if theorem == "basic" else root * e + uses * e * math.expm1(e)

    each = largest(lambda rate: together(rate) <= epsilon, high)

    def limited(rate: Fraction) -> LimitedDomain:
        return LimitedDomain(k, domain, rate, one / 2)

    def alone(rate: Fraction) -> bool:
        return min(float(k * rate), total([limited(rate).guarantee], one).epsilon) <= each

    rest = _peeling(k, float(each / 2), one / 2, 1)
    made: dict[str, Selector] = {
        "Top-Stable": TopStable(k, each, one),
        "Top-Stable, listed": Filled(TopStable(k, each / 2, one / 2), rest),
        "Limited Domain": limited(largest(alone, high)),
    }
    return {f"{name}, {theorem} composition": selector for name, selector in made.items()}


@dataclass(frozen=True)
class Cell:
    """Recall of the true top-k by one mechanism: mean and standard error over trials."""

    k: int
    epsilon: float
    name: str
    recall: float
    error: float


def recall(selector: Selector, ranking: Ranking, k: int, trials: int) -> tuple[float, float]:
    """Mean share of the true top-k that comes out, and its standard error."""
    # every candidate that ties with the k-th is as true as it
    bar = int(ranking.sorted[k - 1])
    shares = []
    for trial in range(trials):
        chosen = selector.draw(ranking, seeded_entropy(trial)).chosen
        hits = 0 if chosen is None else int(np.sum(ranking.counts[chosen] >= bar))
        shares.append(min(hits, k) / k)
    return float(np.mean(shares)), float(np.std(shares) / np.sqrt(trials))


def check_ins(counts: Integers, users: int, k: int, epsilon: float, trials: int) -> list[Cell]:
    """Table 1's protocol: distinct users of each place, δ = 1/users, half of it for the test."""
    ranking = Ranking(counts)
    return [
        Cell(k, epsilon, name, *recall(selector, ranking, k, trials))
        for name, selector in selectors(k, epsilon, Fraction(1, users)).items()
    ]


def check_ins_table(name: str, cells: Iterable[Cell]) -> str:
    """Recalls as Markdown, those that are printed below ours; and the largest standard error."""
    cells = list(cells)
    by = {(cell.epsilon, cell.k, cell.name): cell for cell in cells}
    rows = [
        [method, *(f"{by[epsilon, k, method].recall:.2f}" for epsilon in EPSILONS for k in KS)]
        for method in NAMES
    ]
    for method, printed in PRINTED.get(name.split(",")[0], {}).items():  # the 10-core is a part
        rows.append([f"*printed:* {method}", *(f"{value:.2f}" for value in printed)])
    heads = [f"ε = {epsilon:g}, k = {k}" for epsilon in EPSILONS for k in KS]
    error = max(cell.error for cell in cells)
    return markdown(["method", *heads], rows) + f"\n\nStandard errors: at most {error:.3f}."


def at_least_three(rank: int) -> Fraction:
    """r(j): rank 1 is always New York; look below it."""
    return Fraction(0) if rank >= 3 else Fraction(-(10**9))


def covid_plot(path: Path, epsilon: float = 4.0) -> dict[str, float]:
    """Daily adaptive top-k of the states by cumulative cases, composed to one budget."""
    days, states, cases = sources.covid()
    rho = largest_rho(epsilon, DELTA, DELTA / 2)
    daily = StableTopK(rho / len(days), DELTA / 2 / len(days), most=10, regularizer=at_least_three)
    shown = np.zeros(cases.shape, dtype=bool)
    right, sizes = 0, []
    for i in range(len(days)):
        selection = daily.draw(cases[i], seeded_entropy(i))
        sizes.append(selection.k)
        if selection.chosen is not None:
            shown[i, selection.chosen] = True
            right += bool(np.array_equal(selection.chosen, Ranking(cases[i]).top(selection.k)))
    total = daily.guarantee.repeat(len(days))
    assert epsilon_at(total, DELTA) <= epsilon
    often = np.argsort(-shown.sum(axis=0), kind="stable")[:12]
    with picture(path, 9, 6) as figure:
        axes = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        axes[0].imshow(shown[:, often].T, aspect="auto", cmap="Blues", interpolation="nearest")
        axes[0].set_yticks(range(len(often)), [states[j] for j in often])
        axes[0].set_title(f"States released each day, ε = {epsilon:g} for all {len(days)} days")
        axes[1].bar(range(len(days)), sizes, color="tab:blue")
        axes[1].set_ylabel("chosen k (0: ⊥)")
        axes[1].set_xticks(range(0, len(days), 10), [days[j] for j in range(0, len(days), 10)])
    answered = sum(size > 0 for size in sizes)
    return {
        "days": len(days),
        "answered": answered,
        "exact": right,
        "mean_k": float(np.mean(sizes)),
    }


CLIFF_KS = (5, 10, 20, 40, 80, 160)
GAPS = (30, 60, 120)


def cliff(k: int, gap: int, trials: int, epsilon: float = 1.0) -> list[Cell]:
    """Figure 1(b): k candidates with one count, all others with one that is ``gap`` lower."""
    ranking = Ranking(sources.synthetic(k, gap))
    return [
        Cell(k, epsilon, name, *recall(selector, ranking, k, trials))
        for name, selector in selectors(k, epsilon).items()
    ]


def cliff_table(cells: dict[int, list[Cell]]) -> str:
    """Recall by gap and k, as Markdown."""
    rows = []
    for gap, found in cells.items():
        by = {(cell.k, cell.name): cell.recall for cell in found}
        rows += [[str(gap), name, *(f"{by[k, name]:.2f}" for k in CLIFF_KS)] for name in NAMES]
    error = max(cell.error for found in cells.values() for cell in found)
    table = markdown(["gap", "method", *(f"k = {k}" for k in CLIFF_KS)], rows)
    return f"{table}\n\nStandard errors: at most {error:.3f}."


def cliff_plot(cells: dict[int, list[Cell]], path: Path) -> None:
    """Recall against k, a panel for each gap."""
    with picture(path, 5 * len(cells), 4.5) as figure:
        for axis, (gap, found) in zip(
            np.atleast_1d(figure.subplots(1, len(cells), sharey=True)), cells.items(), strict=True
        ):
            for name in NAMES:
                row = [cell for cell in found if cell.name == name]
                axis.errorbar(
                    CLIFF_KS,
                    [c.recall for c in row],
                    [c.error for c in row],
                    label=name,
                    marker="o",
                    ms=3,
                )
            logarithmic(axis, "x", f"k; the gap behind it is {gap} users")
            axis.set_xticks(CLIFF_KS)
            axis.set_ylabel("recall of the top k, ε = 1, δ = 1e-6")
        axis.legend(fontsize=7)


GROUPS, DAYS = 4, 10


def forty_days(
    path: Path, k: int = 5, epsilon: float = 1.0, trials: int = 5, new: bool = False
) -> str:
    """Figure 1(a): the k states with most cases, daily; each group of ten days has one budget.

    Cases so far, or the day's ``new`` ones.
    """
    days, _, cases = sources.covid(new)
    methods = selectors(k, epsilon, uses=DAYS)
    for theorem in ("advanced", "basic"):
        methods |= by_theorem(theorem, k, epsilon, uses=DAYS)
    recalls: dict[str, list[float]] = {name: [] for name in methods}
    for day in range(GROUPS * DAYS):
        ranking = Ranking(cases[day])
        for name, selector in methods.items():
            bar = ranking.sorted[k - 1]
            choices = [
                selector.draw(ranking, seeded_entropy(day * trials + i)).chosen
                for i in range(trials)
            ]
            hits = [0 if c is None else int(np.sum(ranking.counts[c] >= bar)) for c in choices]
            recalls[name].append(float(np.mean(hits)) / k)
    groups, rows = [slice(DAYS * g, DAYS * (g + 1)) for g in range(GROUPS)], []
    with picture(path, 8, 4) as figure:
        axis = figure.subplots()
        for i, (name, row) in enumerate(recalls.items()):
            means = [float(np.mean(row[g])) for g in groups]
            axis.bar(np.arange(GROUPS) + 0.06 * (i - 7), means, 0.06, label=name)
            rows.append([name, *(f"{mean:.2f}" for mean in means)])
        axis.set_xticks(range(GROUPS), [f"days {g.start + 1} to {g.stop}" for g in groups])
        axis.set_ylabel(f"recall of the top {k} states,\nε = {epsilon:g} for ten days")
        axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=6)
    labels = [f"{days[g.start]} to {days[g.stop - 1]}" for g in groups]
    return markdown(["method", *labels], rows)


USES = (1, 10, 100, 1000)


def composed(k: int = 10, epsilon: float = 0.5, delta: Fraction = Fraction(1, 10**9)) -> str:
    """ε of many uses together, at δ = 1e-5, of mechanisms that are (ε, δ)-DP alone; as Markdown."""
    wide, rows = Fraction(1, 10**5), []
    for name, selector in selectors(k, epsilon, delta).items():
        totals = [total(guarantees(selector) * uses, wide).epsilon for uses in USES]
        rows.append([name, *(f"{each:.2f}" for each in totals)])
    return markdown(["method", *(f"{uses} uses" for uses in USES)], rows)


def noisy_max_table(candidates: int = 20, epsilon: float = 1.0, trials: int = 400) -> str:
    """Report noisy max by the law of its noise: the lead that the best needs to win 95% of draws.

    All others are level, which is the worst case; utilities move by 1 in either direction, and all
    draws together are (ε, 10⁻⁶)-DP.
    """
    rows = []
    for law in Law:
        row = [law.value]
        for uses in USES:
            made = _of_uses(law, candidates, epsilon, uses)
            row.append(f"{needed_lead(made, candidates, trials):,}" if made else "–")
        rows.append(row)
    return markdown(["noise", *(f"{uses:,} draws" for uses in USES)], rows)


def _of_uses(law: Law, candidates: int, epsilon: float, uses: int) -> NoisyMax | None:
    """The least noise with which so many draws are (ε, 10⁻⁶)-DP together; None if there is none."""

    def made(share: Fraction) -> NoisyMax:
        if law == Law.GAUSSIAN:
            return NoisyMax(law, variance=Fraction(round(1 / share**2)))
        return NoisyMax(law, share)

    def fits(share: Fraction) -> bool:
        return total([made(share).guarantee(candidates)] * uses, DELTA).epsilon <= epsilon

    share = largest(fits, Fraction(epsilon) + Fraction(1, 4096))
    return made(share) if share else None


def needed_lead(noisy: NoisyMax, candidates: int, trials: int) -> int:
    """The least lead with which the first candidate is chosen in 95% of the trials."""

    def wins(lead: int) -> bool:
        utilities = np.array([lead] + [0] * (candidates - 1))
        entropy = seeded_entropy(lead)
        source = entropy.source("noisy max")
        chosen = [noisy.draw(utilities, source) == 0 for _ in range(trials)]
        return float(np.mean(chosen)) >= 0.95

    high = 1
    while not wins(high):
        high *= 2
    low = high // 2
    while high - low > max(1, high // 64):
        middle = (low + high) // 2
        low, high = (low, middle) if wins(middle) else (middle, high)
    return high


def theorem_8_table(
    sizes: tuple[int, ...] = (2, 20, 1000), uses: tuple[int, ...] = (1, 10, 100)
) -> str:
    """RNM-Gaussian beside RNM-Laplace, both charged by Theorem 8, and Laplace noise as ε-DP.

    The lead that the best needs to win 95% of draws, as in :func:`noisy_max_table`, for continuous
    noise and by quadrature; all draws together are (1, 10⁻⁶)-DP, and utilities move by 1.
    """
    rows = []
    for m in sizes:
        for name, shown in (
            ("Gaussian, Theorem 8", _lead_by_theorem(stats.norm, _gaussian_curve, m, uses)),
            ("Laplace, Theorem 8", _lead_by_theorem(stats.laplace, _laplace_curve, m, uses)),
            ("Laplace, ε-DP", [_lead(stats.laplace, 2 / _pure(times), m) for times in uses]),
        ):
            rows.append([f"{m:,}", name, *("–" if x is None else f"{x:,.0f}" for x in shown)])
    return markdown(["m", "noise", *(f"{times:,} draws" for times in uses)], rows)


_ORDERS = np.array([float(order) for order in DEFAULT_ORDERS])


def _gaussian_curve(scale: float) -> Floats:
    """RDP of Gaussian noise σ where two utilities move apart by 2."""
    return np.asarray(2 * _ORDERS / scale**2)


def _laplace_curve(scale: float) -> Floats:
    """RDP of Laplace noise of that scale where two utilities move apart by 2 (Mironov 2017)."""
    a, rate = _ORDERS, 2 / scale
    near = np.log(a / (2 * a - 1)) + (a - 1) * rate
    far = np.log((a - 1) / (2 * a - 1)) - a * rate
    return np.asarray(np.logaddexp(near, far) / (a - 1))


def _lead_by_theorem(
    law: Any, curve: Callable[[float], Floats], m: int, uses: tuple[int, ...]
) -> list[float | None]:
    leads: list[float | None] = []
    for times in uses:

        def over(scale: float, times: int = times) -> float:
            values = times * (curve(scale) + math.log(m) / (_ORDERS - 1))
            return to_approximate(RenyiDP.of(values), DELTA).epsilon - 1

        far = over(1e9) < 0
        leads.append(_lead(law, brentq(over, 1e-2, 1e9, xtol=1e-3), m) if far else None)
    return leads


def _pure(times: int) -> float:
    """ε of each of so many draws that are (1, 10⁻⁶)-DP together."""
    fine = 16  # of the grid of 1/4096
    fits = lambda each: total([PureDP.of(each / fine)] * times, DELTA).epsilon <= 1  # noqa: E731
    return float(largest(fits, Fraction(2 * fine))) / fine


def _lead(law: Any, scale: float, m: int) -> float:
    """The lead with which ``P[x + lead > max of m − 1]`` is 0.95, noise of that law and scale."""
    x = np.linspace(-40, 40, 80_001)  # in scales
    mass = law.pdf(x) * (x[1] - x[0])

    def short(lead: float) -> float:
        return float(np.sum(mass * law.cdf(x + lead) ** (m - 1))) - 0.95

    return scale * float(brentq(short, 0, 40))
